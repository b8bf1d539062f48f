"""Hy3DSampleMultiView: device and noise of the paint pipeline.

Upstream makes its generator on `pipeline.device`, which under offload may be a device where
nothing is computed; its paint pipeline sends pictures to "cuda" and draws the noise of its VAE
from the global random state of whatever device that is.
"""

from __future__ import annotations

import logging
from typing import Any

from hy3d_rocm.comfy import memory
from hy3d_rocm.comfy.patch import PatchSpec
from hy3d_rocm.comfy.patches.common import Call, NodePatch, differs_first, node_changes
from hy3d_rocm.comfy.patches.sampling import sampling
from hy3d_rocm.pipeline import unwrap

logger = logging.getLogger("hy3d_rocm")


def _around(call: Call) -> Any:
    view_size = call.argument("view_size")
    memory.unload_models(call.device)  # upstream's first lines, before it is measured
    with sampling(call, call.argument("pipeline"), size=(view_size, view_size)) as proxy:
        result = call.run(pipeline=proxy)
    _let_go(unwrap(call.argument("pipeline")))
    return result


def _let_go(pipeline: Any) -> None:
    """The paint pipeline frees its models before it decodes, so its VAE would stay on the GPU."""
    try:
        pipeline.maybe_free_model_hooks()
    except Exception as error:  # noqa: BLE001  (the pictures are there)
        logger.debug("the VAE of %s stays where it is: %s", type(pipeline).__name__, error)


NODES = (
    NodePatch(
        spec="multiview",
        node="Hy3DSampleMultiView",
        stage="MultiView",
        around=_around,
        parameters=("pipeline", "ref_image", "view_size", "steps", "seed"),
        names=("manual_seed", "Generator", "device"),
        inputs=("seed_mode",),
    ),
)

SPEC = PatchSpec(
    "multiview",
    "Hy3DSampleMultiView: right device, noise that does not depend on it",
    differs_first(NODES),
    node_changes(NODES),
)
