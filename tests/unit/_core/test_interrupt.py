"""Signals while the C core computes: Ctrl-C stops a call, a worker's fault is reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import warm_start

pytest.importorskip("hy3d_rocm._core")

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of one process: not on Windows")

# Begins `call` (which takes seconds), sends SIGINT after 0.15 s, prints how long it then went on
# and what processor time that took.
CHILD = """
import os, signal, sys, threading, time
import numpy as np
from hy3d_rocm import _core

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent ignores
random = np.random.default_rng(0)

def floats(*size):
    return random.random(size, dtype=np.float32)

def convolution(accuracy, dtype=np.float32, channels=512, rows=96):
    x = np.zeros((1, channels, 9, rows, rows), dtype)  # values take time to make and none to use
    weight = floats(channels, channels, 3, 3, 3).astype(dtype)
    out = np.empty_like(x)
    one = (1, 1, 1)
    zeros = ("zeros",) * 3
    return lambda: _core.conv3d(x, weight, None, out, one, one, one, one, zeros, 1,
                                accuracy=accuracy)

def exact():
    return convolution("exact")

def fast():
    return convolution("fast", rows=160)

def double():
    return convolution("exact", np.float64, 512, 64)

def prepare():
    weight = np.zeros((2048, 2048, 3, 3, 3), np.float32)
    one = (1, 1, 1)
    number, _, _ = _core.conv3d_format((9, 96, 96), 2048, 2048, (3, 3, 3), one, one, one, one,
                                       ("zeros",) * 3, 1, "f32", "fast")
    return lambda: _core.conv3d_prepare(weight, number, 1)

def raster():  # large faces upon each other in one picture
    clip = np.concatenate([floats(30000, 3) * 1.8 - 0.9, np.ones((30000, 1), np.float32)], 1)
    faces = random.integers(0, 30000, (100000, 3), dtype=np.int32)
    seen = np.empty((4096, 4096), np.int32)
    weights = np.empty((4096, 4096, 3), np.float32)
    return lambda: _core.rasterize(clip, faces, None, seen, weights, None)

def one_tile():  # a grain that has all the work
    clip = np.concatenate([floats(30000, 3) * 1.8 - 0.9, np.ones((30000, 1), np.float32)], 1)
    faces = random.integers(0, 30000, (6000000, 3), dtype=np.int32)
    seen = np.empty((128, 128), np.int32)
    weights = np.empty((128, 128, 3), np.float32)
    return lambda: _core.rasterize(clip, faces, None, seen, weights, None)

def scatter():  # all points in one band
    points = 10_000_000
    values, uv = floats(points, 3), floats(points, 2) * np.float32(0.01)
    texture, total = np.empty((1024, 1024, 3), np.float32), np.empty((1024, 1024), np.float32)
    return lambda: [_core.scatter(values, uv, None, texture, total) for _ in range(20)]

def normals():  # all faces in one run
    positions = floats(1000, 3)
    faces = random.integers(0, 1000, (10_000_000, 3), dtype=np.int32)
    out = np.empty_like(positions)
    return lambda: [_core.vertex_normals(positions, faces, out, "angle") for _ in range(20)]

def inpaint():  # a path against the corners' order, known at its end only
    count = 30000
    path = np.arange(count, dtype=np.int32)
    faces = np.stack([path[:-2], path[1:-1], path[2:]], 1)
    where = np.stack([(path % 256) / 255, 1 - (path // 256) / 255], 1).astype(np.float32)
    texture, mask = floats(256, 256, 3), np.zeros((256, 256), np.uint8)
    mask[(count - 1) // 256, (count - 1) % 256] = 255
    return lambda: _core.inpaint_vertices(texture, mask, floats(count, 3), where, faces, faces)

call = globals()[sys.argv[1]]()
sent = used = 0.0

def interrupt():
    global sent, used
    time.sleep(0.15)
    sent, used = time.perf_counter(), time.process_time()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
began = time.perf_counter()
try:
    call()
    print("whole", time.perf_counter() - began, time.process_time())
except KeyboardInterrupt:
    print("stopped", time.perf_counter() - sent, time.process_time() - used)
"""

# On a machine that does nothing else it is 0.06 s; here others may compute too.
MOST_SECONDS = 0.2
MOST_SECONDS_BUSY = 5
TRIES = 8


def seconds_until_stopped(name: str) -> float:
    """On a busy machine the processor time of all threads, which is less than the clock's; a tenth
    of the clock's at least, since a call that sleeps takes none."""
    done = warm_start.run("-c", CHILD, name, timeout=110)
    assert done.returncode == 0, done.stderr
    how, seconds, used = done.stdout.split()
    assert how == "stopped", done.stdout
    assert float(seconds) < MOST_SECONDS_BUSY
    return max(min(float(seconds), float(used)), float(seconds) / 10)


@pytest.mark.parametrize(
    "name",
    ["exact", "fast", "double", "prepare", "raster", "one_tile", "scatter", "normals", "inpaint"],
)
def test_ctrl_c_stops_a_call_within_a_fifth_of_a_second(name: str) -> None:
    took = [seconds_until_stopped(name)]
    while min(took) > MOST_SECONDS and len(took) < TRIES:
        took.append(seconds_until_stopped(name))
    assert min(took) <= MOST_SECONDS, took


def run(code: str) -> subprocess.CompletedProcess[str]:
    return warm_start.run("-c", textwrap.dedent(code), timeout=110)


LONG = """
import numpy as np
from hy3d_rocm import _core

x, weight = np.ones((1, 128, 9, 48, 48), np.float32), np.ones((128, 128, 3, 3, 3), np.float32)
out = np.empty_like(x)
one = (1, 1, 1)

def convolve(cancel=None, out=out):
    _core.conv3d(x, weight, None, out, one, one, one, one, ("zeros",) * 3, 1, cancel=cancel)
"""


def test_a_handler_that_does_not_raise_lets_the_call_finish() -> None:
    """Handlers run in the midst of it, and may use the core themselves."""
    done = run(
        LONG
        + """
import os, signal, threading, time
convolve()
expected = out.copy()
began, seen, inner = 0.0, [], np.empty_like(out)

def handler(number, frame):
    seen.append(time.perf_counter() - began)
    convolve(out=inner)

signal.signal(signal.SIGUSR1, handler)
for _ in range(2):
    out[:] = 0
    timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    began = time.perf_counter()
    convolve()
    took = time.perf_counter() - began
    timer.join()
    assert (out == expected).all()
time.sleep(0.01)
assert len(seen) == 2 and (inner == expected).all(), seen
print("good")
"""
    )
    assert done.stdout == "good\n", done.stderr


def test_a_flag_of_the_caller_still_cancels() -> None:
    done = run(
        LONG
        + """
import threading
flag = _core.CancelFlag()
x = np.zeros((1, 128, 33, 192, 192), np.float32)
out = np.empty_like(x)
threading.Timer(0.1, flag.request).start()
try:
    convolve(flag, out)
except _core.Hy3dError as error:
    print(error.name)
"""
    )
    assert done.stdout == "HY3D_ERR_CANCELLED\n", done.stderr


def test_a_thread_beside_the_main_one_computes_on() -> None:
    """Python gives signals to its main thread: what another computes is not stopped by one."""
    done = run(
        LONG
        + """
import os, signal, threading, time
handled = []
signal.signal(signal.SIGINT, lambda *ignored: handled.append(1))
worker = threading.Thread(target=lambda: [convolve() for _ in range(2)])
worker.start()
time.sleep(0.05)
os.kill(os.getpid(), signal.SIGINT)
worker.join()
assert handled == [1] and (out != 0).all()
print("good")
"""
    )
    assert done.stdout == "good\n", done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names threads by /proc")
def test_a_fault_in_a_worker_is_reported() -> None:
    """The signal of a fault, sent to a worker of the pool, comes to faulthandler."""
    done = run(
        LONG
        + """
import ctypes, faulthandler, os, signal, time
faulthandler.enable()
before = set(os.listdir("/proc/self/task"))
convolve()
workers = set(os.listdir("/proc/self/task")) - before
if not workers:
    print("no workers")
    raise SystemExit
tgkill = 234
ctypes.CDLL(None).syscall(tgkill, os.getpid(), int(workers.pop()), signal.SIGSEGV)
time.sleep(20)
print("nobody heard")
"""
    )
    if done.stdout == "no workers\n":
        pytest.skip("one processor: the pool has no workers")
    assert done.returncode == -signal.SIGSEGV, done.stdout
    assert "Fatal Python error: Segmentation fault" in done.stderr
