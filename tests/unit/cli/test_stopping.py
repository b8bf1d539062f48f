"""Ctrl-C with real signals: once in order, twice at once, also in a call that never comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

pytest.importorskip("torch")
psutil = pytest.importorskip("psutil")

HEAD = (
    "import signal, sys, time\n"
    "from hy3d_rocm.cli import stopping\n"
    "from hy3d_rocm.cli.stopping import interruptible\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whatever the parent ignores
    "say = lambda text: print(text, file=sys.stderr, flush=True)\n"
    "with interruptible(say) as cancel:\n"
    "    say('began')\n"
)
# A call that never comes back, lets other threads run and does not look at signals.
NATIVE = HEAD + (
    "    import ctypes\n"
    "    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)\n"
    "    libc.pthread_mutex_lock(mutex); libc.pthread_mutex_lock(mutex)\n"
)
# Others come back, on a busy machine later than the watcher is patient.
PATIENT = HEAD.replace("signal.signal", "stopping._PATIENCE_SECONDS = 20.0\nsignal.signal")
PYTHON = PATIENT + (
    "    try:\n"
    "        while True: time.sleep(0.01)\n"
    "    except KeyboardInterrupt:\n"
    "        time.sleep(1.5); say('put in order'); sys.exit(3)\n"
)
# In the midst of one convolution of the C core, which takes six seconds or more.
CORE = (
    "import numpy as np\n"
    "from hy3d_rocm import _core\n"
    + PATIENT
    + "    x, one = np.zeros((1, 64, 33, 288, 288), np.float32), (1, 1, 1)\n"
    "    weight, out = np.zeros((64, 64, 3, 3, 3), np.float32), np.empty_like(x)\n"
    "    try:\n"
    "        say('computes')\n"
    "        _core.conv3d(x, weight, None, out, one, one, one, one, ('zeros',) * 3, 1, threads=1)\n"
    "    except KeyboardInterrupt:\n"
    "        say('put in order'); sys.exit(3)\n"
)
# A call that does not look at signals, until a line is read: of two in it, Python sees one.
DEAF = PATIENT + (
    "    import ctypes, threading\n"
    "    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)\n"
    "    libc.pthread_mutex_lock(mutex)\n"
    "    def wake(): sys.stdin.readline(); libc.pthread_mutex_unlock(mutex)\n"
    "    threading.Thread(target=wake, daemon=True).start()\n"
    "    try:\n"
    "        say('waits'); libc.pthread_mutex_lock(mutex)\n"
    "        while True: time.sleep(0.01)\n"
    "    except KeyboardInterrupt:\n"
    "        say('put in order'); sys.exit(3)\n"
)
ONCE = HEAD + "    cancel.wait(60)\nsay('in order')\nsys.exit(4)\n"


def seconds_of(child: Any) -> float:
    """Processor time, also of one that has ended and was not waited for."""
    used = psutil.Process(child.pid).cpu_times()
    return float(used.user + used.system)


def begin(code: str) -> Any:
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    assert child.stderr.readline() == "began\n"
    return child


@pytest.mark.skipif(os.name == "nt", reason="SIGINT cannot be sent to one process there")
@pytest.mark.parametrize(
    ("code", "times", "exit_code", "last"),
    [
        (ONCE, 1, 4, "in order"),
        (PYTHON, 2, 3, "put in order"),
        (PYTHON, 3, 130, "stopped at once"),
        (NATIVE, 2, 130, "stopped at once"),
    ],
)
def test_ctrl_c_again_stops_at_once(code: str, times: int, exit_code: int, last: str) -> None:
    child = begin(code)
    try:
        child.send_signal(signal.SIGINT)
        assert "Ctrl-C again stops at once" in child.stderr.readline()
        began = time.monotonic()
        for _ in range(times - 1):
            # Two signals that Python sees at once are one to it: the watcher says it before that.
            time.sleep(0.5)
            child.send_signal(signal.SIGINT)
        # Not communicate(), which does not see what readline() has read ahead.
        ending = threading.Timer(30, child.kill)
        ending.start()
        told = child.stderr.read()
        child.wait()
        ending.cancel()
        assert child.returncode == exit_code, told
        assert told.splitlines()[-1] == last
        assert time.monotonic() - began < 30
    finally:
        child.kill()
        child.wait()


@pytest.mark.skipif(os.name == "nt", reason="SIGINT cannot be sent to one process there")
@pytest.mark.parametrize(
    ("code", "order", "exit_code", "last"),
    [
        (PYTHON, "BC", 3, "put in order"), (PYTHON, "CB", 3, "put in order"),
        (PYTHON, "BB", 3, "put in order"), (NATIVE, "BB", 130, "stopped at once"),
    ],
)  # fmt: skip
def test_ctrl_break_counts_as_ctrl_c(code: str, order: str, exit_code: int, last: str) -> None:
    """Windows' second key, in whose place another signal stands here."""
    code = code.replace(
        "with interruptible",
        "stopping._SIGNALS.append(signal.SIGUSR1)\nwith interruptible",
    )
    child = begin(code)
    try:
        for key in order:
            child.send_signal(signal.SIGUSR1 if key == "B" else signal.SIGINT)
            time.sleep(0.5)
        ending = threading.Timer(30, child.kill)
        ending.start()
        told = child.stderr.read()
        assert child.wait(timeout=30) == exit_code, told
        ending.cancel()
        assert "Ctrl-C again stops at once" in told
        assert told.splitlines()[-1] == last
    finally:
        child.kill()
        child.wait()


@pytest.mark.skipif(os.name == "nt", reason="SIGINT cannot be sent to one process there")
def test_the_second_ctrl_c_stops_a_convolution_at_once() -> None:
    pytest.importorskip("hy3d_rocm._core")
    child = begin(CORE)
    try:
        assert child.stderr.readline() == "computes\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        assert "Ctrl-C again stops at once" in child.stderr.readline()
        time.sleep(0.5)
        before = seconds_of(child)
        child.send_signal(signal.SIGINT)
        assert child.stderr.readline() == "put in order\n"
        # The watcher ends a process after one second; another's load makes none of this one's.
        assert seconds_of(child) - before < 0.9
        assert child.wait(timeout=60) == 3
    finally:
        child.kill()
        child.wait()


@pytest.mark.skipif(os.name == "nt", reason="SIGINT cannot be sent to one process there")
def test_two_signals_that_python_sees_as_one_are_two() -> None:
    child = begin(DEAF)
    try:
        assert child.stderr.readline() == "waits\n"
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        time.sleep(0.1)
        child.stdin.write("\n")
        child.stdin.flush()
        told = child.stderr.read()
        assert child.wait(timeout=60) == 3, told
        assert told.splitlines()[-1] == "put in order"
    finally:
        child.kill()
        child.wait()
