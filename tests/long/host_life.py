"""Parts "interpreters", "reload", "exit" and "signals" of check_host.py.

Each case is a process of its own: its exit status, its standard error (empty) and its last line are
what is checked.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIMIT_S = 300
# From Python 3.12 on a fork beside threads is warned of; that it works is what is checked here.
QUIET = "ignore:This process:DeprecationWarning"

START = f"""
import sys
sys.path[:0] = [{str(HERE)!r}]
import gc, os, threading, time
from core_memory import memory
from host_calls import _core, digest, samples
calls = samples()
wanted = {{name: digest(call.run(2)) for name, call in calls.items()}}
def count_threads(wanted=0):
    # A thread that was joined may stand in the system's list a moment longer.
    until = time.monotonic() + 5
    while (count := len(os.listdir("/proc/self/task"))) > wanted > 0 and time.monotonic() < until:
        time.sleep(0.01)
    return count
def check():
    for name, call in calls.items():
        assert digest(call.run(2)) == wanted[name], name
"""

# The core in a second interpreter: with the GIL shared it works or is refused, with one of its own
# it is refused in words; each is made and destroyed, and the first interpreter goes on.
INTERPRETERS = """
try:
    import _interpreters as interpreters
    def create(isolated):
        return interpreters.create("isolated" if isolated else "legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    def create(isolated):
        return interpreters.create(isolated=isolated)
inner = f"import sys; sys.path[:] = {sys.path}\\n" + '''
try:
    from hy3d_rocm import _core
except ImportError as error:
    assert "interpreter" in str(error), error
else:
    from array import array
    numbers = memoryview(array("f", [2.0] * 64)).cast("B").cast("f", (1, 1, 4, 4, 4))
    weight = memoryview(array("f", [3.0])).cast("B").cast("f", (1, 1, 1, 1, 1))
    out = memoryview(array("f", bytes(256))).cast("B").cast("f", (1, 1, 4, 4, 4))
    one, none = (1, 1, 1), (0, 0, 0)
    _core.conv3d(numbers, weight, None, out, one, one, none, none, "zeros", 1, 2)
    assert set(out.cast("B").cast("f")) == {6.0}
    doubles = [memoryview(array("d", [2.0] * n)).cast("B").cast("d", shape) for n, shape in
               ((64, (1, 1, 4, 4, 4)), (1, (1, 1, 1, 1, 1)), (64, (1, 1, 4, 4, 4)))]
    _core.conv3d(doubles[0], doubles[1], None, doubles[2], one, one, none, none, "zeros", 1, 2)
    assert set(doubles[2].cast("B").cast("d")) == {4.0}
    assert _core.blas_info()["available"]
    flag = _core.CancelFlag()
    flag.request()
    try:
        _core.conv3d(numbers, weight, None, out, one, one, none, none, "zeros", 1, 2, None, flag)
    except _core.Hy3dError as error:
        assert error.name == "HY3D_ERR_CANCELLED"
    else:
        raise AssertionError("not cancelled")
    print("worked", flush=True)
'''
threads = count_threads()
live = memory.live()
for turn in range(int(sys.argv[1])):
    number = create(turn % 2 == 1)
    failure = interpreters.run_string(number, inner)
    assert failure is None, failure
    interpreters.destroy(number)
    check()
    assert count_threads(threads) == threads, "threads were left behind"
    assert memory.live() == live
print("done")
"""

RELOAD = """
import importlib
threads = count_threads()
import hy3d_rocm, host_calls
kept = _core
for turn in range(int(sys.argv[1])):
    del sys.modules["hy3d_rocm._core"]
    del hy3d_rocm._core
    fresh = importlib.import_module("hy3d_rocm._core")
    assert fresh is not kept and fresh.Hy3dError is not kept.Hy3dError
    host_calls._core = fresh
    for name, call in samples().items():
        assert digest(call.run(2, fresh.CancelFlag(), None)) == wanted[name], name
    ready = samples()["conv3d fast"].prepare()
    try:
        kept.conv3d(*[None] * 10, cancel=fresh.CancelFlag())
    except TypeError as error:
        assert "CancelFlag" in str(error), error
    else:
        raise AssertionError("a flag of another copy was taken")
    flag = fresh.CancelFlag()
    host_calls._core = kept
    importlib.reload(fresh)
    del fresh, call
    sys.modules["hy3d_rocm._core"] = hy3d_rocm._core = kept
    gc.collect()
    flag.request()  # both live on without the module's name
    assert flag.requested and ready.nbytes > 0
    del flag, ready
    gc.collect()
    assert count_threads(threads) == threads, "the copy's threads were left behind"
check()
print("done")
"""

# What stands at the end of a process, and the status it must end with.
EXITS = {
    "live objects": ("""
flag, ready = _core.CancelFlag(), [call.prepare() for call in calls.values()]
sys.kept = [flag, ready, _core]
plan = _core.schedule_plan(latent=(4, 8, 8), factor=(4, 8, 8))
""", 0),
    "a cycle whose end calls": ("""
class Last:
    def __init__(self):
        self.me, self.call, self.threads = self, calls["conv3d exact f32"].run, 2
        self.flag = _core.CancelFlag()
    def __del__(self, _core=_core):
        self.flag.request()
        _core.seed_image(1, 2)
        _core.trim()
last = Last()
del last
sys.kept = Last()
""", 0),
    "an atexit function that calls": ("""
import atexit
atexit.register(check)
""", 0),
    "daemon threads inside calls": ("""
def forever():
    while True:
        for call in calls.values():
            call.run(2, None, call.prepare())
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.02)
""", 0),
    "daemon threads inside BLAS": ("""
def forever():
    while True:
        calls["conv3d f64"].run(2)
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.02)
""", 0),
    "os._exit beside a call": ("""
def forever():
    while True:
        for call in calls.values():
            call.run(2)
threading.Thread(target=forever).start()
time.sleep(0.02)
print("done", flush=True)
os._exit(7)
""", 7),
    "a forked child that ends as Python does": ("""
child = os.fork()
if child == 0:
    check()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0, "the child failed"
""", 0),
    "a forked child that never called": ("""
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0, "the child failed"
""", 0),
    "a module taken apart": ("""
import hy3d_rocm
del sys.modules["hy3d_rocm._core"], hy3d_rocm._core
flag = _core.CancelFlag()
call = calls["conv3d exact f32"]
del _core
import host_calls
host_calls._core.__dict__.clear()
gc.collect()
flag.request()
""", 0),
    "an exception nobody takes": ("""
sys.excepthook = lambda *_: None
raise SystemError("on purpose")
""", 1),
}  # fmt: skip

# Ctrl-C while the main thread is inside a long call: the call ends as it would, then Python raises.
INTERRUPTED = """
calls = samples(long=True)
name = list(calls)[int(sys.argv[1]) % len(calls)]
sample = calls[name]
def bits():
    return digest(sample.run(2))
wanted = bits()
class Now(KeyboardInterrupt):
    pass
seen = []
def handler(number, frame):
    assert threading.current_thread() is threading.main_thread()
    seen.append(time.perf_counter())
    raise Now
import signal
signal.signal(signal.SIGINT, handler)
def send():
    time.sleep(float(sys.argv[2]))
    os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Thread(target=send).start()
    while not seen:  # an exception that something swallows must not make this endless
        assert bits() == wanted
    raise AssertionError("the handler's exception was lost")
except Now:
    pass
assert len(seen) == 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
assert bits() == wanted
print("done")
"""

# A call in a thread of its own leaves the main thread free: there Ctrl-C arrives at once and can
# raise the flag.
INTERRUPTIBLE = """
calls = samples(long=True)
name = list(calls)[int(sys.argv[1]) % len(calls)]
flag, ended, finished = _core.CancelFlag(), [], threading.Event()
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts with "&"
def work():
    try:
        while True:
            calls[name].run(2, flag)
    except _core.Hy3dError as error:
        ended.append(error.name)
    finished.set()
def send():
    time.sleep(float(sys.argv[2]))
    os.kill(os.getpid(), 2)
try:  # it may come before the threads have begun
    threading.Thread(target=work).start()
    threading.Thread(target=send).start()
    while not finished.wait(60):  # not join: Python 3.11 takes a thread for ended where that is
        pass                      # interrupted
except KeyboardInterrupt:
    flag.request()
assert finished.wait(60)
assert ended == ["HY3D_ERR_CANCELLED"], ended
print("done")
"""


def run_python(code: str, *arguments: str, status: int = 0, what: str = "") -> str:
    """What a fresh interpreter says."""
    began = time.monotonic()
    made = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", QUIET,
         "-c", START + textwrap.dedent(code), *arguments],
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )  # fmt: skip
    said = f"{what} {arguments}: status {made.returncode} after {time.monotonic() - began:.1f} s"
    assert made.returncode == status, f"{said}, not {status}: {made.stderr[-2000:]}"
    assert not made.stderr, f"{said}: {made.stderr[-2000:]}"
    return made.stdout


def interpreters(indices: range, seed: int) -> dict[str, Any]:
    """One interpreter an index, made and destroyed, in one process."""
    lines = run_python(INTERPRETERS, str(len(indices)), what="interpreters").splitlines()
    assert lines[-1] == "done"
    worked = lines.count("worked")
    return {"interpreters": len(indices), "worked": worked, "refused": len(indices) - worked}


def reload(indices: range, seed: int) -> dict[str, Any]:
    """One more copy of the module an index, used, reloaded and dropped, in one process."""
    assert run_python(RELOAD, str(len(indices)), what="reload").endswith("done\n")
    return {"copies": len(indices)}


def ends(indices: range, seed: int) -> dict[str, Any]:
    """One process an index, each kind of end in turn."""
    kinds = [k for k in EXITS if hasattr(os, "fork") or "os.fork()" not in EXITS[k][0]]
    for index in indices:
        kind = kinds[index % len(kinds)]
        code, status = EXITS[kind]
        run_python(code, status=status, what=f"exit {index}, {kind}")
    return {"processes": len(indices), "kinds": len(kinds)}


def signals(indices: range, seed: int) -> dict[str, Any]:
    """One process an index."""
    for index in indices:
        code = (INTERRUPTED, INTERRUPTIBLE)[index % 2]
        delay = random.Random(f"{seed}:{index}").uniform(0, 0.1)
        said = run_python(code, str(index // 2), str(delay), what=f"signals {index}")
        assert said.endswith("done\n"), said
    return {"processes": len(indices)}
