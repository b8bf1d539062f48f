"""What the twins' package answers without the compiled core, value by value."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

from hy3d_rocm import _fallback, _native


def test_a_failure_carries_its_status_and_its_name() -> None:
    error = _fallback.Hy3dError("text", 4)
    assert (str(error), error.status, error.name) == ("text", 4, "HY3D_ERR_OVERFLOW")
    usual = _fallback.Hy3dError()
    assert (str(usual), usual.status, usual.name) == ("", 3, "HY3D_ERR_UNSUPPORTED")
    assert _fallback.Hy3dError("", 99).name == "unknown"


def test_a_cancel_flag_is_raised_and_taken_back() -> None:
    flag = _fallback.CancelFlag()
    assert flag.requested is False
    flag.request()
    assert flag.requested is True
    flag.reset()
    assert flag.requested is False


@pytest.mark.parametrize(
    "refusing",
    [_fallback.PreparedWeights, _fallback.conv3d, _fallback.conv3d_format,
     _fallback.conv3d_prepare, _fallback.fingerprint],
)  # fmt: skip
def test_the_convolution_is_refused_with_what_brings_it(refusing: Any) -> None:
    with pytest.raises(_fallback.Hy3dError, match=r"^The CPU convolution needs the C core, .*pip"):
        refusing()


def test_moments_and_rasteriser_are_refused_with_what_brings_them() -> None:
    with pytest.raises(_fallback.Hy3dError, match=r"^channel_moments needs the C core, .*pip"):
        _fallback.channel_moments(1, x=2)
    for name in ("rasterize", "interpolate", "scatter", "vertex_normals", "inpaint_vertices"):
        with pytest.raises(_fallback.Hy3dError, match=r"^The rasteriser needs the C core, .*pip"):
            getattr(_fallback, name)(1, x=2)


@pytest.mark.parametrize(
    "refusing",
    [_fallback.compile_schedule, _fallback.graph_sizes, _fallback.Schedule, _fallback.Program],
)
def test_programs_are_refused_with_what_brings_them(refusing: Any) -> None:
    with pytest.raises(_fallback.Hy3dError, match=r"^Decode programs need the C core, .*pip"):
        refusing()


def test_the_processor_is_python_with_the_threads_it_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = {"level": "python", "detected": "python", "levels": ()}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7} if pid == 0 else set())
    assert _fallback.cpu_info() == {**info, "max_threads": 3}
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert _fallback.cpu_info() == {**info, "max_threads": 6}
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert _fallback.cpu_info() == {**info, "max_threads": 1}


def test_there_is_no_blas() -> None:
    assert _fallback.blas_info() == {
        "available": False, "text": "", "error": f"the C core is not built: {_fallback.INSTALL}",
    }  # fmt: skip


def test_sizes_are_those_of_the_core() -> None:
    axes = itertools.product((1, 2, 7, 8), (1, 3), (1, 2, 3), (1, 2), (-2, 0, 1, 2), (-1, 0, 1))
    for size, kernel, stride, dilation, before, after in axes:
        given = tuple(
            (a, b, 9) for a, b in ((size, 9), (kernel, 2), (stride, 2), (dilation, 3), (before, 1),
                                   (after, 0))
        )  # fmt: skip
        assert outcome(_fallback.conv3d_out_size, given) == outcome(_native.conv3d_out_size, given)


def outcome(function: Any, arguments: tuple[Any, ...]) -> Any:
    size, kernel, stride, dilation, before, after = ([*axis[:2], 9] for axis in arguments)
    kernel[2], stride[2], dilation[2], before[2], after[2] = 1, 4, 1, 0, 0
    try:
        return function(size, kernel, stride, dilation, before, after)
    except ValueError:
        return "refused"


def test_a_size_is_refused_unless_it_has_three_axes_of_at_least_one() -> None:
    one = ((1, 1, 1),) * 6
    assert _fallback.conv3d_out_size(*one) == (3, 3, 3)
    with pytest.raises(ValueError, match=r"^No such convolution: input \(1, 1\) with kernel"):
        _fallback.conv3d_out_size(*(((1, 1),) * 6))
    with pytest.raises(ValueError):
        _fallback.conv3d_out_size((1, 1), (1, 1, 1), *one[2:])
    none = ((1, 1, 1), (2, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0), (0, 0, 0))
    with pytest.raises(ValueError, match=r"gives \(0, 1, 1\)\.$"):
        _fallback.conv3d_out_size(*none)
