"""Frames that a chunked run holds: a stretch of a video as tensors, and which frames a layer reads.

Nothing here computes; ChunkEngine (chunkwise.py) does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import torch

from hy3d_rocm.decode.layers import out_frames, read_frames, shuffled_frames, source_frame

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.layers import Conv, Range


@dataclass(eq=False)
class Piece:
    """Frames first .. first + t of a video as one tensor (1, C, t, H, W).

    shared: somebody else reads the tensor too, so a sum must not be written into it.
    """

    tensor: Tensor
    first: int
    shared: bool = False

    @property
    def stop(self) -> int:
        return self.first + int(self.tensor.shape[2])

    def cut(self, first: int, stop: int) -> Tensor:
        """The frames of first .. stop that are in it, as a view."""
        return self.tensor[:, :, max(first - self.first, 0) : max(stop - self.first, 0)]

    def small(self, first: int, read_only: bool) -> Piece:
        """The frames from `first` on for keeping: a clone where the tensor's storage is at least
        twice as large, so that two frames do not hold a whole chunk; else a view."""
        kept = self.tensor[:, :, max(first - self.first, 0) :]
        size = kept.numel() * kept.element_size()
        if 2 * size <= kept.untyped_storage().nbytes():
            return Piece(kept.clone(), max(first, self.first))
        self.shared |= read_only
        return Piece(kept, max(first, self.first), self.shared)


@dataclass(frozen=True, eq=False)
class Frames:
    """Consecutive pieces; never changed, so a failed step leaves what was there. first: the first
    frame, also where there are no pieces."""

    first: int = 0
    pieces: tuple[Piece, ...] = ()

    @property
    def stop(self) -> int:
        return self.pieces[-1].stop if self.pieces else self.first

    def plus(self, more: Frames) -> Frames:
        """With the frames of `more` behind its own."""
        if not more.pieces:
            return self
        if self.pieces and more.first != self.stop:
            raise RuntimeError(f"frames from {more.first} came where {self.stop} were due")
        return Frames(self.first if self.pieces else more.first, self.pieces + more.pieces)

    def since(self, first: int, read_only: bool = True) -> Frames:
        """Only the frames from `first` on, in little memory. read_only: they will be read, and
        whoever else has the pieces must not write into them."""
        kept = tuple(p.small(first, read_only) for p in self.pieces if p.stop > first)
        return Frames(kept[0].first if kept else max(first, self.stop), kept)

    def views(self, first: int, stop: int) -> tuple[Tensor, ...]:
        """first .. stop as views in order."""
        return tuple(p.cut(first, stop) for p in self.pieces if p.first < stop and p.stop > first)

    def share(self) -> None:
        """Nothing may be added into these any more: two places read them."""
        for piece in self.pieces:
            piece.shared = True

    def own(self, first: int, stop: int) -> Tensor:
        """first .. stop as one tensor that may be overwritten."""
        parts = self.views(first, stop)
        if len(parts) > 1:
            return torch.cat(parts, 2)
        holder = next(p for p in self.pieces if p.stop > first)
        return parts[0].clone() if holder.shared else parts[0]


@dataclass(eq=False)
class Chunk:
    """A ChunkEngine's handle: the frames of a video that this call gives, maybe none.

    total: frames of the whole video; rate: frames here that one chunk of the latent stands for;
    frames: None once it was consumed.
    """

    frames: Frames | None
    total: int
    rate: Fraction

    def take(self, keep: bool = False) -> Frames:
        """The frames, which leave the handle unless kept."""
        frames = self.frames
        if frames is None:
            raise RuntimeError(
                "a handle was used after a call had consumed it; pass keep=True to that call"
            )
        if not keep:
            self.frames = None
        return frames


@dataclass(frozen=True)
class Course:
    """Frame numbers of one Conv on a video of `total` frames: what it makes, reads and needs.

    "own" frames: the convolution's output before the shuffle; its own video begins at frame
    `begin` of x.
    """

    layer: Conv
    kernel_t: int
    total: int

    @property
    def factor(self) -> int:
        return self.layer.shuffle.factor[0] if self.layer.shuffle is not None else 1

    @property
    def begin(self) -> int:
        return self.layer.skip_first - self.layer.reread

    @property
    def result_total(self) -> int:
        return out_frames(self.layer, self.total, self.kernel_t)

    def up_frames(self, frames: int) -> int:
        """Frames of the convolution's up-sampled video that frames 0 .. `frames` of x make."""
        own = frames - self.begin
        if own <= 0:
            return 0
        return 1 + (own - 1) * self.layer.up[0] if self.layer.keep_first else own * self.layer.up[0]

    def own_ready(self, stop: int) -> int:
        """Own frames that can be made once frames 0 .. stop of x are there."""
        layer, up = self.layer, self.up_frames(stop)
        if up == 0:
            return 0
        after = layer.after[0] if stop >= self.total else 0
        return max((up + layer.before[0] + after - self.kernel_t) // layer.stride[0] + 1, 0)

    def made(self, own: Range) -> int:
        """Frames that the convolution gives for these own frames, those to be dropped included."""
        shuffle = self.layer.shuffle
        return own[1] - own[0] if shuffle is None else shuffled_frames(shuffle, own)

    def result_of(self, own: int) -> int:
        """Frames of the result that the first `own` own frames make (with what passes by)."""
        drop = self.layer.shuffle.drop if self.layer.shuffle is not None else 0
        return self.layer.skip_first + max(self.made((0, own)) - drop, 0)

    def own_within(self, result: int) -> int:
        """Own frames whose results lie all within the first `result` ones."""
        own = (result - self.layer.skip_first) // self.factor
        while self.result_of(own + 1) <= result:
            own += 1
        return max(own, 0)

    def reads(self, own: Range) -> Range:
        """Frames of x, counted in the whole video, that own frames read; at least one."""
        last = self.up_frames(self.total) - 1
        first, stop = read_frames(self.layer, own, self.kernel_t)
        a, b = (min(max(at, 0), last) for at in (first, stop - 1))
        return (
            self.begin + source_frame(self.layer, a),
            self.begin + source_frame(self.layer, b) + 1,
        )

    def needed_from(self, own_done: int) -> int:
        """First frame of x that is still read when `own_done` own frames are made."""
        if own_done >= self.own_ready(self.total):
            return self.total
        return self.reads((own_done, own_done + 1))[0]


def frame_bytes(layer: Conv, weight: Tensor, x: Tensor) -> int:
    """Bytes of one frame of the layer's result for frames like those of x (1, C, t, H, W)."""
    kernel = [1] * (4 - min(weight.dim(), 4)) + list(weight.shape[2:])
    elements = int(weight.shape[0])
    for axis, k in zip((1, 2), kernel[-2:], strict=True):
        padded = x.shape[axis + 2] * layer.up[axis] + layer.before[axis] + layer.after[axis]
        elements *= (padded - k) // layer.stride[axis] + 1
    if layer.shuffle is not None:
        elements //= layer.shuffle.factor[0]  # space only moves elements, time makes frames of them
    return elements * x.element_size()


def segments(a: Frames, b: Frames, stop: int) -> Iterator[tuple[Piece, Piece]]:
    """a and b up to `stop`, cut where either begins a new piece."""
    at = a.first
    while at < stop:
        x = next(p for p in a.pieces if p.stop > at)
        y = next(p for p in b.pieces if p.stop > at)
        end = min(x.stop, y.stop, stop)
        yield Piece(x.cut(at, end), at, x.shared), Piece(y.cut(at, end), at, y.shared)
        at = end
