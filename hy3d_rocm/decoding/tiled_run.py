"""A program's sections in tiles: a prefix, parts that statistics are estimated from, and the tiles.

The prefix's output is kept, parts and tiles of it are cut out, and what comes out of a tile is
blended into the result. GroupNorm's statistics are the same for all tiles: estimated beforehand
from a part of the prefix's output (statistics.py), so that neither seams nor flicker come from
them. While the tiles run the true ones are gathered, and the difference is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from hy3d_rocm import _native
from hy3d_rocm.decoding.backends import statistics
from hy3d_rocm.decoding.backends.statistics import Statistics
from hy3d_rocm.decoding.layers import Moments, Range
from hy3d_rocm.decoding.plan import Tile, Tiles
from hy3d_rocm.decoding.run import TRIM, Made, ProgramStep, Run, joined

logger = logging.getLogger("hy3d_rocm")

# hy3d_section_kind
_PREFIX, _STATISTICS = 1, 2


class TiledRun(Run):
    """As Run, of all sections of a program in tiles.

    estimate_error: how far the estimated statistics were off, of a mean in standard deviations, of
    a standard deviation in itself; 0.0 where nothing was estimated.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.estimate_error = 0.0
        self._tile: Tile | None = None  # whose section is carried out
        # The prefix's output; of each norm behind the cut what the part of the last estimate
        # measured, and what is in force; of the values that they normalise, by node, what the
        # tiles have shown so far.
        self._grid: list[tuple[int, Tensor]] = []
        self._measured: dict[int, Statistics] = {}
        self._used: dict[int, Statistics] = {}
        self._seen: dict[int, Moments] = {}
        self._before: dict[int, tuple[Statistics, Statistics]] = {}  # measured, true

    def tiles(self, program: _native.Program, z: Tensor, out: Tensor) -> None:
        """z (1, C, T, H, W) -> out (1, C', T', H', W') on the CPU, of any float type."""
        assert program.tiles is not None
        tiles = tile_places(program.tiles)
        if len(tiles) > 1:
            out.zero_()
        self._grid = [(0, z)]
        for number, section in enumerate(program.sections):
            self._tile = tiles[section["tile"]] if section["kind"] > _STATISTICS else None
            if section["kind"] == _PREFIX:
                grid = []
                for first, frames in self.section(program, number, self._fetch, section):
                    grid.append((first, self._tried(partial(frames.to, "cpu", copy=True))))
                    del frames
                self._grid = grid
            elif section["kind"] == _STATISTICS:
                self._estimate(program, number, section)
            elif self._tile is not None:
                self._in_tile(program, number, section, self._tile, out)
        self._grid = []
        if self._used:
            self.estimate_error = self._worst(self._truth())
            logger.info(
                "[VAE Decode] The estimated GroupNorm statistics were off by %.2e at most",
                self.estimate_error,
            )

    def _in_tile(
        self, program: _native.Program, number: int, section: dict[str, Any], tile: Tile,
        out: Tensor,
    ) -> None:  # fmt: skip
        rows, columns = slice(*section["rows"]), slice(*section["columns"])
        cut = lambda frames: self._fetch(frames)[..., rows, columns]  # noqa: E731
        (_, high, wide), (_, out_rows, out_columns) = tile.keep_slices, tile.out_slices
        windows = None, tile.window(1), tile.window(2)
        for first, frames in self.section(program, number, cut, section):
            if not section["pass"]:
                kept = self._tried(lambda made: made[..., high, wide].to("cpu"), frames)
                time = slice(first, first + kept.shape[2])
                blend(kept, out[:, :, time, out_rows, out_columns], windows)
                del kept
            del frames

    def _fetch(self, frames: Range) -> Tensor:
        return joined(self._grid, frames)

    def _counted_as(self) -> tuple[int, Range, Range]:
        if self._tile is None:
            return super()._counted_as()
        (_, h0, w0), (_, h1, w1) = self._tile.out_start, self._tile.out_stop
        return self._tile.index, (h0, h1), (w0, w1)

    def _keep(self, step: ProgramStep, made: Made) -> None:
        if self._tile is not None:
            self._see(step, made[0], self._tile)
        super()._keep(step, made)

    def _estimate(self, program: _native.Program, number: int, section: dict[str, Any]) -> None:
        """The statistics of all norms behind the cut, from a part; corrected by what a pass over
        all tiles has gathered."""
        truth = self._truth()
        self._before = {n: (self._measured[n], truth[n]) for n in truth}
        if truth:
            logger.debug(
                "[VAE Decode] A correction: the estimate was off by %.2e", self._worst(truth)
            )
        self._measured, self._used, self._seen = {}, {}, {}
        rows, columns = (int(n) for n in self._grid[0][1].shape[3:])
        whole = sum(int(t.shape[2]) for _, t in self._grid), rows, columns
        part = self._tried(
            lambda: statistics.reduced(self._fetch, whole, section["size"]).to(
                self.device, self.dtype
            )
        )
        for _ in self.section(program, number, lambda r: part[:, :, slice(*r)], section):
            pass  # nothing is given away

    def _see(self, step: ProgramStep, tensor: Tensor, tile: Tile) -> None:
        """A slice was made: what belongs to this tile alone counts for the true statistics."""
        nodes = self.graph.nodes
        if step.op == TRIM or all(nodes[norm].source != step.node for norm in self._used):
            return
        scale = tensor.shape[-1] // self._section["size"][2]
        rows, columns = (
            slice((start - first) * scale, (stop - first) * scale)
            for first, start, stop in zip(
                tile.in_start[1:], tile.own_start[1:], tile.own_stop[1:], strict=True
            )
        )
        part = tensor[..., rows, columns]
        if part.numel():
            more, known = self._tried(statistics.channel_moments, part), self._seen.get(step.node)
            self._seen[step.node] = more if known is None else statistics.combine([known, more])

    def _truth(self) -> dict[int, Statistics]:
        return {
            node: statistics.grouped(
                self._seen[self.graph.nodes[node].source], self._norm(node).groups
            )
            for node in self._used
        }

    def _worst(self, truth: dict[int, Statistics]) -> float:
        return max((self._used[n].deviation(truth[n]) for n in truth), default=0.0)

    def _affine(self, node: int, source: int, moments: Sequence[Moments]) -> tuple[Tensor, Tensor]:
        if self._section["kind"] != _STATISTICS:
            return super()._affine(node, source, moments)
        norm = self._norm(node)
        found = self._measured[node] = statistics.grouped(statistics.combine(moments), norm.groups)
        if node in self._before:
            found = statistics.corrected(found, *self._before[node], norm.eps)
        self._used[node] = found
        channels = self.graph.nodes[source].channels
        return found.affine(norm, self.backend.weights, channels, self.dtype)


def tile_places(tiles: dict[str, Any]) -> Tiles:
    """Where the tiles lie, of a hy3d_tiles_desc."""
    return Tiles(_native.schedule_plan(**tiles))


def blend(kept: Tensor, place: Tensor, windows: Sequence[memoryview | None]) -> None:
    """Adds a tile to its place in the result, times its windows along T, H and W: of one without
    any that is the place."""
    if any(window is not None for window in windows):
        _native.blend_accumulate(kept, windows[0], windows[1], windows[2], place)
    else:
        place.copy_(kept)
