"""The middle block's attention over slices, without a mask and without a matrix of all scores.

Which frames a frame sees is said by the range of keys it is given. Keys and values of all frames
are held: at the middle block's resolution they are small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from hy3d_rocm.decode.engines.moments import wide_type
from hy3d_rocm.decode.engines.sliced import Sliced
from hy3d_rocm.decode.layers import Attention, Conv, Norm, Pieces

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.engines.slice_engine import SliceEngine
    from hy3d_rocm.decode.engines.spill import Slice

#: of scores where no fused kernel takes the attention
SCORE_BYTES = 256 << 20


def attend(engine: SliceEngine, x: Sliced, layer: Attention) -> Sliced:
    """x + out(softmax(q k^T) v) of a whole video."""
    if layer.span not in ("frame", "causal", "video"):
        raise ValueError(f"the span {layer.span!r} is not known; known are frame, causal and video")
    run = engine.grains.quietly(lambda: _Run(engine, x, layer))
    run.affine = engine.affine(x, layer.norm)
    if layer.span != "frame":
        run.make_keys(0, x.shape[1])
        for piece in x.slices:
            run.fill(piece)
    for piece in x.slices:
        if layer.span == "frame":
            run.make_keys(piece.first, piece.stop)
            run.fill(piece)
        mixed = run.mix(piece)
        run.finish(piece, mixed)
        del mixed
    return run.out


class _Run:
    def __init__(self, engine: SliceEngine, x: Sliced, layer: Attention) -> None:
        weight = engine.backend.weights.of(layer.q, "weight")
        if weight is None:
            raise ValueError(f"{type(layer.q).__name__} has no weight to attend with")
        self.fused = layer.k is None
        self.engine = engine
        self.x = x
        self.layer = layer
        self.width = weight.shape[0] // (3 if self.fused else 1)
        self.frame_tokens = x.shape[2] * x.shape[3]
        self.affine: Any = None
        self.out = Sliced(x.shape, x.dtype)
        self.first = 0  # frame of the first key
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def make_keys(self, first: int, stop: int) -> None:
        """Room for the keys and values of some frames, (1, heads, tokens, size of a head)."""
        heads, tokens = self.layer.heads, (stop - first) * self.frame_tokens
        size = (1, heads, tokens, self.width // heads)
        self.keys = self.values = None
        self.first = first
        self.keys, self.values = self.engine.run(
            self.engine.step("attention", self.x, (first, stop)),
            lambda: tuple(
                torch.empty(size, dtype=self.x.dtype, device=self.engine.device) for _ in range(2)
            ),
        )

    def fill(self, piece: Slice) -> None:
        """Keys and values of a slice."""
        keys, values = self.keys, self.values
        assert keys is not None
        assert values is not None
        start = (piece.first - self.first) * self.frame_tokens
        rows = slice(start, start + piece.frames * self.frame_tokens)

        def work(tensors: list[Tensor]) -> None:
            if self.fused:
                _, k, v = self._project(tensors[0], self.layer.q).chunk(3, dim=1)
                keys[0, :, rows].copy_(self._tokens(k))
                values[0, :, rows].copy_(self._tokens(v))
                return
            keys[0, :, rows].copy_(self._tokens(self._project(tensors[0], self.layer.k)))
            values[0, :, rows].copy_(self._tokens(self._project(tensors[0], self.layer.v)))

        self._grain(piece, work)

    def mix(self, piece: Slice) -> Tensor:
        """softmax(q k^T) v of a slice, (1, width, T, H, W)."""

        def query(tensors: list[Tensor]) -> Any:
            q = self._project(tensors[0], self.layer.q)
            q = self._tokens(q[:, : self.width]).contiguous()[None]
            return q, q.new_empty((1, self.width, piece.frames, *self.x.shape[2:]))

        q, mixed = self._grain(piece, query)
        target = self._tokens(mixed)
        for frame in range(piece.frames):
            step = self.engine.step(
                "attention", self.x, (piece.first + frame, piece.first + frame + 1)
            )
            self.engine.run(step, lambda f=frame: self._frame(q, target, piece.first, f))  # type: ignore[misc]
        result: Tensor = mixed
        return result

    def _frame(self, q: Tensor, target: Tensor, first: int, frame: int) -> None:
        """One frame's queries, in blocks where the scores would be kept."""
        assert self.keys is not None
        assert self.values is not None
        count = self.frame_tokens
        at = first + frame - self.first
        span = {
            "frame": slice(at * count, (at + 1) * count),
            "causal": slice(0, (at + 1) * count),
            "video": slice(None),
        }[self.layer.span]
        k, v = self.keys[:, :, span], self.values[:, :, span]
        rows = query_rows(q, k, v, count)
        for start in range(frame * count, (frame + 1) * count, rows):
            part = slice(start, min(start + rows, (frame + 1) * count))
            target[:, part].copy_(
                F.scaled_dot_product_attention(q[:, :, part], k, v, scale=self.layer.scale)[0]
            )

    def finish(self, piece: Slice, mixed: Tensor) -> None:
        """The projection behind it and the sum with x."""
        layer, engine = self.layer, self.engine
        source = Pieces((mixed,), 0, piece.frames)
        whole = (0, piece.frames)
        conv = Conv(layer.out)

        def work(tensors: list[Tensor]) -> Any:
            x = tensors[0]
            if layer.rescale != 1:
                result, _ = engine.backend.convolve(conv, source, whole)
                return result.add_(x).div_(layer.rescale), None
            x = x if piece.owned else x.clone()
            return engine.backend.convolve(conv, source, whole, add=x, moments=engine.gather)

        step = engine.step("attention", self.x, (piece.first, piece.stop))
        making = piece.frames * self.x.frame_bytes
        result, moments = engine.run(step, lambda: engine.held([piece], making, work))
        engine.keeper.drop(piece)
        engine.finish(self.out, result, moments, step)

    def _grain(self, piece: Slice, work: Any) -> Any:
        step = self.engine.step("attention", self.x, (piece.first, piece.stop))
        return self.engine.run(step, lambda: self.engine.held([piece], 0, work))

    def _project(self, x: Tensor, module: Any) -> Tensor:
        norm: Norm = self.layer.norm
        frames = x.shape[2]
        result, _ = self.engine.backend.convolve(
            Conv(module, norm=norm), Pieces((x,), 0, frames), (0, frames), affine=self.affine
        )
        return result

    def _tokens(self, x: Tensor) -> Tensor:
        """(1, width, T, H, W) -> (heads, tokens, size of a head), a view where it can be one."""
        heads = self.layer.heads
        return x.reshape(heads, self.width // heads, -1).transpose(1, 2)


def query_rows(q: Tensor, k: Tensor, v: Tensor, tokens: int) -> int:
    """Queries at a time: all where a fused kernel takes them, else what keeps the scores (float32,
    of float64 queries float64) below SCORE_BYTES. On shapes alone the scores are counted."""
    if q.device.type != "meta" and _has_fused_kernel(q, k, v):
        return tokens
    score = wide_type(q.dtype).itemsize
    return max(1, min(tokens, SCORE_BYTES // (q.shape[1] * k.shape[2] * score)))


def _has_fused_kernel(q: Tensor, k: Tensor, v: Tensor) -> bool:
    choose = getattr(torch, "_fused_sdp_choice", None)
    # 0 is torch's number for the composite of two products and a softmax, -1 for none.
    return choose is not None and int(choose(q, k, v)) > 0
