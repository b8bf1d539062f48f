"""Moments by the C core: those of torch in float64, and refusals in words."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding.backends.statistics import channel_moments  # noqa: E402

pytestmark = pytest.mark.skipif(not _native.available, reason="the C core is not built here")


def normal(*shape: int, dtype: Any, offset: float = 0.0) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) + offset).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_they_are_those_of_float64_whatever_the_layout(dtype: Any, offset: float) -> None:
    x = normal(1, 5, 7, 20, 33, dtype=dtype, offset=offset)
    variance, mean = torch.var_mean(x.double(), dim=(0, 2, 3, 4), correction=0)
    last = x.to(memory_format=torch.channels_last_3d)
    wide = torch.cat([x, x], 4)[..., :33]
    first = channel_moments(x)
    for given in (x, last, wide, x.flip(3).flip(3)):
        found = channel_moments(given)
        assert found.count == 7 * 20 * 33
        # The sums' own bound (include/hy3d/moments.h) and torch's roundings in float64.
        assert torch.allclose(found.mean, mean, rtol=1e-13, atol=1e-13)
        assert torch.allclose(found.deviations, variance * found.count, rtol=2e-10, atol=0)
        assert torch.equal(found.mean, first.mean)
        assert torch.equal(found.deviations, first.deviations)


def test_no_thread_count_changes_a_bit() -> None:
    x = normal(1, 9, 3, 40, 60, dtype=torch.float32)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(channel_moments(x))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(other.mean, found[0].mean)
        assert torch.equal(other.deviations, found[0].deviations)


def test_without_the_core_torch_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(1, 4, 2, 30, 30, dtype=torch.float32)
    ours = channel_moments(x)
    monkeypatch.setattr(_native, "available", False)
    torchs = channel_moments(x)
    assert torch.allclose(ours.mean, torchs.mean, rtol=1e-5, atol=1e-6)
    assert torch.allclose(ours.deviations, torchs.deviations, rtol=1e-5)
    assert channel_moments(x.double()).mean.dtype == torch.float64


def test_a_parameter_and_a_negated_view_are_read() -> None:
    x = normal(1, 2, 1, 5, 5, dtype=torch.float32)
    assert torch.equal(channel_moments(torch.nn.Parameter(x)).mean, channel_moments(x).mean)
    negated = torch._neg_view(x)
    assert torch.equal(channel_moments(negated).mean, -channel_moments(x).mean)


def test_wrong_arguments_get_a_sentence() -> None:
    x, mean, spread = torch.zeros(1, 2, 1, 3, 3), torch.zeros(2).double(), torch.zeros(2).double()
    with pytest.raises(ValueError, match="x must be"):
        _native.channel_moments(x[0], mean, spread)
    with pytest.raises(
        ValueError, match="mean must be a contiguous one-dimensional f64 array of 2"
    ):
        _native.channel_moments(x, mean.float(), spread)
    with pytest.raises(ValueError, match="deviations must be"):
        _native.channel_moments(x, mean, torch.zeros(3).double())
    with pytest.raises(ValueError, match="share memory"):
        _native.channel_moments(x, mean, mean)
    with pytest.raises(ValueError, match="no positions"):
        _native.channel_moments(x[:, :, :0], mean, spread)
    with pytest.raises(_native.Hy3dError, match="not f64"):
        _native.channel_moments(x.double(), mean, spread)
    with pytest.raises(ValueError, match="threads is -1"):
        _native.channel_moments(x, mean, spread, -1)
    flag = _native.CancelFlag()
    flag.request()
    with pytest.raises(_native.Hy3dError, match="cancelled"):
        _native.channel_moments(x, mean, spread, 1, flag)
