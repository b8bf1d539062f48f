"""Peers of `bench raster` in processes of their own: their libraries bring LLVM, OpenMP and TBB in
versions that don't go together, and some read their thread count from the environment."""

from __future__ import annotations

import importlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hy3d_rocm.bench.timing import BenchError
from hy3d_rocm.conv.probe.process import interpreter
from tools.dev.bench.raster_jobs import MissingError, Peer

PATIENCE_S = 180.0  # a tree over 10^6 faces, shaders on a busy machine
_START = (
    "import json, sys; sys.path[:0] = [p for p in json.loads(sys.argv[1]) if p not in sys.path]; "
    "from tools.dev.bench.raster_child import main; sys.exit(main(sys.argv[2]))"
)


class ChildError(Exception):
    """What a child was asked failed, or it ended, or it took too long; the text says which."""


def own_python() -> list[str]:
    """The command of this process's Python; BenchError where it has none (an embedded one)."""
    python, why = interpreter()
    if python is None:
        raise BenchError(f"this bench needs processes of its own: {why}")
    return [python]


class Child:
    """A peer's process. A context manager: the process ends with it.

    command: a Python, with arguments. Its search path gets what this process has if it is this
    process's own, else the folders of this checkout and of the peer's module alone.
    """

    def __init__(self, peer: Peer, command: Sequence[str], threads: int) -> None:
        self.peer = peer
        self._threads = threads
        here = importlib.import_module(peer.module)
        paths = sys.path if list(command) == own_python() else _roots(here.__file__)
        start = [*command, "-c", _START, json.dumps(paths), peer.module]
        variables = {**os.environ, **here.variables(threads)}
        try:
            self._process = subprocess.Popen(
                start, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            raise ChildError(f"{command[0]}: {error.strerror}") from error
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process; twice does no harm."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except OSError:  # it has ended, with a request unread
                pass
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def make(self, folder: Path, is_given: bool) -> list[dict[str, Any]]:
        """Its jobs for the scene in `folder`: name, kind, prepared. MissingError, ChildError."""
        request = {"do": "make", "folder": str(folder), "is_given": is_given}
        found: list[dict[str, Any]] = self._ask({**request, "threads": self._threads})["jobs"]
        return found

    def run(self, job: int) -> dict[str, float]:
        """Seconds of each stage, in order."""
        found: dict[str, float] = self._ask({"do": "run", "job": job})["seconds"]
        return found

    def result(self, job: int, folder: Path) -> list[Any]:
        """The last run's arrays."""
        import numpy as np

        files = self._ask({"do": "keep", "job": job, "folder": str(folder)})["files"]
        return [np.load(file) for file in files]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=PATIENCE_S)
        except (OSError, ValueError) as error:
            raise ChildError("its process has ended") from error
        except queue.Empty:
            self._process.kill()
            raise ChildError(f"no answer within {PATIENCE_S:.0f} s: stopped") from None
        if not line:
            raise ChildError(f"its process ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "missing" in answer:
            raise MissingError(answer["missing"])
        if "failed" in answer:
            raise ChildError(answer["failed"])
        return answer

    def _listen(self) -> None:
        """Each line, and an empty one at the end."""
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._answers.put(line)
        except ValueError:  # closed meanwhile
            pass
        self._answers.put("")


def _roots(file: str | None) -> list[str]:
    package = str(Path(__file__).resolve().parents[3])
    return [package] if file is None else [package, str(Path(file).resolve().parent)]
