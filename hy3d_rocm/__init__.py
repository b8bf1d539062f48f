"""hy3d_rocm: Hunyuan3D and FramePack on AMD cards.

Importing this package costs nothing: every public name is loaded at its first use, so neither
torch nor numpy is imported here (ComfyUI's prestart step must come before torch).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module that has it.
_LAZY = {
    "DecodePlan": "hy3d_rocm.decode.plan",
    "Hy3dError": "hy3d_rocm._native",
    "PipelineProxy": "hy3d_rocm.pipeline",
    "ResolvedDevice": "hy3d_rocm.device",
    "conv2d": "hy3d_rocm.conv.functional",
    "conv3d": "hy3d_rocm.conv.functional",
    "decode": "hy3d_rocm.decode.executor",
    "inject_faults": "hy3d_rocm.conv.faults",
    "make_generator": "hy3d_rocm.seed",
    "plan_decode": "hy3d_rocm.decode.plan",
    "protect": "hy3d_rocm.conv.router",
    "resolve_device": "hy3d_rocm.device",
}

__all__ = ["__version__", *sorted(_LAZY)]  # noqa: PLE0604

if TYPE_CHECKING:
    from hy3d_rocm._native import Hy3dError as Hy3dError


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
