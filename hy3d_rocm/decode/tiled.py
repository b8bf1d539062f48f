"""Carries out a program in tiles: the prefix, the statistics of GroupNorms, then tile after tile.

Which sections there are, and what each does, the program says (include/hy3d/schedule.h). Here the
prefix's output is kept, parts and tiles of it are cut out, and what comes out of a tile is blended
into the result. GroupNorm's statistics are the same for all tiles: estimated beforehand from a part
of the prefix's output (statistics.py), so that neither seams nor flicker come from them. While the
tiles run the true ones are gathered, and the difference is reported.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm import _native
from hy3d_rocm.decode.backends.statistics import (
    Statistics,
    channel_moments,
    combine,
    corrected,
    grouped,
    reduced,
)
from hy3d_rocm.decode.layers import Attention, Conv
from hy3d_rocm.decode.plan import plan_decode
from hy3d_rocm.decode.run import OPS, ProgramStep, Run

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm._core import Program
    from hy3d_rocm.decode.layers import Moments, Norm, Range
    from hy3d_rocm.decode.plan import DecodePlan, Grain
    from hy3d_rocm.decode.report import Step

__all__ = ["TiledRun", "tile_places"]

logger = logging.getLogger("hy3d_rocm")

# hy3d_section_kind
_PREFIX, _STATISTICS, _TILE = 1, 2, 3


class TiledRun(Run):
    """One sample's decode in tiles. estimate_error: how far the estimated statistics were off, of a
    mean in standard deviations, of a standard deviation in itself; 0.0 where nothing was estimated.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.estimate_error = 0.0
        self._grid: list[tuple[int, Tensor]] = []
        self._section: dict[str, Any] = {}
        self._tile: Grain | None = None
        # Of each norm behind the cut: what the part of the last estimate measured, and what is in
        # force; of the values that they normalise, by node, what the tiles have shown so far.
        self._measured: dict[int, Statistics] = {}
        self._used: dict[int, Statistics] = {}
        self._seen: dict[int, Moments] = {}
        self._before: dict[int, tuple[Statistics, Statistics]] = {}  # measured, true

    def run(self, program: Program, z: Tensor, out: Tensor) -> None:
        """z (1, C, T, H, W) -> out (1, C', T', H', W') on the CPU, of any float type."""
        assert program.tiles is not None
        spatial = tile_places(program.tiles)
        if len(spatial.grains) > 1:
            out.zero_()
        self._grid = [(0, z)]
        for number, section in enumerate(self.sections_of(program)):
            self._section = section
            if section["kind"] == _PREFIX:
                self._grid = self._prefix(program, number, z)
            elif section["kind"] == _STATISTICS:
                self._estimate(program, number)
            else:
                self._in_tile(program, number, spatial, out)
        self._grid = []
        if self._used:
            self.estimate_error = self._worst(self._truth())
            logger.info(
                "[VAE Decode] The estimated GroupNorm statistics were off by %.2e at most",
                self.estimate_error,
            )

    def _prefix(self, program: Program, number: int, z: Tensor) -> list[tuple[int, Tensor]]:
        made = []
        for first, frames in self.section(program, number, lambda r: z[:, :, slice(*r)]):
            made.append((first, self._attempt(0, partial(frames.to, "cpu", copy=True))))
            del frames
        return made

    def _in_tile(self, program: Program, number: int, spatial: DecodePlan, out: Tensor) -> None:
        section = self._section
        rows, columns = slice(*section["rows"]), slice(*section["columns"])
        self._tile = tile = spatial.grains[section["tile"]]
        cut = lambda frames: self._fetch(frames)[..., rows, columns]  # noqa: E731
        for first, frames in self.section(program, number, cut):
            if not section["pass"]:
                kept = self._attempt(0, _kept, frames, tile)
                _place(kept, first, tile, len(spatial.grains), out)
                del kept
            del frames
        self._tile = None

    def _fetch(self, frames: Range) -> Tensor:
        """Frames of the prefix's output."""
        first, stop = frames
        parts = [
            t[:, :, max(first - at, 0) : max(stop - at, 0)]
            for at, t in self._grid
            if at < stop and at + t.shape[2] > first
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    # Statistics

    def _estimate(self, program: Program, number: int) -> None:
        """The statistics of all norms behind the cut, from a part; corrected by what a pass over
        all tiles has gathered."""
        self._before = {}
        if self._used:
            truth = self._truth()
            self._before = {n: (self._measured[n], truth[n]) for n in truth}
            logger.debug(
                "[VAE Decode] A correction: the estimate was off by %.2e", self._worst(truth)
            )
        self._measured, self._used, self._seen = {}, {}, {}
        size = self._section["size"]
        rows, columns = (int(n) for n in self._grid[0][1].shape[3:])
        whole = sum(int(t.shape[2]) for _, t in self._grid), rows, columns
        part = self._attempt(
            0, lambda: reduced(self._fetch, whole, size).to(self.device, self.dtype)
        )
        for _ in self.section(program, number, lambda r: part[:, :, slice(*r)]):
            pass  # nothing is given away

    def _reduce(self, step: ProgramStep) -> None:
        if self._section["kind"] != _STATISTICS:
            super()._reduce(step)
            return
        norm, source = self._norm(step.node), self.graph.nodes[step.node].source
        found = grouped(combine([self._gathered[n] for n in self._of_node[source]]), norm.groups)
        self._measured[step.node] = found
        if step.node in self._before:
            found = corrected(found, *self._before[step.node], norm.eps)
        self._used[step.node] = found
        channels = self.graph.nodes[source].channels
        self.affines[step.node] = found.affine(norm, self.backend.weights, channels, self.dtype)

    def _norm(self, node: int) -> Norm:
        layer = self.graph.layers[node]
        assert isinstance(layer, (Conv, Attention))
        assert layer.norm is not None
        return layer.norm

    def _made_slice(self, step: ProgramStep, tensor: Tensor) -> None:
        """A slice was made: what belongs to this tile alone counts for the true statistics."""
        nodes = self.graph.nodes
        normed = any(nodes[norm].source == step.node for norm in self._used)
        tile = self._tile
        if tile is None or not normed or OPS[step.op] == "trim":
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
            more, known = self._attempt(0, channel_moments, part), self._seen.get(step.node)
            self._seen[step.node] = more if known is None else combine([known, more])

    def _truth(self) -> dict[int, Statistics]:
        return {
            node: grouped(self._seen[self.graph.nodes[node].source], self._norm(node).groups)
            for node in self._used
        }

    def _worst(self, truth: dict[int, Statistics]) -> float:
        return max((self._used[n].deviation(truth[n]) for n in truth), default=0.0)

    def _reported(self, step: Step) -> Step:
        """With the tile's number and place."""
        if self._tile is None:
            return step
        (_, h0, w0), (_, h1, w1) = self._tile.out_start, self._tile.out_stop
        kind = "statistics" if self._section["pass"] else step.kind
        return step._replace(kind=kind, tile=self._tile.index, rows=(h0, h1), columns=(w0, w1))


def tile_places(tiles: dict[str, Any]) -> DecodePlan:
    """Where the tiles lie, of a hy3d_tiles_desc."""
    return plan_decode(
        tiles["latent"], factors=tiles["factor"], causal=bool(tiles["causal"]),
        overlap=tiles["overlap"], halo=tiles["halo"], min_tile=tiles["min_tile"],
        level=tiles["level"], shrink=tiles["shrink"],
    )  # fmt: skip


def _kept(made: Tensor, tile: Grain) -> Tensor:
    """Without the halo, on the CPU."""
    _, rows, columns = tile.keep_slices
    return made[..., rows, columns].to("cpu")


def _place(kept: Tensor, first: int, tile: Grain, tiles: int, out: Tensor) -> None:
    """Adds what is kept of a tile, times the windows, to the output."""
    _, out_rows, out_columns = tile.out_slices
    where = out[:, :, first : first + kept.shape[2], out_rows, out_columns]
    if tiles == 1:
        where.copy_(kept)
    else:
        _native.blend_accumulate(kept, None, tile.window(1), tile.window(2), where)
