"""Depth first through a VAE: a few latent frames at a time through all layers.

A family's function is called once a chunk; its calls are matched by their order with what each
layer kept from the chunk before: the last frames of its input that later outputs read, and those of
a residual that the other side has not reached yet. So memory does not grow with the video, but for
the keys and values of "causal" attention and everything in front of "video" attention, both at the
resolution where that stands (the latent's).

Layers that look ahead (LTX's decoder) lag behind and catch up at the end, at most one chunk's worth
of frames a call, in calls without new latents. So no call is larger than a chunk's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from hy3d_rocm.decode.engines.chunk_attention import Attended, AttentionState
from hy3d_rocm.decode.engines.chunk_frames import (
    Chunk,
    Course,
    Frames,
    Piece,
    frame_bytes,
    segments,
)
from hy3d_rocm.decode.engines.chunk_norms import Affine, Given, Norms
from hy3d_rocm.decode.faults import retried
from hy3d_rocm.decode.layers import Pieces
from hy3d_rocm.decode.memory.meter import trim_malloc
from hy3d_rocm.decode.report import Step

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.faults import Counting
    from hy3d_rocm.decode.layers import Attention, Backend, Conv, Family, Local, Norm, Range

Result = TypeVar("Result")


@dataclass(eq=False)
class _State:
    """What one call of the family's function left to the next one with the same number."""

    kind: str
    module: Any
    source: Frames = field(default_factory=Frames)
    other: Frames = field(default_factory=Frames)  # the residual, or the second summand
    own: int = 0  # own frames made
    given: int = 0  # frames of the result handed on
    attention: AttentionState | None = None


class ChunkEngine:
    """An Engine for one stretch of space; a run at a time.

    counter: asked before each layer, told after each chunk. norms: for "group" norms, a Norms or a
    function (norm, index) -> (factor, summand). slice_bytes: most bytes of one layer's result in
    one go (None: what a chunk gives); a layer then works off a chunk in several calls.
    on_pressure: called after an out-of-memory error, before the same layer is tried again.
    watch: called as watch(step, frames) with what comes out, before it is given on; may raise.
    """

    def __init__(
        self,
        backend: Backend,
        counter: Counting | None = None,
        *,
        norms: Norms | Callable[[Norm, int], Affine] | None = None,
        slice_bytes: int | None = None,
        on_pressure: Callable[[], object] | None = None,
        watch: Callable[[Step, Tensor], object] | None = None,
    ) -> None:
        self.backend = backend
        self.counter = counter
        self.norms = norms if isinstance(norms, Norms) else Given(norms) if norms else Norms()
        self.slice_bytes = slice_bytes
        self.on_pressure = on_pressure
        self.watch = watch
        self._states: list[_State] = []
        self._call = self._norm = 0
        self._pending = False

    # --- runs -------------------------------------------------------------------------------

    def decode(self, family: Family, z: Tensor, chunk: int) -> Iterator[tuple[int, Tensor]]:
        """z (1, C, T, H, W) -> (first frame, frames) in order, `chunk` latent frames at a time."""
        return self.run(family.decode, z, chunk, family.device, family.dtype)

    def encode(self, family: Family, pixels: Tensor, chunk: int) -> Iterator[tuple[int, Tensor]]:
        """pixels (1, C, T, H, W) -> (first, parameters of the latents), `chunk` pixel frames at a
        time."""
        return self.run(family.encode, pixels, chunk, family.device, family.dtype)

    def run(
        self,
        function: Callable[[ChunkEngine, Chunk], Chunk],
        source: Tensor,
        chunk: int,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Iterator[tuple[int, Tensor]]:
        """`function` over `source` (1, C, T, H, W). The frames given may be read, not written."""
        if source.dim() != 5 or source.shape[0] != 1:
            raise ValueError(f"the video is {tuple(source.shape)}; pass one sample (1, C, T, H, W)")
        return self.feed(
            function,
            lambda frames: source[:, :, slice(*frames)],
            int(source.shape[2]),
            chunk,
            device,
            dtype,
        )

    def feed(
        self,
        function: Callable[[ChunkEngine, Chunk], Chunk],
        fetch: Callable[[Range], Tensor],
        total: int,
        chunk: int,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Iterator[tuple[int, Tensor]]:
        """run() on a video of `total` frames, of which fetch((first, stop)) gives what is due."""
        if total < 1 or chunk < 1:
            raise ValueError(f"{total} frames and chunks of {chunk}; give 1 or more of both")
        self._states = []
        if self.counter is not None:
            self.counter.total += -(-total // chunk)
        done = due = 0
        for number, first in enumerate(range(0, total, chunk)):
            due_frames = first, min(first + chunk, total)
            part = self._grain(partial(_fetched, fetch, due_frames, device, dtype))
            feed = Chunk(Frames(first, (Piece(part, first, shared=True),)), total, Fraction(chunk))
            on_cpu = part.device.type == "cpu"
            del part
            self._pending = True
            while self._pending:
                made, due = self._once(function, feed)
                while made:
                    done = made[0].stop
                    if self.watch is not None:
                        self.watch(_step(number, (made[0].first, done)), made[0].tensor)
                    yield made[0].first, made.pop(0).tensor
                if on_cpu:
                    trim_malloc()  # or heap fragments add up over many chunks
                feed = Chunk(Frames(min(first + chunk, total)), total, Fraction(chunk))
            if self.counter is not None:
                self.counter.tick(_step(number, due_frames))
        self._states = []
        if done != due:
            raise RuntimeError(f"{done} of {due} frames came out: a layer kept the rest")

    def _once(
        self, function: Callable[[ChunkEngine, Chunk], Chunk], z: Chunk
    ) -> tuple[list[Piece], int]:
        """One call of the family's function: the frames that came out, and how many all are."""
        self._call = self._norm = 0
        self._pending = False
        with torch.no_grad():
            out = function(self, z)
        return list(out.take().pieces), out.total

    # --- Engine -----------------------------------------------------------------------------

    def conv(self, x: Chunk, layer: Conv, *, add: Chunk | None = None, keep: bool = False) -> Chunk:
        """See Engine. Gives the frames for which all that they read is there."""
        state = self._state("conv", layer.module)
        affine = self._affine(layer.norm, x)
        weight = self.backend.weights.of(layer.module, "weight")
        assert weight is not None
        course = Course(layer, int(weight.shape[2]) if weight.dim() == 5 else 1, x.total)
        result = Chunk(None, course.result_total, self._rate(layer, x.rate))
        if add is not None and add.total != result.total:
            raise RuntimeError(f"a residual of {add.total} frames for a result of {result.total}")
        source = state.source.plus(x.take(keep))
        other = state.other.plus(add.take()) if add is not None else None
        limit = self._limit(result.rate, layer, weight, source)

        def step() -> tuple[tuple[Piece, ...], _State]:
            return self._conv_step(state, course, source, other, limit, affine)

        pieces, after = self._grain(step)
        result.frames = Frames(state.given, pieces)
        self._keep(after)
        return result

    def convs(self, x: Chunk, layers: Sequence[Conv]) -> tuple[Chunk, ...]:
        """See Engine; each layer keeps its own last frames."""
        last = len(layers) - 1
        return tuple(self.conv(x, layer, keep=i < last) for i, layer in enumerate(layers))

    def attention(self, x: Chunk, layer: Attention) -> Chunk:
        """See Engine. "frame" at once; "causal" keeps keys and values; "video" waits for all."""
        state = self._state("attention", layer.out)
        affine = self._affine(layer.norm, x)
        attended = Attended(self.backend, layer, affine, x.total, self._ceil(x.rate))
        frames = x.take()

        def step() -> tuple[tuple[Piece, ...], AttentionState]:
            return attended.step(state.attention or AttentionState(), frames)

        pieces, after = self._grain(step)
        self._pending |= after.given < attended.ready(after)
        self._keep(_State("attention", layer.out, attention=after))
        return Chunk(Frames(after.given - _length(pieces), pieces), x.total, x.rate)

    def local(self, x: Chunk, layer: Local, *, keep: bool = False) -> Chunk:
        """See Engine; at once."""
        rest = layer.frames_of(2) - layer.frames_of(1)
        frames = x.take(keep)
        made: list[Piece] = []
        first = stop = layer.frames_of(frames.first) if frames.first else 0
        for piece in frames.pieces:
            tensor = self._grain(partial(layer.run, piece.tensor, piece.first))
            alias = tensor.untyped_storage()._cdata == piece.tensor.untyped_storage()._cdata
            piece.shared |= alias
            made.append(Piece(tensor, stop, piece.shared and alias))
            stop += int(tensor.shape[2])
        if frames.pieces and stop != layer.frames_of(frames.stop):
            raise RuntimeError(f"a local layer made {stop} frames of {frames.stop}, not as it said")
        total = layer.frames_of(x.total)
        return Chunk(Frames(first, tuple(made)), total, x.rate * max(rest, 1))

    def add(self, x: Chunk, y: Chunk) -> Chunk:
        """See Engine; the frames that both sides have."""
        if x.total != y.total:
            raise RuntimeError(f"a video of {x.total} frames was added to one of {y.total}")
        state = self._state("add", None)
        a, b = state.source.plus(x.take()), state.other.plus(y.take())
        stop = min(a.stop, b.stop)
        pieces = tuple(self._grain(partial(_sum, p, q)) for p, q in segments(a, b, stop))
        after = _State("add", None, given=max(stop, state.given))
        after.source, after.other = self._grain(
            lambda: (a.since(stop, read_only=False), b.since(stop, read_only=False))
        )
        self._keep(after)
        return Chunk(Frames(state.given, pieces), x.total, max(x.rate, y.rate))

    # --- inside -----------------------------------------------------------------------------

    def _conv_step(
        self,
        state: _State,
        course: Course,
        source: Frames,
        other: Frames | None,
        limit: int,
        affine: Affine | None,
    ) -> tuple[tuple[Piece, ...], _State]:
        """The next frames, and the state after them; `state` stays as it is."""
        passing = _passing(state.given, course, source, other)
        ready = course.own_ready(source.stop)
        if other is not None:
            ready = min(ready, course.own_within(other.stop))
        stop = min(ready, state.own + max(limit // course.factor, 1))
        stop = max(stop, state.own)
        after = _State(state.kind, state.module, own=stop, given=state.given + _length(passing))
        begin = after.given
        if stop > state.own:
            after.given = max(course.result_of(stop), begin)
        # What is kept is copied first: the residual may be written over, so nothing may fail then.
        after.source = source.since(min(course.needed_from(stop), _passed(after, course)))
        if other is not None:
            after.other = other.since(after.given, read_only=False)
        made: tuple[Piece, ...] = ()
        if stop > state.own:
            tensor = self._convolve(course, source, other, (state.own, stop), affine)
            if tensor.shape[2]:
                made = (Piece(tensor, begin),)
        self._pending |= ready > stop
        return passing + made, after

    def _convolve(
        self,
        course: Course,
        source: Frames,
        other: Frames | None,
        own: tuple[int, int],
        affine: Affine | None,
    ) -> Tensor:
        layer = course.layer
        first, stop = course.reads(own)
        given = Pieces(source.views(first, stop), first - course.begin, course.total - course.begin)
        a, b = (course.result_of(n) for n in own)
        drop = course.made(own) - (b - a)  # only at the video's start
        add = other.own(a, b) if other is not None and b > a else None
        fused = add if drop == 0 else None
        out, _ = self.backend.convolve(layer, given, own, affine=affine, add=fused)
        if drop:
            out = out[:, :, drop:]
            if add is not None:
                out.add_(add)
        return out

    def _state(self, kind: str, module: Any) -> _State:
        if self._call == len(self._states):
            self._states.append(_State(kind, module))
        state = self._states[self._call]
        if state.kind != kind or state.module is not module:
            raise RuntimeError(
                "the VAE's layers ran in another order than in the chunk before; a run in chunks "
                "needs the same calls for each chunk"
            )
        return state

    def _keep(self, state: _State) -> None:
        self._states[self._call] = state
        self._call += 1

    def _affine(self, norm: Norm | None, x: Chunk) -> Affine | None:
        if norm is None or norm.kind != "group":
            return None
        index = self._norm
        self._norm += 1
        for piece in x.frames.pieces if x.frames is not None else ():
            self._grain(partial(self.norms.observe, norm, index, piece.tensor))
        return self.norms.affine(norm, index)

    def _rate(self, layer: Conv, rate: Fraction) -> Fraction:
        shuffle = layer.shuffle.factor[0] if layer.shuffle is not None else 1
        return rate * layer.up[0] * shuffle / layer.stride[0]

    def _ceil(self, rate: Fraction) -> int:
        return -(-rate.numerator // rate.denominator)

    def _limit(self, rate: Fraction, layer: Conv, weight: Tensor, source: Frames) -> int:
        """Most frames of the result in one call."""
        limit = self._ceil(rate)
        if self.slice_bytes is None or not source.pieces:
            return limit
        size = frame_bytes(layer, weight, source.pieces[0].tensor)
        return min(limit, max(self.slice_bytes // max(size, 1), 1))

    def _grain(self, work: Callable[[], Result]) -> Result:
        if self.counter is not None:
            self.counter.check()
        return retried(work, self.on_pressure)


def _step(number: int, frames: Range) -> Step:
    return Step("chunk", 0, 0, number, frames, (0, 0), (0, 0))


def _fetched(
    fetch: Callable[[Range], Tensor],
    frames: Range,
    device: torch.device | None,
    dtype: torch.dtype | None,
) -> Tensor:
    part = fetch(frames)
    return part.to(device=device or part.device, dtype=dtype or part.dtype)


def _length(pieces: Sequence[Piece]) -> int:
    return sum(int(p.tensor.shape[2]) for p in pieces)


def _passed(state: _State, course: Course) -> int:
    """First frame of x that has not passed by yet; the total where all have."""
    skip = min(course.layer.skip_first, course.total)
    return course.total if state.given >= skip else state.given


def _passing(given: int, course: Course, source: Frames, other: Frames | None) -> tuple[Piece, ...]:
    """The frames before the convolution's own video, where they are next."""
    stop = min(course.layer.skip_first, source.stop, course.total)
    if other is not None:
        stop = min(stop, other.stop)
    if given >= stop:
        return ()
    parts = source.views(given, stop)
    tensor = torch.cat(parts, 2) if len(parts) > 1 else parts[0].clone()
    if other is not None:
        tensor.add_(other.own(given, stop))
    return (Piece(tensor, given),)


def _sum(x: Piece, y: Piece) -> Piece:
    """x + y, into x or y where only this call has it. Writes last, so it can be tried again."""
    if not x.shared and x.tensor.dtype == torch.result_type(x.tensor, y.tensor):
        return Piece(x.tensor.add_(y.tensor), x.first)
    return Piece(x.tensor + y.tensor, x.first)
