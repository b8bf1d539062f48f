"""The loaders of the delight and the paint model: whether, and to which device, they offload.

Upstream calls enable_model_cpu_offload() without a device: accelerate then takes GPU 0, whichever
ComfyUI computes on, and on a machine without a GPU diffusers raises. Nor does it make room: what
ComfyUI's own models hold counts as free here, and ComfyUI is asked for it before weights move.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hy3d_rocm import offload
from hy3d_rocm.comfy import memory, settings
from hy3d_rocm.comfy.patch import Change, PatchSpec, Upstream
from hy3d_rocm.comfy.patches.common import Call, NodePatch, differs_first, node_changes
from hy3d_rocm.comfy.patches.progress import Transfers
from hy3d_rocm.scopes import cuda_literals


def _around(call: Call) -> Any:
    policy = offload.check_policy(settings.offload_for(call.own["offload"]))
    transfers = Transfers(call.patch.node, bar=True)
    try:
        with (
            cuda_literals(call.device),
            offload.offload_scope(
                policy,
                call.device,
                partial(memory.counted_free, call.device),
                transfers,
                partial(memory.make_room, device=call.device),
            ),
        ):
            return call.run()
    finally:
        transfers.summary()


def _loader(node: str, stage: str) -> NodePatch:
    return NodePatch(
        spec="loaders",
        node=node,
        stage=stage,
        around=_around,
        function="loadmodel",
        parameters=("model", "compile_args"),
        names=("enable_model_cpu_offload",),
        inputs=("offload",),
    )


NODES = (
    _loader("DownloadAndLoadHy3DDelightModel", "Delight Load"),
    _loader("DownloadAndLoadHy3DPaintModel", "Paint Load"),
)


def _changes(upstream: Upstream) -> list[Change]:
    of_diffusers = [Change(*change) for change in offload.diffusers_changes()]
    return [*node_changes(NODES)(upstream), *of_diffusers]


SPEC = PatchSpec(
    "loaders",
    "Loaders: offload policy and device",
    differs_first(NODES),
    _changes,
)
