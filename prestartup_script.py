"""Run by ComfyUI before torch is imported, the last moment at which MIOpen's variables count."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "hy3d_rocm_door", Path(__file__).resolve().with_name("__init__.py")
)
if _spec is not None and _spec.loader is not None:
    _door = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_door)
    _door.prestartup()
