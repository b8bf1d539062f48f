"""What a convolution did: strategy and workspace of a call, and the weight cache's figures."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any

from hy3d_rocm import _native
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


def weight_cache() -> Any | None:
    """The process's cache of prepared weights; None where this build has none."""
    try:
        return importlib.import_module("hy3d_rocm.conv.prepared").cache()
    except ModuleNotFoundError:
        return None


def cache_stats(cache: Any | None) -> dict[str, Any]:
    """Its figures, JSON-able; empty without a cache."""
    if cache is None:
        return {}
    stats = cache.stats()
    if dataclasses.is_dataclass(stats) and not isinstance(stats, type):
        return dataclasses.asdict(stats)
    return dict(stats._asdict() if hasattr(stats, "_asdict") else stats)


def cache_text(figures: dict[str, Any]) -> str:
    """One line."""
    if not figures:
        return "Weight cache: none in this build."
    return "Weight cache: " + ", ".join(f"{name} {_figure(name, v)}" for name, v in figures.items())


def _figure(name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return size_text(value) if "bytes" in name or "limit" in name else str(value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)
