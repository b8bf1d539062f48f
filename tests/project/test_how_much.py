"""What the gate leaves out: repetition, and no value of any axis."""

from __future__ import annotations

import itertools
from typing import Any

import how_much
import pytest

AXES = [
    (("a", "b", "c", "d"), (2, 3, 4), ("auto", "torch")),
    (("a", "b"), (1, 2, 3, 5, 7)),
    (("a",), (1,)),
    ((1, 2, 3), (1, 2, 3), (1, 2, 3), (1, 2)),
]


@pytest.fixture(params=[False, True], ids=["gate", "full"])
def full(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(how_much, "FULL", request.param)
    return bool(request.param)


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_every_value_is_covered_by_as_few_cases_as_the_longest_axis_has(
    full: bool, axes: tuple[tuple[Any, ...], ...]
) -> None:
    cases = how_much.covering(*axes)
    every = list(itertools.product(*axes))
    if full:
        assert cases == every
        return
    assert [set(column) for column in zip(*cases, strict=True)] == [set(axis) for axis in axes]
    assert len(cases) == max(map(len, axes))
    assert len(set(cases)) == len(cases)
    assert set(cases) <= set(every)


def test_pairs_that_have_not_met_come_first() -> None:
    found = how_much._covering([4, 2, 2])
    every = list(itertools.product(range(4), range(2), range(2)))
    assert len({every[k][1:] for k in found}) == 4


def test_hands_together_have_all_cases_and_share_none(full: bool) -> None:
    cases = list(range(11))
    hands = [how_much.dealt(cases, hand, 3) for hand in range(3)]
    if full:
        assert hands == [cases] * 3
    else:
        assert sorted(itertools.chain(*hands)) == cases
        assert max(map(len, hands)) - min(map(len, hands)) <= 1


def test_turns_are_taken_one_after_another(full: bool) -> None:
    taken = how_much.in_turns("abc", (1, 2))
    assert taken == how_much.of(
        [("a", 1), ("b", 2), ("c", 1)], list(itertools.product("abc", (1, 2)))
    )
