"""Unproven shapes of the vendor library, tried in a child process (docs/probe.md)."""

from hy3d_rocm.conv.probe.parent import Case, Outcome, Progress, next_limit, probe
from hy3d_rocm.conv.probe.process import left_behind

__all__ = ["Case", "Outcome", "Progress", "left_behind", "next_limit", "probe"]
