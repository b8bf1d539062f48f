"""One run of the real ComfyUI: started, asked over HTTP, always ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

HARNESS = Path(__file__).resolve().parent.parent
START_S = 180.0
PROMPT_S = 240.0
# Of the caller's environment; the last two are how some machines find the GPU's driver.
KEPT = ("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME")
Prompt = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Result:
    """What became of one prompt. status: success, error, interrupted or rejected. frames: of the
    error's traceback, as ComfyUI shows them."""

    status: str
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    cached: tuple[str, ...] = ()
    error: str = ""
    error_node: str = ""
    frames: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status == "success"

    def ui(self, node: str, key: str) -> Any:
        """The first thing that node `node` showed under `key`; None if there is none."""
        values = self.outputs.get(node, {}).get(key)
        return values[0] if values else None

    def items(self, node: str = "hash") -> list[str] | None:
        """The hash of each picture that a HarnessHash node saw."""
        digest = self.ui(node, "digest")
        return None if digest is None else digest["items"]

    def seen(self) -> str:
        return f"{self.status} {self.error_node} {self.error}".strip()


def result_of(entry: Mapping[str, Any]) -> Result:
    """The Result in one entry of /history."""
    status = entry.get("status") or {}
    events = dict(status.get("messages", []))
    cached = tuple(events.get("execution_cached", {}).get("nodes", ()))
    outputs = dict(entry.get("outputs", {}))
    if "execution_error" in events:
        data = events["execution_error"]
        error = f"{data.get('exception_type')}: {data.get('exception_message')}".strip()
        frames = tuple(data.get("traceback") or ())
        return Result("error", outputs, cached, error, str(data.get("node_type")), frames)
    if "execution_interrupted" in events:
        return Result("interrupted", outputs, cached)
    return Result("success" if status.get("completed") else "unknown", outputs, cached)


@dataclass(frozen=True)
class Line:
    """One log record or Python warning of the server's process."""

    level: str
    logger: str
    source: str
    message: str

    def is_ours(self, roots: Sequence[str]) -> bool:
        """Whether the pack's logger or a file below one of `roots` made it, or it names one.

        A failed prompt's traceback is the prompt's, whichever files it names.
        """
        if self.source.endswith("execution.py"):
            return False
        places = self.source + self.message
        return self.logger.startswith("hy3d_rocm") or any(root in places for root in roots)

    @property
    def is_bad(self) -> bool:
        return self.level in ("WARNING", "ERROR", "CRITICAL", "PYTHON")


def parse_lines(text: str) -> list[Line]:
    """The records that site/sitecustomize.py wrote, one JSON object a line."""
    fields = ("level", "logger", "source", "message")
    found = (json.loads(line) for line in text.splitlines() if line.strip())
    return [Line(*(str(item[name]) for name in fields)) for item in found]


class Server:
    """`with Server(...) as server:` is ComfyUI, answering; at the end its process is gone."""

    def __init__(
        self,
        core: Path,
        base: Path,
        python: str,
        environ: Mapping[str, str] | None = None,
        modules: tuple[Path, ...] = (),
        flags: Sequence[str] = ("--cpu",),
    ) -> None:
        self.core, self.base, self.python = core, base, python
        self.environ, self.modules, self.flags = dict(environ or {}), modules, flags
        self.port = _free_port()
        self.log = base / "server.log"
        self.record_file = base / "records.jsonl"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        self.record_file.write_text("")
        command = [
            self.python, str(self.core / "main.py"), *self.flags,
            "--base-directory", str(self.base), "--port", str(self.port),
            "--front-end-root", str(self.base / "web"),
            "--database-url", "sqlite:///:memory:", "--disable-auto-launch",
            "--disable-api-nodes",
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.base,
                env=self._environment(), start_new_session=True,
            )  # fmt: skip
        try:
            self.wait(lambda: self._answers(), START_S, "to answer")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the server and whatever it started (its own session), asking once."""
        if self.process is None:
            return
        for how, patience_s in ((signal.SIGINT, 5.0), (signal.SIGKILL, 20.0)):
            try:
                os.killpg(self.process.pid, how)
            except ProcessLookupError:
                break
            try:
                self.process.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue
        self.process = None

    def run(self, prompt: Prompt, timeout_s: float = PROMPT_S) -> Result:
        """Queues `prompt` and waits for its end."""
        identity = self.queue(prompt)
        if isinstance(identity, Result):
            return identity
        return self.finish(identity, timeout_s)

    def queue(self, prompt: Prompt) -> str | Result:
        """The prompt's id, or the Result of a prompt that was refused."""
        try:
            return str(self.ask("/prompt", {"prompt": prompt, "client_id": "harness"})["prompt_id"])
        except urllib.error.HTTPError as refused:
            return Result("rejected", error=refused.read().decode(errors="replace"))

    def finish(self, identity: str, timeout_s: float = PROMPT_S) -> Result:
        self.wait(
            lambda: identity in self.ask(f"/history/{identity}"), timeout_s, "to finish the prompt"
        )
        return result_of(self.ask(f"/history/{identity}")[identity])

    def set(self, name: str, value: Any) -> None:
        """One of ComfyUI's settings, as its front end stores it."""
        self.ask(f"/settings/{name}", value)

    def interrupt(self) -> None:
        self.ask("/interrupt", {})

    def ask(self, path: str, body: Any = None) -> Any:
        """GET, or POST with a JSON body; the JSON that comes back, None for an empty answer."""
        text = self.fetch(path, body)
        return json.loads(text) if text else None

    def fetch(self, path: str, body: Any = None) -> bytes:
        """The same as it comes. OSError where the server answers with an error."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    def wait(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Polls until `done`; TimeoutError after `timeout_s`, RuntimeError if the server ends."""
        end = time.monotonic() + timeout_s
        while not done():
            if self.process is None or self.process.poll() is not None:
                raise RuntimeError(f"ComfyUI ended; its last words: {self.tail()}")
            if time.monotonic() > end:
                raise TimeoutError(f"{timeout_s:.0f} s were not enough {what}: {self.tail()}")
            time.sleep(0.05)

    def lines(self) -> list[Line]:
        return parse_lines(self.record_file.read_text())

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self, characters: int = 600) -> str:
        return self.text()[-characters:]

    def resident_bytes(self) -> int:
        """VmRSS of the server's process."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def _answers(self) -> bool:
        try:
            self.ask("/queue")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def _environment(self) -> dict[str, str]:
        """Little of the caller's: a home of its own, no network, one thread, no HY3D_* of his."""
        paths = [HARNESS / "site", *self.modules]
        own = {
            "HOME": str(self.base / "home"),
            "TMPDIR": str(self.base / "tmp"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONPYCACHEPREFIX": os.environ.get(
                "PYTHONPYCACHEPREFIX", str(self.base.parent / "pycache")
            ),
            "HY3D_HARNESS_RECORDS": str(self.record_file),
            "HY3D_HARNESS_SIGNALS": str(self.base / "signals"),
        }
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return {**kept, **own, **self.environ}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
