"""hy3d_rocm: Hunyuan3D and FramePack on AMD cards.

Importing this package costs nothing: every public name is loaded at its first use, so neither
torch nor numpy is imported here (ComfyUI's prestart step must come before torch).
"""

from __future__ import annotations

from hy3d_rocm._lazy import names

TYPE_CHECKING = False  # as typing's; importing typing would be most of this package's import time
if TYPE_CHECKING:
    from hy3d_rocm._native import Hy3dError as Hy3dError
    from hy3d_rocm.conv.faults import inject_faults as inject_faults
    from hy3d_rocm.conv.functional import conv2d as conv2d
    from hy3d_rocm.conv.functional import conv3d as conv3d
    from hy3d_rocm.conv.protection import protect as protect
    from hy3d_rocm.decoding.executor import decode as decode
    from hy3d_rocm.decoding.executor import encode as encode
    from hy3d_rocm.decoding.group import Group as Group
    from hy3d_rocm.decoding.group import GroupLostError as GroupLostError
    from hy3d_rocm.decoding.group import set_variables as set_variables
    from hy3d_rocm.decoding.plan import DecodePlan as DecodePlan
    from hy3d_rocm.decoding.plan import plan_decode as plan_decode
    from hy3d_rocm.device import ResolvedDevice as ResolvedDevice
    from hy3d_rocm.device import resolve_device as resolve_device
    from hy3d_rocm.pipeline import PipelineProxy as PipelineProxy
    from hy3d_rocm.seed import make_generator as make_generator

__version__ = "0.1.0"

# Public name -> module that has it.
_HOME = {
    "DecodePlan": "decoding.plan",
    "Group": "decoding.group",
    "GroupLostError": "decoding.group",
    "Hy3dError": "_native",
    "PipelineProxy": "pipeline",
    "ResolvedDevice": "device",
    "conv2d": "conv.functional",
    "conv3d": "conv.functional",
    "decode": "decoding.executor",
    "encode": "decoding.executor",
    "inject_faults": "conv.faults",
    "make_generator": "seed",
    "plan_decode": "decoding.plan",
    "protect": "conv.protection",
    "resolve_device": "device",
    "set_variables": "decoding.group",
}

__all__ = ["__version__", *_HOME]
__getattr__, __dir__ = names(__name__, _HOME)
