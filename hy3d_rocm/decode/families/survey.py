"""What a family's layers come to, read off by running them on shapes alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from hy3d_rocm.decode.families.parts import StrangeModuleError
from hy3d_rocm.decode.layers import Attention, Conv, Local, Norm, out_frames
from hy3d_rocm.decode.plain import kernel_of


@dataclass(frozen=True)
class Size:
    """An activation (1, channels, frames, height, width) and how far in, in rows of the video the
    survey began with, a cut at its border has changed it."""

    channels: int
    frames: int
    height: int
    width: int
    reach: float = 0.0

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        return 1, self.channels, self.frames, self.height, self.width


class Survey:
    """Engine over sizes; computes nothing.

    modules: every module whose parameters a layer reads, by id. global_norms: whether one of them
    takes moments over the whole video.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.modules: dict[int, Any] = {}
        self.global_norms = False

    def _read(self, *modules: Any) -> None:
        self.modules.update((id(m), m) for m in modules if m is not None)

    def _norm(self, norm: Norm | None) -> None:
        if norm is not None:
            self._read(norm.module)
            self.global_norms |= norm.kind == "group"

    def conv(
        self, x: Size, layer: Conv, *, add: Size | None = None
    ) -> Size:  # fmt: skip
        """Size of the output; StrangeModuleError where channels or a residual do not fit."""
        self._read(layer.module)
        self._norm(layer.norm)
        weight = layer.module.weight
        kernel = kernel_of(weight)
        if int(weight.shape[1]) != x.channels:
            raise StrangeModuleError(
                f"a convolution takes {int(weight.shape[1])} channels where {x.channels} come"
            )
        factor = (1, 1, 1) if layer.shuffle is None else layer.shuffle.factor
        sides = []
        for axis, side in ((1, x.height), (2, x.width)):
            padded = side * layer.up[axis] + layer.before[axis] + layer.after[axis]
            sides.append((padded - kernel[axis]) // layer.stride[axis] + 1)
        scale = x.height * layer.up[1] / self.rows
        size = Size(
            int(weight.shape[0]) // math.prod(factor),
            out_frames(layer, x.frames, kernel[0]),
            sides[0] * factor[1],
            sides[1] * factor[2],
            x.reach + max(layer.before[1], kernel[1] - 1 - layer.before[1]) / scale,
        )
        return size if add is None else self.add(size, add)

    def attention(self, x: Size, layer: Attention) -> Size:
        """x; attention reaches everywhere and is left aside."""
        self._read(layer.q, layer.k, layer.v, layer.out)
        self._norm(layer.norm)
        return x

    def local(self, x: Size, layer: Local) -> Size:
        """The size of what the function makes of frames on "meta"."""
        made = layer.run(torch.empty(x.shape, device="meta"), 0)
        if made.shape[2] != layer.frames_of(x.frames):
            raise AssertionError("a Local makes another number of frames than it says")
        _, channels, frames, height, width = (int(n) for n in made.shape)
        return Size(channels, frames, height, width, x.reach)

    def add(self, x: Size, y: Size) -> Size:
        """The size of both."""
        if x.shape != y.shape:
            raise StrangeModuleError(f"a sum has sides of {x.shape} and {y.shape}")
        return replace(x, reach=max(x.reach, y.reach))
