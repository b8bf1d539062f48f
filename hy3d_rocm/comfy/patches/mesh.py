"""Hy3DGenerateMesh and Hy3DGenerateMeshMultiView: noise, force_offload, failures.

Upstream seeds the global generator of the process; `force_offload` of Hy3DGenerateMesh does the
contrary of what its tooltip says (True leaves the model on the GPU); after a failure the model
stays there; its models move without a word; and a memory report that torch refuses costs the
finished mesh.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from hy3d_rocm import offload
from hy3d_rocm.comfy import memory, settings
from hy3d_rocm.comfy.patch import Change, PatchSpec, Upstream
from hy3d_rocm.comfy.patches.common import (
    Call,
    NodePatch,
    differs_first,
    node_changes,
    off_the_gpu,
)
from hy3d_rocm.comfy.patches.progress import Transfers
from hy3d_rocm.comfy.patches.sampling import sampling
from hy3d_rocm.pipeline import unwrap

logger = logging.getLogger("hy3d_rocm")


def _around(call: Call) -> Any:
    real = unwrap(call.argument("pipeline"))
    transfers = Transfers(call.patch.node, bar=True)
    memory.unload_models(call.device)  # upstream's first lines, before it is measured
    replaced: dict[str, Any] = {}
    afterwards = False
    if call.has("force_offload"):
        # True leaves the model where it is today, and would move it once upstream acts as its
        # tooltip says. Either way it is right after what follows here.
        replaced["force_offload"] = True
        afterwards = bool(call.argument("force_offload")) and settings.current().offload != "off"
    try:
        with (
            sampling(call, call.argument("pipeline")) as proxy,
            offload.reporting_moves(real, transfers),
        ):
            result = call.run(pipeline=proxy, **replaced)
    except BaseException:
        off_the_gpu(real)
        raise
    finally:
        transfers.summary()
    if afterwards:
        off_the_gpu(real)
    return result


NODES = (
    NodePatch(
        spec="mesh",
        node="Hy3DGenerateMesh",
        stage="Mesh",
        around=_around,
        parameters=("pipeline", "image", "seed", "force_offload"),
        names=("manual_seed", "unet_offload_device"),
        inputs=("seed_mode",),
    ),
    NodePatch(
        spec="mesh",
        node="Hy3DGenerateMeshMultiView",
        stage="Mesh MultiView",
        around=_around,
        parameters=("pipeline", "seed"),
        names=("manual_seed", "unet_offload_device"),
        inputs=("seed_mode",),
    ),
)


def _report(original: Callable[..., Any]) -> Callable[..., Any]:
    """print_memory, which raises for devices that torch.cuda does not know (a CPU, with a GPU in
    the machine), after the mesh has been made."""

    def print_memory(*args: Any, **kwargs: Any) -> Any:
        if "mesh" in settings.current().patches_off:
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        except (AssertionError, RuntimeError, ValueError) as error:
            logger.debug("torch.cuda has no figures here: %s", error)
            memory.log_stage("Mesh done")
            return None

    return print_memory


def _changes(upstream: Upstream) -> list[Change]:
    changes = node_changes(NODES)(upstream)
    modules = {upstream.node(patch.node).__module__ for patch in NODES}
    for name in sorted(modules):
        module = sys.modules.get(name)
        if hasattr(module, "print_memory"):
            changes.append(Change(module, "print_memory", _report))
    return changes


SPEC = PatchSpec(
    "mesh",
    "Hy3DGenerateMesh, Hy3DGenerateMeshMultiView: noise, force_offload, failures",
    differs_first(NODES),
    _changes,
)
