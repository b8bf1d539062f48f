"""What a convolution did: strategy and workspace of a call, and the weight cache's figures."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from hy3d_rocm import _native
from hy3d_rocm.conv.prepared import CacheStats
from hy3d_rocm.units import size_text


@dataclasses.dataclass(frozen=True)
class Told:
    """What the core said about one call. workspace_bytes: of all threads together."""

    strategy: str
    threads: int
    workspace_bytes: int


@contextlib.contextmanager
def listening() -> Iterator[list[Told]]:
    """Notes what the core tells the public functions inside, which don't hand it on."""
    kept: list[Told] = []
    real = _native.conv3d

    def call(*arguments: Any, **options: Any) -> tuple[str, int, int]:
        answer = real(*arguments, **options)
        kept.append(Told(*answer))
        return answer

    vars(_native)["conv3d"] = call
    try:
        yield kept
    finally:
        vars(_native)["conv3d"] = real


def cache_dict(stats: CacheStats) -> dict[str, Any]:
    """The weight cache's figures, JSON-able."""
    return {**dataclasses.asdict(stats), "hit_rate": stats.hit_rate}


def cache_text(figures: dict[str, Any]) -> str:
    """The same as one line."""
    asked = figures["hits"] + figures["misses"]
    return (
        f"{figures['hits']} of {asked} calls found their weights prepared "
        f"({figures['hit_rate']:.0%}), {figures['made']} were prepared, {figures['refused']} had "
        f"no room; now {size_text(figures['bytes'])} of {size_text(figures['limit_bytes'])}"
    )
