"""What is wrong with this machine's set-up, worst first, each with its evidence and one remedy.

`examine()` returns an Examination. Names are loaded on first use; nothing here imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hy3d_rocm.doctor.examination import Examination, examine
    from hy3d_rocm.doctor.finding import Finding, Severity

__all__ = ["Examination", "Finding", "Severity", "examine"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.examination"), name)
