"""The ladder of ways to decode one latent: the whole decode first, then ever less memory.

A rung is a trunk depth, a chunk length in time and a level of spatial tiles (of plan_decode),
priced by the footprint before anything runs. The order is fixed, from little to much repeated
work; a candidate that saves too little against the rung before is left out. So the ladder depends
on the VAE, the latent's shape and the options, never on the budget: the budget, or an allocation
that fails, only picks the rung, and a rung gives the same bits whichever way it was reached. Rungs
are priced when first looked at (a price takes about 0.1 s).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.plan import plan_decode
from hy3d_rocm.decode.runner import chunk_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hy3d_rocm.decode.footprint import Footprint
    from hy3d_rocm.decode.plan import DecodePlan
    from hy3d_rocm.decode.report import DecodeOptions
    from hy3d_rocm.decode.vaes import VideoVae

# A next rung has to save this share, or stepping down after an OOM would try near-equals.
_SAVING = 0.85
# What a process's first convolutions take beside tensors: oneDNN's generated code, thread stacks,
# heap fragments. Measured 20 to 30 MB by tests/bench/measure_decode.py; once a process.
CPU_OVERHEAD_BYTES = 32_000_000


@dataclass(frozen=True)
class Rung:
    """One way to decode. `chunk`: latent frames per chunk; `spatial`: tiles of the trunk's grid."""

    kind: str  # "whole" or "tiled"
    peak_bytes: int
    macs: int
    depth: int = 0
    chunk: int = 0
    spatial: DecodePlan | None = None
    passes: int = 1
    trunk_bytes: int = 0
    grain_bytes: int = 0
    resident_bytes: int = 0

    def describe(self, latent_frames: int) -> dict[str, Any]:
        """JSON-able."""
        plain: dict[str, Any] = {
            "kind": self.kind,
            "peak_bytes": self.peak_bytes,
            "gmacs": round(self.macs / 1e9, 3),
        }
        if self.spatial is not None:
            plain |= {
                "trunk_blocks": self.depth,
                "passes": self.passes,
                "chunk_latent_frames": self.chunk,
                "chunks": -(-latent_frames // self.chunk),
                "tiles": list(self.spatial.count[1:]),
                "tile_grid_units": list(self.spatial.tile[1:]),
                "trunk_bytes": self.trunk_bytes,
                "grain_bytes": self.grain_bytes,
                "resident_bytes": self.resident_bytes,
            }
        return plain


class Ladder:
    """The rungs for one latent shape; computed when first asked for."""

    def __init__(
        self,
        adapter: VideoVae,
        footprint: Footprint,
        latent: tuple[int, ...],
        device: torch.device,
        options: DecodeOptions,
    ) -> None:
        self.adapter = adapter
        self.footprint = footprint
        self.latent = latent
        self.options = options
        self.size = adapter.dtype.itemsize
        on_cpu = device.type == "cpu"
        out = torch.Size(adapter.out_shape(latent)).numel()
        self.out_bytes = self.size * out if on_cpu else 0
        self.overhead_bytes = CPU_OVERHEAD_BYTES if on_cpu else 0
        self._found: list[Rung] = []
        self._candidates = self._ordered()

    @cached_property
    def whole(self) -> Rung:
        """Rung 0."""
        cost = self.footprint.whole(self.latent)
        return Rung("whole", cost.peak_bytes + self.overhead_bytes, cost.macs)

    def rung(self, level: int) -> Rung | None:
        """Rung `level`, or None below the last."""
        if level == 0:
            return self.whole
        while len(self._found) < level:
            most = math.inf  # the first one always counts: "tiled" exists for every latent
            if self._found:
                tensors = self._found[-1].peak_bytes - self.overhead_bytes
                most = self.overhead_bytes + _SAVING * tensors
            for depth, chunk, tiles in self._candidates:
                candidate = self._price(depth, chunk, self.spatial(depth, tiles))
                if candidate.peak_bytes <= most:
                    self._found.append(candidate)
                    break
            else:
                return None
        return self._found[level - 1]

    def all(self) -> list[Rung]:
        """Every rung; prices all of them."""
        rungs = []
        for level in count():
            rung = self.rung(level)
            if rung is None:
                break
            rungs.append(rung)
        return rungs

    def _ordered(self) -> Iterator[tuple[int, int, int]]:
        """(depth, chunk, level of tiles). First the trunk gets shallower and the chunks shorter,
        which repeats only the statistics pass; then tiles, whose halos are repeated work too."""
        blocks = self.adapter.blocks
        chunks = [self.latent[2]]
        while chunks[-1] > 1:
            chunks.append(-(-chunks[-1] // 2))
        yield blocks, chunks[0], 0
        shallow = max(blocks - 2, 0)
        for depth in range(blocks - 1, shallow - 1, -1):
            for chunk in chunks[1:] or chunks:
                yield depth, chunk, 0
        for depth in range(shallow, -1, -1):
            for tiles in range(1, self.spatial(depth, 0).levels):
                for chunk in chunks[-2:]:
                    yield depth, chunk, tiles

    def spatial(self, depth: int, level: int) -> DecodePlan:
        """Tiles of the trunk's output at `level`; grid units, one latent frame high."""
        _, h, w = self.adapter.grid(self.latent, depth)
        factor = self.adapter.factor[1] // self.adapter.scale(depth)[1]
        reach = self.adapter.reach(depth)
        wanted = self.options.halo_pixels
        halo = reach if wanted is None else min(reach, -(-wanted // factor))
        overlap = -(-self.options.overlap_pixels // factor)
        tile = max(-(-self.options.min_tile_pixels // factor), overlap, 1)
        return plan_decode(
            (1, h, w),
            factors=(1, factor, factor),
            overlap=(0, overlap, overlap),
            halo=(0, halo, halo),
            min_tile=(1, tile, tile),
            level=level,
        )

    def _chunk_frames(self, depth: int, chunk: int) -> tuple[int, ...]:
        """Grid frames of the first chunk, then each length that later ones have."""
        step = self.adapter.scale(depth)[0]
        lengths = [stop - start for start, stop in chunk_ranges(self.latent[2], chunk)]
        later = sorted({n * step for n in lengths[1:]})
        return (1 + (lengths[0] - 1) * step, *later)

    def _price(self, depth: int, chunk: int, plan: DecodePlan) -> Rung:
        adapter, options = self.adapter, self.options
        frames, height, width = adapter.grid(self.latent, depth)
        channels = self.footprint.trunk_channels(self.latent, depth)
        trunk = self.footprint.trunk(self.latent, depth)
        parts = self._chunk_frames(depth, chunk)
        # Every size of tile, not the largest alone: torch takes im2col for small convolutions, so a
        # smaller tile can need more.
        sizes = Counter(
            (g.in_stop[1] - g.in_start[1], g.in_stop[2] - g.in_start[2]) for g in plan.grains
        )
        heads = {size: self.footprint.head(parts, (channels, *size), depth) for size in sizes}
        grain_bytes = max(cost.peak_bytes for cost in heads.values())
        store = channels * frames * height * width * self.size
        passes = 1
        if adapter.has_global_norms and (len(plan.grains) > 1 or len(parts) > 1):
            passes += options.statistic_passes
        priced = sum(adapter.head_frames(n, depth, i == 0) for i, n in enumerate(parts))
        out_frames = adapter.out_shape(self.latent)[2]
        head_macs = sum(cost.macs * sizes[size] for size, cost in heads.items())
        macs = trunk.macs + passes * head_macs * out_frames // priced
        peak = self.out_bytes + max(trunk.peak_bytes, store + grain_bytes)
        peak += self.overhead_bytes
        return Rung(
            "tiled",
            peak,
            macs * self.latent[0],
            depth,
            chunk,
            plan,
            passes,
            trunk.peak_bytes,
            grain_bytes,
            self.out_bytes + store,
        )
