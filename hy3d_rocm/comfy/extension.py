"""The list of nodes, as ComfyUI's V3 loader asks for it, and what is done once at the start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from comfy_api.v0_0_2 import ComfyExtension, io

from hy3d_rocm.comfy.nodes import NODES
from hy3d_rocm.diagnose.env.streams import guard_log

logger = logging.getLogger("hy3d_rocm")


class Hy3DRocmExtension(ComfyExtension):  # type: ignore[misc]
    """All nodes of the pack."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """The node classes."""
        return list(NODES)


def make_extension() -> Hy3DRocmExtension:
    """What the pack's `comfy_entrypoint` returns. Schemas are built once here, so that a wrong
    one is found at the start and reported in one line."""
    guard_log()
    for node in NODES:
        node.GET_SCHEMA()
    start()
    return Hy3DRocmExtension()


def start() -> None:
    """The memory cap, the missing rasteriser, the patches of upstream's nodes, the doctor's route,
    the lines that tell of them; each that fails costs one line."""
    _guarded("the memory cap", "hy3d_rocm.comfy.memory", "cap_at_start")
    _guarded("custom_rasterizer", "hy3d_rocm.comfy.import_hooks", "prepare_raster")
    _guarded("the patches", "hy3d_rocm.comfy.patches.install", "install_patches")
    _guarded("the doctor's route", "hy3d_rocm.comfy.routes", "add_routes")
    _guarded("the lines at the start", "hy3d_rocm.comfy.welcome", "arrange")


def _guarded(what: str, module: str, name: str) -> None:
    try:
        function: Callable[[], Any] = getattr(import_module(module), name)
        function()
    except Exception as error:  # noqa: BLE001  (our nodes must not fall with it)
        logger.error(
            "hy3d_rocm: %s: not in place, the nodes are not affected: %s: %s",
            what, type(error).__name__, error,
        )  # fmt: skip
