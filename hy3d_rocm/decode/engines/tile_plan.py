"""Which tiles a decode is made of, and from how much its statistics are estimated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.engines.reduced import reduced_size
from hy3d_rocm.decode.engines.tile_parts import Cut, cut_of
from hy3d_rocm.decode.plan import DecodePlan, plan_decode

if TYPE_CHECKING:
    from hy3d_rocm.decode.layers import Family

Size = tuple[int, int, int]
# A level of tiles is by one part in so many smaller than the one before (schedule.h): so close that
# a budget is filled, and that a little less of it does not cost several times the work.
SHRINK = 8


@dataclass(frozen=True)
class TilePlan:
    """A tiled decode, fixed before it runs.

    spatial: tiles of the trunk's output, one frame high. chunk: frames of it at a time.
    slice_bytes: see ChunkEngine. part: (T, H, W) of the trunk's output that statistics are
    estimated from, None where no norm needs them. passes: runs over all tiles that correct the
    estimate before the one that makes frames.
    """

    cut: Cut
    spatial: DecodePlan
    chunk: int
    slice_bytes: int | None = None
    part: Size | None = None
    passes: int = 0

    def describe(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "tiles": list(self.spatial.count[1:]),
            "tile_latents": [self.spatial.decoded_size(axis) for axis in (1, 2)],
            "chunk_latent_frames": self.chunk,
            "slice_bytes": self.slice_bytes,
            "statistics_from": None if self.part is None else list(self.part),
            "statistic_passes": self.passes,
        }


def plan_tiles(
    family: Family,
    latent: tuple[int, ...],
    *,
    level: int = 0,
    chunk: int = 1,
    slice_bytes: int | None = None,
    part_positions: int | None = None,
    passes: int = 0,
    halo_pixels: int | None = 32,
    overlap_pixels: int = 16,
    min_tile_pixels: int = 32,
) -> TilePlan:
    """The tiles of `level` (0: one) for a latent (B, C, T, H, W).

    part_positions: latent positions that statistics are estimated from; None: as many as four
    chunks of a tile have, which takes about as much memory layer by layer as a chunk depth first.
    halo_pixels: decoded beyond a tile and dropped; None: as far as a cut is felt (exact where norms
    are per position). ValueError where `level` does not exist.
    """
    cut = cut_of(family)
    frames, height, width = latent[2], latent[3] * cut.scale, latent[4] * cut.scale
    factor = family.factor[1] // cut.scale
    halo = cut.reach if halo_pixels is None else min(cut.reach, -(-halo_pixels // factor))
    overlap = -(-overlap_pixels // factor)
    smallest = max(-(-min_tile_pixels // factor), overlap, 1)
    common: dict[str, Any] = {
        "factors": (1, factor, factor),
        "overlap": (0, overlap, overlap),
        "halo": (0, halo, halo),
        "min_tile": (1, smallest, smallest),
        "shrink": SHRINK,
    }
    try:
        spatial = plan_decode((1, height, width), level=level, **common)
    except ValueError:
        levels = plan_decode((1, height, width), level=0, **common).levels
        raise ValueError(
            f"level is {level}; with this halo and overlap a latent of {latent[3]} x {latent[4]} "
            f"has tiles of the levels 0 to {levels - 1}"
        ) from None
    part = None
    if cut.head_norms:
        positions = part_positions
        if positions is None:
            positions = 4 * chunk * spatial.decoded_size(1) * spatial.decoded_size(2)
        part = reduced_size((frames, height, width), positions)
    return TilePlan(cut, spatial, chunk, slice_bytes, part, passes)


def steps(plan: TilePlan, frames: int) -> int:
    """Steps that a run over `frames` latent frames counts."""
    return (1 + plan.passes) * len(plan.spatial.grains) * -(-frames // plan.chunk)
