"""One child process with all that it starts: made, watched, ended; left if that is impossible."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO

from hy3d_rocm.conv.probe import launch
from hy3d_rocm.conv.probe.pipes import Messages, Output, Pipes, Tail, make_pipes
from hy3d_rocm.conv.probe.windows import Job

HAS_KEEPER = sys.platform == "linux"

# How long the keeper gets to end and reap everything, and how long a killed group to vanish. With
# what else happens at the end this stays within the second that probe() allows itself.
_KEEPER_S = 0.55
_KILLED_S = 0.25

_left: list[Child] = []
_left_lock = threading.Lock()


class Child:
    """A started child. OSError from the constructor where it can't be started."""

    def __init__(self, python: str, nonce: str, keeper: bool = HAS_KEEPER) -> None:
        self.messages, self.stderr = Messages(nonce), Tail()
        self._keeper = keeper
        self._is_over: bool | None = None  # what end() said
        self.is_stuck = False  # the keeper says that what it killed does not vanish
        self._job = Job() if sys.platform == "win32" else None
        try:
            self._process = _popen(python)
        except OSError:
            if self._job is not None:
                self._job.close()
            raise
        self.pid = self._process.pid
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        stdin, stdout, stderr = (_present(stream) for stream in streams)
        outputs: list[Output] = [(stdout, self.messages.feed), (stderr, self.stderr.feed)]
        self.pipes: Pipes = make_pipes(stdin, outputs)
        if self._job is not None:
            try:
                self._job.add(int(getattr(self._process, "_handle")))  # noqa: B009
            except OSError:
                self._process.kill()
                self.end()
                raise

    def has_ended(self) -> bool:
        """Whether the direct child is gone. On POSIX it stays a zombie until end(): as long as it
        is one, the number of its group can't belong to anybody else."""
        if self._process.returncode is not None:
            return True
        if sys.platform == "win32":
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # the host ignores SIGCHLD, or reaped it itself
            return True

    @property
    def returncode(self) -> int | None:
        """The direct child's, after end(); None if it was left or somebody else reaped it."""
        return self._process.returncode

    def end(self) -> bool:
        """Ends and reaps everything, within _KEEPER_S + _KILLED_S. False: it had to be left."""
        if self._is_over is None:
            self._is_over = self._end()
        return self._is_over

    def _end(self) -> bool:
        if self._keeper and not self.is_stuck:
            self.pipes.hang_up()
            self._wait(_KEEPER_S)
        if not self.is_stuck:
            self._kill_group()
            self._wait(_KILLED_S)
        is_gone = self.has_ended()
        self.pipes.close()
        if is_gone:
            self._reap()
        else:
            with _left_lock:
                _left.append(self)
        return is_gone

    def _wait(self, seconds: float) -> None:
        """Reads on meanwhile: a process that writes to a full pipe could not end by itself."""
        until = time.monotonic() + seconds
        while not self.has_ended() and not self.is_stuck and time.monotonic() < until:
            self.pipes.pump(0.01)
            self.is_stuck = any(m.get("event") == "stuck" for m in self.messages.found)

    def _kill_group(self) -> None:
        if self._job is not None:
            self._job.kill()
            return
        if sys.platform != "win32":
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # nobody left; macOS says the second of a group of zombies

    def _reap(self) -> None:
        try:
            self._process.wait(0.1)
        except subprocess.TimeoutExpired:
            pass
        if self._job is not None:
            self._job.close()

    def poll_left(self) -> bool:
        """For a child that was left: whether it is gone now. Never waits."""
        if not self.has_ended():
            return False
        self._kill_group()
        self._reap()
        return True


def _present(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _popen(python: str) -> subprocess.Popen[bytes]:
    flags = 0
    if sys.platform == "win32":
        flags = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
    return subprocess.Popen(
        launch.command(python), bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=launch.environment(), start_new_session=True,
        creationflags=flags,
    )  # fmt: skip


def left_behind() -> int:
    """How many children of earlier probes still can't be ended (uninterruptible in the driver).

    Reaps those that have ended since; never waits.
    """
    with _left_lock:
        _left[:] = [child for child in _left if not child.poll_left()]
        return len(_left)
