"""What a plan records and says: needs, candidates, reasons and refusals, word by word."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from hy3d_rocm.decoding.memory.budget import Budget
from hy3d_rocm.decoding.planning.planner import (
    Candidate,
    DoesNotFitError,
    Need,
    Plan,
    Variant,
    choose,
    smallest_budget,
)

GB, MB = 2**30, 2**20
CARD = Budget(8 * GB, 16 * GB, False, "as given")
SHARED = Budget(8 * GB, 8 * GB, True, "shared")
SPILLING = Variant("streamed", "layer by layer", {"engine": "layers"})


def costs(**needs: Need) -> Callable[[Variant], Need]:
    return lambda variant: needs[variant.strategy]


def test_needs_are_said_with_the_host_only_where_it_has_a_part() -> None:
    assert Need(3 * GB).text() == "3.00 GB"
    assert Need(3 * GB, 5 * MB).text() == "3.00 GB and 5.00 MB on the host"
    assert Need(3 * GB, unknown="x").text() == "at least 3.00 GB"
    assert Need(3 * GB, 5 * MB, 7, "x").text() == "at least 3.00 GB and 5.00 MB on the host"
    assert (Need(1).host_bytes, Need(1).macs, Need(1).unknown) == (0, 0, "")


def test_a_way_is_named_by_its_strategy_and_what_is_special() -> None:
    assert Variant("whole").name == "whole"
    assert SPILLING.name == "streamed layer by layer"


def test_a_budget_that_is_too_small_needs_host_memory_only_where_it_is_shared() -> None:
    assert smallest_budget(Need(3, 4), CARD) == 3
    assert smallest_budget(Need(3, 4), SHARED) == 7


def test_a_plan_says_all_that_it_is_made_of() -> None:
    plan = choose(
        [Variant("whole"), Variant("tiled", "small", {"level": 3}, again=True)], CARD, "auto",
        costs(whole=Need(9 * GB), tiled=Need(2 * GB, GB, 1_234_567_890)),
    )  # fmt: skip
    refused = {
        "way": "whole", "strategy": "whole", "parameters": {}, "resident_bytes": None,
        "device_bytes": 9 * GB, "host_bytes": 0, "gmacs": 0.0, "fits": False, "note": "",
    }  # fmt: skip
    taken = {
        "way": "tiled small", "strategy": "tiled", "parameters": {"level": 3},
        "resident_bytes": None, "device_bytes": 2 * GB, "host_bytes": GB, "gmacs": 1.235,
        "fits": True, "note": "",
    }  # fmt: skip
    for candidate in (refused, taken):
        candidate |= {"seconds": 0.0, "stored_bytes": 0, "loaded_bytes": 0}
    reason = (
        "whole needs 9.00 GB; so it was planned once more; tiled small needs 2.00 GB and 1.00 GB on"
        " the host and fits the budget of 8.00 GB (16.00 GB on the host)."
    )
    assert plan.reason == reason
    assert plan.describe() == {
        "strategy": "tiled", "way": "tiled small", "parameters": {"level": 3},
        "resident_bytes": None, "device_bytes": 2 * GB, "host_bytes": GB, "prepared_bytes": 0,
        "gmacs": 1.235, "planned_again": True, "reason": reason, "cheaper": [], "tiles": None,
        "more": "whole needs 9.00 GB; so it was planned once more.",
        "candidates": [refused, taken],
    }  # fmt: skip
    assert (plan.budget, plan.need, plan.strategy) == (
        CARD,
        Need(2 * GB, GB, 1_234_567_890),
        "tiled",
    )


def test_a_candidate_without_a_price_says_so() -> None:
    assert Candidate(Variant("whole"), None, False, "why").describe() == {
        "way": "whole", "strategy": "whole", "parameters": {}, "resident_bytes": None,
        "device_bytes": None, "host_bytes": None, "gmacs": None,
        "seconds": None, "stored_bytes": None, "loaded_bytes": None, "fits": False, "note": "why",
    }  # fmt: skip


def test_prepared_weights_take_what_the_budget_leaves_and_are_part_of_the_peak() -> None:
    streamed = Variant("streamed", "in chunks")
    for wants, room, kept in ((3 * GB, 8 * GB, 3 * GB), (7 * GB, 8 * GB, 6 * GB), (GB, 2 * GB, 0)):
        budget = Budget(room, room, True, "given")
        plan = choose(
            [streamed], budget, "auto", costs(streamed=Need(2 * GB, prepared_bytes=wants))
        )
        assert plan.prepared_bytes == kept
        assert plan.need.device_bytes == 2 * GB, "the way is chosen without them"
        assert plan.peak.device_bytes == plan.describe()["device_bytes"] == 2 * GB + kept <= room
        assert ("prepared weights" in plan.reason) is bool(kept)
    assert plan.reason.endswith("fits the budget of 2.00 GB.")
    on_host = costs(cpu=Need(0, 10 * GB, prepared_bytes=9 * GB))
    plan = choose([Variant("cpu")], CARD, "auto", on_host)
    assert (plan.peak.device_bytes, plan.peak.host_bytes) == (0, 16 * GB)
    assert plan.reason.endswith(
        " 6.00 GB of prepared weights come on top, which make it faster and stay for the next "
        "time until memory is asked for: 16.00 GB on the host at the peak."
    )


def test_what_a_larger_budget_saves_is_said() -> None:
    row = [Variant("tiled", f"in {n}", {"level": n}, row="tiles") for n in range(5)]
    needs = {"whole": Need(20 * GB, macs=100)} | {
        f"tiled in {n}": Need((12 - 2 * n) * GB, macs=macs)
        for n, macs in enumerate((100, 110, 150, 300, 900))
    }

    def plan(gigabytes: int) -> Plan:
        budget = Budget(gigabytes * GB, 0, False, "given")
        return choose([Variant("whole"), *row], budget, "auto", lambda variant: needs[variant.name])

    assert plan(12).cheaper == (), "the same work"
    assert plan(11).cheaper == ()
    assert plan(8).cheaper == ("With 10240 MB: tiled in 1, estimated 1.4x less work.",)
    assert plan(4).cheaper == (
        "With 6144 MB: tiled in 3, estimated 3.0x less work.",
        "With 12288 MB: tiled in 0, estimated 9.0x less work.",
    )
    assert plan(4).reason.endswith(" ".join(plan(4).cheaper))
    short = Budget(12 * GB, GB, False, "given")  # a larger one of the device does not help
    costly = choose(
        [Variant("whole"), Variant("cpu")], short, "auto",
        costs(whole=Need(9 * GB, 2 * GB, 100), cpu=Need(8 * GB, GB, 900)),
    )  # fmt: skip
    assert costly.cheaper == ()


def test_what_can_not_be_predicted_is_tried_and_said_to_be() -> None:
    plan = choose([Variant("whole")], CARD, "whole", costs(whole=Need(GB, unknown="no shapes")))
    assert plan.reason == (
        "what whole takes can't be predicted (no shapes), so it is tried, and smaller parts after "
        "it where memory runs out; it needs at least 1.00 GB of the budget of 8.00 GB (16.00 GB on "
        "the host), as asked for."
    )


def test_a_shared_budget_is_one_figure() -> None:
    plan = choose([Variant("cpu")], SHARED, "auto", costs(cpu=Need(GB)))
    assert plan.reason == "cpu needs 1.00 GB and fits the budget of 8.00 GB."


def test_the_logs_line_says_nothing_twice() -> None:
    plan = choose([Variant("cpu")], SHARED, "auto", costs(cpu=Need(GB)))
    assert plan.line() == "cpu, planned peak 1.00 GB of 8.00 GB"
    assert plan.line("", "Its own code runs.") == f"{plan.line()}. Its own code runs"
    plan = choose([Variant("cpu")], SHARED, "cpu", costs(cpu=Need(GB)))
    assert plan.line() == "cpu, planned peak 1.00 GB of 8.00 GB; as asked for"
    variants, prices = [Variant("whole"), Variant("cpu")], {"whole": Need(9 * GB), "cpu": Need(GB)}
    plan = choose(variants, SHARED, "auto", costs(**prices))
    assert plan.line() == "cpu, planned peak 1.00 GB of 8.00 GB; whole needs 9.00 GB"
    plan = choose([Variant("cpu")], SHARED, "auto", costs(cpu=Need(GB, prepared_bytes=GB)))
    assert plan.line() == (
        "cpu, planned peak 2.00 GB of 8.00 GB; 1.00 GB of prepared weights come on top, which make "
        "it faster and stay for the next time until memory is asked for: 2.00 GB at the peak"
    )


def test_of_many_refused_the_first_and_the_last_of_each_strategy_are_named() -> None:
    variants = [Variant("tiled", str(n)) for n in range(4)] + [Variant("cpu")]
    plan = choose(
        variants, CARD, "auto", lambda variant: Need(GB if variant.strategy == "cpu" else 9 * GB)
    )
    named = [part.partition(" needs")[0] for part in plan.reason.split("; ")]
    assert named == ["tiled 0", "tiled 3", "cpu"]
    assert [c.variant.name for c in plan.candidates] == ["tiled 0", "tiled 1", "tiled 2", "tiled 3",
                                                     "cpu"]  # fmt: skip


def row_of(*gigabytes: float) -> tuple[list[Variant], Callable[[Variant], Need], list[str]]:
    variants = [Variant("tiled", str(i), row="tiles") for i in range(len(gigabytes))]
    looked: list[str] = []

    def price(variant: Variant) -> Need:
        looked.append(variant.what)
        return Need(int(gigabytes[int(variant.what)] * GB))

    return variants, price, looked


@pytest.mark.parametrize(
    ("gigabytes", "taken", "order"),
    [
        ((8,), "0", "0"),
        ((9, 8), "1", "01"),
        ((9, 8, 7), "1", "021"),
        ((9, 9, 8), "2", "021"),
        ((9, 9, 9, 8, 7), "3", "0423"),
        ((9, 9, 8, 7, 6), "2", "0421"),
        ((9, 8, 9), "1", "021"),
        ((9, 9, 8, 8, 9), "2", "04123"),
    ],
)
def test_a_row_is_looked_at_in_this_order(
    gigabytes: tuple[float, ...], taken: str, order: str
) -> None:
    variants, price, looked = row_of(*gigabytes)
    plan = choose(variants, CARD, "auto", price)
    assert plan.variant.what == taken
    assert "".join(looked) == order
    kept = sorted(int(number) for number in order if int(number) <= int(taken))
    assert [int(c.variant.what) for c in plan.candidates] == kept
    assert [c.fits for c in plan.candidates] == [False] * (len(kept) - 1) + [True]


def test_of_a_long_row_in_which_the_last_does_not_fit_some_between_are_looked_at() -> None:
    variants, price, looked = row_of(*([9] * 10))
    with pytest.raises(DoesNotFitError):
        choose(variants, CARD, "auto", price)
    assert "".join(looked) == "092468"


def test_a_row_in_which_nothing_fits_is_looked_at_whole() -> None:
    variants, price, looked = row_of(12, 11, 10, 9)
    with pytest.raises(DoesNotFitError) as caught:
        choose(variants, CARD, "auto", price)
    assert sorted(looked) == ["0", "1", "2", "3"]
    assert caught.value.smallest == 9 * GB


def test_rows_of_two_strategies_are_two_rows() -> None:
    variants = [Variant("tiled", "0", row="tiles"), Variant("cpu", "0", row="tiles")]
    plan = choose(variants, CARD, "auto", costs(tiled=Need(9 * GB), cpu=Need(GB)))
    assert plan.strategy == "cpu"
    assert len(plan.candidates) == 2


def refusal(
    strategy: str, *variants: Variant, budget: Budget = CARD, excluded: tuple[str, ...] = ()
) -> str:
    needs = costs(whole=Need(9 * GB, GB), cpu=Need(10 * GB, 17 * GB))
    with pytest.raises(DoesNotFitError) as caught:
        choose(variants, budget, strategy, needs, excluded)
    error = caught.value
    assert (error.budget, error.level) == (budget.device_bytes, None)
    assert f"{error.smallest} bytes" in str(error)
    return str(error)


def test_a_refusal_names_budget_rule_least_and_remedy() -> None:
    assert refusal("auto", Variant("whole"), Variant("cpu")) == (
        "no strategy fits the budget of 8.00 GB (16.00 GB on the host) (as given): the least is "
        f"whole, which needs 9.00 GB and 1.00 GB on the host. Give a budget of at least {9 * GB} "
        "bytes (9.00 GB); decode fewer frames or a smaller picture."
    )
    assert refusal("cpu", Variant("whole"), Variant("cpu"), excluded=("no tiles",)) == (
        "the strategy 'cpu' does not fit the budget of 8.00 GB (16.00 GB on the host) (as given): "
        "the least is cpu, which needs 10.00 GB and 17.00 GB on the host. Give a budget of at "
        f"least {10 * GB} bytes (10.00 GB), and 17.00 GB of host memory where 16.00 GB may be "
        'taken; no tiles; use strategy="auto", or decode fewer frames or a smaller picture.'
    )
    shared = refusal("auto", Variant("whole"), Variant("cpu"), budget=SHARED)
    assert f"at least {10 * GB} bytes (10.00 GB); decode" in shared
    assert "of host memory" not in refusal("auto", Variant("cpu"), budget=SHARED)


def test_where_only_the_host_is_short_the_least_of_it_is_named() -> None:
    needs = {
        "1": Need(0, 18 * GB),
        "2": Need(0, 17 * GB),
        "3": Need(0, 16 * GB + 1, unknown="part"),
    }
    with pytest.raises(DoesNotFitError) as caught:
        choose(
            [Variant("cpu", n) for n in needs], CARD, "auto", lambda variant: needs[variant.what]
        )
    assert str(caught.value).endswith(
        "the least is cpu 2, which needs 17.00 GB on the host. Give 17.00 GB of host memory where "
        "16.00 GB may be taken; decode fewer frames or a smaller picture."
    )


@pytest.mark.parametrize(
    ("strategy", "variants", "excluded", "sentence"),
    [
        ("auto", [], (), "no strategy can be taken for this VAE: there is no way to run it so"),
        ("whole", [], ("a", "b"), "the strategy 'whole' can't be taken for this VAE: a; b"),
        ("whole", [Variant("whole")], ("a",),
         "the strategy 'whole' can't be taken for this VAE: no shapes; a"),
        ("tiled", [Variant("tiled", "in 4 tiles")], (),
         "the strategy 'tiled' can't be taken for this VAE: tiled in 4 tiles can't be taken: "
         "no shapes"),
    ],
)  # fmt: skip
def test_where_nothing_has_a_price_the_reasons_are_given(
    strategy: str, variants: list[Variant], excluded: tuple[str, ...], sentence: str
) -> None:
    def unknown(variant: Variant) -> Need:
        raise ValueError("no shapes")

    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$") as caught:
        choose(variants, CARD, strategy, unknown, excluded)
    assert not isinstance(caught.value, DoesNotFitError)


def test_other_errors_of_a_price_are_not_swallowed() -> None:
    def broken(variant: Variant) -> Need:
        raise TypeError("a fault")

    with pytest.raises(TypeError, match="a fault"):
        choose([Variant("whole")], CARD, "auto", broken)


def test_a_plan_of_one_way_is_not_planned_again() -> None:
    plan: Plan = choose([Variant("whole")], CARD, "auto", costs(whole=Need(GB)))
    assert plan.describe()["planned_again"] is False
