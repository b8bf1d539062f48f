"""Errors of a convolution against sums in float64, on two blocks of the output.

The whole of a large layer in float64 takes minutes, so all channels of one frame's corner and of
the middle of another are computed, from crops of the input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tools.dev.bench.cpu_layers import Operands

SIDE = 32  # rows and columns of a block
Block = tuple[slice, ...]  # of the output's axes after the channels


@dataclass(frozen=True)
class Exact:
    """block: which part of the output (of batch item 0). sums: its float64 values."""

    block: Block
    sums: Tensor


def exact_blocks(operands: Operands, side: int = SIDE) -> list[Exact]:
    """The corner block of the first frame and the middle block of the middle one (one block where
    they are the same)."""
    size = operands.layer.out[2:]
    corner = tuple(_at(0, n, side if axis >= len(size) - 2 else 1) for axis, n in enumerate(size))
    middle = tuple(
        _at((n - side) // 2, n, side) if axis >= len(size) - 2 else _at(n // 2, n, 1)
        for axis, n in enumerate(size)
    )
    blocks = [corner] if corner == middle else [corner, middle]
    return [Exact(block, _float64(operands, block)) for block in blocks]


def _at(start: int, size: int, length: int) -> slice:
    first = max(0, start)
    return slice(first, min(size, first + length))


def _float64(operands: Operands, block: Block) -> Tensor:
    """(O, ...) of the block: the convolution of the crop that it reads."""
    layer = operands.layer
    crop, pads = [slice(0, 1), slice(None)], []
    spans = zip(block, layer.input[2:], layer.weight[2:], layer.stride, layer.padding,
                layer.dilation, strict=True)  # fmt: skip
    for part, size, kernel, stride, pad, dilation in spans:
        first = part.start * stride - pad
        stop = (part.stop - 1) * stride - pad + dilation * (kernel - 1) + 1
        crop.append(slice(max(0, first), min(size, stop)))
        pads.append((max(0, -first), max(0, stop - size)))
    x = operands.x[tuple(crop)].double()
    x = torch.nn.functional.pad(x, [side for pair in reversed(pads) for side in pair])
    functional = torch.nn.functional
    function = functional.conv2d if layer.ndim == 2 else functional.conv3d
    none = (0,) * layer.ndim
    return function(
        x, operands.weight.double(), operands.bias.double(), layer.stride, none, layer.dilation,
        layer.groups,
    )[0]  # fmt: skip


def largest_error(result: Tensor, exact: list[Exact]) -> float:
    """max |result - sums| over the blocks; NaN where the result has one."""
    differences = [
        (result[0][(slice(None), *one.block)].double() - one.sums).abs().max() for one in exact
    ]
    return float(torch.stack(differences).max())
