"""Layer by layer over slices of time: what streams a VAE whose norms see the whole video.

Each layer goes over the video a few frames at a time; a slice of its input is let go as soon as
everybody has read it, so that the most that is held is what is not yet read plus what is made, not
twice the video. GroupNorm's moments come from whoever made the slices. Slices beyond a limit lie
on the host (spill.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.engines.layer_attention import attend
from hy3d_rocm.decode.engines.layer_conv import ConvRun
from hy3d_rocm.decode.engines.moments import channel_moments, combine, group_affine
from hy3d_rocm.decode.engines.movers import mover_for
from hy3d_rocm.decode.engines.sliced import Sliced, default_slice_bytes, frames_of
from hy3d_rocm.decode.engines.spill import Keeper, Slice
from hy3d_rocm.decode.faults import Counting, Grains
from hy3d_rocm.decode.layers import Attention, Conv, Local, Moments, Norm, Range
from hy3d_rocm.decode.memory import meter
from hy3d_rocm.decode.report import Step

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor

    from hy3d_rocm.decode.engines.movers import Mover
    from hy3d_rocm.decode.layers import Backend

Affine = tuple[Any, Any]

#: of slices let go on the CPU until free pages are returned to the system
TRIM_BYTES = 64 << 20


class LayerEngine:
    """Engine of layers.py; handles are Sliced.

    slice_bytes: of a grain's result or padded input, whichever is larger (at least one frame).
    resident_bytes: of slices on the device; what is over lies on the host. None: no limit. Never
    exceeded but by what one grain reads and makes.
    counter: check() before each grain, tick(Step) after. on_pressure: called when a grain ran out
    of memory, before it is tried again (default: the allocator is emptied).
    watch: called as watch(step, result) after each grain that makes frames; may raise.
    moments: gather moments as slices are made (false for VAEs without a norm over the video: they
    are then computed when asked for).
    folder: of a temporary file for slices beyond the limit, on the CPU only.
    Nothing is decided by time, budget or faults: the same job gives the same bits.
    """

    def __init__(
        self,
        backend: Backend,
        device: torch.device,
        slice_bytes: int | None = None,
        resident_bytes: int | None = None,
        counter: Counting | None = None,
        on_pressure: Callable[[], object] | None = None,
        watch: Callable[[Step, Tensor], object] | None = None,
        moments: bool = True,
        folder: str | Path | None = None,
        mover: Mover | None = None,
        sample: int = 0,
    ) -> None:
        self.backend = backend
        self.device = device
        self.slice_bytes = slice_bytes or default_slice_bytes(device)
        if resident_bytes is not None and mover is None:
            mover = mover_for(device, folder)
        self.keeper = Keeper(mover, resident_bytes)
        self._relief = on_pressure or (lambda: meter.give_back(device))
        self.grains = Grains(counter, self._press)
        self.watch = watch
        self.gather = moments
        self.sample = sample

    # What goes in and out

    def enter(self, x: Tensor) -> Sliced:
        """A handle on x (1, C, T, H, W), which is only read and stays the caller's."""
        x = self.grains.quietly(lambda: x.to(self.device))
        handle = Sliced((x.shape[1], x.shape[2], x.shape[3], x.shape[4]), x.dtype)
        step = max(1, self.slice_bytes // handle.frame_bytes)
        for first in range(0, x.shape[2], step):
            piece = Slice(x[:, :, first : first + step], first, x.shape[2], owned=False)
            handle.append(piece, None)
            self.keeper.put(piece)
        return handle

    def leave(self, x: Sliced) -> Iterator[tuple[int, Tensor]]:
        """First frame and frames of each slice in order; each is let go when the next is asked
        for."""
        self._consume(x)
        for number, piece in enumerate(x.slices):
            with self.calling():
                tensor = self.run(
                    self.step("result", x, (piece.first, piece.stop)),
                    lambda piece=piece, n=number: self.held(  # type: ignore[misc]
                        [piece], 0, lambda tensors: tensors[0], x.slices[n + 1 : n + 2]
                    ),
                )
            yield piece.first, tensor
            del tensor
            self.keeper.drop(piece)

    # Engine

    def conv(
        self, x: Sliced, layer: Conv, *, add: Sliced | None = None, keep: bool = False
    ) -> Sliced:
        """See Engine.conv."""
        with self.calling():
            return self._conv_all(x, [layer], add, keep)[0]

    def convs(self, x: Sliced, layers: Sequence[Conv]) -> tuple[Sliced, ...]:
        """See Engine.convs."""
        with self.calling():
            return tuple(self._conv_all(x, layers, None, False))

    def attention(self, x: Sliced, layer: Attention) -> Sliced:
        """See Engine.attention."""
        self._consume(x)
        with self.calling():
            return attend(self, x, layer)

    def local(self, x: Sliced, layer: Local, *, keep: bool = False) -> Sliced:
        """See Engine.local."""
        self._consume(x, keep)
        with self.calling():
            return self._local(x, layer, keep)

    def add(self, x: Sliced, y: Sliced) -> Sliced:
        """See Engine.add."""
        self._consume(x)
        if y is not x:
            self._consume(y)
        if x.shape != y.shape:
            raise ValueError(f"videos of shape {x.shape} and {y.shape} can't be added")
        with self.calling():
            return self._add(x, y)

    # Grains

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Copies under way are waited for where a call ends in an error."""
        try:
            yield
        except BaseException:
            self.keeper.drain()
            raise

    def run(self, step: Step, work: Callable[[], Any]) -> Any:
        """One grain."""
        return self.grains.run(step, work)

    def step(self, kind: str, x: Sliced, frames: tuple[int, int]) -> Step:
        """`frames` of x as a counter gets them; chunk is the number of the grain."""
        _, _, rows, columns = x.shape
        return Step(kind, self.sample, 0, self.grains.done, frames, (0, rows), (0, columns))

    def held(
        self, pieces: Sequence[Slice], making: int, work: Callable[[list[Tensor]], Any],
        then: Sequence[Slice] = (),
    ) -> Any:  # fmt: skip
        """work(tensors of the slices), with room for `making` bytes; `then` is what the next grain
        reads."""
        try:
            tensors = self.keeper.hold(pieces, making)
            self.keeper.want(then)
            return work(tensors)
        finally:
            self.keeper.loosen(pieces)

    def finish(self, out: Sliced, tensor: Tensor, moments: Moments | None, step: Step) -> None:
        """Takes a finished slice of `out` in."""
        if self.watch is not None:
            self.watch(step, tensor)
        first = out.slices[-1].stop if out.slices else 0
        piece = Slice(tensor, first, out.shape[1])
        out.append(piece, moments)
        self.keeper.put(piece)
        if moments is None and self.gather:
            out.parts[-1] = self._moments_of(out, len(out.slices) - 1)
        if self.device.type == "cpu" and self.keeper.let_go >= TRIM_BYTES:
            self.keeper.let_go = 0
            meter.trim_malloc()  # glibc keeps freed slices below 32 MiB otherwise

    def affine(self, x: Sliced, norm: Norm | None) -> Affine | None:
        """What stands for a norm over the whole of x; None for other norms."""
        if norm is None or norm.kind != "group":
            return None
        parts = [p if p is not None else self._moments_of(x, i) for i, p in enumerate(x.parts)]
        x.parts = list(parts)
        weights = self.backend.weights
        return self.grains.quietly(lambda: group_affine(norm, combine(parts), weights, x.dtype))

    def release(self, x: Sliced, stop: int) -> None:
        """Lets the slices of x that end at or before frame `stop` go."""
        for piece in x.slices:
            if piece.stop <= stop:
                self.keeper.drop(piece)

    def _moments_of(self, x: Sliced, number: int) -> Moments:
        piece = x.slices[number]
        step = self.step("moments", x, (piece.first, piece.stop))
        found: Moments = self.run(
            step, lambda: self.held([piece], 0, lambda tensors: channel_moments(tensors[0]))
        )
        return found

    def _press(self) -> None:
        self.keeper.press()
        self._relief()

    def _consume(self, x: Sliced, keep: bool = False) -> None:
        if x.consumed:
            raise ValueError("this handle was given up by an earlier call (pass keep=True there)")
        x.consumed = not keep
        for piece in x.slices:
            piece.turn = 0

    # Layers

    def _conv_all(
        self, x: Sliced, layers: Sequence[Conv], add: Sliced | None, keep: bool
    ) -> list[Sliced]:
        keep = keep and add is not x  # a residual is always consumed
        self._consume(x, keep)
        if add is not None and add is not x:
            self._consume(add)
        runs = self.grains.quietly(lambda: [ConvRun(self, x, layer, add) for layer in layers])
        for run, layer in zip(runs, layers, strict=True):
            run.affine = self.affine(x, layer.norm)
        for run in runs:
            run.pass_first()
        # Whoever is furthest behind goes on, so that slices are let go as early as can be.
        while pending := [(r.next.reads[1], i) for i, r in enumerate(runs) if r.next is not None]:
            runs[min(pending)[1]].advance()
            self._passed(x, min(r.need for r in runs), keep)
        self._passed(x, x.shape[1], keep)
        return [run.out for run in runs]

    def _passed(self, x: Sliced, frame: int, keep: bool) -> None:
        """This call reads nothing before `frame` any more."""
        if not keep:
            self.release(x, frame)
        for piece in x.slices:
            if piece.stop <= frame:
                piece.turn = 1

    def _local(self, x: Sliced, layer: Local, keep: bool) -> Sliced:
        out: Sliced | None = None
        frames = x.shape[1]
        total = layer.frames_of(frames)
        later = layer.frames_of(2) - layer.frames_of(1)
        first, count = 0, 1  # the first frame alone tells the size of a result
        while first < frames:
            (piece,) = x.covering((first, first + 1))
            stop = min(first + count, piece.stop)
            step = self.step("local", x, (first, stop))
            made = self._local_grain(layer, piece, (first, stop), step)
            if out is None:
                out = Sliced((made.shape[1], total, made.shape[3], made.shape[4]), made.dtype)
                count = max(1, self.slice_bytes // max(out.frame_bytes * later, x.frame_bytes))
            self._passed(x, stop, keep)
            self.finish(out, made, None, step)
            del made
            first = stop
        if out is None or out.slices[-1].stop != total:
            raise ValueError(f"a function of frames did not make the {total} frames it had said")
        return out

    def _local_grain(self, layer: Local, piece: Slice, frames: Range, step: Step) -> Tensor:
        def work(tensors: list[Tensor]) -> Tensor:
            part = tensors[0][:, :, frames[0] - piece.first : frames[1] - piece.first]
            made = layer.run(part, frames[0])
            shared = made.untyped_storage()._cdata == part.untyped_storage()._cdata
            return made.clone() if shared else made

        making = piece.nbytes // piece.frames * (frames[1] - frames[0])
        made: Tensor = self.run(step, lambda: self.held([piece], making, work))
        return made

    def _add(self, x: Sliced, y: Sliced) -> Sliced:
        out = Sliced(x.shape, x.dtype)
        for piece in x.slices:
            others = y.covering((piece.first, piece.stop))
            step = self.step("add", x, (piece.first, piece.stop))
            result = self._add_grain(piece, others, x.frame_bytes, step)
            self.keeper.drop(piece)
            self.release(y, piece.stop)
            self.finish(out, result, None, step)
            del result
        return out

    def _add_grain(self, piece: Slice, others: list[Slice], out_bytes: int, step: Step) -> Tensor:
        def work(tensors: list[Tensor]) -> Tensor:
            frames = (piece.first, piece.stop)
            other = frames_of(others, tensors[1:], frames)
            return tensors[0].add_(other) if piece.owned else tensors[0] + other

        making = 0 if piece.owned else piece.frames * out_bytes
        result: Tensor = self.run(step, lambda: self.held([piece, *others], making, work))
        return result
