"""The nodes: what they are called, what they ask for, and what they do."""

from __future__ import annotations

from typing import Any

from hy3d_rocm.comfy.nodes.decode import Hy3DRocmProtectVAE, Hy3DRocmVAEDecode, Hy3DRocmVAEEncode
from hy3d_rocm.comfy.nodes.hunyuan3d import Hy3DRocmPipeline, Hy3DRocmSeedMode
from hy3d_rocm.comfy.nodes.machine import Hy3DRocmDoctor, Hy3DRocmFreeMemory, Hy3DRocmStatus
from hy3d_rocm.comfy.nodes.memory_plan import Hy3DRocmMemoryPlan
from hy3d_rocm.comfy.nodes.tools import Hy3DRocmCaptureLatent, Hy3DRocmValidateDecode
from hy3d_rocm.comfy.nodes.tuning import Hy3DRocmTuneVAE

NODES: tuple[type[Any], ...] = (
    Hy3DRocmVAEDecode, Hy3DRocmVAEEncode, Hy3DRocmProtectVAE, Hy3DRocmMemoryPlan, Hy3DRocmTuneVAE,
    Hy3DRocmCaptureLatent, Hy3DRocmValidateDecode, Hy3DRocmDoctor,
    Hy3DRocmPipeline, Hy3DRocmSeedMode, Hy3DRocmFreeMemory, Hy3DRocmStatus,
)  # fmt: skip
