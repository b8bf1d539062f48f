"""Run by ComfyUI before torch is imported, the last moment at which MIOpen's variables count."""

from __future__ import annotations

import logging
import os

if os.environ.get("HY3D_ROCM_ENV") != "off" and "MIOPEN_FIND_MODE" not in os.environ:
    os.environ["MIOPEN_FIND_MODE"] = "FAST"
    logging.getLogger("hy3d_rocm").info(
        "hy3d_rocm: MIOPEN_FIND_MODE=FAST, so that MIOpen does not time every kernel at a new "
        "shape (HY3D_ROCM_ENV=off leaves it alone)"
    )
