"""Hy3DDelightImage: the picture on the device where the pipeline computes, one generator a batch.

Upstream puts the images on ComfyUI's device, which under offload is not always where the VAE's
weights will be, and calls torch.manual_seed(seed) before each image, so that all images of a batch
get the same noise. It makes no room for itself either, so ComfyUI is asked for what it needs.
"""

from __future__ import annotations

from typing import Any

from hy3d_rocm.comfy.patch import PatchSpec
from hy3d_rocm.comfy.patches.common import Call, NodePatch, differs_first, node_changes
from hy3d_rocm.comfy.patches.room import make_room
from hy3d_rocm.comfy.patches.sampling import sampling


def _around(call: Call) -> Any:
    size = (call.argument("height"), call.argument("width"))
    images = _count(call.argument("image"))
    make_room(call, call.argument("delight_pipe"), size)
    with sampling(call, call.argument("delight_pipe"), images, size) as proxy:
        return call.run(delight_pipe=proxy)


def _count(images: Any) -> int:
    """The number of images in an IMAGE; 1 for anything else, of which upstream will complain."""
    shape = getattr(images, "shape", ())
    return int(shape[0]) if shape else 1


NODES = (
    NodePatch(
        spec="delight",
        node="Hy3DDelightImage",
        stage="Delight",
        around=_around,
        parameters=("delight_pipe", "image", "width", "height", "steps", "seed"),
        names=("manual_seed", "seed", "get_torch_device"),
        inputs=("seed_mode",),
    ),
)

SPEC = PatchSpec(
    "delight",
    "Hy3DDelightImage: right device, one generator for the batch",
    differs_first(NODES),
    node_changes(NODES),
)
