"""The list of nodes, as ComfyUI's V3 loader asks for it, and what is done once at the start."""

from __future__ import annotations

import logging
from importlib import import_module

from comfy_api.v0_0_2 import ComfyExtension, io

from hy3d_rocm.comfy.nodes import ahead, decode, machine
from hy3d_rocm.diagnose.env.shown import guard_log

logger = logging.getLogger("hy3d_rocm")

NODES: tuple[type[io.ComfyNode], ...] = (
    decode.Hy3DRocmVAEDecode, decode.Hy3DRocmVAEEncode, decode.Hy3DRocmProtectVAE,
    ahead.Hy3DRocmMemoryPlan, ahead.Hy3DRocmTuneVAE, decode.Hy3DRocmCaptureLatent,
    decode.Hy3DRocmValidateDecode, machine.Hy3DRocmDoctor, machine.Hy3DRocmPipeline,
    machine.Hy3DRocmSeedMode, machine.Hy3DRocmFreeMemory, machine.Hy3DRocmStatus,
)  # fmt: skip


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


_AT_START = (
    ("the memory cap", "memory", "cap_at_start"),
    ("custom_rasterizer", "import_hooks", "prepare_raster"),
    ("the patches", "patches.install", "install_patches"),
    ("the doctor's route", "routes", "add_routes"),
    ("the lines at the start", "welcome", "arrange"),
)


def start() -> None:
    """The memory cap, the missing rasteriser, the patches of upstream's nodes, the doctor's route,
    the lines that tell of them; each that fails costs one line."""
    for what, module, name in _AT_START:
        try:
            getattr(import_module(f"hy3d_rocm.comfy.{module}"), name)()
        except Exception as error:  # noqa: BLE001  (our nodes must not fall with it)
            logger.error(
                "hy3d_rocm: %s: not in place, the nodes are not affected: %s: %s",
                what, type(error).__name__, error,
            )  # fmt: skip
