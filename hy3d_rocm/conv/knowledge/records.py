"""One measurement or failure of a tier at a key, as the database keeps it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hy3d_rocm.conv.knowledge.keys import Key

VERDICTS = ("ok", "slow-find", "error", "hang", "wrong")
MEASURED_BY = ("tune", "probe", "passing", "decode")

# An error text says what happened in its first lines; stack dumps of drivers run to megabytes.
_DETAIL_CHARS = 500
_MOST_BYTES = 2**63 - 1  # SQLite's largest integer


@dataclass(frozen=True, slots=True)
class Record:
    """`tier` at one key: the verdict, and what was measured.

    seconds: of one call once warm; first_seconds: of the first call, which contains the vendor
    library's find step and compilation. peak_bytes: beyond input, weight and output. when: Unix
    time. ValueError for values that no measurement gives.
    """

    tier: str
    verdict: str
    seconds: float | None = None
    peak_bytes: int | None = None
    first_seconds: float | None = None
    detail: str = ""
    when: float = field(default_factory=time.time)
    measured_by: str = "decode"

    def __post_init__(self) -> None:
        if not self.tier:
            raise ValueError("a record needs the name of its tier")
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict {self.verdict!r} is none of {', '.join(VERDICTS)}")
        if self.measured_by not in MEASURED_BY:
            known = ", ".join(MEASURED_BY)
            raise ValueError(f"measured_by {self.measured_by!r} is none of {known}")
        for name in ("seconds", "first_seconds"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} = {value} is no time")
        if self.peak_bytes is not None and not 0 <= self.peak_bytes <= _MOST_BYTES:
            raise ValueError(f"peak_bytes = {self.peak_bytes} is no number of bytes")
        if not math.isfinite(self.when):
            raise ValueError(f"when = {self.when} is no time")

    def bounded(self) -> Record:
        """The record as a database can keep it: `detail` short, and text that UTF-8 knows."""
        detail = self.detail
        if len(detail) > _DETAIL_CHARS:
            detail = detail[: _DETAIL_CHARS - 4] + " ..."
        detail = detail.encode("utf-8", "replace").decode("utf-8")
        return self if detail == self.detail else replace(self, detail=detail)

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in RECORD_FIELDS}


RECORD_FIELDS = tuple(Record.__dataclass_fields__)


class Row(NamedTuple):
    """One row of the table."""

    key: Key
    record: Record

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, flat: the key's fields, then the record's."""
        return {**self.key._asdict(), **self.record.as_dict()}


class Trial(NamedTuple):
    """A first call of the vendor library that its process did not survive. `when`: Unix time."""

    key: Key
    tier: str
    when: float
