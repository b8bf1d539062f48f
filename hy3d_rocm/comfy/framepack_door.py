"""What must be ready before FramePackWrapper is imported: asked before torch is there.

What the hook asks when the wrapper is imported is imported then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hy3d_rocm.comfy.switches import switched_on
from hy3d_rocm.framepack import importing

NAME = "framepack-import"


def prepare(environ: Mapping[str, str] | None = None) -> importing.Hook:
    """Has FramePackWrapper imported where torch.cuda has no current device.

    HY3D_ROCM_PATCH=off, -framepack-import and the switch in the settings leave it alone. "auto"
    does not ask for an AMD card here: nothing is changed where the driver answers, and where it
    does not, the pack could not be imported at all.
    """
    asked = os.environ if environ is None else environ
    return importing.install(lambda: switched_on(NAME, asked), _device)


def _device() -> str:
    import comfy.model_management as management

    return str(management.get_torch_device())
