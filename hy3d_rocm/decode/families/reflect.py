"""Padding by reflection in space, for engines and backends that know zeros and replication only.

Norms per position and activations give the same before the padding as behind it, so the padded
frames can be made by a function of single frames in front of the layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch.nn.functional as F

from hy3d_rocm.decode.families.parts import StrangeModuleError, same_frames
from hy3d_rocm.decode.layers import Attention, Conv, Engine, Handle, Local

if TYPE_CHECKING:
    from torch import Tensor

REFLECT = "reflect"


class Reflecting:
    """An Engine that gives every layer with reflection to `engine` as padded frames and the rest.

    Only where up-sampling is left to others and norms are per position.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def conv(self, x: Handle, layer: Conv, *, add: Handle | None = None) -> Handle:
        """The layer on all of x, plus `add`."""
        if REFLECT in layer.modes:
            x = self.engine.local(x, _padded(layer))
            before, after = ((side[0], 0, 0) for side in (layer.before, layer.after))
            modes = (layer.modes[0], "zeros", "zeros")
            layer = replace(layer, before=before, after=after, modes=modes)
        return self.engine.conv(x, layer, add=add)

    def attention(self, x: Handle, layer: Attention) -> Handle:
        """x with its attention added."""
        return self.engine.attention(x, layer)

    def local(self, x: Handle, layer: Local) -> Handle:
        """A function of single frames."""
        return self.engine.local(x, layer)

    def add(self, x: Handle, y: Handle) -> Handle:
        """x + y."""
        return self.engine.add(x, y)


def _padded(layer: Conv) -> Local:
    if layer.modes[0] == REFLECT or layer.modes[1] != layer.modes[2]:
        raise StrangeModuleError("a convolution reflects in time, or along one side only")
    if layer.up != (1, 1, 1) or (layer.norm is not None and layer.norm.kind == "group"):
        raise StrangeModuleError("a convolution reflects what a GroupNorm or up-sampling makes")
    sides = (layer.before[2], layer.after[2], layer.before[1], layer.after[1], 0, 0)

    def run(frames: Tensor, first: int) -> Tensor:
        return F.pad(frames, sides, mode=REFLECT)

    return Local(run, same_frames)
