"""What must be ready before FramePackWrapper is imported: asked by prestartup_script.py.

torch must not be imported here; what the hook asks later is imported when it asks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hy3d_rocm.framepack import importing

NAME = "framepack-import"


def prepare(environ: Mapping[str, str] | None = None) -> importing.Hook | None:
    """Has FramePackWrapper imported where torch.cuda has no current device; None if switched off.

    HY3D_ROCM_PATCH=off and -framepack-import leave it alone. "auto" does not ask for an AMD card
    here: the hook changes nothing where the driver answers, and where it does not, the pack could
    not be imported at all.
    """
    from hy3d_rocm.comfy.patch.gate import VARIABLE, read_choice

    environ = os.environ if environ is None else environ
    choice = read_choice(environ.get(VARIABLE, ""))
    if choice.mode == "off" or NAME in choice.left_out:
        return None
    return importing.install(_switched_on, _device)


def _switched_on() -> bool:
    from hy3d_rocm.comfy import settings

    return NAME not in settings.current().patches_off


def _device() -> str:
    import comfy.model_management as management

    return str(management.get_torch_device())
