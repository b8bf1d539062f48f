"""Random convolutions for the tiers: sizes, padding, strides, views of every kind."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import torch

DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
ODD_LAYOUTS = ("slice", "unbatched", "offset", "steps", "expanded")


@dataclasses.dataclass(frozen=True)
class Case:
    """One convolution; tuples are (T,) H, W."""

    index: int
    dtype: torch.dtype
    batch: int
    channels: tuple[int, int]  # of one group: in, out
    groups: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    bias: bool
    layout: str
    piece: int | None


def random_case(seed: int, index: int) -> Case:
    rng = random.Random(f"{seed}/{index}")
    ndim = rng.choice((2, 3, 3, 3))

    def some(*values: Any) -> tuple[Any, ...]:
        return tuple(rng.choice(values) for _ in range(ndim))

    kernel, dilation = some(1, 1, 2, 3, 3, 4), some(1, 1, 1, 2, 3)
    pads = tuple(zip(some(0, 0, 1, 2, 3), some(0, 0, 1, 2, 3), strict=True))
    room = some(0, 1, 2, 5, 9)
    size = tuple(
        max(1, (k - 1) * d + 1 - a - b) + extra
        for k, d, (a, b), extra in zip(kernel, dilation, pads, room, strict=True)
    )
    dtype, batch = rng.choice(DTYPES), rng.choice((0, 1, 1, 1, 1, 2))
    channels = rng.choice((1, 2, 3, 8, 16)), rng.choice((1, 2, 3, 8, 13))
    groups, stride = rng.choice((1, 1, 1, 2, 3)), some(1, 1, 1, 2, 3)
    some(0, 1)  # a draw that is not used any more: cases keep their numbers
    return Case(
        index=index, dtype=dtype, batch=batch, channels=channels, groups=groups, size=size,
        kernel=kernel, stride=stride, dilation=dilation, pads=pads, bias=rng.random() < 0.6,
        layout=rng.choice(("plain", "plain", "last", *ODD_LAYOUTS)),
        piece=rng.choice((None, 3000, 20000)),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Family:
    """What a Triton kernel is compiled for: kernel, channels of a group, groups, stride or not, and
    the dilation along W."""

    kernel: tuple[int, int, int]
    channels: tuple[int, int]
    groups: int = 1
    strided: bool = False
    dilation_w: int = 1


FAMILIES = (
    Family((3, 3, 3), (16, 24)), Family((3, 3, 3), (5, 13)), Family((3, 3, 3), (16, 3)),
    Family((2, 3, 3), (16, 24), strided=True), Family((1, 3, 3), (16, 24), dilation_w=2),
    Family((3, 3, 3), (8, 8), groups=2), Family((1, 1, 1), (16, 40)), Family((2, 1, 4), (33, 17)),
    Family((3, 3, 3), (128, 24)),  # a sum so long that it is made in parts
)  # fmt: skip
FAMILY_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def triton_case(seed: int, index: int) -> Case:
    """The index-th case: families and dtypes in turn, the rest random."""
    rng = random.Random(f"triton/{seed}/{index}")
    turn, which = divmod(index, len(FAMILIES))
    family, dtype = FAMILIES[which], FAMILY_DTYPES[turn % 3]
    stride = tuple(rng.choice((1, 2, 3)) for _ in range(3)) if family.strided else (1, 1, 1)
    stride = (1, 2, 1) if family.strided and stride == (1, 1, 1) else stride
    dilation = (rng.choice((1, 1, 2)), rng.choice((1, 1, 3)), family.dilation_w)
    is_padded = rng.random() < 0.6
    pads = tuple(
        (rng.choice((0, 1, 2)), rng.choice((0, 1, 3))) if is_padded else (0, 0) for _ in range(3)
    )
    room = (rng.choice((0, 1, 4)), rng.choice((0, 2, 11)), rng.choice((0, 3, 7, 70)))
    size = tuple(
        max(1, (k - 1) * d + 1 - a - b) + extra
        for k, d, (a, b), extra in zip(family.kernel, dilation, pads, room, strict=True)
    )
    if (
        family.kernel == (1, 1, 1) and rng.random() < 0.7
    ):  # whole vectors have a kernel of their own
        pads, size = ((0, 0),) * 3, (*size[:2], -(-size[2] // 8) * 8)
    flat = family.kernel[0] == 1 and rng.random() < 0.5
    cut = slice(1 if flat else 0, 3)
    layouts = (
        "plain",
        "plain",
        "last",
        "last",
        "slice",
        "unbatched",
        "offset",
        "steps",
        "expanded",
    )
    batch = rng.choice((0, 1, 1, 1, 2, 3))
    rng.choice((0, 1, 2))  # as above
    return Case(
        index=index, dtype=dtype, batch=batch, channels=family.channels,
        groups=family.groups, size=size[cut], kernel=family.kernel[cut], stride=stride[cut],
        dilation=dilation[cut], pads=pads[cut],
        bias=(which + turn) % 2 == 0, layout=rng.choice(layouts),
        piece=rng.choice((None, None, 20_000)),
    )  # fmt: skip


def case_of(tier: str, seed: int, index: int) -> Case:
    return triton_case(seed, index) if tier == "triton" else random_case(seed, index)


def make_tensors(case: Case, seed: int, whole: bool) -> tuple[Any, Any, Any]:
    """x, weight, bias: reals in (-1, 1), or -1, 0, 1 with at most 256 of them not 0 in a sum."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + case.index)

    def values(*shape: int) -> torch.Tensor:
        if whole:
            return torch.randint(-1, 2, shape, generator=generator).to(case.dtype)
        data = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (data * 2 - 1).to(case.dtype)

    cin, cout = case.channels
    x = values(case.batch, cin * case.groups, *case.size)
    weight = values(cout * case.groups, cin, *case.kernel)
    depth = weight[0].numel()
    if whole and depth > 200:  # sums must be exact in bfloat16
        weight *= torch.rand(weight.shape, generator=generator) < 200 / depth / 1.5
    bias = values(cout * case.groups) if case.bias else None
    if case.layout == "last":
        kept = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        x = x.contiguous(memory_format=kept)
    if case.layout == "slice":
        wide = torch.full([n + 2 for n in x.shape], math.nan, dtype=x.dtype)
        view = wide[tuple(slice(1, -1) for _ in x.shape)]
        x = view.copy_(x)
    if case.layout == "unbatched" and case.batch == 1:
        x = x[0]
    if case.layout == "offset":
        x, weight = (odd_offset(t) for t in (x, weight))
        bias = None if bias is None else odd_offset(bias)
    if case.layout == "steps":
        x = x.repeat_interleave(2, dim=-1)[..., ::2]
        bias = None if bias is None else bias.repeat_interleave(2)[::2]
    if case.layout == "expanded":  # stride 0 between channels, and in the bias
        x = x[:, :1].expand(x.shape)
        bias = None if bias is None else bias[:1].expand(bias.shape)
    return x, weight, bias


def odd_offset(values: torch.Tensor) -> torch.Tensor:
    """The same one element further than memory is aligned."""
    wide = values.new_zeros(values.numel() + 1)
    wide[1:] = values.flatten()
    return wide[1:].view(values.shape)


def moved(values: torch.Tensor | None, device: str) -> torch.Tensor | None:
    """On the device with the same strides and offset: `.to` makes some of them dense."""
    if values is None or device == "cpu":
        return values
    count = values.untyped_storage().nbytes() // values.element_size()
    held = values.as_strided((count,), (1,), 0).to(device)
    return held.as_strided(values.shape, values.stride(), values.storage_offset())
