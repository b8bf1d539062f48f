"""A pack for pictures of workflows: VAELoader lists HunyuanVideo's VAE and gives the demo's.

The demo's weights (examples/data) are trained, but narrow, and under diffusers' names; here they
are put into ComfyUI's own class, so that every node works on what it works on for a user. Reports
name the system without its kernel's build, which says whose machine it is.
"""

from __future__ import annotations

import math
import platform
from pathlib import Path
from typing import Any

import comfy.ldm.modules.diffusionmodules.model as core_layers
import comfy.ops
import comfy.sd
import comfy.utils
import nodes as core_nodes
from comfy.ldm.models.autoencoder import AutoencoderKL

NAME = "hunyuan_video_vae_bf16.safetensors"
WEIGHTS = Path(__file__).resolve().parents[3] / "examples" / "data" / "demo_vae.safetensors"
NODE_CLASS_MAPPINGS: dict[str, Any] = {}
_GROUPS = 2
_LATENT_CHANNELS = 16


class _Times(float):
    """A multiplier of channels that gives whole numbers: 32 * 1.5 is 48."""

    def __rmul__(self, other: int) -> int:  # type: ignore[override]
        return round(other * float(self))


def demo_vae() -> Any:
    """comfy.sd.VAE around the demo's weights in float32."""
    import torch

    from hy3d_rocm.decoding.families.original import view_of

    usual = core_layers.ops
    core_layers.ops = type("Narrow", (usual,), {"GroupNorm": staticmethod(_group_norm)})
    try:
        model = AutoencoderKL(ddconfig=_CONFIG, embed_dim=_LATENT_CHANNELS).eval()
    finally:
        core_layers.ops = usual
    view = view_of(model)
    for name, value in comfy.utils.load_torch_file(str(WEIGHTS)).items():
        target: Any = view
        if ".attentions.0." in name:  # the view has other parts of an attention
            target, name = model, _of_attention(name)
        for part in name.split("."):
            if part == "conv" and isinstance(target, torch.nn.Conv3d):
                continue  # diffusers has a module around each
            target = target[int(part)] if part.isdecimal() else getattr(target, part)
        target.data.copy_(value.reshape(target.shape))
    vae = comfy.sd.VAE(sd={}, config={"params": _EMPTY}, dtype=torch.float32)
    patcher = vae.patcher
    vae.first_stage_model = model.to(torch.float32)
    vae.patcher = type(patcher)(model, patcher.load_device, patcher.offload_device)
    vae.latent_dim, vae.latent_channels = 3, _LATENT_CHANNELS
    vae.upscale_ratio = (lambda frames: max(0, frames * 4 - 3), 8, 8)
    vae.downscale_ratio = (lambda frames: max(0, math.floor((frames + 3) / 4)), 8, 8)
    vae.upscale_index_formula = vae.downscale_index_formula = (4, 8, 8)
    return vae


def _of_attention(name: str) -> str:
    for diffusers, core in _ATTENTION.items():
        name = name.replace(diffusers, core)
    return name


_ATTENTION = {
    "mid_block.attentions.0": "mid.attn_1", "group_norm": "norm", "to_q": "q", "to_k": "k",
    "to_v": "v", "to_out.0": "proj_out",
}  # fmt: skip


def _group_norm(num_groups: int, **options: Any) -> Any:
    """The core's, in two groups instead of 32."""
    return comfy.ops.disable_weight_init.GroupNorm(num_groups=_GROUPS, **options)


_EMPTY = {
    "ddconfig": {
        "double_z": True, "z_channels": 4, "resolution": 256, "in_channels": 3, "out_ch": 3,
        "ch": 32, "ch_mult": [1, 1, 1, 1], "num_res_blocks": 1, "attn_resolutions": [],
        "dropout": 0.0,
    },
    "embed_dim": 4,
}  # fmt: skip
_CONFIG = {
    **_EMPTY["ddconfig"], "z_channels": _LATENT_CHANNELS, "ch_mult": [_Times(1), _Times(1.5),
    _Times(2), _Times(2)], "conv3d": True, "time_compress": 4,
}  # fmt: skip


def _load(self: Any, vae_name: str, *_: Any, **__: Any) -> tuple[Any]:
    return (demo_vae(),)


_platform = f"{platform.system()}-{platform.machine()}"
platform.platform = lambda *_, **__: _platform  # type: ignore[assignment]
core_nodes.VAELoader.vae_list = staticmethod(lambda *_: [NAME])
core_nodes.VAELoader.load_vae = _load
