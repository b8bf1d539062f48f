"""The ladder of ways to decode one latent: the whole decode first, then ever less memory.

A rung is a trunk depth, a chunk length in time and a level of spatial tiles (of plan_decode). All
are priced by the footprint before anything runs; of those only the cheapest in arithmetic for its
memory stays. The ladder depends on the VAE, the latent's shape and the options, never on the
budget: the budget, or an allocation that fails, only picks the rung. A rung gives the same bits
whichever way it was reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.plan import plan_decode

if TYPE_CHECKING:
    from hy3d_rocm.decode.footprint import Footprint
    from hy3d_rocm.decode.plan import DecodePlan
    from hy3d_rocm.decode.report import DecodeOptions
    from hy3d_rocm.decode.vaes import VideoVae

# A next rung has to save this share, or stepping down after an OOM would try near-equals.
_SAVING = 0.85


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
        out = adapter.out_shape(latent)
        self.out_bytes = self.size * torch.Size(out).numel() if device.type == "cpu" else 0

    @cached_property
    def whole(self) -> Rung:
        """Rung 0."""
        cost = self.footprint.whole(self.latent)
        return Rung("whole", cost.peak_bytes, cost.macs)

    @cached_property
    def rungs(self) -> list[Rung]:
        """Rung 0, then the tiled ones, each with less memory than the one before."""
        tiled = [
            rung for depth in range(self.adapter.blocks, -1, -1) for rung in self._of_depth(depth)
        ]
        tiled.sort(key=lambda r: (r.macs, r.peak_bytes))
        chosen = [self.whole]
        least = self.whole.peak_bytes
        smallest = min(tiled, key=lambda r: (r.peak_bytes, r.macs))
        for rung in tiled:
            if rung.peak_bytes <= _SAVING * least or (rung is smallest and rung is not chosen[-1]):
                chosen.append(rung)
                least = rung.peak_bytes
        return chosen

    def _of_depth(self, depth: int) -> list[Rung]:
        latent_frames = self.latent[2]
        rungs = []
        chunk = latent_frames
        chunks = [chunk]
        while chunk > 1:
            chunk = -(-chunk // 2)
            chunks.append(chunk)
        levels = self.spatial(depth, 0).levels
        for level in range(levels):
            plan = self.spatial(depth, level)
            for chunk in chunks if level == 0 else chunks[-2:]:
                rungs.append(self._price(depth, chunk, plan))
        return rungs

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

    def _price(self, depth: int, chunk: int, plan: DecodePlan) -> Rung:
        adapter, options = self.adapter, self.options
        frames, height, width = adapter.grid(self.latent, depth)
        channels = self.footprint.trunk_channels(self.latent, depth)
        trunk = self.footprint.trunk(self.latent, depth)
        step = adapter.scale(depth)[0]
        first = 1 + (chunk - 1) * step
        parts = (first,) if chunk >= self.latent[2] else (first, chunk * step)
        tile = (channels, plan.decoded_size(1), plan.decoded_size(2))
        head = self.footprint.head(parts, tile, depth)
        store = channels * frames * height * width * self.size
        passes = 1
        if adapter.has_global_norms and (len(plan.grains) > 1 or len(parts) > 1):
            passes += options.statistic_passes
        tiles = len(plan.grains)
        macs = trunk.macs + passes * tiles * head.macs * frames // sum(parts)
        peak = self.out_bytes + max(trunk.peak_bytes, store + head.peak_bytes)
        return Rung(
            "tiled",
            peak,
            macs * self.latent[0],
            depth,
            chunk,
            plan,
            passes,
            trunk.peak_bytes,
            head.peak_bytes,
            self.out_bytes + store,
        )
