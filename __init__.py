"""The door for ComfyUI: it loads this file from custom_nodes/, whatever the folder is called.

prestartup_script.py runs this file too, before torch is imported, and calls prestartup().
HY3D_ROCM=off: no nodes, no patches, no variables; one line says so.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import Any

_LIBRARY = Path(__file__).resolve().parent / "hy3d_rocm"
_LOGGER = logging.getLogger("hy3d_rocm")
WEB_DIRECTORY = "./web"  # the settings and the nodes' help pages; ComfyUI reads this name


def _make_importable() -> None:
    """`import hy3d_rocm` finds the installed package, else the one beside this file.

    sys.path stays as it is: this folder has names (tests, docs) that would shadow other packs'.
    """
    if importlib.util.find_spec("hy3d_rocm") is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "hy3d_rocm", _LIBRARY / "__init__.py", submodule_search_locations=[str(_LIBRARY)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{_LIBRARY} cannot be read")
    module = sys.modules["hy3d_rocm"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["hy3d_rocm"]
        raise


def _is_off() -> bool:
    return os.environ.get("HY3D_ROCM", "").strip().lower() == "off"


def _no_nodes() -> Any:
    from comfy_api.v0_0_2 import ComfyExtension

    class NoNodes(ComfyExtension):  # type: ignore[misc]
        async def get_node_list(self) -> list[Any]:
            return []

    return NoNodes()


def prestartup() -> None:
    """What must be done before torch and other packs are imported. What fails is one log line."""
    if _is_off():  # comfy_entrypoint says so
        return
    what = "the environment variables are left as they are"
    try:
        _make_importable()
        from hy3d_rocm.env import startup

        startup.run(os.environ)
        what = "FramePackWrapper is imported as it is"
        from hy3d_rocm.comfy import framepack_door

        framepack_door.prepare(os.environ)
        what = "custom_rasterizer is not served"
        from hy3d_rocm.comfy import raster_door

        raster_door.prepare(os.environ)
    except Exception as error:  # noqa: BLE001  (a broken pack must not break ComfyUI)
        _LOGGER.error("hy3d_rocm: %s: %s: %s", what, type(error).__name__, error)


async def comfy_entrypoint() -> Any:
    """ComfyUI's entry (V3). Whatever fails here costs this pack's nodes and one log line."""
    if _is_off():
        _LOGGER.info("hy3d_rocm: HY3D_ROCM=off: no nodes, no patches, no variables")
        return _no_nodes()
    try:
        _make_importable()
        from hy3d_rocm.comfy.extension import make_extension

        return make_extension()
    except Exception as error:  # noqa: BLE001  (a broken pack must not break ComfyUI)
        _LOGGER.error(
            "hy3d_rocm: its nodes are not there, ComfyUI is not affected: %s: %s",
            type(error).__name__,
            error,
        )
        return _no_nodes()
