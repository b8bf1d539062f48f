"""Where a decode in chunks starts so that it goes on from a given frame with the same bits.

What goes on from chunk to chunk is too large to write to disk after each: the last frames of every
layer's input at full resolution. Instead the decode starts so many latents earlier that everything
a wanted frame depends on is computed again, and drops the frames before (execution.py).
Chunks then begin where they would have begun, so each convolution gets the same frames in the same
shapes. Where a norm or attention sees the whole video, all of it is decoded again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hy3d_rocm.decode.layers import Attention, Conv, Local, Norm

_EVERYTHING = Fraction(10**9)  # latents: as far back as the video goes


@dataclass(frozen=True)
class _Past:
    """An activation: frames per latent frame, and how many latents back a frame depends on."""

    rate: Fraction
    latents: Fraction


class _Recall:
    """Engine that follows how far back frames depend; computes nothing."""

    def conv(self, x: _Past, layer: Conv, *, add: _Past | None = None) -> _Past:
        """The kernel's frames, and one more where frames are not read one to one."""
        shape = layer.module.weight.shape
        kernel = int(shape[2]) if len(shape) == 5 else 1
        rate = x.rate * layer.up[0]
        back = Fraction(kernel - 1) / rate
        shuffled = layer.shuffle.factor[0] if layer.shuffle is not None else 1
        made = rate * shuffled / layer.stride[0]
        if made != x.rate or layer.skip_first:
            back += 1 / min(x.rate, made)
        past = _Past(made, x.latents + back + _of_norm(layer.norm))
        return past if add is None else self.add(past, add)

    def attention(self, x: _Past, layer: Attention) -> _Past:
        back = _of_norm(layer.norm) + (0 if layer.span == "frame" else _EVERYTHING)
        return _Past(x.rate, x.latents + back)

    def local(self, x: _Past, layer: Local) -> _Past:
        return _Past(x.rate * max(layer.frames_of(2) - layer.frames_of(1), 1), x.latents)

    def add(self, x: _Past, y: _Past) -> _Past:
        return _Past(max(x.rate, y.rate), max(x.latents, y.latents))


def _of_norm(norm: Norm | None) -> Fraction:
    return _EVERYTHING if norm is not None and norm.kind == "group" else Fraction(0)


def latents_before(family: Any) -> int | None:
    """How many latents before a frame's own one its decode depends on; None: on all there are.

    From the layers, not measured: an upper bound, a latent or so above what is the case.
    """
    found = family.decode(_Recall(), _Past(Fraction(1), Fraction(0)))
    return None if found.latents >= _EVERYTHING else math.ceil(found.latents)


def start_latent(family: Any, chunk: int, wanted: int) -> int:
    """The latent to start at, where a chunk begins, for frames from `wanted` on."""
    past = latents_before(family)
    if past is None or wanted == 0:
        return 0
    time = int(family.factor[0])
    own = (wanted - 1) // time + 1  # the first latent makes one frame
    # One more, which is the first of its video then and so unlike what it was.
    return max((own - past - 1) // chunk, 0) * chunk
