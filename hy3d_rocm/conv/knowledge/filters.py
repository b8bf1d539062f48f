"""Which rows are meant: what `db list`, `forget` and Store.rows() take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hy3d_rocm.conv.knowledge.machine import Machine
from hy3d_rocm.conv.knowledge.records import Row


@dataclass(frozen=True)
class Filters:
    """All that are given must hold. None, and an empty text, is not given.

    shape: a part of the key's text, blanks and case as they are; name: the first digits of a
    key's name; machines: any of them, with all its versions; the rest: the field, exactly.
    """

    tier: str | None = None
    verdict: str | None = None
    op: str | None = None
    shape: str | None = None
    dtype: str | None = None
    architecture: str | None = None
    name: str | None = None
    machines: Sequence[Machine] | None = None

    @property
    def given(self) -> bool:
        return self != Filters()

    def keep(self, rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if self.matches(row)]

    def matches(self, row: Row) -> bool:
        key, record = row
        exact = (
            (self.tier, record.tier),
            (self.verdict, record.verdict),
            (self.op, key.op),
            (self.dtype, key.dtype),
            (self.architecture, key.architecture),
        )
        if any(wanted and wanted != value for wanted, value in exact):
            return False
        if self.shape and self.shape not in key.shape:
            return False
        if self.name and not key.name.startswith(self.name.lower()):
            return False
        if self.machines is None:
            return True
        here = Machine(key.architecture, key.driver, key.torch, key.vendor, key.ours)
        return here in self.machines
