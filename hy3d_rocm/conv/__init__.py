"""Convolutions that do not fail: the C conv3d's Python functions, and the router `protect()`.

Names are loaded on first use, so that importing the package costs neither torch nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hy3d_rocm._lazy import names

if TYPE_CHECKING:
    from hy3d_rocm.conv.custom_op import conv3d_op
    from hy3d_rocm.conv.errors import DeviceLostError, DeviceMismatchError, classify
    from hy3d_rocm.conv.faults import Fault, inject_faults
    from hy3d_rocm.conv.functional import conv3d
    from hy3d_rocm.conv.protection import protect
    from hy3d_rocm.conv.router import Guard
    from hy3d_rocm.conv.stats import Event, Stats
    from hy3d_rocm.conv.verdicts import forget

__all__ = [
    "DeviceLostError", "DeviceMismatchError", "Event", "Fault", "Guard", "Stats", "classify",
    "conv3d", "conv3d_op", "forget", "inject_faults", "protect",
]  # fmt: skip
_HOME = {
    **dict.fromkeys(("DeviceLostError", "DeviceMismatchError", "classify"), "errors"),
    **dict.fromkeys(("Event", "Stats"), "stats"),
    **dict.fromkeys(("Fault", "inject_faults"), "faults"),
    "Guard": "router", "protect": "protection",
    "conv3d": "functional", "conv3d_op": "custom_op", "forget": "verdicts",
}  # fmt: skip
__getattr__, __dir__ = names(__name__, _HOME)
