"""Hy3DVAEDecode: latents on the device of the VAE, and the VAE off the GPU after a failure.

Upstream moves the VAE to ComfyUI's device, whatever ComfyUI's models leave free there, and leaves
the latents where the node before left them.
"""

from __future__ import annotations

from typing import Any

import torch

from hy3d_rocm import offload
from hy3d_rocm.comfy.patch import PatchSpec
from hy3d_rocm.comfy.patches.common import (
    Call,
    NodePatch,
    differs_first,
    node_changes,
    off_the_gpu,
)
from hy3d_rocm.comfy.patches.progress import Transfers
from hy3d_rocm.comfy.patches.room import make_room
from hy3d_rocm.comfy.running import where_of
from hy3d_rocm.decoding.stages import told
from hy3d_rocm.scopes import cuda_literals


def _around(call: Call) -> Any:
    vae, latents = call.argument("vae"), call.argument("latents")
    if isinstance(latents, torch.Tensor) and not latents.is_meta:
        latents = latents.to(call.device)
    make_room(call, vae)
    transfers = Transfers(call.patch.node, bar=True)
    try:
        with cuda_literals(call.device), offload.reporting_moves(vae, transfers):
            dtype = where_of(vae)[1]
            return told(lambda: call.run(latents=latents), latents, call.device, dtype)
    except BaseException:
        off_the_gpu(vae)
        raise
    finally:
        transfers.summary()


NODES = (
    NodePatch(
        spec="vae-decode",
        node="Hy3DVAEDecode",
        stage="VAE Decode",
        around=_around,
        parameters=("vae", "latents"),
        names=("get_torch_device", "scale_factor", "to"),
    ),
)

SPEC = PatchSpec(
    "vae-decode",
    "Hy3DVAEDecode: latents on the device of the VAE",
    differs_first(NODES),
    node_changes(NODES),
)
