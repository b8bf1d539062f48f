"""Convolutions that launch a variant of the Triton tier's kernels (tools/dev/variants.py), carried
out by the tier's own code and held against float64. Used by check_gfx_run.py."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import check_triton_numerics as numerics
import differential_conv3d as differential

from hy3d_rocm.conv.problem import Problem
from hy3d_rocm.conv.triton.plan import plain_strides
from tools.dev import variants
from tools.dev.variants import Source, Variant

DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
# A tensor that Triton takes for one of 2 GiB or more: memory that is never touched.
_LARGE_BYTES = (1 << 31) + (1 << 20)


@dataclass
class Result:
    """Values compared on integers, those of them that differ, and the largest share of its bound
    that an error on reals has."""

    compared: int = 0
    differing: int = 0
    of_bound: float = 0.0

    def add(self, other: Result) -> None:
        self.compared += other.compared
        self.differing += other.differing
        self.of_bound = max(self.of_bound, other.of_bound)

    @property
    def is_right(self) -> bool:
        return not self.differing and self.of_bound <= 1


@dataclass(frozen=True)
class Like:
    """A problem as check_triton_numerics.py and differential_conv3d.py describe one."""

    dtype: str
    channels: tuple[int, int]
    groups: int
    kernel: tuple[int, int, int]
    stride: tuple[int, int, int]
    dilation: tuple[int, int, int]
    before: tuple[int, int, int]
    after: tuple[int, int, int]
    modes = ("zeros",) * 3


def like(p: Problem, dtype: str) -> Like:
    return Like(
        DTYPES[dtype], (p.channels, p.outputs), p.groups, p.kernel, p.stride, p.dilation,
        p.pad_before, p.pad_after,
    )  # fmt: skip


def placed(size: Any, strides: Any, dtype: Any, letters: str = "DS") -> tuple[Any, Any]:
    """A tensor of these strides, and all elements between its first and its last, NaN. letters: as
    of variants.py, "D" for a tensor that begins in much memory, "S" for an unaligned one."""
    import torch

    reach = sum((n - 1) * s for n, s in zip(size, strides, strict=True)) + 1
    offset = 0 if "D" in letters else 1
    room = (reach + offset) * dtype.itemsize
    if "S" not in letters:
        room = max(room, _LARGE_BYTES)
    # Anonymous memory, of which pages exist that are touched.
    memory = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    every = torch.frombuffer(memory, dtype=dtype, count=room // dtype.itemsize)
    inside = every[offset : offset + reach].fill_(float("nan"))
    return every.as_strided(size, strides, offset), inside


def wide_enough(variant: Variant, source: Source, arch: str) -> Source:
    """A source with a second, partly filled tile of positions and of outputs, where the variant
    multiplies and still is among its launches."""
    p, tile = source.problem, source.tile
    strided = max(*p.stride, *p.dilation) > 1
    size = (5, 25, 25) if strided else (5, 8, 9) if p.kernel == (1, 1, 1) else (4, 12, 13)
    outputs = tile.block_n + (8 if p.outputs % 8 == 0 else 4)
    for changes in ({"size": size, "outputs": outputs}, {"outputs": outputs}, {"size": size}):
        wider = replace(p, **changes)
        last = source.layout.x[1] == 1
        if not variant.arithmetic or source.layout.x != variants._layout(p, last, last).x:
            break
        layout = variants._layout(wider, last, source.layout.out[1] == 1)
        found = replace(
            source, problem=wider, layout=replace(source.layout, x=layout.x, out=layout.out)
        )
        if launches(variant, found, arch):
            return found
    return source


def launches(variant: Variant, source: Source, arch: str) -> bool:
    made = source.steps(arch, variant.dtype)
    wanted = replace(variant, form="small")
    return any(variants.of_launch(item, variant.dtype) == wanted for item in made.launches)


def run(variant: Variant, source: Source, arch: str, seed: int) -> Iterator[Result]:
    """The source on integers, launched by Triton if the kernels are new, and on reals; with the
    pointers of the variant's form."""
    for real in (False, True):
        x, weight, bias, out = _carried_out(variant, source, arch, seed, real)
        as_numbers = like(source.problem, variant.dtype)
        if real:
            yield Result(of_bound=numerics.share_of_bound(as_numbers, out, x, weight, bias))
            continue
        wide = differential.widened(x, weight, bias)
        wanted: Any = as_numbers
        wanted = differential.expected(wanted, *wide).to(out.dtype)
        yield Result(out.numel(), int((bits(wanted) != bits(out)).sum()))


def bits(values: Any) -> Any:
    """As integers; -0.0 as 0.0, of which a sum of integers may be either."""
    import torch

    of = torch.int32 if values.element_size() == 4 else torch.int16
    return (values + 0.0).contiguous().view(of)


def _carried_out(
    variant: Variant, source: Source, arch: str, seed: int, real: bool
) -> tuple[Any, Any, Any, Any]:
    """x, weight, bias and the result."""
    import torch

    from hy3d_rocm.conv.triton import launch

    p, layout, dtype = source.problem, source.layout, getattr(torch, DTYPES[variant.dtype])
    letters = variants._FORMS[variant.form]
    generator = torch.Generator().manual_seed(seed)

    def filled(name: str, size: Any, strides: Any) -> Any:
        made, inside = placed(size, strides, dtype, letters.get(name, "DS"))
        if real:
            values = torch.rand(inside.shape, generator=generator) * 2 - 1
        else:
            values = torch.randint(-3, 4, inside.shape, generator=generator)
        inside.copy_(values)
        return made

    total = p.outputs * p.groups
    x = filled("x", (p.batch, p.channels * p.groups, *p.size), layout.x)
    strides = layout.weight or plain_strides(p)
    weight = filled("unpacked", (total, p.channels, *p.kernel), strides)
    bias = filled("bias", (total,), (1,)) if source.has_bias else None
    out, _ = placed((p.batch, total, *p.out), layout.out, dtype, letters.get("out", "DS"))
    made = source.steps(arch, variant.dtype)
    # The launches of a call whose tensors are as large as their memory says.
    made = copy(made)
    made.calls = {}
    with mock.patch.object(launch, "_reach_bytes", lambda t: t.untyped_storage().nbytes()):
        launch._carry_out(made, x, weight, bias, out)
    return x, weight, bias, out
