"""MeshRender and the nodes that say "cuda" themselves: ComfyUI's device instead; and in-painting
over the mesh: the same bits from the C core.

MeshRender outlives the node that made it, so its device is set where it is made; what else those
nodes do on "cuda" is sent to ComfyUI's device while they run. Its set_mesh and get_mesh turn
coordinates in place, on a CPU the mesh's and the renderer's own, so both are given copies: ComfyUI
keeps renderers between prompts, and a mesh whose texture coordinates were turned is exported with
its texture upside down.

Upstream's meshVerticeInpaint is plain Python, minutes for what takes the C core a tenth of a
second. Both have the same bits (tests/unit/raster/test_inpaint.py calls upstream's); what was not
compared is left to upstream.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hy3d_rocm import _native
from hy3d_rocm.comfy.memory import comfy_device
from hy3d_rocm.comfy.patches.common import Call, by_name, patch_of
from hy3d_rocm.raster import functional
from hy3d_rocm.scopes import cuda_literals

logger = logging.getLogger("hy3d_rocm")

MESH_RENDER = "hy3dgen.texgen.differentiable_renderer.mesh_render"
TURNED = ("vtx_pos", "vtx_uv")  # what get_mesh turns back into the mesh's own coordinates


def _around(call: Call) -> Any:
    with cuda_literals(call.device):
        return call.run()


def _on_comfys_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """MeshRender.__init__ with ComfyUI's device unless the caller gives one."""
    signature = inspect.signature(original)

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N807  (it is one)
        try:
            given = "device" in signature.bind(*args, **kwargs).arguments
        except TypeError:
            given = True  # the original says in its own words what is wrong
        if not given:
            kwargs["device"] = comfy_device()
        original(*args, **kwargs)

    return __init__


def _with_copies(original: Callable[..., Any]) -> Callable[..., Any]:
    """MeshRender.set_mesh on copies of arrays: `torch.from_numpy(x).to(device).float()` is x's own
    memory where x is float32 and the device a CPU, and set_mesh writes into it."""

    def set_mesh(self: Any, *args: Any, **kwargs: Any) -> Any:
        owned = {name: _own(value) for name, value in kwargs.items()}
        return original(self, *map(_own, args), **owned)

    return set_mesh


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _of_a_copy(original: Callable[..., Any]) -> Callable[..., Any]:
    """MeshRender.get_mesh on a renderer whose tensors are copies: `.cpu().numpy()` is the tensor's
    own memory where that is the CPU's, and get_mesh writes into it."""

    def get_mesh(self: Any, *args: Any, **kwargs: Any) -> Any:
        apart = copy.copy(self)
        for name, value in vars(self).items():
            if name in TURNED and isinstance(value, torch.Tensor):
                setattr(apart, name, value.clone())
        return original(apart, *args, **kwargs)

    return get_mesh


PROCESSOR = "hy3dgen.texgen.differentiable_renderer.mesh_processor"
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


SPECS = (
    patch_of(
        "render",
        {
            f"{MESH_RENDER}:MeshRender.__init__": _on_comfys_device,
            f"{MESH_RENDER}:MeshRender.set_mesh": _with_copies,
            f"{MESH_RENDER}:MeshRender.get_mesh": _of_a_copy,
        },
        _around,
    ),
    patch_of(
        "inpaint",
        {f"{name}.meshVerticeInpaint": by_name(_inpaint) for name in (PROCESSOR, MESH_RENDER)},
    ),
)
