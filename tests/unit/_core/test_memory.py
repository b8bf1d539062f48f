"""Faults, threads, processes: what the extension must survive without a changed bit."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from core_memory import Memory, capsule_of, memory
from places import LONG

import hy3d_rocm
from hy3d_rocm import _core
from hy3d_rocm.conv import prepared

RNG = np.random.default_rng(20261121)
X = RNG.standard_normal((1, 16, 4, 12, 13), np.float32)
WEIGHT = RNG.standard_normal((24, 16, 3, 3, 3), np.float32)
BIAS = RNG.standard_normal(24).astype(np.float32)


def convolve(x: Any = X, weight: Any = WEIGHT, bias: Any = BIAS, **options: Any) -> Any:
    return hy3d_rocm.conv3d(x, weight, bias, padding=1, **options)


def half_precision() -> Any:
    return convolve(X.astype(np.float16), WEIGHT.astype(np.float16), BIAS.astype(np.float16))


def strided_input() -> Any:
    return convolve(np.asfortranarray(X), WEIGHT, BIAS, threads=2)


@pytest.mark.parametrize("call", [convolve, half_precision, strided_input])
@pytest.mark.parametrize("forever", [False, True])
def test_every_failed_allocation_is_a_memory_error_and_leaves_nothing_behind(
    call: Callable[[], Any], forever: bool
) -> None:
    prepared.give_back()  # with weights of other tests to give up, a call would come through
    wanted = call()  # what is made once (threads, BLAS) is made here
    live = memory.live()
    start = memory.asked()
    call()
    allocations = memory.asked() - start
    assert allocations >= 1
    for k in range(1, allocations + 1):
        memory.fail(k, forever)
        try:
            with pytest.raises(MemoryError, match="No memory"):
                call()
        finally:
            memory.fail(0)
        assert memory.live() == live, f"allocation {k} of {allocations} leaked"
        np.testing.assert_array_equal(call(), wanted)


# Each number of allocations in a process whose first call it is, forked from one without any.
FIRST_CALL = """
    import os, sys
    import numpy as np
    from core_memory import memory
    from hy3d_rocm import _core
    x = np.arange(2000, dtype=np.float32).reshape(1, 4, 5, 10, 10) % 7
    weight = np.ones((8, 4, 3, 3, 3), np.float32)
    def call(threads):
        out = np.zeros((1, 8, 3, 8, 8), np.float32)
        one, none = (1, 1, 1), (0, 0, 0)
        _core.conv3d(x, weight, None, out, one, one, none, none, "zeros", 1, threads)
        return out
    def first_call(k, forever):
        memory.fail(k, forever)
        try:
            call(2)
            outcome = "came through"
        except MemoryError:
            outcome = "MemoryError"
        memory.fail(0)
        assert (call(2) == call(1)).all()
        print(k, outcome, memory.asked() >= k, flush=True)
    for k in range(1, 12):
        pid = os.fork()
        if pid == 0:
            first_call(k, sys.argv[1] == "1")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0, k
"""


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@needs_fork
@pytest.mark.parametrize("forever", ["0", "1"])
def test_a_first_call_survives_a_failure_of_what_is_made_once(forever: str) -> None:
    outcomes = run_python(FIRST_CALL, forever).splitlines()
    assert len(outcomes) == 11
    assert any("MemoryError" in outcome for outcome in outcomes)


CHECKS = LONG


def run_python(code: str, *arguments: str, **environment: str) -> str:
    """The standard output of a fresh interpreter; a failure shows its standard error."""
    code = f"import sys\nsys.path.append({str(CHECKS)!r})\n{textwrap.dedent(code)}"
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout.strip()


def test_other_threads_run_while_a_convolution_computes() -> None:
    x = np.ones((1, 64, 8, 64, 64), np.float32)
    weight = np.ones((64, 64, 3, 3, 3), np.float32)
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    watcher = threading.Thread(target=tick)
    watcher.start()
    try:
        begin = time.monotonic()
        hy3d_rocm.conv3d(x, weight, padding=1, threads=1)
        end = time.monotonic()
    finally:
        done.set()
        watcher.join()
    inside = sum(begin < t < end for t in ticks)
    # With the GIL held the watcher could not tick once between begin and end.
    assert inside >= 3, f"{inside} ticks in {end - begin:.3f} s"


def test_eight_threads_at_once_get_the_bits_of_one() -> None:
    wanted = convolve(threads=1)
    results: list[Any] = [None] * 8

    def work(place: int) -> None:
        results[place] = [convolve(threads=1 + place % 3) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        for y in result:
            np.testing.assert_array_equal(y, wanted)


def test_a_workspace_limit_is_a_limit_and_none_is_the_default() -> None:
    y = convolve(workspace_limit=None)
    for limit in (0, 1, 63):
        with pytest.raises(_core.Hy3dError, match=f"limit is {limit} bytes, but") as caught:
            convolve(workspace_limit=limit)
        assert caught.value.name == "HY3D_ERR_WORKSPACE_TOO_SMALL"
    needed = int(str(caught.value).split("needs ")[1].split(":")[0])
    with pytest.raises(_core.Hy3dError, match="needs"):
        convolve(workspace_limit=needed - 1)
    np.testing.assert_array_equal(convolve(workspace_limit=needed), y)


def test_thread_count_and_workspace_limit_change_no_bit() -> None:
    wanted = convolve(threads=1)
    with pytest.raises(_core.Hy3dError, match="one grain of this convolution needs") as caught:
        convolve(workspace_limit=1)
    assert caught.value.name == "HY3D_ERR_WORKSPACE_TOO_SMALL"
    needed = int(str(caught.value).split("needs ")[1].split(":")[0])
    for limit in (needed, needed + 64, 4 * needed, None):
        for threads in (1, 2, 5, 2**31):
            y = convolve(threads=threads, workspace_limit=limit)
            np.testing.assert_array_equal(y, wanted)


def test_the_workspace_reported_is_within_the_limit() -> None:
    out = np.empty((1, 24, 4, 12, 13), np.float32)
    one = (1, 1, 1)
    for limit in (10**6, 2 * 10**6, 10**8):
        name, threads, workspace = _core.conv3d(
            X, WEIGHT, BIAS, out, one, one, one, one, "zeros", 1, 2, limit
        )
        assert name
        assert threads in (1, 2)
        assert 0 <= workspace <= limit


@needs_fork
def test_a_child_after_fork_computes_the_same_and_so_does_its_parent() -> None:
    wanted = convolve(threads=2)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:  # only _exit from here on: no pytest in the child
        same = False
        try:
            same = bool(np.array_equal(convolve(threads=2), wanted))
        finally:
            os.write(write_end, b"1" if same else b"0")
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read() == b"1"
    os.waitpid(child, 0)
    np.testing.assert_array_equal(convolve(threads=2), wanted)


def test_a_cancelled_call_says_so_and_the_flag_can_be_used_again() -> None:
    flag = _core.CancelFlag()
    flag.request()
    assert flag.requested
    with pytest.raises(_core.Hy3dError, match="cancelled") as caught:
        convolve(cancel=flag)
    assert (caught.value.status, caught.value.name) == (8, "HY3D_ERR_CANCELLED")
    flag.reset()
    np.testing.assert_array_equal(convolve(cancel=flag), convolve())
    with pytest.raises(TypeError, match="CancelFlag"):
        convolve(cancel=True)


def test_cancel_flags_give_their_memory_back() -> None:
    gc.collect()  # a flag in the traceback of an earlier test
    live = memory.live()
    flags = [_core.CancelFlag() for _ in range(100)]
    assert memory.live() == live + 100
    del flags
    assert memory.live() == live
    memory.fail(1)
    with pytest.raises(MemoryError):
        _core.CancelFlag()
    assert memory.live() == live


def test_two_copies_of_the_module_share_nothing() -> None:
    assert "two contexts" in run_python(
        """
        import sys
        from core_memory import memory
        from hy3d_rocm import _core as first
        del sys.modules["hy3d_rocm._core"]
        import hy3d_rocm
        del hy3d_rocm._core
        import importlib, gc
        second = importlib.import_module("hy3d_rocm._core")
        assert second is not first and second.Hy3dError is not first.Hy3dError
        flag = first.CancelFlag()
        memory.fail(1, True)
        try:
            first.CancelFlag()
        except MemoryError:
            other = second.CancelFlag()
        try:
            second.conv3d_out_size((1,) * 3, (3,) * 3, (1,) * 3, (1,) * 3, (0,) * 3, (0,) * 3)
        except ValueError:
            print("two contexts")
        del first
        gc.collect()
        flag.request()
        assert flag.requested
        """
    )


def test_every_byte_that_a_copy_of_the_module_takes_comes_back() -> None:
    own = Memory()
    core = own.load()
    assert core is not None
    out = np.empty((1, 24, 4, 12, 13), np.float32)
    one = (1, 1, 1)
    core.conv3d(X, WEIGHT, BIAS, out, one, one, one, one, "zeros", 1, 2, accuracy="fast")
    flag = core.CancelFlag()
    taken = own.live_bytes()
    before = memory.live_bytes()
    assert taken > 0
    del core, flag
    gc.collect()
    assert (own.live(), own.live_bytes()) == (0, 0)
    assert memory.live_bytes() == before
    np.testing.assert_array_equal(out, convolve(accuracy="fast"))


def test_an_allocator_that_is_none_is_refused_in_words() -> None:
    class Half(ctypes.Structure):
        _fields_ = (("allocate", ctypes.c_void_p), ("deallocate", ctypes.c_void_p),
                    ("context", ctypes.c_void_p))  # fmt: skip

    def load(allocator: object) -> None:
        spec = importlib.util.find_spec("hy3d_rocm._core")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        module.allocator = allocator  # type: ignore[attr-defined]
        spec.loader.exec_module(module)

    for half in (Half(1, None, None), Half(None, 1, None), Half()):
        with pytest.raises(ValueError, match="allocator must have both its functions"):
            load(capsule_of(ctypes.addressof(half)))
    with pytest.raises(ValueError, match="PyCapsule_GetPointer called with incorrect name"):
        load(capsule_of(ctypes.addressof(half), b"something"))
    with pytest.raises(ValueError, match="PyCapsule_GetPointer called with invalid"):
        load("malloc")


IN_ANOTHER_INTERPRETER = """
    try:
        from hy3d_rocm import _core
        assert _core.seed_image(7, 0) == 7
        assert isinstance(_core.cpu_info(), dict)
    except ImportError as error:
        assert "interpreter" in str(error), error
"""


@pytest.mark.parametrize("isolated", [False, True])
def test_a_second_interpreter_imports_the_core_or_is_refused_in_words(isolated: bool) -> None:
    code = """
        import sys
        isolated = sys.argv[1] == "1"
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
            number = interpreters.create(isolated=isolated)
        else:
            number = interpreters.create("isolated" if isolated else "legacy")
        setup = f"import sys; sys.path[:] = {sys.path}"
        failure = interpreters.run_string(number, setup + sys.argv[2])
        assert failure is None, failure
        interpreters.destroy(number)
        print("done")
    """
    inner = textwrap.dedent(IN_ANOTHER_INTERPRETER)
    assert run_python(code, "1" if isolated else "0", inner) == "done"


@pytest.mark.parametrize("level", ["ref", "avx2"])
def test_a_lower_cpu_level_is_obeyed_and_integers_stay_exact(level: str) -> None:
    code = """
        import numpy as np
        from conv_reference import conv3d_reference
        from hy3d_rocm import _core
        x = (np.arange(16 * 4 * 9 * 9) % 5 - 2).reshape(1, 16, 4, 9, 9).astype(np.float32)
        weight = (np.arange(8 * 16 * 27) % 3 - 1).reshape(8, 16, 3, 3, 3).astype(np.float32)
        out = np.empty((1, 8, 4, 9, 9), np.float32)
        wanted = np.empty_like(out)
        one = (1, 1, 1)
        _core.conv3d(x, weight, None, out, one, one, one, one, "replicate", 1)
        conv3d_reference(x, weight, None, wanted, one, one, one, one, "replicate", 1)
        assert (out == wanted).all()
        print(_core.cpu_info()["level"])
    """
    assert run_python(code, HY3D_CPU=level) in (level, "ref")


def test_an_unknown_cpu_level_is_told_in_a_sentence() -> None:
    code = """
        try:
            import hy3d_rocm._core
        except ValueError as error:
            print(error)
    """
    said = run_python(code, HY3D_CPU="sse9")
    assert said == "HY3D_CPU is 'sse9': it must be ref, avx2 or avx512, or not be set."


def test_a_missing_blas_is_told_in_words() -> None:
    code = """
        from hy3d_rocm import _core
        info = _core.blas_info()
        assert not info["available"] and info["text"] == ""
        print(info["error"])
    """
    assert "/nowhere/libblas.so" in run_python(code, HY3D_BLAS_LIBRARY="/nowhere/libblas.so")
