"""What a decode writes into the verdict store, without destroying what is known already.

`tune` has measured a shape with patience (time, peak, the Triton tier's tile, a slow find); what a
decode learns in passing is added to that row.
"""

from __future__ import annotations

import re
from typing import Any

from hy3d_rocm.conv import blame, policy
from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.choice import HEALTHY, Known
from hy3d_rocm.conv.errors import Classified, Kind

# As probe.probe()'s: a first call that takes so much longer than later ones is a slow find.
SLOW_SECONDS = 2.0
_TILE = re.compile(r"\btile \S+")  # triton/tuned.py writes it


def failed(spec: ConvSpec, tier: str, found: Classified, error: BaseException) -> None:
    """Keeps the failure, if the next process would meet it too."""
    if not blame.is_lasting(found, error):
        return
    verdict = "wrong" if found.kind is Kind.WRONG_RESULT else "error"
    old = policy.memory_for(spec.device).records(spec).get(tier)
    detail = "; ".join((found.reason, *_tile_of(old)))
    _put(spec, tier, verdict, old, detail=detail, measured_by="decode")


def worked(spec: ConvSpec, tier: str, took: float) -> None:
    """A first call of the vendor's library that went well here, after `took` seconds."""
    from hy3d_rocm.conv.probe.cases import (
        timed_verdict,  # late: importing the router starts nothing
    )

    old = policy.memory_for(spec.device).records(spec).get(tier)
    if old is not None and old.verdict in HEALTHY:
        return
    later = policy.expected_seconds(spec, tier) or 0.0
    verdict = timed_verdict(took, later, SLOW_SECONDS)
    _put(spec, tier, verdict, old, first_seconds=took, detail=_said(old), measured_by="decode")


def recovered(spec: ConvSpec, tier: str) -> None:
    """A tier that a record of an error kept away has computed the shape."""
    old = policy.memory_for(spec.device).records(spec).get(tier)
    if old is not None and old.verdict == "error":
        _put(spec, tier, "ok", old, detail=_said(old), measured_by="decode")


def measured(spec: ConvSpec, tier: str, seconds: float) -> None:
    """The time of a call, measured in passing."""
    old = policy.memory_for(spec.device).records(spec).get(tier)
    verdict = old.verdict if old is not None and old.verdict in HEALTHY else "ok"
    _put(spec, tier, verdict, old, seconds=seconds, detail=_said(old), measured_by="passing")


def _said(old: Known | None) -> str:
    """The detail of a row that is healthy from now on."""
    if old is None:
        return ""
    return old.detail if old.verdict in HEALTHY else "".join(_tile_of(old))


def _tile_of(old: Known | None) -> list[str]:
    return [] if old is None else _TILE.findall(old.detail)[:1]


def _put(spec: ConvSpec, tier: str, verdict: str, old: Known | None, **fields: Any) -> None:
    kept: dict[str, Any] = {}
    if old is not None:
        for name in ("seconds", "first_seconds", "peak_bytes"):
            kept[name] = getattr(old, name)
    policy.memory_for(spec.device).put(spec, tier, verdict, **{**kept, **fields})
