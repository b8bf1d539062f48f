"""The loaders of the delight and the paint model: whether, and to which device, they offload.

Upstream calls enable_model_cpu_offload() without a device: accelerate then takes GPU 0, whichever
ComfyUI computes on, and on a machine without a GPU diffusers raises. Nor does it make room: what
ComfyUI's own models hold counts as free here, and ComfyUI is asked for it before weights move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from hy3d_rocm import offload
from hy3d_rocm.comfy import memory, settings
from hy3d_rocm.comfy.patch import Change, PatchSet, PatchSpec
from hy3d_rocm.comfy.patches.common import Call, NodePatch, differs_first, node_changes
from hy3d_rocm.comfy.patches.progress import Transfers
from hy3d_rocm.scopes import cuda_literals


def _around(call: Call) -> Any:
    policy = offload.check_policy(settings.offload_for(call.own["offload"]))
    transfers = Transfers(call.patch.node, bar=True)
    try:
        with (
            cuda_literals(call.device),
            _diffusers_changed(),
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


@contextmanager
def _diffusers_changed() -> Iterator[None]:
    """diffusers' class is everybody's, so it is as it was unless one of these loaders runs."""
    patches = PatchSet("diffusers")
    patches.apply([Change(*change) for change in offload.diffusers_changes()])
    try:
        yield
    finally:
        patches.revert()


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


SPEC = PatchSpec(
    "loaders",
    "Loaders: offload policy and device",
    differs_first(NODES),
    node_changes(NODES),
)
