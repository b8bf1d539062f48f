"""Tiles of the picture, each depth first through the video: a decode in little memory.

The trunk (up to the last attention) runs once on the whole picture. Behind it, spatial tiles with a
halo, cut and blended by the schedule core, go through the rest one after the other, each in chunks
of time by a ChunkEngine, so cuts in time change nothing. GroupNorm's statistics are the same for
all tiles and chunks: estimated beforehand from a part of the trunk's output (reduced.py), so that
neither seams nor flicker come from them. While the tiles run the true ones are gathered, and the
difference is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm import _native
from hy3d_rocm.decode.engines.chunk_norms import Norms
from hy3d_rocm.decode.engines.chunkwise import ChunkEngine
from hy3d_rocm.decode.engines.reduced import (
    Correction,
    Gathering,
    Statistics,
    StatisticsEngine,
    reduced,
)
from hy3d_rocm.decode.engines.tile_parts import head, trunk
from hy3d_rocm.decode.engines.tile_plan import TilePlan, plan_tiles, steps
from hy3d_rocm.decode.faults import retried
from hy3d_rocm.decode.plan import Grain
from hy3d_rocm.decode.report import Step

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.faults import Counting
    from hy3d_rocm.decode.layers import Backend, Family, Norm, Range

__all__ = ["TilePlan", "TileReport", "TiledRun", "plan_tiles", "steps"]

logger = logging.getLogger("hy3d_rocm")

Size = tuple[int, int, int]


@dataclass
class TileReport:
    """What the norms' estimate was worth. errors: of each norm behind the trunk, the largest over
    its groups: of a mean in standard deviations, of a standard deviation in itself."""

    errors: list[float] = field(default_factory=list)

    @property
    def estimate_error(self) -> float:
        """The largest; 0.0 where no norm was estimated."""
        return max(self.errors, default=0.0)


class _Frozen(Norms):
    """The estimate for every tile; gathers what belongs to the tile alone."""

    def __init__(
        self, backend: Backend, used: list[Statistics], gathering: Gathering | None,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.weights = backend.weights
        self.dtype = dtype
        self.used = used
        self.gathering = gathering
        self.owned: tuple[Range, Range] = ((0, 1), (0, 1))
        self.width = 1
        self._affines: dict[int, tuple[Tensor, Tensor]] = {}

    def affine(self, norm: Norm, index: int) -> tuple[Tensor, Tensor]:
        if index not in self._affines:
            weight = None if norm.weight is None else self.weights.of(norm.module, norm.weight)
            if weight is None:
                raise RuntimeError("a GroupNorm without a weight can't be given statistics")
            channels = int(weight.numel())
            self._affines[index] = self.used[index].affine(norm, self.weights, channels, self.dtype)
        return self._affines[index]

    def observe(self, norm: Norm, index: int, frames: Tensor) -> None:
        if self.gathering is None:
            return
        scale = frames.shape[-1] // self.width
        (h0, h1), (w0, w1) = self.owned
        part = frames[..., h0 * scale : h1 * scale, w0 * scale : w1 * scale]
        self.gathering.add(norm, index, part)


class TiledRun:
    """One sample's decode along a TilePlan.

    layerwise: arguments of the LayerEngine that runs the trunk of a VAE with GroupNorm and the part
    that statistics are estimated from (slice_bytes, resident_bytes, folder ...). store: where the
    trunk's output lies; it grows with the video at the latent's resolution.
    """

    def __init__(
        self,
        family: Family,
        backend: Backend,
        plan: TilePlan,
        *,
        counter: Counting | None = None,
        on_pressure: Callable[[], object] | None = None,
        layerwise: Mapping[str, Any] | None = None,
        store: torch.device | str = "cpu",
        measure: bool = True,
        watch: Callable[[Step, Tensor], object] | None = None,
    ) -> None:
        self.family = family
        self.backend = backend
        self.plan = plan
        self.counter = counter
        self.on_pressure = on_pressure
        self.layerwise = dict(layerwise or {})
        self.store = torch.device(store)
        self.measure = measure
        self.watch = watch
        self.report = TileReport()
        self._grid: list[tuple[int, Tensor]] = []
        self._size: Size = (0, 0, 0)

    def frames(self, z: Tensor) -> Iterator[tuple[int, Tensor]]:
        """z (1, C, T, H, W) -> (first frame, frames) in order; for a plan of one tile."""
        if len(self.plan.spatial.grains) != 1:
            raise ValueError("frames come in order only where there is one tile")
        self._prepare(z)
        used, gathering = self._estimate(), self._gathering()
        norms = _Frozen(self.backend, used, gathering, self.family.dtype)
        yield from self._tile(self.plan.spatial.grains[0], norms)
        self._judge(used, gathering)

    def run(self, z: Tensor, out: Tensor) -> None:
        """z (1, C, T, H, W) -> out (1, C', T', H', W') on the CPU, of any float type."""
        self._prepare(z)
        used, gathering = self._estimate(), self._gathering()
        norms = _Frozen(self.backend, used, gathering, self.family.dtype)
        tiles = self.plan.spatial.grains
        if len(tiles) > 1:
            out.zero_()
        for tile in tiles:
            for first, made in self._tile(tile, norms):
                _place(made, first, tile, len(tiles), out)
                del made
        self._judge(used, gathering)

    # --- the trunk --------------------------------------------------------------------------

    def _prepare(self, z: Tensor) -> None:
        """The trunk's output into `store`."""
        cut, family = self.plan.cut, self.family
        self._size = (z.shape[2], z.shape[3] * cut.scale, z.shape[4] * cut.scale)
        if cut.call < 0:
            self._grid = [(0, z)]
            return
        run = trunk(family, cut)
        made: Iterator[tuple[int, Tensor]]
        if cut.norms:
            engine = StatisticsEngine(self.backend, family.device, **self._layer_options())
            z = z.to(family.device, family.dtype)
            with torch.no_grad():
                made = engine.leave(run(engine, engine.enter(z)))
        else:
            chunks = ChunkEngine(self.backend, self._checks(), on_pressure=self.on_pressure)
            made = chunks.run(run, z, self.plan.chunk, family.device, family.dtype)
        self._grid = []
        for first, frames in made:
            kept = retried(partial(frames.to, self.store, copy=True), self.on_pressure)
            self._grid.append((first, kept))
            del frames

    def _layer_options(self) -> dict[str, Any]:
        options = {"counter": self._checks(), "on_pressure": self.on_pressure}
        return options | self.layerwise

    def _checks(self) -> Any:
        return None if self.counter is None else _ChecksOnly(self.counter)

    def _fetch(self, frames: Range) -> Tensor:
        """Frames of the trunk's output, on `store`."""
        first, stop = frames
        parts = [
            t[:, :, max(first - at, 0) : max(stop - at, 0)]
            for at, t in self._grid
            if at < stop and at + t.shape[2] > first
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    # --- statistics -------------------------------------------------------------------------

    def _gathering(self) -> Gathering | None:
        count = self.plan.cut.head_norms
        return Gathering(count) if count and self.measure else None

    def _estimate(self) -> list[Statistics]:
        """The statistics of every norm behind the trunk."""
        if self.plan.part is None:
            return []
        part = retried(self._part, self.on_pressure)
        found = self._of_part(part, ())
        for number in range(self.plan.passes):
            gathering = Gathering(self.plan.cut.head_norms)
            norms = _Frozen(self.backend, found.used, gathering, self.family.dtype)
            for tile in self.plan.spatial.grains:
                for _ in self._tile(tile, norms, kind="statistics"):
                    pass
            truth = gathering.statistics()
            logger.debug(
                "[VAE Decode] Statistics pass %d: the estimate was off by %.2e",
                number + 1,
                _worst(found.used, truth),
            )
            corrections = [Correction(p, w) for p, w in zip(found.measured, truth, strict=True)]
            found = self._of_part(part, corrections)
        return found.used

    def _part(self) -> Tensor:
        assert self.plan.part is not None
        part = reduced(self._fetch, self._size, self.plan.part)
        return part.to(self.family.device, self.family.dtype)

    def _of_part(self, part: Tensor, corrections: Any) -> StatisticsEngine:
        engine = StatisticsEngine(
            self.backend, self.family.device, corrections=corrections, **self._layer_options()
        )
        run = head(self.family, self.plan.cut)
        with torch.no_grad():
            for _ in engine.leave(run(engine, engine.enter(part))):
                pass
        return engine

    def _judge(self, used: list[Statistics], gathering: Gathering | None) -> None:
        """At the end: how good the estimate was."""
        self._grid = []
        if gathering is not None:
            truth = gathering.statistics()
            self.report.errors = [u.deviation(t) for u, t in zip(used, truth, strict=True)]
            logger.info(
                "[VAE Decode] The estimated GroupNorm statistics were off by %.2e at most",
                self.report.estimate_error,
            )

    # --- tiles ------------------------------------------------------------------------------

    def _tile(
        self, tile: Grain, norms: _Frozen, kind: str = "frames"
    ) -> Iterator[tuple[int, Tensor]]:
        """All frames of one tile, halo included."""
        plan = self.plan
        rows, columns = tile.in_slices[1:]
        norms.owned = _owned(tile, plan.spatial.factors)
        norms.width = columns.stop - columns.start
        counter = None if self.counter is None else _Placed(self.counter, tile, kind)
        engine = ChunkEngine(
            self.backend,
            counter,
            norms=norms,
            slice_bytes=plan.slice_bytes,
            on_pressure=self.on_pressure,
            watch=self.watch,
        )
        return engine.feed(
            head(self.family, plan.cut),
            lambda frames: self._fetch(frames)[..., rows, columns],
            self._size[0],
            plan.chunk,
            self.family.device,
            self.family.dtype,
        )


class _ChecksOnly:
    """A counter for work that is not counted."""

    def __init__(self, counter: Counting) -> None:
        self.counter = counter
        self.total = 0

    def check(self) -> None:
        self.counter.check()

    def tick(self, step: Step) -> None:
        """Not counted."""


class _Placed(_ChecksOnly):
    """Gives a tile's number and place to its engine's steps; the total is the caller's."""

    def __init__(self, counter: Counting, tile: Grain, kind: str) -> None:
        super().__init__(counter)
        self.tile, self.kind = tile, kind

    def tick(self, step: Step) -> None:
        (_, h0, w0), (_, h1, w1) = self.tile.out_start, self.tile.out_stop
        place = {"tile": self.tile.index, "rows": (h0, h1), "columns": (w0, w1)}
        self.counter.tick(replace(step, kind=self.kind, **place))  # type: ignore[arg-type]


def _place(made: Tensor, first: int, tile: Grain, tiles: int, out: Tensor) -> None:
    """Drops the halo and adds the rest, times the windows, to the output."""
    _, rows, columns = tile.keep_slices
    kept = made[..., rows, columns].to("cpu")
    _, out_rows, out_columns = tile.out_slices
    where = out[:, :, first : first + made.shape[2], out_rows, out_columns]
    if tiles == 1:
        where.copy_(kept)
    else:
        _native.blend_accumulate(kept, None, tile.window(1), tile.window(2), where)


def _owned(tile: Grain, factors: Size) -> tuple[Range, Range]:
    """The rows and columns of the tile's own grid that no other tile owns: the overlap is shared as
    the schedule core shares it, the larger half before the boundary."""
    found = []
    for axis in (1, 2):
        factor, offset = factors[axis], tile.in_start[axis]
        before, after = tile.ramp_before[axis] // factor, tile.ramp_after[axis] // factor
        start = tile.out_start[axis] // factor + before - before // 2
        stop = tile.out_stop[axis] // factor - after // 2
        found.append((start - offset, stop - offset))
    return found[0], found[1]


def _worst(used: list[Statistics], truth: list[Statistics]) -> float:
    return max(u.deviation(t) for u, t in zip(used, truth, strict=True))
