"""What is patched in ComfyUI-Hunyuan3DWrapper, in the order of a workflow.

Delight: upstream puts the images on ComfyUI's device, which under offload is not always where the
VAE's weights will be, and calls torch.manual_seed(seed) before each image, so that all images of a
batch get the same noise. It makes no room for itself either, so ComfyUI is asked for what it needs.

Multiview: upstream makes its generator on `pipeline.device`, which under offload may be a device
where nothing is computed; its paint pipeline sends pictures to "cuda" and draws the noise of its
VAE from the global random state of whatever device that is.

Mesh: upstream seeds the global generator of the process; `force_offload` of Hy3DGenerateMesh does
the contrary of what its tooltip says (True leaves the model on the GPU); after a failure the model
stays there; its models move without a word; and a memory report that torch refuses costs the
finished mesh.

VAE decode: upstream moves the VAE to ComfyUI's device, whatever ComfyUI's models leave free there,
and leaves the latents where the node before left them.

Loaders: upstream calls enable_model_cpu_offload() without a device: accelerate then takes GPU 0,
whichever ComfyUI computes on, and on a machine without a GPU diffusers raises. Nor does it make
room: what ComfyUI's own models hold counts as free here, and ComfyUI is asked for it before weights
move.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from hy3d_rocm import offload
from hy3d_rocm.comfy import memory, settings
from hy3d_rocm.comfy.patches import render
from hy3d_rocm.comfy.patches.common import (
    Call,
    Transfers,
    make_room,
    off_the_gpu,
    off_the_gpu_after_failure,
    patch_of,
    sampling,
)
from hy3d_rocm.comfy.patches.engine import Change, PatchSet
from hy3d_rocm.comfy.patches.upstream import PatchSpec
from hy3d_rocm.comfy.running import where_of
from hy3d_rocm.decoding.stages import logged
from hy3d_rocm.pipeline import unwrap
from hy3d_rocm.scopes import cuda_literals

logger = logging.getLogger("hy3d_rocm")


def _delight(call: Call) -> Any:
    size = (call.argument("height"), call.argument("width"))
    shape = getattr(call.argument("image"), "shape", ())  # of something else upstream complains
    make_room(call, call.argument("delight_pipe"), size)
    images = int(shape[0]) if shape else 1
    with sampling(call, call.argument("delight_pipe"), images, size) as proxy:
        return call.run(delight_pipe=proxy)


def _multiview(call: Call) -> Any:
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


def _mesh(call: Call) -> Any:
    real = unwrap(call.argument("pipeline"))
    memory.unload_models(call.device)  # upstream's first lines, before it is measured
    replaced: dict[str, Any] = {}
    afterwards = False
    if call.has("force_offload"):
        # True leaves the model where it is today, and would move it once upstream acts as its
        # tooltip says. Either way it is right after what follows here.
        replaced["force_offload"] = True
        afterwards = bool(call.argument("force_offload")) and settings.current().offload != "off"
    with (
        Transfers(call.patch.node, bar=True) as transfers,
        off_the_gpu_after_failure(real),
        sampling(call, call.argument("pipeline")) as proxy,
        offload.reporting_moves(real, transfers),
    ):
        result = call.run(pipeline=proxy, **replaced)
    if afterwards:
        off_the_gpu(real)
    return result


def _report(original: Callable[..., Any]) -> Callable[..., Any]:
    """print_memory, which raises for devices that torch.cuda does not know (a CPU, with a GPU in
    the machine), after the mesh has been made."""

    def print_memory(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except (AssertionError, RuntimeError, ValueError) as error:
            logger.debug("torch.cuda has no figures here: %s", error)
            memory.log_stage("Mesh done")
            return None

    return print_memory


def _vae_decode(call: Call) -> Any:
    vae, latents = call.argument("vae"), call.argument("latents")
    if isinstance(latents, torch.Tensor) and not latents.is_meta:
        latents = latents.to(call.device)
    make_room(call, vae)
    with (
        Transfers(call.patch.node, bar=True) as transfers,
        off_the_gpu_after_failure(vae),
        cuda_literals(call.device),
        offload.reporting_moves(vae, transfers),
    ):
        dtype = where_of(vae)[1]
        return logged(lambda: call.run(latents=latents), latents, call.device, dtype)


def _load(call: Call) -> Any:
    policy = settings.offload_for(call.own["offload"])
    with (
        Transfers(call.patch.node, bar=True) as transfers,
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


@contextmanager
def _diffusers_changed() -> Iterator[None]:
    """diffusers' class is everybody's, so it is as it was unless one of these loaders runs."""
    patches = PatchSet("diffusers")
    patches.apply([Change(*change) for change in offload.diffusers_changes()])
    try:
        yield
    finally:
        patches.revert()


SPECS: tuple[PatchSpec, ...] = (
    patch_of("delight", around=_delight),
    patch_of("multiview", around=_multiview),
    patch_of("mesh", {"nodes.print_memory": _report}, _mesh),
    patch_of("vae-decode", around=_vae_decode),
    patch_of("loaders", around=_load),
    *render.SPECS,
)
