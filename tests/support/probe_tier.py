"""Stands for the tier in a probe's real child process: does what the case's spec says.

Loaded by path through HY3D_ROCM_PROBE_TIER_MODULE, so it must not import torch. PROBE_START in
the environment names what happens before the child is ready.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from typing import Any

from probe_bench import bench

from hy3d_rocm.conv import errors

_calls: dict[str, int] = {}


def start() -> None:
    action = os.environ.get("PROBE_START", "")
    if action:
        ACTIONS[action]({})


def run(tier: str, spec: dict[str, Any]) -> None:
    action = spec["do"]
    _calls[spec["id"]] = _calls.get(spec["id"], 0) + 1
    ACTIONS[action](spec)


def _is_first(spec: dict[str, Any]) -> bool:
    return _calls[spec["id"]] == 1


def _sleep(spec: dict[str, Any]) -> None:
    time.sleep(spec["seconds"])


def _slow_find(spec: dict[str, Any]) -> None:
    if _is_first(spec):
        time.sleep(spec["seconds"])


def _hang(spec: dict[str, Any]) -> None:
    while True:
        time.sleep(3600)


def _busy(spec: dict[str, Any]) -> None:
    while True:
        pass


def _second_hangs(spec: dict[str, Any]) -> None:
    time.sleep(spec.get("seconds", 0.0)) if _is_first(spec) else _hang(spec)


def _deaf(spec: dict[str, Any]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    _hang(spec)


def _raise(spec: dict[str, Any]) -> None:
    sys.stderr.write(spec.get("stderr", ""))
    sys.stderr.flush()
    raise RuntimeError(spec["text"])


def _memory(spec: dict[str, Any]) -> None:
    raise MemoryError


def _abort(spec: dict[str, Any]) -> None:
    sys.stderr.write(spec.get("text", ""))
    sys.stderr.flush()
    os.abort()


def _segfault(spec: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _killed(spec: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _keeper_killed(spec: dict[str, Any]) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    _hang(spec)


def _exit(spec: dict[str, Any]) -> None:
    os._exit(spec.get("code", 3))


def _system_exit(spec: dict[str, Any]) -> None:
    raise SystemExit("the tier gave up")


def _pipes() -> list[int]:
    """Every pipe that can be written, the answers' own among them."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            is_pipe = stat.S_ISFIFO(os.fstat(int(name)).st_mode)
            if is_pipe and "w" in _mode(int(name)):
                found.append(int(name))
        except OSError:
            continue
    return found


def _mode(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        flags = next(line for line in file if line.startswith("flags:"))
    return "w" if int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY else "r"


def _garbage(spec: dict[str, Any]) -> None:
    blocks = (
        b"\x00\xff\xfe" * 99,
        b'{"event": "done", "case": 0, "verdict": "error"}\n',
        b"\n" * 9,
    )
    for fd in _pipes():
        for block in blocks:
            os.write(fd, block)
        os.write(fd, b"deadbeefdeadbeef " + b"x" * 70000 + b"no line end")


def _chatty(spec: dict[str, Any]) -> None:
    line = b"MIOpen(HIP): Warning [IsEnoughWorkspace] not enough workspace\n" * 1000
    for _ in range(spec.get("blocks", 40)):
        os.write(1, line)
        os.write(2, line)


def _flood(spec: dict[str, Any]) -> None:
    while True:
        _chatty(spec)


def _grandchildren(spec: dict[str, Any]) -> None:
    """A forked one in the group, one in a session of its own, an exec'd one; all hold what they
    inherit."""
    for leaves in (False, True):
        if os.fork() == 0:
            if leaves:
                os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _hang(spec)
    subprocess.Popen(["sleep", "3600"])
    if spec.get("then") == "hang":
        _hang(spec)
    if spec.get("then") == "abort":
        os.abort()


def _zombies(spec: dict[str, Any]) -> None:
    for _ in range(3):
        if os.fork() == 0:
            os._exit(0)


def _disk_full(spec: dict[str, Any]) -> None:
    """Writes to a file of a full disk; where the case names none, to a device that is full."""
    path = os.path.join(spec["folder"], "miopen.udb") if "folder" in spec else "/dev/full"
    with open(path, "wb", buffering=0) as file:
        for _ in range(1024):
            file.write(b"x" * 65536)
    raise OSError(errno.EINVAL, "64 MiB fitted: that disk was not full")


def _read_only(spec: dict[str, Any]) -> None:
    with open(os.path.join(spec["folder"], "miopen.udb"), "wb") as file:
        file.write(b"x")


def _stop(spec: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _hsa(spec: dict[str, Any]) -> None:
    """As the HSA runtime ends a process: a line on stderr, then SIGABRT."""
    line = "Memory access fault by GPU node-1 (Agent handle: 0x55d0) on address 0x7f00. Reason: "
    _abort({"text": line + "Page not present or supervisor privilege.\n"})


def _known(spec: dict[str, Any]) -> None:
    assert errors.classify_text(spec["text"]) is not None


def _nothing(spec: dict[str, Any]) -> None:
    assert "torch" not in sys.modules, "a fake tier must not cost the import of torch"


ACTIONS = {
    "ok": _nothing, "sleep": _sleep, "slow_find": _slow_find, "hang": _hang, "busy": _busy,
    "second_hangs": _second_hangs, "deaf": _deaf, "raise": _raise, "memory": _memory,
    "abort": _abort, "segfault": _segfault, "killed": _killed, "keeper_killed": _keeper_killed,
    "exit": _exit, "system_exit": _system_exit, "garbage": _garbage, "chatty": _chatty,
    "flood": _flood, "grandchildren": _grandchildren, "zombies": _zombies,
    "disk_full": _disk_full, "read_only": _read_only, "stop": _stop, "hsa": _hsa, "known": _known,
}  # fmt: skip


Bench = bench(run, start)
