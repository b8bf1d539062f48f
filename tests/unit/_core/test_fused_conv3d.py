"""What may be fused into a convolution, as it comes in from Python: frames, scale and shift, SiLU,
up-sampling, residual.

Data are small integers where sums are then exact, so that results must be equal bit for bit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conv_reference import conv3d_reference
from core_memory import memory
from dlpack_liar import Producer

from hy3d_rocm import _core
from hy3d_rocm.conv.functional import conv2d, conv3d, fused_conv3d

ONE = (1, 1, 1)
NONE = (0, 0, 0)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def integers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


CHANNELS, MADE, T, H, W = 6, 5, 4, 5, 7
X = integers(1, CHANNELS, T, H, W)
WEIGHT = integers(MADE, CHANNELS, 3, 3, 3, seed=1)
BIAS = integers(MADE, seed=2)
SCALE, SHIFT = integers(CHANNELS, seed=3), integers(CHANNELS, seed=4)


def frames_of(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x[0, :, t] for t in range(x.shape[2]))


def expected(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *,
             mode: str = "zeros", scale: Any = None, shift: Any = None, silu: bool = False,
             upsample: tuple[int, ...] = ONE, residual: Any = None) -> torch.Tensor:  # fmt: skip
    """The steps one by one, by torch in f64."""
    y = x.double()
    if scale is not None:
        y = y * scale.double().view(1, -1, 1, 1, 1) + shift.double().view(1, -1, 1, 1, 1)
    y = F.silu(y) if silu else y
    for axis, times in enumerate(upsample):
        y = y.repeat_interleave(times, 2 + axis)
    y = F.pad(y, (1,) * 6, mode="constant" if mode == "zeros" else "replicate")
    y = F.conv3d(y, weight.double(), None if bias is None else bias.double())
    return y if residual is None else y + residual.double()


Way = Callable[..., Any]


def by_core(x: Any, weight: Any, bias: Any, out: Any, mode: str, **fusion: Any) -> None:
    _core.conv3d(x, weight, bias, out, ONE, ONE, ONE, ONE, mode, 1, 2, **fusion)


def by_reference(x: Any, weight: Any, bias: Any, out: Any, mode: str, **fusion: Any) -> None:
    conv3d_reference(x, weight, bias, out, ONE, ONE, ONE, ONE, mode, 1, **fusion)


WAYS = {"core": by_core, "reference": by_reference}


@pytest.mark.parametrize("mode", ["zeros", "replicate"])
@pytest.mark.parametrize("way", WAYS)
def test_frames_are_read_where_they_lie_and_none_is_zeros(way: str, mode: str) -> None:
    last = X.clone(memory_format=torch.channels_last_3d)
    apart = [f.clone() for f in frames_of(X)]
    swapped = [f.transpose(1, 2).contiguous().transpose(1, 2) for f in frames_of(X)]
    for frames in (frames_of(X), list(frames_of(last)), apart, swapped):
        out = torch.full((1, MADE, T, H, W), float("nan"))
        WAYS[way](None, WEIGHT, BIAS, out, mode, frames=frames)
        assert torch.equal(out.double(), expected(X, WEIGHT, BIAS, mode=mode))
    gone = X.clone()
    gone[:, :, 1] = 0
    with_shift = expected(gone, WEIGHT, BIAS, mode=mode)
    out = torch.empty(1, MADE, T, H, W)
    WAYS[way](None, WEIGHT, BIAS, out, mode, frames=(apart[0], None, *apart[2:]))
    assert torch.equal(out.double(), with_shift)


@pytest.mark.parametrize("way", WAYS)
def test_a_frame_of_zeros_stays_one_whatever_the_shift(way: str) -> None:
    shifted = X * SCALE.view(1, -1, 1, 1, 1) + SHIFT.view(1, -1, 1, 1, 1)
    shifted[:, :, 2] = 0
    out = torch.empty(1, MADE, T, H, W)
    frames = [None if t == 2 else f for t, f in enumerate(frames_of(X))]
    WAYS[way](None, WEIGHT, BIAS, out, "zeros", frames=frames, scale=SCALE, shift=SHIFT)
    assert torch.equal(out.double(), expected(shifted, WEIGHT, BIAS))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", WAYS)
def test_scale_shift_and_residual_are_exact_on_integers(way: str, dtype: torch.dtype) -> None:
    x, weight, bias = X.to(dtype), (WEIGHT * (WEIGHT > 1)).to(dtype), BIAS.to(dtype)
    residual = integers(1, MADE, T, H, W, dtype=dtype, seed=5)
    wanted = expected(x, weight, bias, scale=SCALE, shift=SHIFT, residual=residual)
    fusion = {"scale": SCALE, "shift": SHIFT}
    out = torch.empty(1, MADE, T, H, W, dtype=dtype)
    WAYS[way](x, weight, bias, out, "zeros", residual=residual, **fusion)
    assert torch.equal(out, wanted.to(dtype))
    out = residual.clone()
    WAYS[way](x, weight, bias, out, "zeros", residual=out, **fusion)
    assert torch.equal(out, wanted.to(dtype)), "in place"
    out = residual.clone()
    alias = out.view(MADE, -1).view(out.shape)
    WAYS[way](x, weight, bias, out, "zeros", residual=alias, **fusion)
    assert torch.equal(out, wanted.to(dtype)), "in place by another object"


@pytest.mark.parametrize("upsample", [(1, 2, 2), (2, 1, 3), (1, 1, 2), [2, 2, 2]])
@pytest.mark.parametrize("way", WAYS)
def test_upsampling_in_the_index_equals_a_repeated_input(way: str, upsample: Any) -> None:
    size = [n * k for n, k in zip((T, H, W), upsample, strict=True)]
    out = torch.empty(1, MADE, *size)
    WAYS[way](X, WEIGHT, BIAS, out, "replicate", upsample=upsample)
    wanted = expected(X, WEIGHT, BIAS, mode="replicate", upsample=tuple(upsample))
    assert torch.equal(out.double(), wanted)
    if upsample[0] == 1:
        WAYS[way](None, WEIGHT, BIAS, out.zero_(), "replicate", frames=frames_of(X),
                  upsample=upsample)  # fmt: skip
        assert torch.equal(out.double(), wanted)


@pytest.mark.parametrize("way", WAYS)
def test_silu_stays_within_its_bound(way: str) -> None:
    x = torch.randn(1, CHANNELS, T, H, W, generator=torch.Generator().manual_seed(9))
    scale, shift = SCALE + 0.5, SHIFT - 0.25
    wanted = expected(x, WEIGHT, BIAS, scale=scale, shift=shift, silu=True)
    largest = expected(x, WEIGHT, scale=scale, shift=shift, silu=True)
    out = torch.empty(1, MADE, T, H, W)
    WAYS[way](x, WEIGHT, BIAS, out, "zeros", scale=scale, shift=shift, activation="silu")
    # One input value: the factor and the sum each rounded once, then SiLU, whose slope is below
    # 1.1, to within 4 ulp; the sum as docs/numerics.md has it.
    v = x.double() * scale.view(1, -1, 1, 1, 1) + shift.view(1, -1, 1, 1, 1)
    each = (x.double() * scale.view(1, -1, 1, 1, 1)).abs() + v.abs()
    u = 2.0**-24
    at_input = F.conv3d(F.pad(1.1 * u * each + 8 * u * v.abs(), (1,) * 6), WEIGHT.double().abs())
    terms = F.conv3d(F.pad(F.silu(v).abs(), (1,) * 6), WEIGHT.double().abs()) + BIAS.abs().max()
    bound = at_input + (CHANNELS * 27 + 2) * u * terms
    assert largest.abs().max() > 1
    assert ((out.double() - wanted).abs() <= 1.01 * bound).all()


def test_groups_and_batches_take_fusions_too() -> None:
    x = integers(2, CHANNELS, T, H, W, seed=6)
    weight = integers(4, CHANNELS // 2, 3, 3, 3, seed=7)
    scaled = x * SCALE.view(1, -1, 1, 1, 1) + SHIFT.view(1, -1, 1, 1, 1)
    out = torch.empty(2, 4, T, H, W)
    _core.conv3d(x, weight, None, out, ONE, ONE, ONE, ONE, "zeros", 2, scale=SCALE, shift=SHIFT)
    assert torch.equal(out, F.conv3d(scaled, weight, padding=1, groups=2))


def call(out: Any = None, x: Any = X, **options: Any) -> None:
    target = torch.empty(1, MADE, T, H, W) if out is None else out
    _core.conv3d(x, WEIGHT, BIAS, target, ONE, ONE, ONE, ONE, "zeros", 1, **options)


HALVES = torch.ones(2 * CHANNELS)[::2]
REFUSALS: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "x and frames": (ValueError, "x and frames are both given", {"frames": frames_of(X)}),
    "neither": (TypeError, "x must be a torch tensor", {"x": None}),
    "no sequence": (TypeError, "frames must be a tuple", {"x": None, "frames": X}),
    "no frames": (ValueError, "0 items and no array", {"x": None, "frames": ()}),
    "no array": (ValueError, "2 items and no array", {"x": None, "frames": (None, None)}),
    "frame of 4 dimensions": (
        ValueError, r"frames\[0\] has 5 dimensions: it needs 3", {"x": None, "frames": (X,)}),
    "frames of two sizes": (
        ValueError, r"frames\[2\] is \(6, 5, 6\) but the first frame is \(6, 5, 7\)",
        {"x": None, "frames": (None, X[0, :, 0], X[0, :, 0, :, 1:])}),
    "frames of two types": (
        ValueError, r"frames\[1\] is f64 but the first frame is f32",
        {"x": None, "frames": (X[0, :, 0], X[0, :, 0].double())}),
    "a frame of no array": (
        TypeError, r"frames\[1\] must be a torch tensor", {"x": None, "frames": (X[0, :, 0], 3)}),
    "frames and weight": (
        ValueError, "weight is f32 but the frames are f64: convert",
        {"x": None, "frames": frames_of(X.double())}),
    "frames repeated in time": (
        ValueError, "upsample is 2 in time: pass a frame several times",
        {"x": None, "frames": frames_of(X), "upsample": (2, 1, 1)}),
    "upsample of nothing": (ValueError, "each must be at least 1", {"upsample": (1, 0, 1)}),
    "upsample of too much": (ValueError, "no input is so large", {"upsample": (1, 2**62, 1)}),
    "half a factor": (ValueError, "one of scale and shift", {"scale": SCALE}),
    "a factor of f64": (
        ValueError, "shift has 1 dimensions of f64: it needs one of f32",
        {"scale": SCALE, "shift": SHIFT.double()}),
    "a short factor": (
        ValueError, "scale has 5 values but the input has 6 channels",
        {"scale": SCALE[1:], "shift": SHIFT}),
    "a factor with gaps": (ValueError, "scale has gaps", {"scale": HALVES, "shift": SHIFT}),
    "a strange activation": (ValueError, "activation is 'relu': it must be 'silu'",
                             {"activation": "relu"}),
    "a residual of another size": (
        ValueError, r"residual is \(1, 6, 4, 5, 7\) but out is \(1, 5, 4, 5, 7\)", {"residual": X}),
    "a residual of another type": (
        ValueError, "residual is f64 but out is f32",
        {"residual": torch.ones(1, MADE, T, H, W).double()}),
    "accuracy": (ValueError, "accuracy is 'best': it must be 'exact' or 'fast'",
                 {"accuracy": "best"}),
    "accuracy of None": (ValueError, "accuracy is None", {"accuracy": None}),
    "prepared": (TypeError, "prepared must be a PreparedWeights or None", {"prepared": WEIGHT}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_what_does_not_fit_is_told_in_a_sentence(name: str) -> None:
    error, words, options = REFUSALS[name]
    with pytest.raises(error, match=words):
        call(**options)


def test_out_shares_memory_with_the_whole_residual_or_with_nothing() -> None:
    memory = torch.zeros(2 * MADE * T * H * W + 1)
    out = memory[: MADE * T * H * W].view(1, MADE, T, H, W)
    shifted = memory[1 : MADE * T * H * W + 1].view(1, MADE, T, H, W)
    with pytest.raises(ValueError, match="residual lies in part in the memory of out"):
        call(out, residual=shifted)
    with pytest.raises(ValueError, match="residual lies in part"):
        call(out, residual=out.view(1, MADE, T, W, H).transpose(3, 4))
    factors = memory[:CHANNELS]
    with pytest.raises(ValueError, match="out lies in the memory of shift"):
        call(out, scale=SCALE, shift=factors)
    frame = memory[: CHANNELS * H * W].view(CHANNELS, H, W)
    with pytest.raises(ValueError, match=r"out lies in the memory of frames\[1\]"):
        call(out, None, frames=(X[0, :, 0], frame, None, None))


def test_every_frame_s_deleter_runs_once_whatever_happens() -> None:
    for count, fits in ((3, True), (2, False)):
        frames = [Producer((2, 4, 4)) for _ in range(count)]
        out = np.zeros((1, 1, 3, 4, 4), np.float32)
        weight = np.ones((1, 2, 1, 1, 1), np.float32)
        args = (None, weight, None, out, ONE, ONE, NONE, NONE, "zeros", 1)
        if fits:
            _core.conv3d(*args, frames=frames)
        else:
            with pytest.raises(ValueError, match="but the result is"):
                _core.conv3d(*args, frames=frames)
        assert [frame.deleted for frame in frames] == [1] * count


def test_a_list_that_changes_while_it_is_read_changes_nothing() -> None:
    frames: list[Any] = list(frames_of(X))

    class Emptying:
        """Its tensor, once it has emptied the list."""

        def __dlpack_device__(self) -> tuple[int, int]:
            frames.clear()
            return 1, 0

        def __dlpack__(self, **_options: Any) -> Any:
            return X[0, :, 0].__dlpack__()

    frames[0] = Emptying()
    out = torch.empty(1, MADE, T, H, W)
    call(out, None, frames=frames)
    assert torch.equal(out.double(), expected(X, WEIGHT, BIAS))
    assert not frames


def test_every_failed_allocation_with_frames_is_a_memory_error_and_leaves_nothing_behind() -> None:
    out = torch.empty(1, MADE, T, H, W)

    def once() -> None:
        call(out, None, frames=frames_of(X), scale=SCALE, shift=SHIFT, residual=out)

    once()
    gc.collect()
    live, start = memory.live(), memory.asked()
    once()
    allocations = memory.asked() - start
    assert allocations >= 4
    for k in range(1, allocations + 1):
        memory.fail(k)
        try:
            with pytest.raises(MemoryError, match="No memory"):
                once()
        finally:
            memory.fail(0)
        assert memory.live() == live, f"allocation {k} of {allocations} leaked"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", ["exact", None])
def test_fused_conv3d_takes_torch_s_words(dtype: torch.dtype, accuracy: str | None) -> None:
    x, weight, bias = X.to(dtype), (WEIGHT * (WEIGHT > 1)).to(dtype), BIAS.to(dtype)
    residual = integers(1, MADE, T, 2 * H, 2 * W, dtype=dtype, seed=5)
    weight = nn_parameter(weight)
    y = fused_conv3d(
        frames_of(x), weight, bias, padding=1, upsample=(2, 2), scale=SCALE, shift=SHIFT,
        residual=residual, accuracy=accuracy,
    )  # fmt: skip
    wanted = expected(
        x, weight.detach(), bias, scale=SCALE, shift=SHIFT, upsample=(1, 2, 2), residual=residual
    )
    assert torch.equal(y, wanted.to(dtype))
    out = residual.clone()
    assert fused_conv3d(
        frames_of(x), weight, bias, padding=1, upsample=(2, 2), scale=SCALE, shift=SHIFT,
        residual=out, out=out, accuracy=accuracy,
    ) is out  # fmt: skip
    assert torch.equal(out, y)


def nn_parameter(weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(weight, requires_grad=False)


def test_fused_conv3d_takes_causal_padding_a_stride_and_flat_kernels() -> None:
    frames = [None, None, *frames_of(X)]
    y = fused_conv3d(frames, WEIGHT, BIAS, padding=(0, 1, 1), padding_mode="replicate")
    padded = F.pad(X, (1, 1, 1, 1, 0, 0), mode="replicate")
    causal = F.conv3d(F.pad(padded, (0, 0, 0, 0, 2, 0)), WEIGHT, BIAS)
    assert torch.equal(y, causal)
    strided = fused_conv3d(frames_of(X), WEIGHT, padding=1, stride=(1, 2, 2))
    assert torch.equal(strided, F.conv3d(X, WEIGHT, padding=1, stride=(1, 2, 2)))
    flat = fused_conv3d(frames_of(X), WEIGHT[:, :, 0], padding=(0, 1, 1))
    assert torch.equal(flat, F.conv3d(X, WEIGHT[:, :, :1], padding=(0, 1, 1)))


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ((), "frames has no tensor"),
        ((None,), "frames has no tensor"),
        ((X,), r"frames has a tensor of shape \(1, 6, 4, 5, 7\): give tensors \(C, H, W\)"),
        ((X[0, :, 0].int(),), r"frames\[0\] is torch.int32"),
        ((X[0, :, 0].to("meta"),), r"frames\[0\] is a .* on meta"),
    ],
)
def test_fused_conv3d_refuses_other_frames_in_a_sentence(frames: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fused_conv3d(frames, WEIGHT)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["zeros", "replicate"])
def test_negative_padding_crops_upsampled_rows_and_columns(dtype: Any, mode: str) -> None:
    """What is cropped is NaN where no copy of it is left: nothing follows from it."""
    x, weight = X.to(dtype).clone(), WEIGHT.to(dtype)
    x[:, :, :, -1], x[:, :, :, :, 0] = torch.nan, torch.nan
    sides = ((1, 1), (-1, -3), (-2, 1))
    y = fused_conv3d(
        frames_of(x), weight, BIAS.to(dtype), padding=sides, padding_mode=mode, upsample=(2, 2)
    )
    kept = X.double().repeat_interleave(2, 3).repeat_interleave(2, 4)[:, :, :, 1:-3, 2:]
    kept = F.pad(kept, (0, 1, 0, 0, 1, 1), mode="constant" if mode == "zeros" else "replicate")
    assert torch.equal(y, F.conv3d(kept, WEIGHT.double(), BIAS.double()).to(dtype))


def test_negative_padding_of_plain_convolutions_is_torchs_pad() -> None:
    y = conv3d(X, WEIGHT, BIAS, padding=((-1, 0), (-1, 2), (1, -2)))
    assert torch.equal(y, F.conv3d(F.pad(X, (1, -2, -1, 2, -1, 0)), WEIGHT, BIAS))
    flat = conv2d(X[:, :, 0], WEIGHT[:, :, 0], padding=(-1, 0))
    assert torch.equal(flat, F.conv2d(X[:, :, 0, 1:-1], WEIGHT[:, :, 0]))


def test_padding_that_crops_all_of_an_axis_is_a_sentence() -> None:
    words = (
        r"pad_before is \(0, -5, 0\): negative padding crops the input \(4, 5, 7\), of which a "
        r"part must be left\."
    )
    with pytest.raises(ValueError, match=words):
        conv3d(X, WEIGHT, padding=((0, 0), (-5, 9), (0, 0)))
    with pytest.raises(ValueError, match=r"pad_after is \(0, 0, -8\): negative padding crops"):
        conv3d(X, WEIGHT, padding=((0, 0), (0, 0), (9, -8)))
    with pytest.raises(ValueError, match="the dilated kernel is larger than the padded input"):
        conv3d(X, WEIGHT, padding=((0, 0), (0, 0), (-4, -3)))
