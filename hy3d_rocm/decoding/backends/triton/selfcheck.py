"""What the kernels make of a layer, held against exact sums at random outputs.

A kernel that was compiled wrongly gives a picture, not an error: Triton 3.7 makes some loops wrong
on RDNA3 (https://github.com/triton-lang/triton/issues/11378). So what each kernel makes first in a
process is looked at: what some outputs read is gathered, normalised and summed in float64. The
bound is that of roundings alone (docs/numerics.md), so a sound kernel never fails.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hy3d_rocm.conv.errors import BadResultError, described
from hy3d_rocm.conv.selfcheck import GPU_SUM_UNIT, TF32_UNIT, UNIT, beyond, gamma, wrong_words
from hy3d_rocm.decoding import geometry
from hy3d_rocm.decoding.backends import statistics, torch_ops
from hy3d_rocm.decoding.backends.attention import KeyRanges
from hy3d_rocm.decoding.backends.statistics import Affine
from hy3d_rocm.decoding.layers import Conv, Moments, Norm, Pieces, Range, Weights

_log = logging.getLogger("hy3d_rocm")

# Of so many frames so many positions, and so many channels of each.
_FRAMES, _PLACES, _CHANNELS = 3, 8, 2
_TINY = {torch.float32: 2.0**-149, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}
_SPLIT_TF32 = 2.0**-20  # float32 as three products of TF32
_LARGEST_TILE = 256  # positions
_AT_ONCE = 1 << 18  # values in float64
_KEYS = 1024  # likewise
_SUMS_UNIT = 2.0**-48  # of moments, in float64
_picker = random.Random()


class WrongKernelError(BadResultError):
    """A fused kernel's result is beyond what roundings explain."""


@contextmanager
def safely() -> Iterator[None]:
    """What goes wrong in a check and is no finding, as memory that is short, ends it and nothing
    else."""
    try:
        yield
    except WrongKernelError:
        raise
    except Exception as error:  # noqa: BLE001
        _log.debug("[VAE Decode] A kernel's first result was not checked: %s", described(error))


class _Frame(NamedTuple):
    """Outputs of one frame. number: of the result; own: of the convolution's own, which a shuffle
    makes several of: phase is which of them. rows, columns: (n,), of the result."""

    number: int
    own: int
    phase: int
    rows: Tensor
    columns: Tensor
    channels: Tensor  # (n, m)


class Samples:
    """The outputs that are looked at of one result. size: of the result (1, C, T, H, W), before a
    shuffle that the kernels leave to torch (is_shuffled: they do it). add: what the kernels add to,
    which is read now: the result may be made in its place. affine: of a norm over the channels, the
    factor and summand that follow it; of a group norm all of it."""

    def __init__(
        self, layer: Conv, source: Pieces, frames: Range, size: tuple[int, ...],
        affine: Affine | None, is_shuffled: bool, add: Tensor | None,
    ) -> None:  # fmt: skip
        self.layer, self.source, self.affine = layer, source, affine
        self.shuffle = layer.shuffle if is_shuffled else None
        self.device = source.tensors[0].device
        self.frames = [self._frame(number, frames, size) for number in _some(size[2], _FRAMES)]
        self.residuals = [None if add is None else _at(add, frame) for frame in self.frames]

    def _frame(self, number: int, frames: Range, size: tuple[int, ...]) -> _Frame:
        own, phase, shuffle = frames[0] + number, 0, self.shuffle
        if shuffle is not None:
            lead = shuffle.factor[0]
            if shuffle.first is not None and not frames[0]:
                lead = shuffle.first[0]
            behind, step = number - lead, shuffle.factor[0]
            own, phase = (frames[0], number) if behind < 0 else divmod(behind, step)
            own += 0 if behind < 0 else frames[0] + 1
        _, channels, _, rows, columns = size
        places = [[*_drawn(n, _PLACES - 2), 0, n - 1] for n in (rows, columns)]
        taken = [_drawn(channels, _CHANNELS) for _ in range(_PLACES)]
        drawn = (torch.tensor(made, device=self.device) for made in (*places, taken))
        return _Frame(number, own, phase, *drawn)

    def check(
        self, made: Tensor, weight: Tensor, bias: Tensor | None, uses_tf32: bool,
        moments: Moments | None,
    ) -> None:  # fmt: skip
        """WrongKernelError where values, or moments, are not those of the layer. Waits for the
        device; takes some 10 MB of it."""
        for frame, residual in zip(self.frames, self.residuals, strict=True):
            exact, bound = self._exact(frame, residual, weight, bias, uses_tf32, made.dtype)
            _compare(_at(made, frame), exact, bound, made.dtype)
        if moments is not None:
            self._check_moments(made, moments)

    def _check_moments(self, made: Tensor, moments: Moments) -> None:
        channel = _picker.randrange(made.shape[1])
        values = made[0, channel]
        total = squares = most = torch.zeros((), dtype=torch.float64, device=self.device)
        step = max(1, _AT_ONCE // (values.shape[0] * values.shape[2]))
        for first in range(0, values.shape[1], step):
            wide = values[:, first : first + step].double()
            total, squares = total + wide.sum(), squares + wide.square().sum()
            most = torch.maximum(most, wide.abs().max())
        mean = total / moments.count
        deviations = squares - moments.count * mean**2
        # As tests/long/check_fused.py: of a tile mean and squares are summed in float32.
        slack = (_LARGEST_TILE + 16) * GPU_SUM_UNIT
        wrong = (moments.mean[channel] - mean).abs() > slack * most
        allowed = slack * (deviations + 12 * moments.count * most**2)
        wrong |= (moments.deviations[channel] - deviations).abs() > allowed
        if bool(wrong & squares.isfinite()):
            raise WrongKernelError("the mean or variance of a channel is wrong")

    def _exact(
        self, frame: _Frame, residual: Tensor | None, weight: Tensor, bias: Tensor | None,
        uses_tf32: bool, dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """(n, m) of the outputs and of what roundings may add to them, float64."""
        layer, kernel = self.layer, geometry.kernel_size(weight)
        weight = weight.detach().reshape(*weight.shape[:2], *kernel)
        rows, columns, shuffle = frame.rows, frame.columns, self.shuffle
        taken: tuple[Any, ...] = (frame.channels,)
        bias = None if bias is None else bias.detach()
        if shuffle is not None:
            is_lead = shuffle.first is not None and frame.own == 0
            ways = shuffle.first if is_lead and shuffle.first else shuffle.factor
            kept = len(weight) // math.prod(shuffle.factor)
            weight = torch_ops.by_phase(weight, ways, shuffle.order)[:, :, :, :kept]
            if bias is not None:
                bias = torch_ops.by_phase(bias, ways, shuffle.order)[:, :, :, :kept]
            _, down, across = ways
            taken = frame.phase, rows[:, None] % down, columns[:, None] % across, *taken
            rows = torch.div(rows, down, rounding_mode="floor")
            columns = torch.div(columns, across, rounding_mode="floor")
        of_output = weight[taken].double().flatten(2)  # (n, m, K)
        added = None if bias is None else bias[taken].double()
        window, error = self._window(frame.own, rows, columns, kernel, dtype)
        window, error = window[:, None], error[:, None]
        exact = (window * of_output).sum(2)
        size = ((window.abs() + error) * of_output.abs()).sum(2)
        moved = (error * of_output.abs()).sum(2)
        for more in (added, residual):
            if more is not None:
                exact, size = exact + more, size + more.abs()
        count = of_output.shape[2] + 2
        factor = gamma(count, GPU_SUM_UNIT) + 2.0**-40
        unit = UNIT[dtype]
        if dtype is torch.float32:
            factor += 2 * TF32_UNIT + TF32_UNIT**2 if uses_tf32 else _SPLIT_TF32
        if math.prod(layer.up) > 1:  # sums of weights are rounded once
            factor += unit
        if residual is not None:
            factor += unit
        bound = moved + factor * size
        return exact, bound + unit * (exact.abs() + bound) + _TINY[dtype]

    def _window(
        self, own: int, rows: Tensor, columns: Tensor, kernel: tuple[int, ...], dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """(n, C * kt * kh * kw) of what outputs read and of what roundings may add to it."""
        layer = self.layer
        numbers = geometry.frame_numbers(layer, self.source, (own, own + 1), kernel[0])
        _, _, _, height, width = self.source.tensors[0].shape
        down, is_row = _reads(layer, 1, rows, kernel[1], height)
        across, is_column = _reads(layer, 2, columns, kernel[2], width)
        inside = is_row[:, :, None] & is_column[:, None, :]
        parts, errors = [], []
        size = len(rows), self.source.tensors[0].shape[1], *inside.shape[1:]
        nothing, outside = inside.new_zeros(size, dtype=torch.float64), ~inside[:, None]
        for frame in geometry.frames_of(self.source, numbers):
            x, error = nothing, nothing
            if frame is not None:
                read = frame[:, down[:, :, None], across[:, None, :]].double().movedim(0, 1)
                x, error = self._rows(read, dtype)
            parts.append(x.masked_fill(outside, 0.0))
            errors.append(error.masked_fill(outside, 0.0))
        return torch.stack(parts, 2).flatten(1), torch.stack(errors, 2).flatten(1)

    def _rows(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """x (n, C, ...) normalised and activated, and what roundings may add to it."""
        layer, norm, count = self.layer, self.layer.norm, x.shape[1]
        error = torch.zeros_like(x)
        if norm is not None:
            if norm.kind == "group":
                plain, size = x, x.abs()
            else:
                plain, size = _normed(x, norm)
            factor, summand = x.new_ones(count), x.new_zeros(count)
            if self.affine is not None:
                factor, summand = (a.to(x.device, torch.float64) for a in self.affine)
            factor, summand = (a.view(-1, 1, 1) for a in (factor, summand))
            # Sums over C values and the few operations around them, each within one rounding; an
            # addition's operands may cancel, so that sizes count, not results.
            error = (2 * count + 24) * GPU_SUM_UNIT * (factor.abs() + 4 * GPU_SUM_UNIT) * size
            error = error + 8 * GPU_SUM_UNIT * (summand.abs() + 2)
            x = plain * factor + summand
        if layer.act == "silu":
            # The slope is below 1.1; exp, its sum and the quotient are a few roundings.
            error = 1.1 * error + 16 * GPU_SUM_UNIT * (x.abs() + error)
            x = torch.nn.functional.silu(x)
        if norm is not None or layer.act is not None:
            error = error + UNIT[dtype] * (x.abs() + error) + _TINY[dtype]
        return x, error


def _normed(x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """The bare norm over the channels (l2: without its sqrt(C)), and the size of what it is a
    difference of."""
    if norm.kind == "layer":
        away = x - x.mean(1, keepdim=True)
        scale = (away.square().mean(1, keepdim=True) + norm.eps).rsqrt()
        size = (x.abs() + x.abs().mean(1, keepdim=True)) * scale
        return away * scale, size * (1 + size.amax(1, keepdim=True))
    if norm.kind == "l2":
        scale = 1 / x.square().sum(1, keepdim=True).sqrt().clamp_min(norm.eps)
    else:
        scale = (x.square().mean(1, keepdim=True) + norm.eps).rsqrt()
    return x * scale, x.abs() * scale


def _reads(layer: Conv, axis: int, at: Tensor, kernel: int, length: int) -> tuple[Tensor, Tensor]:
    """(n, k): rows (axis 1) or columns (2) of the source that outputs `at` read, and whether there
    are any: else zeros are read."""
    start = at * layer.stride[axis] - layer.before[axis]
    read = start[:, None] + torch.arange(kernel, device=at.device)
    last = length * layer.up[axis] - 1
    inside = (read >= 0) & (read <= last)
    if layer.modes[axis] == "replicate":
        inside = torch.ones_like(inside)
    return torch.div(read.clamp(0, last), layer.up[axis], rounding_mode="floor"), inside


def _at(x: Tensor, frame: _Frame) -> Tensor:
    """(n, m) of a result or residual, float64."""
    rows, columns = frame.rows[:, None], frame.columns[:, None]
    return x[0, :, frame.number][frame.channels, rows, columns].double()


def _drawn(n: int, count: int) -> list[int]:
    return [_picker.randrange(n) for _ in range(count)]


def _some(count: int, most: int) -> list[int]:
    """The first, the last and some between."""
    return sorted({0, count - 1, *_drawn(count, most - 2)})


def check_attention(q: Tensor, room: Tensor, target: Tensor, ranges: KeyRanges) -> None:
    """As Samples.check(), of softmax(q k^T) v: q (1, heads, queries, D), keys and values in room
    (2, heads, keys, D), target (heads, queries, D)."""
    unit, size = UNIT[q.dtype], q.shape[3]
    for frame in sorted({0, ranges.frames - 1}):
        head, seen = _picker.randrange(q.shape[1]), ranges.of(frame, room.shape[2])
        at = torch.tensor(
            [frame * ranges.tokens + n for n in (*_drawn(ranges.tokens, 1), ranges.tokens - 1)],
            device=q.device,
        )
        queries = q[0, head, at].double()[:, None]  # (n, 1, D)
        keys, values = room[0, head, seen], room[1, head, seen]
        count = len(keys)
        scores, sizes = q.new_empty(len(at), count, dtype=torch.float64), queries.new_zeros(len(at))
        for first in range(0, count, _KEYS):
            products = queries * keys[first : first + _KEYS].double()
            scores[:, first : first + _KEYS] = products.sum(2) * size**-0.5
            sizes = torch.maximum(sizes, products.abs_().sum(2).amax(1) * size**-0.5)
        weights = scores.softmax(1)
        exact, large = (queries.new_zeros(len(at), size) for _ in range(2))
        for first in range(0, count, _KEYS):
            products = (
                weights[:, first : first + _KEYS, None] * values[first : first + _KEYS].double()
            )
            exact, large = exact + products.sum(1), large + products.abs_().sum(1)
        # A score is a sum of D products, scaled once; an exponential has that error and its own;
        # sums of weights are as many roundings as there are keys. Weights are rounded once.
        off = ((size + 8) * GPU_SUM_UNIT * sizes + 8 * GPU_SUM_UNIT)[:, None]
        off = 2 * torch.expm1(2 * off) + 2 * (count + 8) * GPU_SUM_UNIT + unit
        bound = off * large
        bound = bound + unit * (exact.abs() + bound) + _TINY[q.dtype] * (1 + count)
        _compare(target[head, at].double(), exact, bound, q.dtype)


def check_factors(
    found: Affine, norm: Norm, moments: Sequence[Moments], weights: Weights
) -> None:  # fmt: skip
    """As Samples.check(), of a GroupNorm's factor and summand, all of them."""
    known = statistics.grouped(statistics.combine(moments), norm.groups)
    channels = len(found[0])
    exact = known.affine(norm, weights, channels, torch.float64)
    bias = None if norm.bias is None else weights.of(norm.module, norm.bias)
    size = exact[1].abs() if bias is None else exact[1].abs() + bias.double().abs()
    # eps and the results are rounded to float32. Of sums in float64 an error remains that is large
    # where all values are nearly the same.
    same = known.mean.square() / (known.variance + norm.eps)
    off = 2 * UNIT[torch.float32] + _SUMS_UNIT * same.repeat_interleave(channels // norm.groups)
    for got, wanted, large in zip(found, exact, (exact[0].abs(), size), strict=True):
        _compare(got.double(), wanted, off * large + _TINY[torch.float32], torch.float32)


def _compare(got: Tensor, exact: Tensor, bound: Tensor, dtype: torch.dtype) -> None:
    wrong = beyond(got, exact, bound, dtype)
    if bool(wrong.any()):
        raise WrongKernelError(wrong_words(got, exact, bound, wrong))


_distrusted: dict[str, str] = {}


def distrust(device: torch.device, why: str) -> None:
    """From now on the kernels are not taken there by this process."""
    _distrusted[_name(device)] = why


def why_not(device: torch.device) -> str | None:
    """Why they are not, or None."""
    why = _distrusted.get(_name(device)) if _distrusted else None
    return None if why is None else f"the fused kernels gave wrong numbers here ({why})"


def _name(device: torch.device) -> str:
    is_current = device.type == "cuda" and device.index is None
    return f"cuda:{torch.cuda.current_device()}" if is_current else str(device)
