"""Pure-Python twin of csrc/schedule: the same plans, tiles, windows and blends, in plain integers.

Serves where the compiled core cannot be imported, and is the oracle of its tests. The contract is
include/hy3d/tiles.h; arrays of three are (T, H, W).
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

from hy3d_rocm._fallback import Hy3dError

_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1
_MAX_LEVEL, _MAX_FINE_LEVEL, _MAX_SHRINK = 62, 511, 8
_WEIGHT_STEPS = 256
_OVERFLOW, _BUDGET_TOO_SMALL = 4, 7

# Name: default (None: must be given), lowest value, bits; arrays of three where the default is one.
# Order and names as in hy3d_tiles_desc.
_FIELDS: dict[str, tuple[Any, int, int]] = {
    "latent": (None, 1, 64), "factor": (None, 1, 64), "causal": (0, 0, 32),
    "overlap": ((0, 0, 0), 0, 64), "halo": ((0, 0, 0), 0, 64), "min_tile": ((1, 1, 1), 1, 64),
    "fixed_bytes": (0, 0, 64), "bytes_per_voxel": (0, 0, 64), "bytes_per_token_pair": (0, 0, 64),
    "resident_bytes": (0, 0, 64), "budget_bytes": (0, 0, 64), "max_in_flight": (1, 1, 32),
    "level": (-1, -1, 32), "shrink": (0, 0, 32),
}  # fmt: skip
_TILE_FIELDS = tuple(
    "own_start own_stop in_start in_stop trim_start out_start out_stop "
    "ramp_before ramp_after".split()
)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis: lengths, what neighbours share, and how far a tile reaches beyond its core."""

    latent: int
    factor: int
    causal: bool
    shared_before: int
    shared_after: int
    reach_before: int
    reach_after: int
    max_count: int

    @classmethod
    def of(cls, desc: Mapping[str, Any], index: int) -> _Axis:
        latent, factor = desc["latent"][index], desc["factor"][index]
        overlap, halo = desc["overlap"][index], desc["halo"][index]
        causal = index == 0 and desc["causal"] != 0
        # A causal chunk is exact up to its last frame, so it reaches to the front only; its first
        # latent makes one frame instead of `factor`, so it needs at least one to warm up.
        after = 0 if causal else overlap // 2
        before = overlap - after
        if causal and factor > 1:
            halo = max(halo, 1)
        return cls(
            latent=latent,
            factor=factor,
            causal=causal,
            shared_before=before,
            shared_after=after,
            reach_before=before + halo,
            reach_after=0 if causal else after + halo,
            max_count=max(1, latent // max(desc["min_tile"][index], overlap)),
        )

    def start(self, count: int, tile: int) -> int:
        """First latent of a tile's core; the long cores come first."""
        core, long_cores = divmod(self.latent, count)
        return tile * core + min(tile, long_cores)

    def output(self, latent: int) -> int:
        """Output units of the latents before `latent`."""
        if self.causal:
            return 0 if latent == 0 else self.decoded(latent)
        return latent * self.factor

    def decoded(self, extent: int) -> int:
        """Output units of `extent` latents decoded on their own."""
        return (extent - 1) * self.factor + 1 if self.causal else extent * self.factor

    def input(self, count: int, tile: int) -> tuple[int, int]:
        """Latent range that a tile decodes."""
        start, stop = self.start(count, tile), self.start(count, tile + 1)
        return max(0, start - self.reach_before), min(self.latent, stop + self.reach_after)

    def max_extent(self, count: int) -> int:
        """The most latents that a tile decodes.

        Tiles that the front cuts off grow with their index; of those after them the first is the
        largest (long cores come first, and those that the rear cuts off shrink).
        """
        uncut = bisect_left(range(count), self.reach_before, key=lambda i: self.start(count, i))
        inputs = [self.input(count, i) for i in (uncut - 1, uncut) if 0 <= i < count]
        return max(stop - start for start, stop in inputs)

    def worth(self, count: int) -> tuple[Fraction, int]:
        """How much an axis is worth halving: its largest tile in units of what a boundary adds,
        then in output units."""
        extent = self.max_extent(count)
        reach = min(self.latent, max(1, self.reach_before + self.reach_after))
        return Fraction(extent, reach), self.decoded(extent)

    def next_count(self, count: int, shrink: int) -> int:
        """Tiles after the next step that makes the largest smaller; `count` if none does. A step
        takes one part in `shrink` off the longest core."""
        largest, next_count = self.max_extent(count), count
        while next_count < self.max_count:
            core = _ceil_div(self.latent, next_count)
            smaller = max(1, core - max(1, core // shrink))
            next_count = min(_ceil_div(self.latent, smaller), self.max_count)
            if self.max_extent(next_count) < largest:
                return next_count
        return count

    def all_decoded(self, count: int) -> int:
        """Output units that all tiles decode together."""
        inputs = (self.input(count, tile) for tile in range(count))
        return sum(self.decoded(stop - start) for start, stop in inputs)


def schedule_plan(**fields: Any) -> dict[str, Any]:
    """Plans a decode; the fields are those of hy3d_tiles_desc, `latent` and `factor` at least.

    Returns desc, out, tile, count, extent, tiles, tile_bytes, peak_bytes, smallest_budget_bytes,
    level, levels, in_flight and decoded_voxels. Raises ValueError for a field out of its range and
    Hy3dError with the name HY3D_ERR_OVERFLOW or HY3D_ERR_BUDGET_TOO_SMALL.
    """
    desc = _read_desc(fields)
    axes = [_Axis.of(desc, i) for i in range(3)]
    out = tuple(axis.output(axis.latent) for axis in axes)
    levels = list(_levels(desc, axes))
    wanted = desc["level"]
    if wanted >= len(levels):
        raise ValueError(f"level is {wanted}; this shape has the levels 0 to {len(levels) - 1}")
    room = (desc["budget_bytes"] or _INT64_MAX) - desc["resident_bytes"]
    if wanted < 0:
        fitting = [i for i, (_, cost) in enumerate(levels) if cost <= room]
        level = fitting[0] if fitting else len(levels) - 1
    else:
        level = wanted
    count, tile_bytes = levels[level]
    tiles = count[0] * count[1] * count[2]
    _check_fit(desc, tile_bytes, room)
    in_flight = min(tiles, desc["max_in_flight"])
    if tile_bytes > 0:
        in_flight = min(in_flight, room // tile_bytes)
    return {
        "desc": desc,
        "out": out,
        "tile": tuple(axis.start(n, 1) for axis, n in zip(axes, count, strict=True)),
        "count": count,
        "extent": tuple(axis.max_extent(n) for axis, n in zip(axes, count, strict=True)),
        "tiles": tiles,
        "tile_bytes": tile_bytes,
        "peak_bytes": desc["resident_bytes"] + in_flight * tile_bytes,
        "smallest_budget_bytes": desc["resident_bytes"] + levels[-1][1],
        "level": level,
        "levels": len(levels),
        "in_flight": in_flight,
        "decoded_voxels": prod(
            (float(axis.all_decoded(n)) for axis, n in zip(axes, count, strict=True)), start=1.0
        ),
    }


def schedule_tile(plan: Mapping[str, Any], index: int) -> dict[str, tuple[int, int, int]]:
    """Tile `index` of a plan that schedule_plan gave; time is outermost, then H, then W.

    own_start, own_stop, in_start, in_stop, trim_start, out_start, out_stop, ramp_before,
    ramp_after, each (T, H, W).
    """
    number = _integer("index", index, 64)
    if not 0 <= number < plan["tiles"]:
        raise ValueError(f"There is no tile {number}: the plan has {plan['tiles']}.")
    columns = []
    for i in (2, 1, 0):
        number, tile = divmod(number, plan["count"][i])
        columns.append(_axis_of_tile(_Axis.of(plan["desc"], i), plan["count"][i], tile))
    return dict(zip(_TILE_FIELDS, zip(*reversed(columns), strict=True), strict=True))


def schedule_window(length: int, ramp_before: int, ramp_after: int) -> memoryview:
    """Blend weights, `length` float32 values: up over ramp_before, 1, down over ramp_after.

    Multiples of 1/256, so that 1 - w, the products of three weights and all their sums are exact.
    """
    named = {"length": length, "ramp_before": ramp_before, "ramp_after": ramp_after}
    length, before, after = (_integer(name, value, 64) for name, value in named.items())
    if not 1 <= length <= _INT32_MAX or min(before, after) < 0 or before + after > length:
        raise ValueError(
            f"A window of {length} with ramps of {before} and {after} does not exist: length must "
            "be from 1 to 2**31 - 1 and hold both ramps."
        )
    middle = array("f", [1.0]) * (length - before - after)
    falling = array("f", (1.0 - weight for weight in _ramp(after)))
    return memoryview(array("f", _ramp(before)) + middle + falling)


def blend_accumulate(tile: Any, window_t: Any, window_h: Any, window_w: Any, out: Any) -> None:
    """out += tile * ((window_t * window_h) * window_w), (N, C, T, H, W), sums in float32, in
    float64 where tile or out is float64.

    torch tensors on any device; a window may be None (ones).
    """
    if len(tile.shape) != 5 or tuple(tile.shape) != tuple(out.shape):
        raise ValueError(
            f"tile is {tuple(tile.shape)} and out {tuple(out.shape)}: both must be (N, C, T, H, W) "
            "and equal; pass the slice of the output that the tile covers."
        )
    import numpy as np
    import torch

    wide = torch.float64 if torch.float64 in (tile.dtype, out.dtype) else torch.float32
    weights = []
    for size, window in zip(tile.shape[2:], (window_t, window_h, window_w), strict=True):
        ones = torch.ones(size, device="cpu")
        row = ones if window is None else torch.from_numpy(np.array(window))
        if row.shape != (size,):
            raise ValueError(f"a window has shape {tuple(row.shape)}; the tile needs ({size},)")
        weights.append(row.to(wide))
    for frame in range(tile.shape[2]):
        plane = ((weights[0][frame] * weights[1])[:, None] * weights[2]).to(out.device)
        target = out[:, :, frame]
        target.copy_(target.to(wide) + tile[:, :, frame].to(wide) * plane)


def _read_desc(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The description with defaults filled in and every value checked."""
    for name in fields:
        if name not in _FIELDS:
            raise TypeError(f"schedule_plan has no field {name!r}.")
    desc: dict[str, Any] = {}
    for name, (default, lowest, bits) in _FIELDS.items():
        value = fields.get(name, default)
        if isinstance(default, int):
            desc[name] = low = _integer(name, value, bits)
        else:
            if value is None:
                raise TypeError(f"schedule_plan needs {name}=(T, H, W).")
            items = tuple(_integer(name, item, bits) for item in value)
            if len(items) != 3:
                raise ValueError(f"{name} has {len(items)} values; give three, (T, H, W)")
            desc[name], low = items, min(items)
        if low < lowest:
            raise ValueError(f"{name} is {desc[name]}; the lowest value is {lowest}")
    for name, highest in (("causal", 1), ("level", _last_level(desc)), ("shrink", _MAX_SHRINK)):
        if desc[name] > highest:
            raise ValueError(f"{name} is {desc[name]}; the highest value is {highest}")
    if desc["shrink"] == 1:
        raise ValueError("shrink is 1, which would leave nothing; give 2 for halves, or more")
    return desc


def _last_level(desc: Mapping[str, Any]) -> int:
    return _MAX_FINE_LEVEL if desc["shrink"] > 2 else _MAX_LEVEL


def _levels(
    desc: Mapping[str, Any], axes: list[_Axis]
) -> Iterator[tuple[tuple[int, int, int], int]]:
    """(count, cost of the largest tile) of every level, the whole decode first."""
    count = [1, 1, 1]
    shrink = desc["shrink"] or 2
    for _ in range(_last_level(desc) + 1):
        tokens = voxels = 1
        for axis, n in zip(axes, count, strict=True):
            extent = axis.max_extent(n)
            tokens *= extent
            voxels *= axis.decoded(extent)
        cost = desc["fixed_bytes"] + desc["bytes_per_voxel"] * voxels
        cost += desc["bytes_per_token_pair"] * tokens * tokens
        if voxels > _INT64_MAX or cost > _INT64_MAX:
            raise Hy3dError(f"a size does not fit in 63 bits, in {dict(desc)}", _OVERFLOW)
        yield (count[0], count[1], count[2]), cost
        splittable = [i for i in (1, 2, 0) if axes[i].next_count(count[i], shrink) > count[i]]
        if not splittable:
            return
        # max() takes the first of equal ones: H, W, T.
        chosen = max(splittable, key=lambda i: axes[i].worth(count[i]))
        count[chosen] = axes[chosen].next_count(count[chosen], shrink)


def _check_fit(desc: Mapping[str, Any], tile_bytes: int, room: int) -> None:
    needed = desc["resident_bytes"] + tile_bytes
    if needed > _INT64_MAX:
        raise Hy3dError(f"a size does not fit in 63 bits, in {dict(desc)}", _OVERFLOW)
    if tile_bytes > room:
        raise Hy3dError(
            f"The budget is {desc['budget_bytes']} bytes, but the smallest tiles need {needed}: "
            "raise it or lower min_tile.",
            _BUDGET_TOO_SMALL,
        )


def _axis_of_tile(axis: _Axis, count: int, tile: int) -> tuple[int, ...]:
    """One axis of a tile, in the order of _TILE_FIELDS."""
    start, stop = axis.start(count, tile), axis.start(count, tile + 1)
    in_start, in_stop = axis.input(count, tile)
    out_start, out_stop, before, after = 0, axis.output(axis.latent), 0, 0
    if tile > 0:
        out_start = axis.output(start - axis.shared_before)
        before = axis.output(start + axis.shared_after) - out_start
    if tile < count - 1:
        out_stop = axis.output(stop + axis.shared_after)
        after = out_stop - axis.output(stop - axis.shared_before)
    # Unit 0 of a decoded tile is unit in_start * factor of the output, causal or not.
    trim = out_start - in_start * axis.factor
    return start, stop, in_start, in_stop, trim, out_start, out_stop, before, after


def _ramp(length: int) -> Iterator[float]:
    """The rising ramp at the middle of each unit, rounded to steps of 1/256."""
    for i in range(length):
        yield (_WEIGHT_STEPS * (2 * i + 1) + length) // (2 * length) / _WEIGHT_STEPS


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _integer(name: str, value: Any, bits: int) -> int:
    number = operator.index(value)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(f"{name} is {number}, which does not fit in {bits} bits.")
    return number
