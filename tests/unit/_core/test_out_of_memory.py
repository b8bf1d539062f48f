"""Python's own allocator fails at each of its allocations in turn: a MemoryError each time, never a
crash, never a wrong answer, and nothing of the core's left behind.

Needs CPython's own test module _testcapi, which some systems do not install."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from places import LONG, SUPPORT

pytest.importorskip("_testcapi", reason="_testcapi makes Python's allocations fail")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

# One call a name. Arrays are made before anything fails.
CALLS = """
import sys, numpy as np, _testcapi
sys.path[:0] = TESTS
from core_memory import memory
from hy3d_rocm import _core
ONE, NONE = (1, 1, 1), (0, 0, 0)
x = np.ones((1, 2, 3, 4, 5), np.float32)
w = np.ones((3, 2, 1, 1, 1), np.float32)
y = np.empty((1, 3, 3, 4, 5), np.float32)
plan = _core.schedule_plan(latent=(5, 8, 8), factor=(4, 8, 8), causal=1)
sizes = (ONE, 32, 32, (3, 3, 3), ONE, ONE, ONE, ONE, ("zeros",) * 3, 1, "f32", "fast")
out = np.zeros_like(x)
means, squares = np.empty(2), np.empty(2)

import core_program as program

class Pipe:
    device = "cpu"

class Module:
    _modules = {"norm": None}
    def parameters(self):
        return iter([Pipe])

class Pipeline:
    components = {"name": 3, "text": object(), "unet": Module(), "vae": Module()}

CALLS = {
    "conv3d": lambda: _core.conv3d(x, w, None, y, ONE, ONE, NONE, NONE, "zeros", 1),
    "conv3d_out_size": lambda: _core.conv3d_out_size((3, 4, 5), ONE, ONE, ONE, NONE, NONE),
    "conv3d_format": lambda: _core.conv3d_format(*sizes),
    "fingerprint": lambda: _core.fingerprint(x),
    "channel_moments": lambda: _core.channel_moments(x, means, squares),
    "resolve_device": lambda: _core.resolve_device(Pipe, None),
    "resolve_device of a pipeline": lambda: _core.resolve_device(Pipeline, None),
    "compile_schedule": lambda: program.everything(),
    "graph_sizes": lambda: _core.graph_sizes(program.NODES, (5, 6, 7)),
    "seed_image": lambda: _core.seed_image(2**62, 3),
    "schedule_plan": lambda: _core.schedule_plan(latent=(5, 8, 8), factor=(4, 8, 8), causal=1),
    "schedule_tile": lambda: _core.schedule_tile(plan, 0),
    "schedule_window": lambda: bytes(_core.schedule_window(300, 10, 10)),
    "blend_accumulate": lambda: _core.blend_accumulate(x, None, None, None, out),
    "cpu_info": lambda: _core.cpu_info(),
    "blas_info": lambda: _core.blas_info(),
    "cancel_flag": lambda: _core.CancelFlag().requested,
    "refusal": lambda: refused(),
}

def refused():
    try:
        _core.schedule_tile(plan, 99)
    except ValueError as error:
        return str(error)
"""
SWEEP = """
call = CALLS[NAME]
wanted = call()
live, failed, quiet, k = memory.live(), 0, 0, 0
while quiet < 20 and k < 3000:
    k += 1
    _testcapi.set_nomemory(k, k + 1)
    try:
        got = call()
    except MemoryError:
        got = MemoryError
    finally:
        _testcapi.remove_mem_hooks()
    if got is MemoryError:
        failed, quiet = failed + 1, 0
    else:
        quiet += 1
        # A look-up that raises is skipped by resolve_device, whatever it raises.
        assert NAME.startswith("resolve_device") or got == wanted, (k, got)
    assert memory.live() == live, k
print(failed)
"""
NAMES = [line.split('"')[1] for line in CALLS.splitlines() if ": lambda" in line]


# A process a call, forked from one that has imported all; what ends badly ends the child.
EACH = """
import os
for NAME in NAMES:
    pid = os.fork()
    if pid == 0:
        exec(SWEEP)
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(pid, 0)[1] != 0:
        sys.exit(f"{NAME} failed")
"""


def test_python_without_memory_is_a_memory_error() -> None:
    given = {"TESTS": [str(SUPPORT), str(LONG)], "NAMES": NAMES, "SWEEP": SWEEP}
    program = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    program += textwrap.dedent(CALLS) + EACH
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert len(run.stdout.split()) == len(NAMES) > 10
