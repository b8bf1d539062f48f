"""One child process with all that it starts: made, spoken to, ended; left if that is impossible."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import re
import secrets
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

CHILD = Path(__file__).resolve().with_name("child.py")
HAS_KEEPER = sys.platform == "linux"
# Set in the child: what runs there must not start children of its own.
INSIDE = "HY3D_ROCM_PROBE_CHILD"

# The process-wide switches that decide what PyTorch asks of the vendor library: torch._C._get_* and
# _set_*, since torch.backends warns or refuses where the newer fp32_precision was used.
FLAGS = (
    "cudnn_enabled",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "cudnn_allow_tf32",
    "cublas_allow_tf32",
    "miopen_immediate",
)

# python, python3.12, python3.13t, python.exe, pythonw.exe, python_d.exe, pypy3
_PYTHON_NAME = re.compile(r"(?:python|pypy)[\d.]*t?(?:w|_d)?(?:\.exe)?", re.IGNORECASE)

# How long the keeper gets to end and reap everything, and how long a killed group to vanish. With
# what else happens at the end this stays within the second that probe() allows itself.
_KEEPER_S = 0.55
_KILLED_S = 0.25
# A thread that is in a read or a write of a pipe which somebody holds is waited for so long.
_THREAD_S = 0.05
# Of a child that is dead, what it wrote is read within this.
_LAST_WORDS_S = 0.03

# The clock is looked at this often while a message is waited for.
_STEP_S = 0.05
_CHUNK = 65536
# What a line of ours may have at most; a longer one is garbage and is dropped up to its end.
_MAX_LINE = 16384
# Of stderr the end is kept: that is where a dying process says why.
_TAIL_BYTES = 65536

# Of Windows' Job Objects.
_EXTENDED_LIMIT_INFORMATION = 9  # JobObjectExtendedLimitInformation
_KILL_ON_JOB_CLOSE = 0x00002000
_DIE_ON_UNHANDLED_EXCEPTION = 0x00000400  # no error dialogue that waits for a click

_left: list[Child] = []
_left_lock = threading.Lock()


# How it is started.


def interpreter(python: str | os.PathLike[str] | None = None) -> tuple[str | None, str]:
    """(path of the Python to start, "") or (None, the sentence why there is none).

    `python` is the caller's own choice. Else it is this process's interpreter. A program that
    embeds Python, or is frozen, has itself as sys.executable: starting that would start the
    program a second time, so anything whose file is not named like a Python is refused. A child
    starts none of its own.
    """
    if os.environ.get(INSIDE):
        return None, "this is a probe's child process itself"
    if python is not None:
        path = os.fspath(python)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path, ""
        return None, f"python={path!r} is not a program that can be started"
    if getattr(sys, "frozen", False):
        return None, "this program is frozen and has no Python interpreter to start a probe with"
    path = sys.executable
    if sys.platform == "win32":
        # A venv's python.exe only starts the real one, which would be outside the Job for a
        # moment. The search path is handed over anyway.
        path = getattr(sys, "_base_executable", None) or path
    if not path:
        return None, "sys.executable is empty: this Python is embedded; pass python=PATH"
    if not _PYTHON_NAME.fullmatch(os.path.basename(path)):
        wrong = "is not named like a Python"
    elif not os.path.isfile(path):
        wrong = "does not exist"
    else:
        return path, ""
    return None, f"sys.executable is {path!r}, which {wrong}; pass python=PATH"


def search_path(path: Sequence[object]) -> list[str]:
    """The host's sys.path for the child: absolute, strings only."""
    return [os.path.abspath(entry) for entry in path if isinstance(entry, str)]


def flags() -> dict[str, bool]:
    """PyTorch's switches as the host has set them; {} where the host has not loaded torch."""
    torch = sys.modules.get("torch")
    found: dict[str, bool] = {}
    for name in FLAGS if torch is not None else ():
        # Not in this version, or set through an interface that this one can't read.
        with contextlib.suppress(AttributeError, RuntimeError):
            found[name] = bool(getattr(torch._C, f"_get_{name}")())  # type: ignore[union-attr]
    return found


def header(nonce: str, keeper: bool, work: Mapping[str, Any]) -> bytes:
    """The first line for a child. nonce: what its reports begin with (Messages)."""
    own = {
        "nonce": nonce, "keeper": keeper, "version": list(sys.version_info[:2]),
        "path": search_path(sys.path), "flags": flags(),
    }  # fmt: skip
    return json.dumps({**own, **work}).encode("ascii") + b"\n"


def start(
    python: str, serve: str = "", stderr: int = subprocess.PIPE,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """serve: "module:function" of what it is, the probe's child by default (child.py). variables:
    of its environment, beside the host's. -I: no PYTHON* variables, no user site, nothing but the
    standard library on the path until the host's own sys.path arrives. -B: nothing is written where
    folders may be read-only."""
    creation = 0
    if sys.platform == "win32":
        creation = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
    return subprocess.Popen(
        [python, "-I", "-B", str(CHILD), *([serve] if serve else [])], bufsize=0,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
        env={**os.environ, INSIDE: "1", **(variables or {})},
        start_new_session=True, creationflags=creation,
    )  # fmt: skip


class EndedError(Exception):
    """The child is gone, and all that it wrote has been heard."""


class LateError(Exception):
    """Patience with what is going on has ended."""


class Child:
    """A started child, which has been told `work`: of a probe the "devices" of cases to come, or a
    "call". serve: see start(). OSError from the constructor where it can't be started."""

    def __init__(self, python: str, work: Mapping[str, Any], serve: str = "") -> None:
        nonce = secrets.token_hex(8)
        self.inbox: deque[dict[str, Any]] = deque()
        self._stderr = Tail()
        self._arrived: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._to_write: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_over: bool | None = None  # what end() said
        self._is_stuck = False  # the keeper says that what it killed does not vanish
        self._has_gone = False  # what the keeper says of the worker, and how
        self._code: int | None = None
        self._is_closed = False
        self._job = Job() if sys.platform == "win32" else None
        try:
            self._process = start(python, serve)
        except OSError:
            if self._job is not None:
                self._job.close()
            raise
        # A thread for each pipe, since Windows' pipes can't be waited for: no call blocks, and a
        # grandchild that holds a pipe holds nobody up.
        feeds = Messages(nonce, self._arrived.put).feed, self._stderr.feed
        self._streams = (
            cast("IO[bytes]", self._process.stdout),
            cast("IO[bytes]", self._process.stderr),
        )
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in zip(self._streams, feeds, strict=True)
        ]
        self._writer = threading.Thread(target=self._write, daemon=True)
        for thread in (*self._readers, self._writer):
            thread.start()
        if self._job is not None:
            try:
                self._job.add(int(getattr(self._process, "_handle")))  # noqa: B009
            except OSError:
                self._process.kill()
                self.end()
                raise
        self._to_write.put(header(nonce, HAS_KEEPER, work))

    def send(self, message: Mapping[str, Any]) -> None:
        """What it does not read is lost without a word."""
        self._to_write.put(json.dumps(message).encode("ascii") + b"\n")

    def _write(self) -> None:
        stdin = cast("IO[bytes]", self._process.stdin)
        with stdin, contextlib.suppress(OSError, ValueError):
            while (data := self._to_write.get()) is not None:
                while data:
                    data = data[os.write(stdin.fileno(), data) :]

    def _read(self, stream: IO[bytes], feed: Callable[[bytes], None]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (data := os.read(stream.fileno(), _CHUNK)) and not self._is_closed:
                feed(data)

    def listen(self, timeout_s: float) -> bool:
        """Moves what has come into the inbox; waits at most `timeout_s` for something. Whether
        there was any."""
        try:
            message = self._arrived.get(timeout=max(timeout_s, 0.001))
        except queue.Empty:
            return False
        if message.get("event") == "exit":
            self._has_gone, self._code = True, message.get("code")
        elif message.get("event") == "stuck":
            self._is_stuck = True
        else:
            self.inbox.append(message)
        return True

    def next_message(self, until: float, step: Callable[[], None] | None = None) -> dict[str, Any]:
        """LateError where none comes until then, EndedError where none can come any more. step() is
        called all the time."""
        while True:
            if step is not None:
                step()
            now, is_done = time.monotonic(), self.is_done()
            if is_done:
                self.hear_out()
            else:
                self.listen(min(_STEP_S, max(until - now, 0.0)))
            if self.inbox:
                return self.inbox.popleft()
            if is_done:
                raise EndedError
            if time.monotonic() >= until:
                raise LateError

    def hear_out(self, wait_s: float = _LAST_WORDS_S) -> None:
        """All that is in the pipes now; wait_s: how long to wait for the end of each."""
        for thread in self._readers:
            thread.join(wait_s)
        while self.listen(0.0):
            pass

    def forget(self) -> None:
        """What it has said so far is of no interest."""
        self.hear_out(0.0)
        self.inbox.clear()
        self._stderr.clear()

    def stderr_lines(self) -> list[str]:
        """The end of what it wrote there."""
        self.listen(0.0)
        return self._stderr.lines()

    def is_done(self) -> bool:
        """Whether nothing more will come but what is in the pipes: see hear_out()."""
        return self._has_gone or self.has_ended()

    def exit_code(self) -> int | None:
        """How it ended (negative: the signal), after it is done; None where that is not known."""
        if self._code is None and self.end():  # no keeper that could have told
            self._code = self._process.returncode
        return self._code

    def has_ended(self) -> bool:
        """Whether the direct child is gone. On POSIX it stays a zombie until end(): as long as it
        is one, the number of its group can't belong to anybody else."""
        if self._process.returncode is not None:
            return True
        if sys.platform == "win32":
            return self._process.poll() is not None
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self._process.pid, flags) is not None
        except ChildProcessError:  # the host ignores SIGCHLD, or reaped it itself
            return True

    def end(self) -> bool:
        """Ends and reaps everything, within _KEEPER_S + _KILLED_S. False: it had to be left."""
        if self._is_over is None:
            self._is_over = self._end()
        return self._is_over

    def _end(self) -> bool:
        if HAS_KEEPER and not self._is_stuck:
            self._to_write.put(None)  # closes its stdin: the order to end everything
            self._wait(_KEEPER_S)
        if not self._is_stuck:
            self._kill_group()
            self._wait(_KILLED_S)
        is_gone = self.has_ended()
        self._close()
        if is_gone:
            self._reap()
        else:
            with _left_lock:
                _left.append(self)
        return is_gone

    def _close(self) -> None:
        """Closes all pipes. A thread that is still in a read keeps its descriptor: closing it under
        the thread could hand its number to another file."""
        self._to_write.put(None)
        self._is_closed = True
        self._writer.join(_THREAD_S)
        for stream, thread in zip(self._streams, self._readers, strict=True):
            thread.join(_THREAD_S)
            if not thread.is_alive():
                stream.close()

    def _wait(self, seconds: float) -> None:
        """Reads on meanwhile: a process that writes to a full pipe could not end by itself."""
        until = time.monotonic() + seconds
        while not self.has_ended() and not self._is_stuck and time.monotonic() < until:
            self.listen(0.01)

    def _kill_group(self) -> None:
        if self._job is not None:
            self._job.kill()
        elif sys.platform != "win32":
            # Nobody left; macOS says the second of a group of zombies.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _reap(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.1)
        if self._job is not None:
            self._job.close()

    def poll_left(self) -> bool:
        """For a child that was left: whether it is gone now. Never waits."""
        if not self.has_ended():
            return False
        self._kill_group()
        self._close()
        self._reap()
        return True


def left_behind() -> int:
    """How many children of earlier probes still can't be ended (uninterruptible in the driver).

    Reaps those that have ended since; never waits.
    """
    with _left_lock:
        _left[:] = [child for child in _left if not child.poll_left()]
        return len(_left)


# What comes from it, and how.


class Messages:
    """Lines of this run out of whatever arrives; anything else is dropped."""

    def __init__(self, nonce: str, put: Callable[[dict[str, Any]], None]) -> None:
        self._prefix = f"{nonce} ".encode("ascii")
        self._put = put
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        # Keeping the start is enough: our messages begin on a new line.
        self._rest = rest[:_MAX_LINE]
        for line in lines:
            if not line.startswith(self._prefix) or len(line) > _MAX_LINE:
                continue
            try:
                message = json.loads(line[len(self._prefix) :])
            except ValueError:
                continue
            if isinstance(message, dict):
                self._put(message)


class Tail:
    """The last _TAIL_BYTES that were fed."""

    def __init__(self) -> None:
        self._data, self._lock = b"", threading.Lock()

    def feed(self, data: bytes) -> None:
        with self._lock:
            self._data = (self._data + data)[-_TAIL_BYTES:]

    def clear(self) -> None:
        with self._lock:
            self._data = b""

    def lines(self) -> list[str]:
        return self._data.decode("utf-8", "replace").splitlines()


# On Windows.


class Job:
    """A Job Object for one child, which ends its processes when its handle closes, so also when the
    host dies. OSError where Windows refuses: then no probe is made.

    Run under wine, not tried on Windows by its authors (the calls are tested against a double).
    https://learn.microsoft.com/en-us/windows/win32/procthread/job-objects
    """

    def __init__(self, kernel32: Any = None) -> None:
        if kernel32 is None:
            kernel32 = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]
        self._kernel32 = kernel32
        kernel32.CreateJobObjectW.restype = ctypes.c_void_p
        self._handle = ctypes.c_void_p(kernel32.CreateJobObjectW(None, None))
        if not self._handle:
            raise OSError("CreateJobObject failed")
        # JOBOBJECT_EXTENDED_LIMIT_INFORMATION of 64-bit Windows: LimitFlags are at byte 16.
        limits = ctypes.create_string_buffer(144)
        struct.pack_into("<I", limits, 16, _KILL_ON_JOB_CLOSE | _DIE_ON_UNHANDLED_EXCEPTION)
        done = kernel32.SetInformationJobObject(
            self._handle, _EXTENDED_LIMIT_INFORMATION, limits, len(limits)
        )
        if not done:
            self.close()
            raise OSError("SetInformationJobObject failed")

    def add(self, process_handle: int) -> None:
        """Before the child has been told anything, so before it can start processes."""
        handle = ctypes.c_void_p(process_handle)
        if not self._kernel32.AssignProcessToJobObject(self._handle, handle):
            raise OSError("AssignProcessToJobObject failed")

    def kill(self) -> None:
        if self._handle:
            self._kernel32.TerminateJobObject(self._handle, 1)

    def close(self) -> None:
        """Also ends what is still in the job."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            self._kernel32.CloseHandle(handle)
