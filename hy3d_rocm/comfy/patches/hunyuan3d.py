"""What is patched in ComfyUI-Hunyuan3DWrapper, in the order of a workflow (docs/comfyui.md says
what changes for the user).

Delight makes no room for itself, so ComfyUI is asked for what it needs. The mesh nodes'
`force_offload` does the contrary of what its tooltip says: True leaves the model on the GPU. The
loaders call enable_model_cpu_offload() without a device: accelerate then takes GPU 0, and without a
GPU diffusers raises. MeshRender outlives the node that made it, so its device is set where it is
made; its set_mesh and get_mesh turn coordinates in place, on a CPU the mesh's and the renderer's
own. meshVerticeInpaint has the same bits in the C core (tests/unit/raster/test_inpaint.py calls
upstream's); what was not compared is left to upstream.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from hy3d_rocm import _native, offload
from hy3d_rocm.comfy import memory, settings
from hy3d_rocm.comfy.memory import comfy_device
from hy3d_rocm.comfy.patches import common
from hy3d_rocm.comfy.patches.engine import Change, PatchSet
from hy3d_rocm.comfy.patches.upstream import PatchSpec
from hy3d_rocm.comfy.running import where_of
from hy3d_rocm.decoding.stages import logged
from hy3d_rocm.pipeline import unwrap
from hy3d_rocm.raster import functional
from hy3d_rocm.scopes import cuda_literals

logger = logging.getLogger("hy3d_rocm")


def _delight(call: common.Call) -> Any:
    size = (call.argument("height"), call.argument("width"))
    shape = getattr(call.argument("image"), "shape", ())  # of something else upstream complains
    common.make_room(call, call.argument("delight_pipe"), size)
    images = int(shape[0]) if shape else 1
    with common.sampling(call, call.argument("delight_pipe"), images, size) as proxy:
        return call.run(delight_pipe=proxy)


def _multiview(call: common.Call) -> Any:
    view_size = call.argument("view_size")
    memory.unload_models(call.device)  # upstream's first lines, before it is measured
    with common.sampling(call, call.argument("pipeline"), size=(view_size, view_size)) as proxy:
        result = call.run(pipeline=proxy)
    _let_go(unwrap(call.argument("pipeline")))
    return result


def _let_go(pipeline: Any) -> None:
    """The paint pipeline frees its models before it decodes, so its VAE would stay on the GPU."""
    try:
        pipeline.maybe_free_model_hooks()
    except Exception as error:  # noqa: BLE001  (the pictures are there)
        logger.debug("the VAE of %s stays where it is: %s", type(pipeline).__name__, error)


def _mesh(call: common.Call) -> Any:
    real = unwrap(call.argument("pipeline"))
    memory.unload_models(call.device)  # upstream's first lines, before it is measured
    replaced: dict[str, Any] = {}
    afterwards = False
    if "force_offload" in call.arguments.arguments:  # the defaults are among them
        # True leaves the model where it is today, and would move it once upstream acts as its
        # tooltip says. Either way it is right after what follows here.
        replaced["force_offload"] = True
        afterwards = bool(call.argument("force_offload")) and settings.current().offload != "off"
    with (
        common.off_the_gpu_after_failure(real),
        common.sampling(call, call.argument("pipeline"), bar=True) as proxy,
    ):
        result = call.run(pipeline=proxy, **replaced)
    if afterwards:
        common.off_the_gpu(real)
    return result


def _report(print_memory: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """print_memory raises for devices that torch.cuda does not know (a CPU, with a GPU in the
    machine), after the mesh has been made."""
    try:
        return print_memory(*args, **kwargs)
    except (AssertionError, RuntimeError, ValueError) as error:
        logger.debug("torch.cuda has no figures here: %s", error)
        memory.log_stage("Mesh done")
        return None


def _vae_decode(call: common.Call) -> Any:
    vae, latents = call.argument("vae"), call.argument("latents")
    if isinstance(latents, torch.Tensor) and not latents.is_meta:
        latents = latents.to(call.device)
    common.make_room(call, vae)
    with (
        common.Transfers(call.patch.node, bar=True) as transfers,
        common.off_the_gpu_after_failure(vae),
        cuda_literals(call.device),
        offload.reporting_moves(vae, transfers),
    ):
        dtype = where_of(vae)[1]
        return logged(lambda: call.run(latents=latents), latents, call.device, dtype)


def _load(call: common.Call) -> Any:
    policy = settings.offload_for(call.own["offload"])
    with (
        common.Transfers(call.patch.node, bar=True) as transfers,
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


TURNED = ("vtx_pos", "vtx_uv")  # what get_mesh turns back into the mesh's own coordinates


def _rendered(call: common.Call) -> Any:
    with cuda_literals(call.device):
        return call.run()


def _on_comfys_device(init: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """MeshRender.__init__ with ComfyUI's device unless the caller gives one."""
    try:
        given = "device" in inspect.signature(init).bind(*args, **kwargs).arguments
    except TypeError:
        given = True  # the original says in its own words what is wrong
    if not given:
        kwargs["device"] = comfy_device()
    init(*args, **kwargs)


def _with_copies(set_mesh: Callable[..., Any], renderer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """MeshRender.set_mesh on copies of arrays: `torch.from_numpy(x).to(device).float()` is x's own
    memory where x is float32 and the device a CPU, and set_mesh writes into it."""
    owned = {name: _own(value) for name, value in kwargs.items()}
    return set_mesh(renderer, *map(_own, args), **owned)


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _of_a_copy(get_mesh: Callable[..., Any], renderer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """MeshRender.get_mesh on a renderer whose tensors are copies: `.cpu().numpy()` is the tensor's
    own memory where that is the CPU's, and get_mesh writes into it."""
    apart = copy.copy(renderer)
    for name, value in vars(renderer).items():
        if name in TURNED and isinstance(value, torch.Tensor):
            setattr(apart, name, value.clone())
    return get_mesh(apart, *args, **kwargs)


PARAMETERS = ("texture", "mask", "vtx_pos", "vtx_uv", "pos_idx", "uv_idx", "method")


def _inpaint(run: Callable[[], Any], bound: inspect.BoundArguments) -> Any:
    """Upstream's function, computed by the C core where that has been compared with it."""
    *given, method = (bound.arguments[name] for name in PARAMETERS)
    if method == "smooth" and _native.available and _as_compared(*given):
        try:
            return functional.inpaint_vertices(*given)
        except (ValueError, TypeError, _native.Hy3dError) as error:
            logger.debug("meshVerticeInpaint is left to upstream: %s", error)
    return run()


def _as_compared(texture: Any, mask: Any, *mesh: Any) -> bool:
    """Whether these are arrays of the kinds that upstream's nodes pass, inside the texture."""
    if not all(isinstance(array, np.ndarray) for array in (texture, mask, *mesh)):
        return False
    positions, uv, *indices = mesh
    floats = all(array.dtype == np.float32 for array in (texture, positions, uv))
    integers = all(array.dtype.kind == "i" for array in indices)
    return bool(
        floats and integers and mask.dtype == np.uint8
        and uv.size and uv.min() >= 0.0 and uv.max() <= 1.0
    )  # fmt: skip


SPECS: tuple[PatchSpec, ...] = (
    common.patch_of("delight", globals(), around=_delight),
    common.patch_of("multiview", globals(), around=_multiview),
    common.patch_of("mesh", globals(), around=_mesh),
    common.patch_of("vae-decode", globals(), around=_vae_decode),
    common.patch_of("loaders", globals(), around=_load),
    common.patch_of("render", globals(), around=_rendered),
    common.patch_of("inpaint", globals()),
)
