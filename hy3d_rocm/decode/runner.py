"""Runs one rung of the ladder, a grain at a time, in the caller's thread (function modes such as
protect() are per thread)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hy3d_rocm import _native
from hy3d_rocm.decode.memory import trim_malloc
from hy3d_rocm.decode.norms import NormPass, Owned, Statistics
from hy3d_rocm.decode.report import DecodeCancelled, Step
from hy3d_rocm.decode.vaes import Carry

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.ladder import Rung
    from hy3d_rocm.decode.plan import Grain
    from hy3d_rocm.decode.vaes import VideoVae

Progress = Callable[[int, int, Step], object]


def asked_to_stop(cancel: Any) -> bool:
    """`cancel`: None, a callable, an object with `.requested`, or a threading.Event."""
    if cancel is None:
        return False
    requested = getattr(cancel, "requested", None)
    if requested is not None:
        return bool(requested() if callable(requested) else requested)
    if hasattr(cancel, "is_set"):
        return bool(cancel.is_set())
    return bool(cancel())


@dataclass
class Counter:
    """Looks at `cancel` before each grain, reports to `progress` after it."""

    progress: Progress | None
    cancel: Any
    total: int = 0
    done: int = 0

    def check(self) -> None:
        if asked_to_stop(self.cancel):
            raise DecodeCancelled(
                f"the decode was cancelled after {self.done} of {self.total} grains"
            )

    def tick(self, step: Step) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, step)


class TiledRun:
    """Decodes `z` (B, C, T, H, W) along one tiled rung into `out` on the CPU."""

    def __init__(
        self, adapter: VideoVae, rung: Rung, z: Tensor, out: Tensor, counter: Counter
    ) -> None:
        assert rung.spatial is not None
        self.adapter = adapter
        self.rung = rung
        self.z = z
        self.out = out
        self.counter = counter
        self.plan = rung.spatial
        self.tiles = tuple(self.plan.grains)
        self.chunks = list(chunk_ranges(z.shape[2], rung.chunk))
        counter.done = 0
        counter.total = z.shape[0] * (1 + rung.passes * len(self.tiles) * len(self.chunks))

    def run(self) -> None:
        if len(self.tiles) > 1:
            self.out.zero_()  # the tiles are added up
        for sample in range(self.z.shape[0]):
            self._sample(sample)

    def _sample(self, sample: int) -> None:
        self.counter.check()
        grid = self.adapter.trunk(self.z[sample : sample + 1], self.rung.depth)
        frames, height, width = self.out.shape[2:]
        self.counter.tick(Step("trunk", sample, 0, 0, (0, frames), (0, height), (0, width)))
        before: Statistics | None = None
        for _ in range(self.rung.passes - 1):
            gathered = Statistics()
            self._pass(sample, grid, NormPass(before=before, gather=gathered), frames=False)
            before = gathered
        self._pass(sample, grid, NormPass(frozen=before), frames=True)

    def _pass(self, sample: int, grid: Tensor, norms: NormPass, frames: bool) -> None:
        for index, tile in enumerate(self.tiles):
            carry = Carry()
            rows, columns = tile.in_slices[1:]
            part = grid[..., rows, columns]
            owned = _owned(tile, self.plan.factors) if len(self.tiles) > 1 else None
            for number, (start, stop) in enumerate(self.chunks):
                self.counter.check()
                norms.start(index * len(self.chunks) + number, part.shape[-1], owned)
                step = self._step("frames" if frames else "statistics", sample, tile, number)
                piece = self._grid_frames(part, start, stop)
                last = number == len(self.chunks) - 1
                decoded = self.adapter.head(piece, self.rung.depth, carry, norms, last)
                if frames:
                    self._place(decoded, step, tile)
                del decoded
                if grid.device.type == "cpu":
                    trim_malloc()  # or fragments add up: 2 MB a grain, 300 MB measured
                self.counter.tick(step)

    def _grid_frames(self, part: Tensor, start: int, stop: int) -> Tensor:
        """The trunk's frames of latents start .. stop: latent 0 makes one, each other `time`."""
        time = self.adapter.scale(self.rung.depth)[0]
        first, end = (_causal(n, time) for n in (start, stop))
        return part[:, :, first:end]

    def _step(self, kind: str, sample: int, tile: Grain, chunk: int) -> Step:
        time = self.adapter.factor[0]
        start, stop = self.chunks[chunk]
        (_, h0, w0), (_, h1, w1) = tile.out_start, tile.out_stop
        return Step(
            kind,
            sample,
            tile.index,
            chunk,
            (_causal(start, time), _causal(stop, time)),
            (h0, h1),
            (w0, w1),
        )

    def _place(self, decoded: Tensor, step: Step, tile: Grain) -> None:
        """Drops the halo and adds the rest, times the windows, to the output."""
        _, rows, columns = tile.keep_slices
        kept = decoded[..., rows, columns].to("cpu")
        where = self.out[
            step.sample : step.sample + 1,
            :,
            slice(*step.frames),
            slice(*step.rows),
            slice(*step.columns),
        ]
        if len(self.tiles) == 1:
            where.copy_(kept)
        else:
            _native.blend_accumulate(kept, None, tile.window(1), tile.window(2), where)


def _causal(latent: int, time: int) -> int:
    """Frames that latents 0 .. latent make."""
    return (latent - 1) * time + 1 if latent > 0 else 0


def chunk_ranges(length: int, chunk: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of latents; even shares, so that no chunk is a rest of one."""
    count = -(-length // chunk)
    for i in range(count):
        yield length * i // count, length * (i + 1) // count


def _owned(tile: Grain, factors: tuple[int, int, int]) -> Owned:
    """The tile's core in its own grid: the overlap is shared as the schedule core shares it, the
    larger half before the boundary."""
    found = []
    for axis in (1, 2):
        factor, offset = factors[axis], tile.in_start[axis]
        before, after = tile.ramp_before[axis] // factor, tile.ramp_after[axis] // factor
        start = tile.out_start[axis] // factor + before - before // 2
        stop = tile.out_stop[axis] // factor - after // 2
        found.append((start - offset, stop - offset))
    return found[0], found[1]
