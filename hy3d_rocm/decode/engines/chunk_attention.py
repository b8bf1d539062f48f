"""A middle block's attention on a video that comes in chunks.

Each frame's queries meet their keys in blocks; there is no mask: "causal" is how far the keys go.
The projections are the backend's 1x1x1 convolutions, norm and residual included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from hy3d_rocm.decode.engines.chunk_frames import Frames, Piece
from hy3d_rocm.decode.engines.moments import wide_type
from hy3d_rocm.decode.layers import Conv, Pieces

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor

    from hy3d_rocm.decode.layers import Attention, Backend

# Where no fused attention kernel takes the call, the scores of one block exist: so many bytes.
SCORE_BYTES = 128 << 20


@dataclass(frozen=True, eq=False)
class AttentionState:
    """x: frames not given out yet. keys, values: (heads, tokens of the whole video, head size), of
    which the first `known` frames are there. given: frames given out."""

    x: Frames = field(default_factory=Frames)
    keys: Tensor | None = None
    values: Tensor | None = None
    known: int = 0
    given: int = 0


@dataclass(frozen=True, eq=False)
class Attended:
    """One attention layer on a video of `total` frames, at most `limit` of them in one step."""

    backend: Backend
    layer: Attention
    affine: tuple[Tensor, Tensor] | None
    total: int
    limit: int

    def ready(self, state: AttentionState) -> int:
        """Frames that could be given out with what is there."""
        if self.layer.span == "video" and state.x.stop < self.total:
            return state.given
        return state.x.stop

    def step(
        self, state: AttentionState, frames: Frames
    ) -> tuple[tuple[Piece, ...], AttentionState]:
        """With more frames of x: what can be given out, and the state after it. A step that failed
        can be repeated: it writes keys at their place, and never x."""
        held = AttentionState(
            state.x.plus(frames), state.keys, state.values, state.known, state.given
        )
        if self.layer.span != "frame" and frames.pieces:
            held = self._remembered(held, frames)
        stop = min(self.ready(held), held.given + self.limit)
        mixed = [
            (self._mixed(held, piece.cut(at, stop), at), piece, at)
            for piece in held.x.pieces
            if piece.first < stop and piece.stop > held.given
            for at in (max(piece.first, held.given),)
        ]
        rest = held.x.since(max(stop, held.given), read_only=False)
        pieces = tuple(self._summed(m, piece, at) for m, piece, at in mixed)
        return pieces, AttentionState(
            rest, held.keys, held.values, held.known, max(stop, held.given)
        )

    def _project(self, x: Tensor, first: int, names: str) -> list[Tensor]:
        """Of "q", "k" and "v" those in `names`, each (heads, t, tokens of a frame, head size)."""
        layer = self.layer
        fused = layer.k is None
        found = {"q": layer.q} if fused else {n: getattr(layer, n) for n in names}
        whole = {n: self._convolved(m, x, first, norm=True) for n, m in found.items()}
        if fused:
            whole = dict(zip("qkv", whole["q"].chunk(3, 1), strict=True))
        return [self._heads(whole[n]) for n in names]

    def _heads(self, x: Tensor) -> Tensor:
        """(1, C, t, H, W) -> (heads, t, H * W, C / heads)."""
        t = x.shape[2]
        split = x[0].reshape(self.layer.heads, -1, t, x.shape[3] * x.shape[4])
        return split.permute(0, 2, 3, 1).contiguous()

    def _convolved(
        self, module: Any, x: Tensor, first: int, norm: bool = False, add: Tensor | None = None
    ) -> Tensor:
        given = Pieces((x,), first, self.total)
        conv = Conv(module, norm=self.layer.norm if norm else None)
        affine = self.affine if norm else None
        frames = (first, first + int(x.shape[2]))
        return self.backend.convolve(conv, given, frames, affine=affine, add=add)[0]

    def _remembered(self, state: AttentionState, frames: Frames) -> AttentionState:
        """With keys and values of the new frames."""
        keys, values = state.keys, state.values
        for piece in frames.pieces:
            k, v = self._project(piece.tensor, piece.first, "kv")
            heads, t, tokens, size = k.shape
            if keys is None or values is None:
                keys = k.new_empty((heads, self.total * tokens, size))
                values = torch.empty_like(keys)
            here = slice(piece.first * tokens, (piece.first + t) * tokens)
            keys[:, here] = k.flatten(1, 2)
            values[:, here] = v.flatten(1, 2)
        return AttentionState(state.x, keys, values, frames.stop, state.given)

    def _mixed(self, state: AttentionState, x: Tensor, first: int) -> Tensor:
        """softmax(q k^T) v for the frames of x, (1, C, t, H, W)."""
        alone = self.layer.span == "frame"
        parts = self._project(x, first, "qkv" if alone else "q")
        q = parts[0]
        tokens = q.shape[2]
        out = torch.empty_like(q)
        for i in range(q.shape[1]):
            if alone:
                k, v = parts[1][:, i], parts[2][:, i]
            else:
                assert state.keys is not None
                assert state.values is not None
                seen = (first + i + 1 if self.layer.span == "causal" else self.total) * tokens
                k, v = state.keys[:, :seen], state.values[:, :seen]
            score = wide_type(k.dtype).itemsize
            block = max(SCORE_BYTES // (score * k.shape[0] * k.shape[1]), 1)
            for at in range(0, tokens, block):
                rows = q[:, i, at : at + block]
                out[:, i, at : at + block] = F.scaled_dot_product_attention(
                    rows[None], k[None], v[None], scale=self.layer.scale
                )[0]
        _, _, t, height, width = x.shape
        return out.permute(0, 3, 1, 2).reshape(1, -1, t, height, width)

    def _summed(self, mixed: Tensor, piece: Piece, first: int) -> Piece:
        """x + out(mixed), divided by rescale."""
        x = piece.cut(first, first + int(mixed.shape[2]))
        out = self._convolved(self.layer.out, mixed, first, add=x.clone())
        if self.layer.rescale != 1.0:
            out.div_(self.layer.rescale)
        return Piece(out, first)
