"""How much the tests do: what the gate has time for, or all (`make test-long`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

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
