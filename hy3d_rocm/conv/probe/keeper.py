"""Linux: the small process between host and worker. Stays able to act whatever the GPU does.

    host -> keeper (session and group leader) -> worker (imports torch, runs the tier) -> compilers

The keeper adopts every orphan below it (PR_SET_CHILD_SUBREAPER, which only concerns itself and
not the host), so that it can end and reap also what has left the process group, and leaves no
zombies where PID 1 does not reap, as in many containers. It ends everything when the host closes
its pipe, dies, or the worker ends. The worker gets PR_SET_PDEATHSIG, so it dies with the keeper.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# How long killed processes may take to vanish before the host is told not to wait for them.
_STUCK_S = 0.3

Tell = Callable[[dict[str, Any]], None]


def _prctl(option: int, value: int) -> None:
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # without it the kill by group remains


def split(control: int, tell: Tell) -> None:
    """Forks. Returns in the worker only; `control` is the read end of the host's pipe.

    Called before any thread exists and before torch is imported.
    """
    host = os.getppid()
    # A host that ignores it hands that on through exec, and then nothing could be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    worker = os.fork()
    if worker == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it died before the line above
            os._exit(1)
        return
    try:
        _keep(worker, control, host, tell)
    finally:
        os._exit(0)


def _keep(worker: int, control: int, host: int, tell: Tell) -> NoReturn:
    poller = select.poll()
    poller.register(control, 0)  # POLLHUP always comes: what is written there is the worker's
    watched = _watch(poller, worker)
    code: int | None = None
    while code is None:
        hung_up = any(fd == control for fd, _ in poller.poll(200 if watched else 20))
        code, any_left = _reap(worker)
        if hung_up or not any_left or os.getppid() != host:
            break
    code = _end_all(worker, code, tell)
    _say(tell, {"event": "exit", "code": code})
    os._exit(0)


def _watch(poller: select.poll, worker: int) -> bool:
    """Wakes the poller at once when the worker ends, where the kernel can (5.3 and newer)."""
    try:
        poller.register(os.pidfd_open(worker), select.POLLIN)
    except (AttributeError, OSError):
        return False
    return True


def _reap(worker: int) -> tuple[int | None, bool]:
    """Reaps whatever has ended: (the worker's return code if it was among it, any left)."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False
        if pid == 0:
            return code, True
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == me
        ]


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as file:
            # The name in brackets may hold spaces and brackets.
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def _end_all(worker: int, code: int | None, tell: Tell) -> int | None:
    """Kills and reaps until nothing is left; the worker's return code."""
    start, told, nap = time.monotonic(), False, 0.002
    while True:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        seen, any_left = _reap(worker)
        code = seen if code is None else code
        if not any_left:
            return code
        if not told and time.monotonic() - start > _STUCK_S:
            _say(tell, {"event": "stuck"})
            told = True
        time.sleep(nap)
        nap = min(2 * nap, 0.1)


def _say(tell: Tell, message: dict[str, Any]) -> None:
    try:
        tell(message)
    except OSError:
        pass  # nobody listens any more
