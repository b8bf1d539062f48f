"""Claims about plan_decode: budgets in words, plans with names, sentences for what does not fit."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
from places import ROOT

from hy3d_rocm.decoding.plan import (
    BudgetTooSmallError,
    TileCost,
    plan_decode,
)
from hy3d_rocm.units import budget_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("6GB", 6 * 2**30),
        ("6 gb", 6 * 2**30),
        ("1.5g", 3 * 2**29),
        ("512 MiB", 512 * 2**20),
        (".5KiB", 512),
        ("1000", 1000),
        ("7b", 7),
        ("9007199254740993", 2**53 + 1),
        (123, 123),
        (None, None),
    ],
)
def test_budgets_are_read_in_the_units_that_people_write(
    text: str | int | None, count: int | None
) -> None:
    assert budget_bytes(text) == count


@pytest.mark.parametrize("text", ["", "lots", "6 XB", "-1GB", "0", 0, -5, True, 1.5, "1e9", 2**63])
def test_other_budgets_are_refused_with_what_was_given(text: object) -> None:
    with pytest.raises(ValueError, match="budget is") as caught:
        budget_bytes(text)  # type: ignore[arg-type]
    assert str(text) in str(caught.value)


def test_frame_counts_follow_the_causal_rule() -> None:
    assert plan_decode((18, 8, 8), causal=False).out_size == (72, 64, 64)
    for frames in range(1, 65):
        assert plan_decode((frames, 8, 8)).out_size == ((frames - 1) * 4 + 1, 64, 64)


def test_without_a_budget_the_decode_is_one_tile() -> None:
    plan = plan_decode((33, 60, 104))
    assert len(plan.tiles) == 1
    assert plan.level == 0
    (tile,) = plan.tiles
    assert tile.windows() == (None, None, None)
    assert tile.in_slices == (slice(0, 33), slice(0, 60), slice(0, 104))
    assert tile.keep_slices == tile.out_slices == (slice(0, 129), slice(0, 480), slice(0, 832))


def test_peak_memory_never_exceeds_budget() -> None:
    smallest = plan_decode((33, 60, 104), resident=10**8).smallest_budget
    for step in range(40):
        budget = smallest + step**3 * 10**6
        plan = plan_decode((33, 60, 104), budget=budget, resident=10**8, max_in_flight=3)
        assert plan.peak_bytes <= budget
        assert plan.budget == budget


@pytest.mark.parametrize("level", [None, 3])
def test_a_refusal_names_the_budget_that_then_succeeds(level: int | None) -> None:
    with pytest.raises(BudgetTooSmallError, match=r"60\.00 MB") as caught:
        plan_decode((33, 60, 104), budget="60MB", level=level)
    error = caught.value
    assert str(error.smallest) in str(error)
    assert plan_decode((33, 60, 104), budget=error.smallest, level=level).level >= 3
    with pytest.raises(BudgetTooSmallError):
        plan_decode((33, 60, 104), budget=error.smallest - 1, level=level)


def test_tiles_are_a_sequence_that_tiles_the_output() -> None:
    plan = plan_decode((9, 40, 40), level=3, cost=TileCost(per_voxel=1))
    voxels = sum(
        (g.out_stop[0] - g.out_start[0] - g.ramp_before[0])
        * (g.out_stop[1] - g.out_start[1] - g.ramp_before[1])
        * (g.out_stop[2] - g.out_start[2] - g.ramp_before[2])
        for g in plan.tiles
    )
    assert voxels == plan.out_size[0] * plan.out_size[1] * plan.out_size[2]
    assert plan.tiles[-1] == plan.tiles[len(plan.tiles) - 1]
    assert plan.tiles[:2] == (plan.tiles[0], plan.tiles[1])
    assert [tile.index for tile in plan.tiles] == list(range(len(plan.tiles)))
    with pytest.raises(IndexError, match="there is no tile"):
        plan.tiles[len(plan.tiles)]
    with pytest.raises(FrozenInstanceError):
        plan.level = 0  # type: ignore[misc]


def test_the_cost_of_a_tile_is_that_of_its_decoded_tile() -> None:
    plan = plan_decode((9, 40, 40), level=2, cost=TileCost(100, 2.5, 1))
    frames, height, width = (plan.decoded_size(axis) for axis in range(3))
    voxels, tokens = ((frames - 1) * 4 + 1) * height * 8 * width * 8, frames * height * width
    assert plan.tile_bytes == 100 + 3 * voxels + tokens**2


def test_the_description_shows_sizes_budget_and_tiles() -> None:
    text = plan_decode((33, 60, 104), budget="6GB").describe()
    assert "33 x 60 x 104 latents -> 129 frames of 832 x 480" in text
    assert "budget 6.00 GB" in text
    assert len(text.splitlines()) == 7
    assert max(len(line) for line in text.splitlines()) < 100


def test_wrong_sizes_get_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"latents.shape\[2:\]"):
        plan_decode((1, 16, 9, 40, 40))
    with pytest.raises(ValueError, match="factors is"):
        plan_decode((9, 40, 40), factors=(8, 8))
    with pytest.raises(ValueError, match="latent"):
        plan_decode((0, 40, 40))
    with pytest.raises(ValueError, match="level is -1"):
        plan_decode((9, 40, 40), level=-1)
    with pytest.raises(ValueError, match="per_voxel is -1"):
        TileCost(per_voxel=-1)


def test_planning_imports_neither_numpy_nor_torch() -> None:
    code = (
        "import sys; from hy3d_rocm.decoding.plan import plan_decode; "
        "plan_decode((9, 40, 40), level=2).tiles[0].windows(); "
        "sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
