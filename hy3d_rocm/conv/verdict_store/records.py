"""What the verdict store keeps: a record of one tier at one key, and which records are meant."""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hy3d_rocm.conv.verdict_store.machine import Machine

if TYPE_CHECKING:
    from hy3d_rocm.conv.call import ConvSpec

VERDICTS = ("ok", "slow-find", "error", "hang", "wrong")
MEASURED_BY = ("tune", "probe", "passing", "decode")

# An error text says what happened in its first lines; stack dumps of drivers run to megabytes.
_DETAIL_CHARS = 500
_MOST_BYTES = 2**63 - 1  # SQLite's largest integer


class Key(NamedTuple):
    """One convolution, exactly, on one machine with its versions. A tuple, since it is hashed at
    every convolution. All fields are text.

    shape: see shape_text; dtype: "f32" "f16" "bf16" "f64"; layout: "contiguous" or
    "channels_last"; the rest as in Machine.
    """

    op: str
    shape: str
    dtype: str
    layout: str
    architecture: str
    driver: str
    torch: str
    vendor: str
    ours: str

    @property
    def name(self) -> str:
        """Eight hexadecimal digits, for people: `hy3d-rocm db show 3f9a01c2`."""
        text = "\0".join(self).encode("utf-8", "surrogatepass")
        return hashlib.sha256(text).hexdigest()[:8]

    @property
    def machine(self) -> Machine:
        return Machine(*self[4:])


@functools.lru_cache(maxsize=4096)
def make_key(spec: ConvSpec, machine: Machine) -> Key:
    """The key of a convolution on `machine`. Equal exactly where the same work is to be done:
    sizes, stride, padding, dilation, groups, bias, dtype and layout, but not the missing batch
    dimension of an unbatched call."""
    from hy3d_rocm.conv.call import dtype_name

    layout = "channels_last" if spec.channels_last else "contiguous"
    return Key(spec.op, shape_text(spec), dtype_name(spec.dtype), layout, *machine)


def shape_text(spec: ConvSpec) -> str:
    """'1x128x19x642x610 w128x128x3x3x3 p2+0x1x1 bias'.

    Input and weight always; then, where it is not PyTorch's default: s stride, p padding (before
    and after as 2+0 where they differ), d dilation, g groups, bias.
    """
    parts = [_times(spec.x_size), f"w{_times(spec.weight_size)}"]
    if any(step != 1 for step in spec.stride):
        parts.append(f"s{_times(spec.stride)}")
    pads = list(zip(spec.pad_before, spec.pad_after, strict=True))
    if any(map(any, pads)):
        parts.append("p" + "x".join(str(a) if a == b else f"{a}+{b}" for a, b in pads))
    if any(step != 1 for step in spec.dilation):
        parts.append(f"d{_times(spec.dilation)}")
    if spec.groups != 1:
        parts.append(f"g{spec.groups}")
    if spec.has_bias:
        parts.append("bias")
    return " ".join(parts)


def _times(numbers: Sequence[int]) -> str:
    return "x".join(map(str, numbers))


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

    @property
    def outlives_versions(self) -> bool:
        """Whether it says nothing about hy3d_rocm: what the vendor's library did. That a result is
        wrong is our judgement."""
        return self.tier == "vendor" and self.verdict != "wrong"

    def bounded(self) -> Record:
        """The record as a database can keep it: `detail` short, and text that UTF-8 knows."""
        detail = self.detail
        if len(detail) > _DETAIL_CHARS:
            detail = detail[: _DETAIL_CHARS - 4] + " ..."
        detail = detail.encode("utf-8", "replace").decode("utf-8")
        return self if detail == self.detail else replace(self, detail=detail)

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in RECORD_FIELDS}


RECORD_FIELDS = tuple(each.name for each in fields(Record))


class Row(NamedTuple):
    """One row of the table."""

    key: Key
    record: Record

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, flat: the key's fields, then the record's."""
        return {**self.key._asdict(), **self.record.as_dict()}


@dataclass(frozen=True)
class Filters:
    """Which rows are meant: all that are given must hold. None, and an empty text, is not given.

    shape: a part of the key's text, blanks and case as they are; name: the first digits of a
    key's name; machines: what counts on any of them, with all its versions; the rest: the field,
    exactly.
    """

    tier: str | None = None
    verdict: str | None = None
    op: str | None = None
    shape: str | None = None
    dtype: str | None = None
    architecture: str | None = None
    name: str | None = None
    machines: Sequence[Machine] | None = None

    def matches(self, row: Row) -> bool:
        key, record = row
        exact = (
            (self.tier, record.tier), (self.verdict, record.verdict), (self.op, key.op),
            (self.dtype, key.dtype), (self.architecture, key.architecture),
        )  # fmt: skip
        if any(wanted and wanted != value for wanted, value in exact):
            return False
        if self.shape and self.shape not in key.shape:
            return False
        if self.name and not key.name.startswith(self.name.lower()):
            return False
        if self.machines is None or key.machine in self.machines:
            return True
        return record.outlives_versions and any(key[4:-1] == one[:-1] for one in self.machines)


def clock_text(when: float) -> str:
    """Local time, to the minute; "-" for one that no calendar has."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
    except (OverflowError, ValueError, OSError):
        return "-"
