"""Plans a video VAE decode under a memory budget: temporal chunks x spatial tiles.

The arithmetic is the schedule core's (include/hy3d/tiles.h); this module gives it names,
units and sentences. Arrays of three are (T, H, W); sizes in latent units unless stated.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from hy3d_rocm import _native, units

Three = tuple[int, int, int]
Slices = tuple[slice, slice, slice]
Budget = str | int | None


class BudgetTooSmallError(ValueError):
    """Nothing fits the budget; `smallest` (bytes) is the least that would do. level: the only one
    that was asked for."""

    def __init__(self, text: str, budget: int, smallest: int, level: int | None = None) -> None:
        super().__init__(text)
        self.budget, self.smallest, self.level = budget, smallest, level


@dataclass(frozen=True, slots=True)
class TileCost:
    """Peak bytes of decoding one tile: fixed + per_voxel * voxels + per_token_pair * tokens^2.

    Voxels are output frames x pixels of the decoded tile (one batch item), tokens its latent
    voxels. The default is the order of size of a HunyuanVideo-like decoder in float32, whose last
    layers hold 128 channels at full resolution three times (input, padded input, output); measure
    your own for a budget that is close.
    """

    fixed: float = 0
    per_voxel: float = 128 * 4 * 3
    per_token_pair: float = 0

    def __post_init__(self) -> None:
        for name in ("fixed", "per_voxel", "per_token_pair"):
            value = getattr(self, name)
            if not 0 <= value < 2**63:
                raise ValueError(f"TileCost.{name} is {value}; give bytes, 0 or more")


@dataclass(frozen=True, slots=True)
class Tile:
    """One piece of work. Ranges are half open; `in_*` are latents, all others output units.

    Decode latents in_start .. in_stop, drop trim_start units at the front of the result, keep
    out_stop - out_start of them and add them, times the windows, at out_start. Of all tiles each
    latent is in one's own_start .. own_stop.
    """

    index: int
    in_start: Three
    in_stop: Three
    trim_start: Three
    out_start: Three
    out_stop: Three
    ramp_before: Three
    ramp_after: Three
    own_start: Three
    own_stop: Three

    @property
    def out_shape(self) -> Three:
        """Size of the kept part in output units."""
        return _three(map(operator.sub, self.out_stop, self.out_start))

    @property
    def in_slices(self) -> Slices:
        """What to decode: `latents[(..., *tile.in_slices)]`."""
        return _slices(self.in_start, self.in_stop)

    @property
    def keep_slices(self) -> Slices:
        """What to keep of the decoded tile."""
        stop = _three(map(operator.add, self.trim_start, self.out_shape))
        return _slices(self.trim_start, stop)

    @property
    def out_slices(self) -> Slices:
        """Where the kept part goes in the output."""
        return _slices(self.out_start, self.out_stop)

    def window(self, axis: int) -> memoryview | None:
        """Blend weights along an axis (0 T, 1 H, 2 W), float32; None where all of them are 1."""
        before, after = self.ramp_before[axis], self.ramp_after[axis]
        wanted = bool(before or after)
        return _native.schedule_window(self.out_shape[axis], before, after) if wanted else None

    def windows(self) -> tuple[memoryview | None, memoryview | None, memoryview | None]:
        """The windows along T, H and W, as blend_accumulate takes them."""
        return self.window(0), self.window(1), self.window(2)


class Tiles(Sequence[Tile]):
    """The tiles of a plan, made when asked for: time outermost, then H, then W."""

    __slots__ = ("_plan",)

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan

    def __len__(self) -> int:
        return int(self._plan["tiles"])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        number = operator.index(index)
        number += len(self) if number < 0 else 0
        if not 0 <= number < len(self):
            raise IndexError(f"there is no tile {index}; the plan has {len(self)}")
        return Tile(index=number, **_native.schedule_tile(self._plan, number))


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """A decode cut into tiles. The result depends on `level`, never on `in_flight`."""

    tiles: Tiles = field(repr=False)
    latent_size: Three
    out_size: Three  # output frames, height, width
    factors: Three
    causal: bool
    tile: Three  # longest core, latents, without overlap and halo
    count: Three  # tiles along each axis
    extent: Three  # latents that the largest tile decodes, overlap and halo included
    level: int
    levels: int
    tile_bytes: int
    peak_bytes: int
    smallest_budget: int  # bytes that the finest level needs
    in_flight: int
    resident: int
    budget: int | None  # bytes; None is no limit
    decoded_voxels: float  # output voxels that all tiles decode: the work of this level

    def decoded_size(self, axis: int) -> int:
        """Latents along an axis that the largest tile decodes, overlap and halo included."""
        return self.extent[axis]

    def describe(self) -> str:
        """A table for logs."""
        frames, height, width = self.out_size
        latents = " x ".join(map(str, self.latent_size))
        budget = "none" if self.budget is None else units.size_text(self.budget, 2)
        several = ["s" if count != 1 else "" for count in (frames, len(self.tiles))]
        lines = [
            f"decode plan: {latents} latents -> {frames} frame{several[0]} of {width} x {height}",
            f"  budget {budget}, peak {units.size_text(self.peak_bytes, 2)} = "
            f"{units.size_text(self.resident, 2)} resident + {self.in_flight} x "
            f"{units.size_text(self.tile_bytes, 2)}",
            f"  level {self.level} of 0..{self.levels - 1}, {len(self.tiles)} tile{several[1]}, "
            f"{self.in_flight} in flight",
            "  axis  latents  output  tiles  core  decoded",
        ]
        for axis, name in enumerate(("time", "high", "wide")):
            lines.append(
                f"  {name}  {self.latent_size[axis]:7}  {self.out_size[axis]:6}  "
                f"{self.count[axis]:5}  {self.tile[axis]:4}  {self.decoded_size(axis):7}"
            )
        return "\n".join(lines)


def plan_decode(
    latent_size: Sequence[int], *, budget: Budget = None, factors: Sequence[int] = (4, 8, 8),
    causal: bool = True, overlap: Sequence[int] = (1, 4, 4), halo: Sequence[int] = (2, 2, 2),
    min_tile: Sequence[int] = (2, 8, 8), cost: TileCost | None = None, resident: int = 0,
    max_in_flight: int = 1, level: int | None = None, shrink: int = 2,
) -> DecodePlan:  # fmt: skip
    """Cuts the decode of (T, H, W) latents into tiles that fit the budget.

    overlap: latents that neighbours share and blend; halo: latents decoded beyond and dropped (in
    causal time the warm-up); min_tile: the smallest core; cost: bytes of a tile; resident: bytes
    needed beside the tiles; level: None takes the coarsest that fits, a number takes that one;
    shrink: each level's tiles are smaller by one part in so many than the last one's, 2 (halves) to
    8.
    Raises BudgetTooSmallError with the smallest budget that would do, ValueError for a value out
    of its range, Hy3dError where a size does not fit in 63 bits.
    """
    size = _three(latent_size, "latent_size")
    limit = units.budget_bytes(budget)
    price = TileCost() if cost is None else cost
    sizes = {"overlap": overlap, "halo": halo, "min_tile": min_tile}
    fields: dict[str, Any] = {
        "latent": size, "factor": _three(factors, "factors"), "causal": int(bool(causal)),
        **{name: _three(given, name) for name, given in sizes.items()},
        "fixed_bytes": ceil(price.fixed), "bytes_per_voxel": ceil(price.per_voxel),
        "bytes_per_token_pair": ceil(price.per_token_pair), "resident_bytes": resident,
        "max_in_flight": max_in_flight, "level": -1 if level is None else level, "shrink": shrink,
    }  # fmt: skip
    if level is not None and level < 0:
        raise ValueError(f"level is {level}; give 0 or more, or None for the coarsest that fits")
    try:
        plan = _native.schedule_plan(**fields, budget_bytes=limit or 0)
    except _native.Hy3dError as error:
        if limit is None or error.name != "HY3D_ERR_BUDGET_TOO_SMALL":
            raise
        free = _native.schedule_plan(**{**fields, "budget_bytes": 0, "max_in_flight": 1})
        smallest = free["smallest_budget_bytes"] if level is None else free["peak_bytes"]
        which = "the smallest tiles need" if level is None else f"level {level} needs"
        raise BudgetTooSmallError(
            f"The budget is {units.size_text(limit, 2)} ({limit} bytes), but {which} "
            f"{units.size_text(smallest, 2)}: give at least {smallest} bytes, or lower min_tile, "
            "halo or the number of things kept resident.", limit, smallest, level,
        ) from None  # fmt: skip
    same = {name: value for name, value in plan.items() if name in DecodePlan.__slots__}
    return DecodePlan(
        **same | {"tiles": Tiles(plan)},
        latent_size=size,
        out_size=plan["out"],
        factors=fields["factor"],
        causal=bool(causal),
        smallest_budget=plan["smallest_budget_bytes"],
        resident=resident,
        budget=limit,
    )


def _three(values: Any, name: str = "") -> Three:
    items = tuple(operator.index(value) for value in values)
    if len(items) == 5 and name == "latent_size":
        raise ValueError(f"latent_size is {items}; pass (T, H, W) only: latents.shape[2:]")
    if len(items) != 3:
        raise ValueError(f"{name} is {items}; give three numbers, (T, H, W)")
    return items


def _slices(start: Three, stop: Three) -> Slices:
    first, second, third = map(slice, start, stop)
    return first, second, third
