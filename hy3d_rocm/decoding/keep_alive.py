"""Keep-alives for ranks without rows, which wait from one meeting to the next.

Between two meetings the others may compute for longer than the group's time-out, each step within
it. The first rank that has rows tells those without any now and then that it goes on, and when all
meet. So each wait still has an end: where that rank died or hangs, or lost another, nothing is
heard of it any more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from hy3d_rocm.decoding.group import Group
from hy3d_rocm.decoding.layers import Range

_GOES_ON, _MEETS = 0, 1
# What other messages of the group do not have.
_TAG = 1
# Of the time-out passes at most so much, and a step, until a rank without rows hears something.
_SHARE = 0.1


class KeepAlive:
    """What a rank says to those without rows, or hears. Nothing where every rank has some."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._others: list[int] = []  # that hear of this rank
        self._heard_of: int | None = None
        self._last = 0.0
        self._said: list[tuple[Any, torch.Tensor]] = []

    def begin(self, shares: Sequence[Range]) -> None:
        """All ranks have just met. shares: each one's rows."""
        rank, have_rows = self._group.rank, [stop > first for first, stop in shares]
        speaker = have_rows.index(True)
        self._heard_of = None if have_rows[rank] else speaker
        self._others = [n for n, has in enumerate(have_rows) if rank == speaker and not has]
        self._last = time.monotonic()

    def goes_on(self) -> None:
        """This rank computes, or waits for another that does: for between steps."""
        if self._others and time.monotonic() > self._last + _SHARE * self._group.timeout:
            self._say(_GOES_ON)

    def meets(self) -> None:
        """Before this rank is where all meet: those without rows come, too, and one of them is back
        once that is so."""
        while self._heard_of is not None and self._hear() != _MEETS:
            pass
        if self._others:
            self._say(_MEETS)
            said, self._said = self._said, []
            self._group.wait([work for work, _ in said], said, False)

    def _say(self, what: int) -> None:
        self._last = time.monotonic()
        for rank in self._others:
            word = torch.tensor([what], dtype=torch.uint8, device="cpu")
            with self._group.watched(self._said, word):
                self._said.append((self._group.control.send([word], rank, _TAG), word))

    def _hear(self) -> int:
        word, works = torch.empty(1, dtype=torch.uint8, device="cpu"), list[Any]()
        with self._group.watched(works, word):
            works.append(self._group.control.recv([word], self._heard_of, _TAG))
        self._group.wait(works, word, False)
        return int(word)
