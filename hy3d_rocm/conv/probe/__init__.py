"""Unproven shapes of the vendor library, tried in a child process (docs/probe.md)."""

from hy3d_rocm.conv.probe.cases import Case, Outcome, Progress, Ready, next_limit
from hy3d_rocm.conv.probe.parent import probe, ready
from hy3d_rocm.conv.probe.process import left_behind

__all__ = [
    "Case", "Outcome", "Progress", "Ready", "left_behind", "next_limit", "probe", "ready",
]  # fmt: skip
