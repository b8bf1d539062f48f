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

HEAD = (
    "import hashlib, signal, sys, time\n"
    "from hy3d_rocm.cli.stopping import interruptible\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whatever the parent ignores
    "say = lambda text: print(text, file=sys.stderr, flush=True)\n"
    "with interruptible(say) as cancel:\n"
    "    say('began')\n"
)
# A call of minutes that lets other threads run and does not look at signals.
NATIVE = HEAD + "    hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)\n"
PYTHON = HEAD + (
    "    try:\n"
    "        while True: time.sleep(0.01)\n"
    "    except KeyboardInterrupt:\n"
    "        time.sleep(1.5); say('put in order'); sys.exit(3)\n"
)
ONCE = HEAD + "    cancel.wait(60)\nsay('in order')\nsys.exit(4)\n"


def begin(code: str) -> Any:
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
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
