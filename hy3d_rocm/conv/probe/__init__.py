"""Trying unproven shapes of the vendor library in a child process (docs/probe.md).

Names are loaded on first use: the child imports this package before it knows whether it needs
torch at all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hy3d_rocm.conv.probe.cases import Case, Outcome, Progress, Ready
    from hy3d_rocm.conv.probe.judge import next_limit
    from hy3d_rocm.conv.probe.parent import left_behind, probe, ready

_HOME = {
    "Case": "cases",
    "Outcome": "cases",
    "Progress": "cases",
    "Ready": "cases",
    "left_behind": "parent",
    "next_limit": "judge",
    "probe": "parent",
    "ready": "parent",
}

__all__ = [
    "Case",
    "Outcome",
    "Progress",
    "Ready",
    "left_behind",
    "next_limit",
    "probe",
    "ready",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
