"""How much the tests do: what the gate has time for, or all (`make test-long`)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")
FULL = os.environ.get("HY3D_TESTS") == "full"


def of(gate: T, full: T) -> T:
    """A count, or a list of cases, for the gate or for all."""
    return full if FULL else gate


def in_turns(cases: Iterable[T], turn: tuple[U, ...]) -> list[tuple[T, U]]:
    """Each case with one word of `turn`, one after another, for the gate; with each of them for
    all."""
    every = list(cases)
    taken = [(case, turn[k % len(turn)]) for k, case in enumerate(every)]
    return of(taken, [(case, word) for case in every for word in turn])


def covering(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Cases with a value of each axis: for the gate so few that each value is in one, chosen so
    that new pairs of values meet; for all every combination."""
    words = [list(axis) for axis in axes]
    every = list(itertools.product(*words))
    return of([every[k] for k in _covering([len(axis) for axis in words])], every)


def _covering(sizes: Sequence[int]) -> list[int]:
    """Numbers of combinations: the next is that with the most values that are in none, of several
    that with the most new pairs, of several the first."""
    every = list(itertools.product(*map(range, sizes)))
    numbers = range(len(sizes))
    values: set[Any] = set()
    pairs: set[Any] = set()
    taken: list[int] = []
    while len(values) < sum(sizes):
        best = max(
            range(len(every)),
            key=lambda k: (
                sum((n, every[k][n]) not in values for n in numbers),
                len(set(_pairs(every[k])) - pairs),
                -k,
            ),
        )
        taken.append(best)
        values |= {(n, every[best][n]) for n in numbers}
        pairs |= set(_pairs(every[best]))
    return sorted(taken)


def _pairs(case: Sequence[int]) -> Iterable[Any]:
    return itertools.combinations(enumerate(case), 2)


def dealt(cases: Iterable[T], hand: int, hands: int) -> list[T]:
    """For the gate one test's share of cases that several tests of one promise share out: every
    `hands`-th from number `hand` on. For all each test has them all."""
    every = list(cases)
    return of(every[hand::hands], every)
