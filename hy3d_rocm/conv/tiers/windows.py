"""Cutting a convolution into boxes of its output, and the input that each box reads.

Every convolution is 3D here: a 2D one has T = 1. Padding is made by index, for one box at a time,
so no tier needs a padded copy of the whole input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.problem import Box, Problem, Range, Triple

# Sums of products start at multiples of so many positions (64 bytes of f32): where rows are no
# multiples of 16 bytes cuBLAS has slow kernels only. What rounding adds is computed, not stored.
ALIGNED = 16


def strides_of(tensor: torch.Tensor, shape: Problem) -> tuple[int, ...]:
    """Of (N, C, T, H, W), where the samples of a batch of frames may be T (`folded`)."""
    n, c, *rest = tensor.stride()
    t, h, w = rest if len(rest) == 3 else (0, *rest)
    if tensor.shape[0] != shape.batch:
        return 0, c, n, h, w
    sizes = tensor.shape if len(rest) == 3 else (*tensor.shape[:2], 1, *tensor.shape[2:])
    # What has one element has any stride: none is the most divisible one.
    return tuple(s if size > 1 else 0 for s, size in zip((n, c, t, h, w), sizes, strict=True))


def aligned(count: int, unit: int = ALIGNED) -> int:
    """Rounded up to whole units."""
    return -(-count // unit) * unit


def lifted(tensor: torch.Tensor) -> torch.Tensor:
    """(N, C, H, W) as (N, C, 1, H, W); five dimensions as they are."""
    return tensor.unsqueeze(2) if tensor.dim() == 4 else tensor


def lowered(tensor: torch.Tensor, spec: ConvSpec) -> torch.Tensor:
    """The way back: without T for a 2D call, without N where the caller had none."""
    tensor = tensor.squeeze(2) if spec.ndim == 2 and tensor.dim() == 5 else tensor
    return tensor if spec.batched else tensor.squeeze(0)


def counts(box: Box) -> Triple:
    """How many outputs: T, H, W."""
    (t0, t1), (h0, h1), (w0, w1) = box
    return t1 - t0, h1 - h0, w1 - w0


def window(x: torch.Tensor, shape: Problem, box: Box) -> torch.Tensor:
    """The input of a box, x being (N, C, T, H, W): a view where it reads no padding, else a copy
    with the padding in it, in the memory format of x."""
    spans = [shape.span(axis, part) for axis, part in enumerate(box)]
    if all(a >= 0 and b <= n for (a, b), n in zip(spans, shape.size, strict=True)):
        for axis, (first, last) in enumerate(spans):
            x = x.narrow(axis + 2, first, last - first)
        return x
    sizes = (*x.shape[:2], *(b - a for a, b in spans))
    last_first = x.is_contiguous(memory_format=torch.channels_last_3d) and not x.is_contiguous()
    kept = torch.channels_last_3d if last_first else torch.contiguous_format
    into = torch.empty(sizes, dtype=x.dtype, device=x.device, memory_format=kept)
    fill(into, x, shape, box)
    return into


def fill(into: torch.Tensor, x: torch.Tensor, shape: Problem, box: Box) -> None:
    """Writes the input of a box, padding included, into `into` (N, C, T, H, W of any strides)."""
    for axis, part in enumerate(box):
        first, last = shape.span(axis, part)
        length, size = last - first, shape.size[axis]
        # A box may lie in the padding as a whole.
        start, stop = min(max(-first, 0), length), max(min(size - first, length), 0)
        for a, b in ((0, start), (stop, length)):
            if a < b:
                into.narrow(axis + 2, a, b - a).zero_()
        if start >= stop:
            return
        into = into.narrow(axis + 2, start, stop - start)
        x = x.narrow(axis + 2, first + start, stop - start)
    into.copy_(x)


def in_pieces(
    spec: ConvSpec, x: torch.Tensor, out: torch.Tensor, steps: Triple,
    compute: Callable[[torch.Tensor], torch.Tensor],
) -> None:  # fmt: skip
    """out by compute(), which is given the padded input of each sample and box, one at a time.

    x, out: of 4 or 5 dimensions, as what compute() is given, and gives."""
    is_flat, x, out = x.dim() == 4, lifted(x), lifted(out)
    for n in range(x.shape[0]):
        for box in boxes(spec.problem.box, steps):
            piece = window(x[n : n + 1], spec.problem, box)
            made = compute(piece.squeeze(2) if is_flat else piece)
            target(out[n : n + 1], box).copy_(lifted(made))
            del piece, made  # before the next ones are made


def cut(count: int, step: int) -> Iterator[Range]:
    """count in parts of about equal size, none above step."""
    parts = -(-count // step)
    for index in range(parts):
        yield index * count // parts, (index + 1) * count // parts


def boxes(box: Box, steps: Triple) -> Iterator[Box]:
    """The box in smaller ones of at most `steps` outputs."""
    for t in cut(box[0][1] - box[0][0], steps[0]):
        for h in cut(box[1][1] - box[1][0], steps[1]):
            for w in cut(box[2][1] - box[2][0], steps[2]):
                (t0, t1), (h0, h1), (w0, w1) = (
                    (base + a, base + b) for (base, _), (a, b) in zip(box, (t, h, w), strict=True)
                )
                yield (t0, t1), (h0, h1), (w0, w1)


def largest(count: int, fits: Callable[[int], bool]) -> int:
    """The largest number of 1 .. count that fits, 0 if none does; what fits stays so if smaller."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def steps_that_fit(
    out: Triple, need: Callable[[Triple], int], limit: int, *, cut_width: bool = False
) -> Triple | None:
    """The largest boxes of an output whose need(T, H, W of the box) stays within limit, cut over T
    first, then H (then W); None where not even the smallest box does."""
    t, h, w = out
    steps = largest(t, lambda n: need((n, h, w)) <= limit)
    if steps:
        return steps, h, w
    steps = largest(h, lambda n: need((1, n, w)) <= limit)
    if steps:
        return 1, steps, w
    steps = largest(w, lambda n: need((1, 1, n)) <= limit) if cut_width else 0
    return (1, 1, steps) if steps else None


def least_halo(
    shape: Problem, width: int, need: Callable[[Triple], int], limit: int, within: Triple, *,
    frames: bool = True, rows: bool = True,
) -> Triple | None:  # fmt: skip
    """The box of at most `limit` bytes whose window is smallest for what it gives.

    frames, rows: whether a box reads more of them than it gives."""
    best: tuple[float, Triple] | None = None
    for t in range(1, within[0] + 1):
        count = largest(within[1], lambda h, t=t: need((t, h, width)) <= limit)  # type: ignore[misc]
        if count == 0:
            break
        t, h = _even(within[0], t), _even(within[1], count)
        read = shape.window_sizes((t, h, width))
        waste = (read[0] / t if frames else 1.0) * (read[1] / h if rows else 1.0)
        # Of two that waste alike the larger one: fewer, longer products.
        if best is None or (waste, -t * h) < (best[0], -best[1][0] * best[1][1]):
            best = waste, (t, h, width)
    return best and best[1]


def _even(count: int, step: int) -> int:
    return -(-count // -(-count // step))


def target(out: torch.Tensor, box: Box) -> torch.Tensor:
    """The part of out (N, C, T, H, W) that a box writes."""
    for axis, (start, stop) in enumerate(box):
        out = out.narrow(axis + 2, start, stop - start)
    return out
