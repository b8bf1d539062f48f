"""What the C core refuses, each with a sentence that names the argument; and what it gives back
where nothing else asks: one row a claim."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from core_memory import memory

from hy3d_rocm import _core

ONE, NONE, HUGE = (1, 1, 1), (0, 0, 0), (2**62, 2**62, 1)
X = np.ones((1, 2, 3, 4, 5), np.float32)
W = np.ones((3, 2, 1, 1, 1), np.float32)
FLAT, FACE = np.ones((3, 3), np.float32), np.zeros((1, 3), np.int32)
PIXELS, UV = np.ones(3, np.int32), np.zeros((3, 2), np.float32)
EMPTY = np.empty((3, 0), np.float32)
TEXTURE, TOTAL = np.empty((2, 2, 0), np.float32), np.empty((2, 2), np.float32)
FORMAT = (ONE, 32, 32, (3, 3, 3), ONE, ONE, ONE, ONE, "zeros", 1, "f32", "fast")
PLAN = _core.schedule_plan(latent=(5, 8, 8), factor=(4, 8, 8), causal=1)


def conv(x: Any = X, out: Any = None, modes: Any = "zeros", **more: Any) -> Any:
    out = np.empty((1, 3, 3, 4, 5), np.float32) if out is None else out
    return _core.conv3d(x, W, None, out, ONE, ONE, NONE, NONE, modes, 1, **more)


def blend(tile: Any = X, t: Any = None, h: Any = None, w: Any = None, out: Any = None) -> Any:
    return _core.blend_accumulate(tile, t, h, w, np.zeros_like(X) if out is None else out)


def strided(itemsize: int) -> Any:
    """Floats `itemsize` bytes apart: a stride that is no whole number of elements."""
    record = np.dtype({"names": ["a"], "formats": ["<f4"], "offsets": [0], "itemsize": itemsize})
    return np.zeros(3, record)["a"]


class Buffer:
    """Of whatever format, by the buffer protocol alone: without __dlpack__."""

    def __new__(cls, code: str, count: int) -> Any:
        return memoryview(bytearray(struct.calcsize(code) * count)).cast(code)


def plan_with(**changes: Any) -> dict[str, Any]:
    return {**PLAN, **changes}


def described(**changes: Any) -> dict[str, Any]:
    return {**PLAN, "desc": {**PLAN["desc"], **changes}}


REFUSALS: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: blend(X[0, 0, 0]), ValueError, r"tile and out must be \(N, C, T, H, W\)"),
    (lambda: blend(X[:, :1]), ValueError, "tile has size 1 in dimension 1 but out has 2"),
    (lambda: blend(X, out=X), ValueError, "tile and out share memory"),
    (lambda: blend(object()), TypeError, "tile"),
    (lambda: blend(t=object()), TypeError, "window_t"),
    (lambda: blend(h=np.ones(3, np.float32)), ValueError, "window_h must be a contiguous .* 4 wei"),
    (lambda: blend(w=np.ones(5)), ValueError, "window_w .* type f64, size 5"),
    (lambda: blend(t=np.ones(6, np.float32)[::2]), ValueError, "window_t must be a contiguous"),
    (lambda: _core.blend_accumulate(X), TypeError, "argument"),
    (lambda: _core.schedule_plan(), TypeError, "keyword arguments only"),
    (lambda: _core.schedule_plan(latent=ONE), TypeError, r"needs factor=\(T, H, W\)"),
    (lambda: _core.schedule_plan(latent=ONE, factor=ONE, colour=3), TypeError, "field 'colour'"),
    (lambda: _core.schedule_plan(latent=(0, 1, 1), factor=ONE), ValueError, "latent has 0"),
    (lambda: _core.schedule_tile([], 0), TypeError, "plan must be the dictionary"),
    (lambda: _core.schedule_tile({}, 0), ValueError, "plan lacks 'desc' or 'level'"),
    (lambda: _core.schedule_tile({"desc": 3, "level": 0}, 0), ValueError, "plan lacks"),
    (lambda: _core.schedule_tile(plan_with(level=99), 0), ValueError, "level is 99"),
    (lambda: _core.schedule_tile(plan_with(level="no"), 0), TypeError, "level"),
    (lambda: _core.schedule_tile(described(latent=NONE), 0), ValueError, "latent has 0"),
    (
        lambda: _core.schedule_tile(described(latent=HUGE), 0),
        _core.Hy3dError,
        "not valid any",
    ),
    (lambda: _core.schedule_plan(latent=HUGE, factor=ONE), _core.Hy3dError, "No plan: "),
    (lambda: _core.schedule_tile(described(colour=1), 0), TypeError, "no field 'colour'"),
    (lambda: _core.schedule_tile(PLAN, 1), ValueError, "There is no tile 1: the plan has 1"),
    (lambda: _core.schedule_tile(PLAN, -1), ValueError, "There is no tile -1"),
    (lambda: _core.schedule_tile(PLAN), TypeError, "argument"),
    (lambda: _core.schedule_window(3), TypeError, "argument"),
    (lambda: _core.schedule_window("3", 0, 0), TypeError, "length"),
    (lambda: _core.schedule_window(3, 4, 0), ValueError, "window"),
    (lambda: _core.seed_image(1), TypeError, "argument"),
    (lambda: _core.seed_image(-1, 0), ValueError, "seed"),
    (lambda: _core.peak_run(1), TypeError, "argument"),
    (lambda: _core.peak_run(1025, 1), ValueError, "threads is 1025"),
    (lambda: _core.peak_run("1", 1), TypeError, "threads"),
    (lambda: _core.peak_run(1, 0), ValueError, "rounds is 0: it must be 1 to"),
    (lambda: conv(modes="mirror"), ValueError, "pad_modes has 'mirror'"),
    (lambda: conv(modes=("zeros", "zeros", 3)), ValueError, "pad_modes has 3"),
    (lambda: conv(modes=("zeros", "zeros")), TypeError, "a tuple of three"),
    (lambda: conv(modes=7), TypeError, "pad_modes must be"),
    (lambda: conv(threads=2**40), ValueError, "threads is 1099511627776: there are not so many"),
    (lambda: conv(X[0, 0]), ValueError, "x has 3 dimensions"),
    (
        lambda: conv(out=np.empty((1, 3, 3, 4, 6), np.float32)),
        ValueError,
        r"out is \(1, 3, 3, 4, 6\) but",
    ),
    (lambda: conv(Buffer("i", 4)), ValueError, "x has element format 'i'"),
    (lambda: conv(Buffer("B", 4)), ValueError, "x has element format 'B'"),
    (lambda: _core.conv3d(X), TypeError, "argument"),
    (lambda: _core.conv3d_out_size(ONE), TypeError, "argument"),
    (lambda: _core.conv3d_prepare(W), TypeError, "argument"),
    (lambda: _core.conv3d_prepare(object(), 1), TypeError, "weight"),
    (lambda: _core.fingerprint(), TypeError, "argument"),
    (lambda: _core.fingerprint(strided(6)), ValueError, "stride of 6 bytes"),
    (lambda: _core.channel_moments(X), TypeError, "argument"),
    (lambda: _core.channel_moments(object(), X, X), TypeError, "x"),
    (lambda: _core.interpolate(X), TypeError, "argument"),
    (lambda: _core.interpolate(FLAT[:, :0], FACE, PIXELS, FLAT, EMPTY), ValueError, "no channels"),
    (lambda: _core.scatter(FLAT, UV, None, TEXTURE, TOTAL), ValueError, "texture has no channels"),
    (lambda: _core.inpaint_vertices(X), TypeError, "argument"),
    (lambda: _core.resolve_device(), TypeError, "argument"),
    (lambda: _core.CancelFlag(1), TypeError, "CancelFlag"),
]


@pytest.mark.parametrize("index", range(len(REFUSALS)))
def test_a_wrong_call_is_refused_with_a_sentence_about_it(index: int) -> None:
    call, error, words = REFUSALS[index]
    live = memory.live()
    with pytest.raises(error, match=words):
        call()
    assert memory.live() == live


@pytest.mark.parametrize(
    ("code", "number"), [("d", np.float64), ("f", np.float32), ("e", np.float16)]
)
def test_buffers_of_each_float_type_come_in_without_dlpack(code: str, number: Any) -> None:
    floats = np.arange(6).astype(number)
    array = memoryview(floats.tobytes()).cast(code) if code != "e" else memoryview(floats)
    assert _core.fingerprint(array) == _core.fingerprint(floats)


def test_a_device_whose_text_is_no_unicode_is_passed_over() -> None:
    class Pipe:
        device = "\ud800"

    assert _core.resolve_device(Pipe, "mine") == ("mine", "default")


def test_without_a_blas_library_a_convolution_in_double_says_so_and_goes_on() -> None:
    program = """
import numpy as np
from hy3d_rocm import _core
x, w, y = np.ones((1, 1, 3, 9, 9)), np.ones((1, 1, 3, 3, 3)), np.empty((1, 1, 1, 7, 7))
for _ in range(2):
    try:
        _core.conv3d(x, w, None, y, *[(1, 1, 1)] * 2, *[(0, 0, 0)] * 2, "zeros", 1)
    except _core.Hy3dError as error:
        print(error.name, "/nowhere/no.so" in str(error), "HY3D_BLAS_LIBRARY" in str(error))
"""
    environment = {**os.environ, "HY3D_BLAS_LIBRARY": "/nowhere/no.so"}
    out = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert out == "HY3D_ERR_BLAS_UNAVAILABLE True True\n" * 2


CORNERS, ORDER = np.eye(3, dtype=np.float32), np.array([[0, 1, 2]], np.int32)
OUT, PICTURE = np.empty((3, 3), np.float32), np.empty((2, 2, 3), np.float32)
CANCELLED: dict[str, Callable[[Any], Any]] = {
    "interpolate": lambda flag: _core.interpolate(CORNERS, ORDER, PIXELS, FLAT, OUT, cancel=flag),
    "vertex_normals": lambda flag: _core.vertex_normals(CORNERS, ORDER, OUT, cancel=flag),
    "scatter": lambda flag: _core.scatter(CORNERS, UV, None, PICTURE, TOTAL, cancel=flag),
}


@pytest.mark.parametrize("name", CANCELLED)
def test_a_cancelled_call_says_which_one_it_was(name: str) -> None:
    flag = _core.CancelFlag()
    CANCELLED[name](flag)
    flag.request()
    with pytest.raises(_core.Hy3dError, match=f"{name}: ") as caught:
        CANCELLED[name](flag)
    assert caught.value.name == "HY3D_ERR_CANCELLED"


def test_a_run_of_the_peak_counts_what_it_did() -> None:
    threads = 2 if _core.cpu_info()["max_threads"] > 1 else 1
    assert _core.peak_run(threads, 5) == 8 * threads * 5 * 768
    assert _core.peak_run(0, 1) == 8 * _core.cpu_info()["max_threads"] * 768


def test_images_of_a_seed_differ_from_each_other() -> None:
    assert len({_core.seed_image(7, i) for i in range(100)}) == 100
