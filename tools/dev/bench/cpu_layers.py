"""The layers that `bench conv` measures, and the tensors of one of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.bench.timing import BenchError
from tools.dev.bench.gpu_layers import Layer, load_layers

CPU_SETS = ("hunyuan_video_9x160x160", "wan21_9x160x160")
DTYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
    "float64": torch.float64,
}  # fmt: skip
WIDE = "3x3x3, at least 64 channels"
OTHER = "other layers"
_WIDE_CHANNELS = 64
GIGA = 1e9  # operations in one GFLOP


@dataclass(frozen=True)
class Choice:
    """Which layers of a file. kernel: such as (3, 3, 3), None for any."""

    shapes: Path | None = None
    entries: Sequence[str] = CPU_SETS
    min_channels: int = 1
    kernel: tuple[int, ...] | None = None
    min_gflop: float = 0.05
    max_gflop: float = math.inf


def choose_layers(choice: Choice) -> list[Layer]:
    """Each shape once, in the file's order; a shape of two sets has the counts of both. BenchError
    with a sentence for a file, a set or a choice without layers."""
    kept: dict[tuple[Any, ...], Layer] = {}
    for name in dict.fromkeys(choice.entries):
        for layer in load_layers(choice.shapes, (name,), choice.min_gflop):
            if not _is_wanted(layer, choice):
                continue
            key = (layer.input, layer.weight, layer.stride, layer.padding, layer.dilation,
                   layer.groups)  # fmt: skip
            first = kept.get(key)
            count = layer.count + (first.count if first else 0)
            kept[key] = dataclasses.replace(first or layer, count=count)
    if not kept:
        raise BenchError(
            f"no layer of {', '.join(choice.entries)} is left: lower --min-channels and "
            "--min-gflop, raise --max-gflop, or give --kernel any"
        )
    return list(kept.values())


def _is_wanted(layer: Layer, choice: Choice) -> bool:
    return (
        min(layer.weight[0], layer.input[1]) >= choice.min_channels
        and choice.kernel in (None, layer.weight[2:])
        and layer.flops <= choice.max_gflop * 1e9
    )


def group_of(layer: Layer) -> str:
    """WIDE, for which the fast path is made, or OTHER."""
    is_wide = layer.weight[2:] == (3, 3, 3) and min(layer.weight[0], layer.input[1])
    return WIDE if is_wide and is_wide >= _WIDE_CHANNELS else OTHER


@dataclass(frozen=True)
class Operands:
    """One layer's tensors, NCDHW or NCHW, every page of them touched."""

    layer: Layer
    x: Tensor
    weight: Tensor
    bias: Tensor

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As torch.nn.functional.conv3d and hy3d_rocm.conv3d take them."""
        layer = self.layer
        return (self.x, self.weight, self.bias, layer.stride, layer.padding, layer.dilation,
                layer.groups)  # fmt: skip


def make_operands(layer: Layer, dtype: str) -> Operands:
    """Uniform in -1..1 from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.empty(size, device="cpu").uniform_(-1, 1, generator=generator).to(DTYPES[dtype])
        for size in (layer.input, layer.weight, layer.weight[:1])
    )
    return Operands(layer, x, weight, bias)


def our_call(operands: Operands, accuracy: str) -> Callable[[], Tensor]:
    """The public function, as a user calls it: checks, planning and the cache's look-up included;
    on torch.get_num_threads() threads."""
    import hy3d_rocm

    function = hy3d_rocm.conv2d if operands.layer.ndim == 2 else hy3d_rocm.conv3d
    arguments = operands.arguments

    def call() -> Tensor:
        result: Tensor = function(*arguments, accuracy=accuracy)
        return result

    return call


def torch_call(operands: Operands) -> Callable[[], Tensor]:
    """torch.nn.functional's, which is oneDNN's where it is built with it."""
    functional = torch.nn.functional
    function = functional.conv2d if operands.layer.ndim == 2 else functional.conv3d
    arguments = operands.arguments

    def call() -> Tensor:
        return function(*arguments)

    return call
