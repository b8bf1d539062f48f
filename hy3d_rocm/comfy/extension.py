"""The list of nodes, as ComfyUI's V3 loader asks for it."""

from __future__ import annotations

from comfy_api.v0_0_2 import ComfyExtension, io

from hy3d_rocm.comfy.nodes import Hy3DRocmPipeline, Hy3DRocmStatus, Hy3DRocmVAEDecode


class Hy3DRocmExtension(ComfyExtension):  # type: ignore[misc]
    """All nodes of the pack."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """The node classes."""
        return [Hy3DRocmVAEDecode, Hy3DRocmPipeline, Hy3DRocmStatus]


def make_extension() -> Hy3DRocmExtension:
    """What the pack's `comfy_entrypoint` returns. Schemas are built once here, so that a wrong
    one is found at the start and reported in one line."""
    for node in (Hy3DRocmVAEDecode, Hy3DRocmPipeline, Hy3DRocmStatus):
        node.GET_SCHEMA()
    return Hy3DRocmExtension()
