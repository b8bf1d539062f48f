"""Where a decode was cut: borders of tiles in pixels, cuts between chunks in frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hy3d_rocm.decode.black_box import ENGINE as OWN_TILES
from hy3d_rocm.decode.black_box import plan_own_tiles
from hy3d_rocm.decode.tiled import tile_places


@dataclass(frozen=True)
class Borders:
    """A border r lies between r - 1 and r."""

    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    frames: tuple[int, ...] = ()


def borders_of(family: Any, shape: tuple[int, ...], plan: Mapping[str, Any]) -> Borders:
    """Of a plan as DecodeReport.plan has it, for a latent (B, C, T, H, W).

    A tile's blend with its neighbour begins at one's start and ends at the other's stop; those two
    and the middle between them are where a seam can show.
    """
    parameters = plan.get("parameters") or {}
    if parameters.get("engine") == OWN_TILES:
        own = list(plan_own_tiles(family, shape, parameters).grains)
        return Borders(_places(own, 1), _places(own, 2), _places(own, 0))
    frames = _cuts(family, shape[2], int(parameters.get("chunk") or 0))
    if parameters.get("engine") != "tiles":
        return Borders(frames=frames)
    grains = list(tile_places(plan["tiles"]).grains)
    rows, columns = (_places(grains, axis) for axis in (1, 2))
    return Borders(rows, columns, frames)


def _places(grains: list[Any], axis: int) -> tuple[int, ...]:
    starts = sorted({g.out_start[axis] for g in grains})[1:]
    stops = sorted({g.out_stop[axis] for g in grains})[:-1]
    middles = [(a + b) // 2 for a, b in zip(starts, stops, strict=False)]
    return tuple(sorted({*starts, *stops, *middles}))


def _cuts(family: Any, latents: int, chunk: int) -> tuple[int, ...]:
    """The first frame of each chunk but the first: T latents make (T - 1) * factor + 1 frames."""
    time = int(family.factor[0])
    return tuple((t - 1) * time + 1 for t in range(chunk, latents, chunk)) if chunk else ()
