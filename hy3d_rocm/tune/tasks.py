"""What is to be done about each tier and shape, from what is known. Pure: no torch, no clock."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hy3d_rocm.conv.choice import VENDOR_TIERS
from hy3d_rocm.conv.verdict_store.records import Record

# Probing may take this share of the time; measuring gets the rest, and what probing leaves.
PROBE_SHARE = 0.5
# The first patience with a shape of the vendor library; judge.next_limit() goes on from there.
FIRST_LIMIT_S = 15.0
DEFAULT_TIERS = ("vendor", "triton", "gemm", "conv2d", "native")
_HUNG_FOR = re.compile(r"in (\d+(?:\.\d+)?) s$")


class Task(enum.Enum):
    """What to do with a tier for a shape."""

    PROBE = "probe"  # in a child process: it may hang
    MEASURE = "measure"  # in this process
    RETRY = "retry"  # hung before: probe with more patience
    KNOWN = "known"  # measured before
    LEAVE = "leave"  # failed before


@dataclass(frozen=True)
class Wishes:
    """What the user asked for. risky: tiers that are only ever tried in a child process first."""

    tiers: Sequence[str]
    risky: frozenset[str] = frozenset()
    again: bool = False
    retry_hung: bool = False


def risky_tiers(tiers: Sequence[str], *, is_rocm: bool, asked: bool) -> frozenset[str]:
    """Those that call MIOpen. cuDNN does not hang; with --probe it is tried like MIOpen."""
    return VENDOR_TIERS & set(tiers) if is_rocm or asked else frozenset()


def task(tier: str, record: Record | None, wishes: Wishes) -> Task:
    """What to do about one tier of one shape."""
    first = Task.PROBE if tier in wishes.risky else Task.MEASURE
    if record is None:
        return first
    if record.verdict == "hang":
        may = wishes.retry_hung or wishes.again
        return Task.RETRY if may and tier in wishes.risky else Task.LEAVE
    if wishes.again:
        return first
    if record.verdict in ("error", "wrong"):
        return Task.LEAVE
    if record.seconds is None:
        return first
    if tier == "triton" and not record.detail.startswith("tile "):
        return Task.MEASURE  # measured in passing, with the guessed tile
    return Task.KNOWN


def tasks(records: Mapping[str, Record], wishes: Wishes) -> dict[str, Task]:
    """Of every tier asked for, in order."""
    return {tier: task(tier, records.get(tier), wishes) for tier in wishes.tiers}


def hung_for(detail: str) -> float:
    """Seconds that a hang was waited for, from the words of judge.late_verdict()."""
    found = _HUNG_FOR.search(detail)
    return float(found[1]) if found else FIRST_LIMIT_S


def comfyui_default(architecture: str, *, is_rocm: bool, keeps_miopen: bool) -> str:
    """What computes a convolution in ComfyUI today: "vendor" or "native".

    It switches MIOpen off on everything newer than RDNA2 (comfy/model_management.py), unless
    COMFYUI_ENABLE_MIOPEN=1; elsewhere PyTorch's default stands.
    """
    if not is_rocm or keeps_miopen or architecture.startswith(_WITH_MIOPEN):
        return "vendor"
    return "native"


_WITH_MIOPEN = ("gfx1030", "gfx1031", "gfx1010", "gfx1011", "gfx1012", "gfx906", "gfx900", "gfx803")
