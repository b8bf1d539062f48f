"""A decode plan's fields, ranges and words, each held to what the scheduler said."""

from __future__ import annotations

import re

import pytest

from hy3d_rocm import _native
from hy3d_rocm.decoding.plan import (
    BudgetTooSmallError,
    Tile,
    TileCost,
    plan_decode,
)
from hy3d_rocm.units import budget_bytes, size_text

TILE = Tile(
    index=3,
    in_start=(1, 2, 3),
    in_stop=(5, 7, 9),
    trim_start=(2, 4, 6),
    out_start=(10, 20, 30),
    out_stop=(13, 25, 37),
    ramp_before=(0, 2, 0),
    ramp_after=(0, 0, 3),
    own_start=(2, 3, 4),
    own_stop=(4, 6, 8),
)


def test_a_tiles_slices_are_its_ranges() -> None:
    assert TILE.out_shape == (3, 5, 7)
    assert TILE.in_slices == (slice(1, 5), slice(2, 7), slice(3, 9))
    assert TILE.keep_slices == (slice(2, 5), slice(4, 9), slice(6, 13))
    assert TILE.out_slices == (slice(10, 13), slice(20, 25), slice(30, 37))


def test_a_tile_has_windows_only_where_it_meets_another() -> None:
    time, high, wide = TILE.windows()
    assert time is None
    assert high is not None
    assert wide is not None
    assert bytes(high) == bytes(_native.schedule_window(5, 2, 0))
    assert bytes(wide) == bytes(_native.schedule_window(7, 0, 3))


def test_every_option_reaches_the_scheduler() -> None:
    cost = TileCost(fixed=10.5, per_voxel=3.25, per_token_pair=0.5)
    plan = plan_decode(
        (9, 40, 44), budget="1TB", factors=(2, 4, 5), causal=False, overlap=(1, 2, 3),
        halo=(3, 2, 1), min_tile=(2, 5, 6), cost=cost, resident=77, max_in_flight=2, level=3,
        shrink=3,
    )  # fmt: skip
    wanted = _native.schedule_plan(
        latent=(9, 40, 44), factor=(2, 4, 5), causal=0, overlap=(1, 2, 3), halo=(3, 2, 1),
        min_tile=(2, 5, 6), fixed_bytes=11, bytes_per_voxel=4, bytes_per_token_pair=1,
        resident_bytes=77, budget_bytes=2**40, max_in_flight=2, level=3,
        shrink=3,
    )  # fmt: skip
    assert plan.tiles._plan == wanted
    assert plan.latent_size == (9, 40, 44)
    assert (plan.factors, plan.causal) == ((2, 4, 5), False)
    assert (plan.out_size, plan.tile, plan.count) == (
        wanted["out"],
        wanted["tile"],
        wanted["count"],
    )
    assert (plan.level, plan.levels) == (3, wanted["levels"])
    assert (plan.tile_bytes, plan.peak_bytes) == (wanted["tile_bytes"], wanted["peak_bytes"])
    assert plan.smallest_budget == wanted["smallest_budget_bytes"]
    assert (plan.in_flight, plan.resident, plan.budget) == (2, 77, 2**40)
    assert len(plan.tiles) == wanted["tiles"]


def test_what_is_not_given_is_a_usual_video_vae() -> None:
    plan = plan_decode((9, 40, 40))
    assert plan.tiles._plan["desc"] == {
        "latent": (9, 40, 40), "factor": (4, 8, 8), "causal": 1, "overlap": (1, 4, 4),
        "halo": (2, 2, 2), "min_tile": (2, 8, 8), "fixed_bytes": 0, "bytes_per_voxel": 1536,
        "bytes_per_token_pair": 0, "resident_bytes": 0, "budget_bytes": 0, "max_in_flight": 1,
        "level": -1, "shrink": 2,
    }  # fmt: skip
    assert plan.causal is True
    assert plan.budget is None


def test_tiles_are_found_from_both_ends_and_not_beyond() -> None:
    tiles = plan_decode((9, 40, 40), level=3).tiles
    count = len(tiles)
    assert count > 3
    assert tiles[-count] == tiles[0]
    assert tiles[0].index == 0
    assert tiles[-1].index == count - 1
    assert tiles[1:3] == (tiles[1], tiles[2])
    for beyond in (count, -count - 1):
        with pytest.raises(IndexError, match=f"^there is no tile {beyond}; the plan has {count}$"):
            tiles[beyond]


def test_the_decoded_size_is_that_of_the_largest_tile() -> None:
    plan = plan_decode((9, 40, 40), level=5)
    for axis in range(3):
        largest = max(tile.in_stop[axis] - tile.in_start[axis] for tile in plan.tiles)
        assert plan.decoded_size(axis) == largest


def test_the_description_is_this_table() -> None:
    plan = plan_decode((9, 40, 44), budget="2GB", level=2, max_in_flight=3, resident=2**20)
    peak, tile = size_text(plan.peak_bytes, 2), size_text(plan.tile_bytes, 2)
    lines = plan.describe().splitlines()
    assert lines[0] == "decode plan: 9 x 40 x 44 latents -> 33 frames of 352 x 320"
    assert lines[1] == (
        f"  budget 2.00 GB, peak {peak} = 1.00 MB resident + {plan.in_flight} x {tile}"
    )
    assert lines[2] == (
        f"  level 2 of 0..{plan.levels - 1}, {len(plan.tiles)} tiles, {plan.in_flight} in flight"
    )
    assert lines[3] == "  axis  latents  output  tiles  core  decoded"
    rows = [line.split() for line in lines[4:]]
    assert rows == [
        [name, *(str(figure) for figure in (
            plan.latent_size[axis], plan.out_size[axis], plan.count[axis], plan.tile[axis],
            plan.decoded_size(axis),
        ))]
        for axis, name in enumerate(("time", "high", "wide"))
    ]  # fmt: skip
    assert {len(line) for line in lines[3:]} == {len(lines[3])}


def test_one_frame_and_one_tile_are_in_the_singular_and_no_budget_is_none() -> None:
    lines = plan_decode((1, 8, 8)).describe().splitlines()
    assert lines[0].endswith("-> 1 frame of 64 x 64")
    assert lines[1].startswith("  budget none, peak ")
    assert lines[2] == "  level 0 of 0..0, 1 tile, 1 in flight"


@pytest.mark.parametrize(
    ("level", "which"), [(None, "the smallest tiles need"), (0, "level 0 needs")]
)
def test_a_refusal_is_this_sentence(level: int | None, which: str) -> None:
    with pytest.raises(BudgetTooSmallError) as caught:
        plan_decode((9, 40, 40), budget=2**20, level=level, max_in_flight=5)
    error = caught.value
    assert str(error) == (
        f"The budget is 1.00 MB (1048576 bytes), but {which} {size_text(error.smallest, 2)}: give "
        f"at least {error.smallest} bytes, or lower min_tile, halo or the number of things kept "
        "resident."
    )
    assert (error.budget, error.level) == (2**20, level)
    assert plan_decode((9, 40, 40), budget=error.smallest, level=level).in_flight == 1
    with pytest.raises(BudgetTooSmallError):
        plan_decode((9, 40, 40), budget=error.smallest - 1, level=level)


def test_other_refusals_of_the_scheduler_pass_as_they_are() -> None:
    with pytest.raises(_native.Hy3dError) as caught:
        plan_decode((2**31, 2**31, 2**31), budget="1GB")
    assert caught.value.name == "HY3D_ERR_OVERFLOW"
    with pytest.raises(_native.Hy3dError):
        plan_decode((2**31, 2**31, 2**31))


@pytest.mark.parametrize("name", ["fixed", "per_voxel", "per_token_pair"])
def test_costs_are_from_0_to_what_63_bits_hold(name: str) -> None:
    assert getattr(TileCost(**{name: 0}), name) == 0
    assert getattr(TileCost(**{name: 2**63 - 1}), name) == 2**63 - 1
    for wrong in (-1, 2**63):
        with pytest.raises(ValueError, match=rf"^TileCost\.{name} is {wrong}; give bytes, 0 or"):
            TileCost(**{name: wrong})


def test_budgets_are_from_1_to_what_63_bits_hold() -> None:
    assert budget_bytes(1) == 1
    assert budget_bytes(2**63 - 1) == 2**63 - 1
    for wrong in (0, 2**63):
        with pytest.raises(ValueError, match=rf"^budget is {wrong}; give more than nothing"):
            budget_bytes(wrong)


@pytest.mark.parametrize("name", ["factors", "overlap", "halo", "min_tile"])
def test_what_has_not_three_numbers_is_named(name: str) -> None:
    for wrong in ((1, 2), (1, 2, 3, 4), (1, 2, 3, 4, 5)):
        with pytest.raises(ValueError, match=re.escape(f"{name} is {wrong}; give three numbers")):
            plan_decode((9, 40, 40), **{name: wrong})
    with pytest.raises(ValueError, match=r"^latent_size is \(9, 40\); give three numbers"):
        plan_decode((9, 40))
    with pytest.raises(ValueError, match=r"^latent_size is \(1, 2, 3, 4, 5\); pass \(T, H, W\)"):
        plan_decode((1, 2, 3, 4, 5))
