"""Of a VAE's own code the first way that fits is taken, and the plan says why."""

from __future__ import annotations

import json

import pytest

from hy3d_rocm.decoding.memory.budget import Budget
from hy3d_rocm.decoding.plan import BudgetTooSmallError
from hy3d_rocm.decoding.planning.planner import (
    DoesNotFitError,
    Need,
    Variant,
    choose,
    smallest_budget,
)

GB, MB = 2**30, 2**20
WHOLE = Variant("whole")
STREAMED = Variant("streamed")
TILES = [Variant("tiled", f"with tiles of {n} pixels", {"pixels": n}) for n in (512, 256, 128)]
LAST = Variant("tiled", "with tiles of 64 pixels in bf16", {"pixels": 64}, again=True)
CPU = Variant("cpu")
WAYS = [WHOLE, STREAMED, *TILES, LAST, CPU]
RESULT = GB  # on the host


def price(variant: Variant) -> Need:
    if variant.strategy == "whole":
        return Need(40 * GB, RESULT)
    if variant.strategy == "streamed":
        return Need(11 * GB, RESULT)
    if variant.strategy == "tiled":
        return Need(variant.parameters["pixels"] * 4 * MB, RESULT)
    return Need(0, 12 * GB)


def card(device: int, host: int = 64 * GB) -> Budget:
    return Budget(device, host, False, "as given")


def test_the_best_that_fits_is_taken() -> None:
    def taken(size: int) -> Variant:
        return choose(WAYS, card(size), "auto", price).variant

    assert taken(40 * GB) == WHOLE
    assert taken(40 * GB - 1) == STREAMED
    assert taken(11 * GB) == STREAMED
    assert taken(11 * GB - 1) == TILES[0]
    assert taken(2 * GB - 1) == TILES[1]
    assert taken(512 * MB) == TILES[2]
    assert taken(256 * MB) == LAST
    assert taken(100) == CPU


def test_host_memory_counts_once_more_where_it_is_the_devices() -> None:
    def taken(size: int) -> Variant:
        return choose(WAYS, Budget(size, size, True, "shared"), "auto", price).variant

    assert taken(41 * GB) == WHOLE
    assert taken(41 * GB - 1) == STREAMED
    assert taken(12 * GB) == STREAMED
    assert taken(12 * GB - 1) == TILES[0]
    assert taken(3 * GB) == TILES[0]
    assert taken(3 * GB - 1) == TILES[1]


@pytest.mark.parametrize("strategy", ["whole", "streamed", "tiled", "cpu"])
def test_each_strategy_can_be_asked_for(strategy: str) -> None:
    plan = choose(WAYS, card(64 * GB), strategy, price)
    assert plan.strategy == strategy
    assert "as asked for" in plan.reason
    assert len(plan.candidates) == 1


def test_what_was_asked_for_and_does_not_fit_names_the_least_budget_that_would_do() -> None:
    for strategy in ("whole", "streamed", "tiled"):
        with pytest.raises(DoesNotFitError, match=repr(strategy)) as refusal:
            choose(WAYS, card(100), strategy, price)
        least = refusal.value.smallest
        assert f"at least {least} bytes" in str(refusal.value)
        assert isinstance(refusal.value, BudgetTooSmallError)
        assert choose(WAYS, card(least), strategy, price).strategy == strategy
        with pytest.raises(DoesNotFitError):
            choose(WAYS, card(least - 1), strategy, price)


def test_a_full_host_is_named() -> None:
    with pytest.raises(DoesNotFitError, match=r"12\.00 GB of host memory where 1\.00 MB may"):
        choose([CPU], card(GB, MB), "cpu", price)


def test_smallest_budget_of_shared_memory_has_the_host_in_it() -> None:
    shared = Budget(100, 100, True, "shared")
    with pytest.raises(DoesNotFitError) as refusal:
        choose(TILES, shared, "auto", price)
    assert refusal.value.smallest == 128 * 4 * MB + RESULT
    assert smallest_budget(Need(3, 4), card(1)) == 3


def test_reasons_are_sentences_about_what_did_not_fit() -> None:
    plan = choose(WAYS, card(600 * MB), "auto", price)
    assert plan.reason.split("; ") == [
        "whole needs 40.00 GB and 1.00 GB on the host",
        "streamed needs 11.00 GB and 1.00 GB on the host",
        "tiled with tiles of 512 pixels needs 2.00 GB and 1.00 GB on the host",
        "tiled with tiles of 256 pixels needs 1.00 GB and 1.00 GB on the host",
        "tiled with tiles of 128 pixels needs 512.00 MB and 1.00 GB on the host and fits the "
        "budget of 600.00 MB (64.00 GB on the host).",
    ]
    last = choose(WAYS, card(300 * MB), "auto", price)
    assert "so it was planned once more; tiled with tiles of 64 pixels in bf16" in last.reason
    assert last.describe()["planned_again"]


def test_a_way_that_has_no_price_is_passed_over_and_said() -> None:
    def unknown(variant: Variant) -> Need:
        if variant.strategy != "whole":
            raise ValueError("its layers are not known")
        return price(variant)

    plan = choose([STREAMED, WHOLE], card(40 * GB), "auto", unknown)
    assert plan.variant == WHOLE
    assert "streamed can't be taken: its layers are not known" in plan.reason
    with pytest.raises(ValueError, match="'streamed' can't be taken for this VAE: its layers"):
        choose(WAYS, card(40 * GB), "streamed", unknown)
    with pytest.raises(ValueError, match="no tiles here"):
        choose([], card(GB), "tiled", price, ["no tiles here"])


def test_nothing_behind_the_first_that_fits_is_priced() -> None:
    def only_whole(variant: Variant) -> Need:
        assert variant.strategy == "whole"
        return price(variant)

    choose(iter(WAYS), card(64 * GB), "auto", only_whole)


def test_a_row_of_tiles_is_halved_and_the_first_that_fits_is_taken() -> None:
    row = [Variant("tiled", str(i), {"pixels": 1024 - i}, row="tiles") for i in range(1000)]
    calls = []

    def counted(variant: Variant) -> Need:
        calls.append(variant)
        return price(variant)

    for least in (25, 26, 300, 1023, 1024):
        calls.clear()
        plan = choose(row, card(least * 4 * MB), "auto", counted)
        assert plan.variant.parameters["pixels"] == least
        assert len(calls) <= 12  # the first, the last, and ten halvings
        assert plan.candidates[-1].fits
    with pytest.raises(DoesNotFitError) as refusal:
        choose(row, card(24 * 4 * MB), "auto", price)
    assert refusal.value.smallest == 25 * 4 * MB


def test_where_a_finer_tile_needs_more_another_is_still_found() -> None:
    """Torch takes im2col for small convolutions on the CPU."""
    sizes = {0: 9 * GB, 1: 2 * GB, 2: 3 * GB}
    row = [Variant("tiled", str(i), {"level": i}, row="tiles") for i in range(3)]
    plan = choose(
        row, card(2 * GB), "auto", lambda variant: Need(sizes[variant.parameters["level"]])
    )
    assert plan.variant == row[1]


def test_plans_can_be_written_as_json() -> None:
    plan = choose(WAYS, card(GB), "auto", price)
    assert json.loads(json.dumps(plan.describe()))["strategy"] == "tiled"
