"""The schedule twin at its bounds: every field's range, plans from outside, windows, blends."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from hy3d_rocm import _native
from hy3d_rocm._fallback import Hy3dError
from hy3d_rocm._fallback import schedule as twin

USUAL: dict[str, Any] = {"latent": (9, 8, 7), "factor": (4, 8, 8)}
SIDES = [
    pytest.param(twin, id="twin"),
    pytest.param(
        _native,
        id="core",
        marks=pytest.mark.skipif(not _native.available, reason=f"no core: {_native.missing}"),
    ),
]
both = pytest.mark.parametrize("side", SIDES)
# Also in tests/c/tiles_bounds.c.
DIGEST = 0x97EB83C3AF0BC357
LOWEST = {
    "fixed_bytes": 0, "bytes_per_voxel": 0, "bytes_per_token_pair": 0, "resident_bytes": 0,
    "budget_bytes": 0, "causal": 0, "max_in_flight": 1, "level": -1, "shrink": 0,
}  # fmt: skip
LOWEST_OF_THREE = {"latent": 1, "factor": 1, "overlap": 0, "halo": 0, "min_tile": 1}


@both
@pytest.mark.parametrize("name", LOWEST)
def test_a_number_below_its_range_is_refused_and_the_lowest_is_not(side: Any, name: str) -> None:
    assert side.schedule_plan(**USUAL, **{name: LOWEST[name]})["desc"][name] == LOWEST[name]
    with pytest.raises(ValueError):
        side.schedule_plan(**USUAL, **{name: LOWEST[name] - 1})


@both
@pytest.mark.parametrize("name", LOWEST_OF_THREE)
@pytest.mark.parametrize("axis", range(3))
def test_one_of_three_below_its_range_is_refused_and_the_lowest_is_not(
    side: Any, name: str, axis: int
) -> None:
    def fields(value: int) -> dict[str, Any]:
        three = [5, 5, 5]
        three[axis] = value
        return {**USUAL, name: tuple(three)}

    lowest = LOWEST_OF_THREE[name]
    assert side.schedule_plan(**fields(lowest))["desc"][name][axis] == lowest
    with pytest.raises(ValueError):
        side.schedule_plan(**fields(lowest - 1))


@both
def test_the_highest_of_causal_and_level_is_taken_and_one_more_is_not(side: Any) -> None:
    assert side.schedule_plan(**USUAL, causal=1)["desc"]["causal"] == 1
    with pytest.raises(ValueError):
        side.schedule_plan(**USUAL, causal=2)
    levels = side.schedule_plan(**USUAL)["levels"]
    assert side.schedule_plan(**USUAL, level=levels - 1)["level"] == levels - 1
    for wrong in (levels, 62, 63):
        with pytest.raises(ValueError):
            side.schedule_plan(**USUAL, level=wrong)


@both
def test_what_is_not_given_has_these_values(side: Any) -> None:
    assert side.schedule_plan(**USUAL)["desc"] == {
        **USUAL, "overlap": (0, 0, 0), "halo": (0, 0, 0), "min_tile": (1, 1, 1), **LOWEST,
    }  # fmt: skip


@both
def test_finer_levels_are_taken_to_an_eighth_and_there_may_be_more_of_them(side: Any) -> None:
    for wrong in (1, 9):
        with pytest.raises(ValueError):
            side.schedule_plan(**USUAL, shrink=wrong)
    long = {"latent": (1, 4096, 4096), "factor": (1, 1, 1)}
    halves, fine = (side.schedule_plan(**long, shrink=shrink) for shrink in (2, 8))
    assert halves["levels"] == 25
    assert halves["levels"] < 63 < fine["levels"]
    last = side.schedule_plan(**long, shrink=8, level=fine["levels"] - 1)
    assert last["extent"] == (1, 1, 1), "the finest level is as fine as by halves"
    assert side.schedule_tile(last, 4096 * 4096 - 1)["in_stop"] == (1, 4096, 4096)
    with pytest.raises(ValueError):
        side.schedule_plan(**long, shrink=2, level=63)


@both
def test_fields_that_are_missing_unknown_or_no_whole_numbers_are_type_errors(side: Any) -> None:
    for wrong in (
        {"latent": (9, 8, 7)}, {"factor": (4, 8, 8)}, {**USUAL, "tiles": 3},
        {**USUAL, "level": 1.0}, {**USUAL, "overlap": (0, 0.5, 0)}, {**USUAL, "level": None},
    ):  # fmt: skip
        with pytest.raises(TypeError):
            side.schedule_plan(**wrong)
    for length in ((9, 8), (9, 8, 7, 6)):
        with pytest.raises(ValueError):
            side.schedule_plan(**{**USUAL, "latent": length})


@pytest.mark.parametrize(("name", "bits"), [("budget_bytes", 64), ("level", 32), ("causal", 32)])
def test_a_number_is_told_apart_from_one_that_does_not_fit(name: str, bits: int) -> None:
    for wrong in (2 ** (bits - 1), -(2 ** (bits - 1)) - 1):
        text = re.escape(f"{name} is {wrong}, which does not fit in {bits} bits.")
        with pytest.raises(ValueError, match=f"^{text}$"):
            twin.schedule_plan(**USUAL, **{name: wrong})
    with pytest.raises(ValueError, match="the lowest value is"):
        twin.schedule_plan(**USUAL, **{name: -(2 ** (bits - 1))})
    if name == "budget_bytes":
        assert twin.schedule_plan(**USUAL, budget_bytes=2**63 - 1)["level"] == 0
    else:
        with pytest.raises(ValueError, match="highest value is"):
            twin.schedule_plan(**USUAL, **{name: 2 ** (bits - 1) - 1})
    with pytest.raises(ValueError, match=r"does not fit in 64 bits"):
        twin.schedule_plan(**{**USUAL, "latent": (2**63, 1, 1)})


def test_a_refusal_names_the_level_and_the_range() -> None:
    levels = twin.schedule_plan(**USUAL)["levels"]
    text = f"level is {levels}; this shape has the levels 0 to {levels - 1}"
    with pytest.raises(ValueError, match=f"^{text}$"):
        twin.schedule_plan(**USUAL, level=levels)


@both
def test_costs_fit_in_63_bits_or_are_an_overflow(side: Any) -> None:
    one: dict[str, Any] = {"latent": (1, 1, 1), "factor": (1, 1, 1)}
    top = 2**63 - 1
    assert side.schedule_plan(**one, fixed_bytes=top)["tile_bytes"] == top
    assert side.schedule_plan(**one, bytes_per_voxel=top)["tile_bytes"] == top
    assert side.schedule_plan(**one, bytes_per_token_pair=top)["peak_bytes"] == top
    most = {"fixed_bytes": top - 5, "resident_bytes": 5}
    assert side.schedule_plan(**one, **most)["peak_bytes"] == top
    assert side.schedule_plan(latent=(top, 1, 1), factor=(1, 1, 1), level=0)["out"] == (top, 1, 1)
    for wrong in (
        {**one, "fixed_bytes": top, "bytes_per_voxel": 1},
        {**one, "fixed_bytes": top, "resident_bytes": 1},
        {"latent": (2**62, 1, 1), "factor": (2, 1, 1)},
    ):
        with pytest.raises(RuntimeError) as caught:
            side.schedule_plan(**wrong)
        assert (caught.value.name, caught.value.status) == ("HY3D_ERR_OVERFLOW", 4)  # type: ignore[attr-defined]


@both
def test_the_budget_decides_level_and_tiles_in_flight_at_the_byte(side: Any) -> None:
    fields = {**USUAL, "bytes_per_voxel": 10, "resident_bytes": 1000, "max_in_flight": 3}
    finest = side.schedule_plan(**fields, level=side.schedule_plan(**fields)["levels"] - 1)
    cost = finest["tile_bytes"]
    level = finest["level"]
    for count in (1, 2, 3):
        enough = 1000 + count * cost
        plan = side.schedule_plan(**fields, level=level, budget_bytes=enough)
        assert (plan["in_flight"], plan["peak_bytes"]) == (count, enough)
        more = side.schedule_plan(**fields, level=level, budget_bytes=enough + cost - 1)
        assert more["in_flight"] == count
    assert side.schedule_plan(**fields, budget_bytes=1000 + cost)["level"] == level
    with pytest.raises(RuntimeError) as caught:
        side.schedule_plan(**fields, budget_bytes=1000 + cost - 1)
    assert caught.value.status == 7  # type: ignore[attr-defined]
    free = {**USUAL, "max_in_flight": 3, "level": level}
    assert side.schedule_plan(**free)["in_flight"] == 3
    assert side.schedule_plan(**{**free, "max_in_flight": 10**6})["in_flight"] == finest["tiles"]


def test_a_budget_that_is_too_small_says_what_would_do() -> None:
    fields = {**USUAL, "fixed_bytes": 500, "resident_bytes": 100, "budget_bytes": 599}
    text = "The budget is 599 bytes, but the smallest tiles need 600: raise it or lower min_tile."
    with pytest.raises(Hy3dError, match=f"^{re.escape(text)}$"):
        twin.schedule_plan(**fields)


@pytest.mark.skipif(not _native.available, reason=f"no core: {_native.missing}")
def test_a_plan_from_outside_is_checked() -> None:
    side: Any = _native
    plan = side.schedule_plan(**USUAL, level=3)
    assert side.schedule_tile(plan, plan["tiles"] - 1)["out_stop"] == plan["out"]
    for wrong in (None, [], tuple(plan.items())):
        with pytest.raises(TypeError):
            side.schedule_tile(wrong, 0)
    no_level = {key: value for key, value in plan.items() if key != "level"}
    for broken in (
        {},
        no_level,
        {**plan, "level": -1},
        {**plan, "level": 63},
        {**plan, "level": 62},
    ):
        with pytest.raises(ValueError):
            side.schedule_tile(broken, 0)
    for index in (-1, plan["tiles"]):
        with pytest.raises(ValueError):
            side.schedule_tile(plan, index)
    # The budget has no part in where a tile lies.
    small = side.schedule_plan(**USUAL, bytes_per_voxel=10, level=3)
    tight = {**small, "desc": {**small["desc"], "budget_bytes": 1}}
    assert side.schedule_tile(tight, 1) == side.schedule_tile(plan, 1)


def test_refused_tiles_are_named() -> None:
    plan = twin.schedule_plan(**USUAL)
    with pytest.raises(ValueError, match=r"^There is no tile 1: the plan has 1"):
        twin.schedule_tile(plan, 1)
    with pytest.raises(ValueError, match=f"^index is {2**63}, which does not fit in 64 bits"):
        twin.schedule_tile(plan, 2**63)


def test_levels_end_at_62_whatever_is_left_to_halve() -> None:
    longest = {"latent": (2**63 - 1, 1, 1), "factor": (1, 1, 1)}
    plan = _native.schedule_plan(**longest, level=62)
    assert (plan["level"], plan["levels"]) == (62, 63)
    assert _native.schedule_tile(plan, 0)["in_start"] == (0, 0, 0)
    assert _native.schedule_tile(plan, plan["tiles"] - 1)["in_stop"] == (2**63 - 1, 1, 1)
    assert twin.schedule_plan(**longest, level=0)["levels"] == 63  # it goes through all tiles


@both
@pytest.mark.parametrize(
    ("length", "before", "after", "weights"),
    [
        (1, 0, 0, [1.0]),
        (1, 1, 0, [0.5]),
        (1, 0, 1, [0.5]),
        (4, 2, 0, [0.25, 0.75, 1.0, 1.0]),
        (4, 0, 2, [1.0, 1.0, 0.75, 0.25]),
        (4, 2, 2, [0.25, 0.75, 0.75, 0.25]),
        (4, 3, 1, [43 / 256, 0.5, 213 / 256, 0.5]),
    ],
)
def test_windows_have_these_weights(
    side: Any, length: int, before: int, after: int, weights: list[float]
) -> None:
    window = side.schedule_window(length, before, after)
    assert window.format == "f"
    assert window.tolist() == weights


@both
@pytest.mark.parametrize(
    "sizes", [(0, 0, 0), (2**31, 0, 0), (3, -1, 0), (3, 0, -1), (3, 2, 2), (3, 4, 0), (3, 4, -1)]
)
def test_windows_that_do_not_exist_are_refused(side: Any, sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError):
        side.schedule_window(*sizes)


class Pinned:
    """The random descriptions and the digest of tests/c/tiles_bounds.c."""

    def __init__(self) -> None:
        self.state = 20267
        self.digest = 0xCBF29CE484222325

    def between(self, low: int, high: int) -> int:
        top = 2**64 - 1
        self.state ^= self.state >> 12
        self.state ^= self.state << 25 & top
        self.state ^= self.state >> 27
        drawn = self.state * 2685821657736338717 & top
        return low + (drawn >> 11) % (high - low + 1)

    def mix(self, *values: int) -> None:
        for value in values:
            self.digest = (self.digest ^ value % 2**64) * 0x100000001B3 % 2**64

    def desc(self) -> dict[str, Any]:
        ranges = {"latent": (1, 60), "factor": (1, 8), "overlap": (0, 5), "halo": (0, 4),
                  "min_tile": (1, 6)}  # fmt: skip
        rows = [[self.between(*bounds) for bounds in ranges.values()] for _ in range(3)]
        desc: dict[str, Any] = dict(zip(ranges, zip(*rows, strict=True), strict=True))
        for name, low, high in (
            ("causal", 0, 1), ("fixed_bytes", 0, 1000), ("bytes_per_voxel", 0, 9),
            ("bytes_per_token_pair", 0, 2), ("resident_bytes", 0, 100000),
        ):  # fmt: skip
            desc[name] = self.between(low, high)
        desc["budget_bytes"] = self.between(0, 2) * self.between(0, 4000000)
        desc["max_in_flight"] = self.between(1, 9)
        desc["level"] = max(-1, self.between(-3, 8))
        return desc

    def plan(self, side: Any, desc: dict[str, Any]) -> dict[str, Any] | None:
        """The plan; a refusal is its status, and the smallest budget that would do."""
        try:
            plan: dict[str, Any] = side.schedule_plan(**desc)
        except ValueError:
            self.mix(1, -1)
        except RuntimeError as error:
            free = side.schedule_plan(**{**desc, "budget_bytes": 0, "max_in_flight": 1})
            whole = free["smallest_budget_bytes"] if desc["level"] < 0 else free["peak_bytes"]
            self.mix(error.status, whole)  # type: ignore[attr-defined]
        else:
            self.mix(0, -1, *plan["out"], *plan["tile"], *plan["count"])
            for name in ("tiles", "tile_bytes", "peak_bytes", "smallest_budget_bytes", "level",
                         "levels", "in_flight"):  # fmt: skip
                self.mix(plan[name])
            return plan
        return None

    def tile(self, side: Any, plan: dict[str, Any], index: int) -> None:
        tile = side.schedule_tile(plan, index)
        for name in ("in_start", "in_stop", "trim_start", "out_start", "out_stop", "ramp_before",
                     "ramp_after"):  # fmt: skip
            self.mix(*tile[name])
        for axis in range(3):
            length = tile["out_stop"][axis] - tile["out_start"][axis]
            ramps = (tile["ramp_before"][axis], tile["ramp_after"][axis])
            window = side.schedule_window(length, *ramps)
            self.mix(*(int(weight * 256) for weight in window.tolist()))


@both
def test_plans_tiles_and_windows_never_change(side: Any) -> None:
    pinned = Pinned()
    for _ in range(400):
        plan = pinned.plan(side, pinned.desc())
        for index in range(0, plan["tiles"], 1 + plan["tiles"] // 7) if plan else ():
            pinned.tile(side, plan, index)
    assert pinned.digest == DIGEST


def test_a_windows_sizes_are_named_where_they_do_not_fit() -> None:
    for place, name in enumerate(("length", "ramp_before", "ramp_after")):
        sizes = [4, 1, 1]
        sizes[place] = 2**63
        with pytest.raises(ValueError, match=f"^{name} is {2**63}, which does not fit in 64 bits"):
            twin.schedule_window(*sizes)


def blended(out: Any, tile: Any, windows: tuple[Any, Any, Any]) -> np.ndarray:
    """What a blend has to give, by one multiplication each."""
    t, h, w = (
        np.ones(n, np.float32) if v is None else np.asarray(v, np.float32)
        for n, v in zip(tile.shape[2:], windows, strict=True)
    )
    weight = (t[:, None] * h)[:, :, None] * w
    return np.asarray(out, np.float32) + np.asarray(tile, np.float32) * weight


@pytest.mark.parametrize("given", [(True, True, True), (False, True, False), (True, False, True)])
def test_a_blend_adds_the_weighted_tile(given: tuple[bool, ...]) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    shape = (2, 3, 2, 3, 4)
    tile, out = (rng.integers(-8, 9, shape).astype(np.float32) for _ in range(2))
    windows = tuple(
        twin.schedule_window(n, 1, 1) if is_given else None
        for n, is_given in zip(shape[2:], given, strict=True)
    )
    wanted = blended(out, tile, windows)  # type: ignore[arg-type]
    target = torch.from_numpy(out).half()
    twin.blend_accumulate(torch.from_numpy(tile).bfloat16(), *windows, target)
    assert torch.equal(target, torch.from_numpy(wanted).half())


def test_a_blend_refuses_what_does_not_fit() -> None:
    torch = pytest.importorskip("torch")
    whole, less = torch.zeros(1, 1, 2, 3, 4), torch.zeros(1, 1, 2, 3, 3)
    with pytest.raises(
        ValueError, match=r"^tile is \(1, 1, 2, 3, 4\) and out \(1, 1, 2, 3, 3\): b"
    ):
        twin.blend_accumulate(whole, None, None, None, less)
    with pytest.raises(ValueError, match="both must be"):
        twin.blend_accumulate(whole[0], None, None, None, whole[0])
    for windows in ((np.ones(3), None, None), (None, np.ones((3, 1)), None), (None, None, [1.0])):
        with pytest.raises(ValueError, match="a window has shape"):
            twin.blend_accumulate(whole, *windows, whole)
    with pytest.raises(ValueError, match=r"^a window has shape \(3,\); the tile needs \(2,\)$"):
        twin.blend_accumulate(whole, np.ones(3), None, None, whole)
