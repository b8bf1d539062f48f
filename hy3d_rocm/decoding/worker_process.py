"""One of the processes that Workers (workers.py) start: it runs worker.py."""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from hy3d_rocm.capture import VARIABLE as CAPTURE
from hy3d_rocm.conv.probe import process
from hy3d_rocm.decoding import wire
from hy3d_rocm.decoding.group import VARIABLES

SCRIPT = Path(__file__).with_name("worker.py")
#: that a process may take until it can decode: importing torch and the VAE's packages
START_SECONDS = 120.0
_END_SECONDS = 5.0
_LOOK_SECONDS = 0.25
_VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class WorkerError(RuntimeError):
    """A process can't be used; the text names its device and says why."""


class RefusedError(WorkerError):
    """A process can't take what it was sent, and never will."""


class WorkerProcess:
    """One process. WorkerError where it is gone or does not answer."""

    def __init__(self, device: torch.device) -> None:
        python, reason = process.interpreter()
        if python is None:
            raise WorkerError(f"{device}: no process can be started: {reason}")
        self.device, self._why = device, ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        variables = {
            **environment(device, os.environ, bool(torch.version.hip)), process.INSIDE: "",
            CAPTURE: "", **VARIABLES,
        }  # fmt: skip
        self.process = process.start(
            python, SCRIPT, stderr=self._errors.fileno(), variables=variables
        )
        self._to = io.BufferedWriter(cast("io.RawIOBase", self.process.stdin))
        self._writes = threading.Lock()
        self._answers: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._heard = time.monotonic()
        self._is_gone = False
        threading.Thread(target=self._read, daemon=True, name="hy3d-worker").start()
        self._written(START_SECONDS, lambda: self._to.write(_path()))

    def ask(self, name: str, arguments: Mapping[str, Any]) -> None:
        """One of worker.py's Worker's methods."""
        self.write(wire.packed((name, dict(arguments))), START_SECONDS)

    def write(self, message: tuple[bytes, list[Tensor]], seconds: float) -> None:
        """Within so many seconds: one that does not read is killed."""
        self._written(seconds, lambda: wire.send(self._to, message))

    def ping(self, silent_seconds: float) -> None:
        """It shall say something; killed if it has not for so long."""
        silent = time.monotonic() - self._heard
        if silent > silent_seconds:
            self._kill(f"it is stopped or hangs (nothing was heard of it for {silent:.0f} s)")
        elif not self._is_gone:
            with suppress(OSError, ValueError), self._writes:
                wire.ping(self._to)

    def answer(self, until: float, look: Callable[[], None]) -> Any:
        """To the oldest question that has none. look: called now and then meanwhile."""
        said = None
        while True:
            look()
            try:
                said = self._answers.get(timeout=_LOOK_SECONDS)
                break
            except queue.Empty:
                if time.monotonic() > until:
                    self._kill("it did not answer in time")
                    break
        if said is not None and said[0] == "refused":
            raise RefusedError(f"{self.device}: {said[1]}")
        if said is None or said[0] == "failed":
            self._answers.put(None)
            self._why = self._why or (said[1] if said else "")
            raise WorkerError(self.fate() or f"{self.device}: it is gone")
        return said[1]

    def has_ended(self) -> bool:
        return self._is_gone

    def fate(self) -> str:
        """Why it can't be used, "" where it runs."""
        if not self._why:  # it may end just now; one that is gone has not been waited for yet
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_SECONDS if self._is_gone else 0.5)
        if not self._why:
            while (said := self._next()) is not None:
                if said[0] == "failed":
                    self._why = str(said[1])
        code = self.process.poll()
        if self._why or code is None:
            return self._why and f"{self.device}: {self._why}"
        return f"{self.device}: its process ended {_ending(code)}{self._last_line()}"

    def end(self) -> None:
        """Its memory is free afterwards."""
        with suppress(OSError, ValueError):
            self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)
        with suppress(OSError, ValueError):
            self._to.close()
        self._errors.close()

    def _next(self) -> tuple[str, Any] | None:
        try:
            return self._answers.get_nowait()
        except queue.Empty:
            return None

    def _kill(self, why: str) -> None:
        self._why = self._why or why
        self.process.kill()

    def _written(self, seconds: float, write: Callable[[], Any]) -> None:
        timer = threading.Timer(seconds, self._kill, ["it did not read what it was sent"])
        timer.daemon = True
        timer.start()
        try:
            with self._writes:
                write()
                self._to.flush()
            self._heard = time.monotonic()  # from here on it shall say something
        except (OSError, ValueError) as error:
            raise WorkerError(self.fate() or f"{self.device}: {error}") from error
        finally:
            timer.cancel()

    def _read(self) -> None:
        answers = io.BufferedReader(cast("io.RawIOBase", self.process.stdout))
        try:
            while (frames := wire.receive(answers)) is not None:
                self._heard = time.monotonic()
                said = wire.unpacked(frames)
                if said[0] != "here":
                    self._answers.put(said)
        finally:
            self._is_gone = True
            self._answers.put(None)
            with suppress(OSError):
                answers.close()

    def _last_line(self) -> str:
        with suppress(OSError, ValueError):
            self._errors.seek(0)
            lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            lines = [line for line in lines if not line.startswith("[W")]  # torch's warnings
            return f" ({lines[-1].strip()[:300]})" if lines else ""
        return ""


def _path() -> bytes:
    return json.dumps(process.search_path(sys.path)).encode() + b"\n"


def _ending(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


def environment(
    device: torch.device, environ: Mapping[str, str], is_hip: bool
) -> dict[str, str]:  # fmt: skip
    """The variables by which a process sees this device alone, as this process numbers it; no GPU
    for the CPU."""
    if device.type == "cpu":
        return dict.fromkeys(_VISIBLE, "-1")
    names = _VISIBLE if is_hip else _VISIBLE[1:]
    seen = next((environ[name] for name in names if environ.get(name, "").strip()), "")
    every = [one.strip() for one in seen.split(",")] if seen else []
    index = device.index or 0
    return dict.fromkeys(names, every[index] if index < len(every) else str(index))
