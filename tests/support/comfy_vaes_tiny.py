"""Tiny VAEs of ComfyUI's own classes, with random weights; ComfyUI must be on sys.path.

Widths are as small as the classes allow: GroupNorm has 32 groups, HunyuanVideo 1.5 packs eight to
one.
"""

from __future__ import annotations

from typing import Any

import torch

KINDS = ("hunyuan", "hunyuan15", "wan", "wan22", "ltx", "ltx_timestep", "image", "flux2")


def tiny_vae(kind: str, seed: int = 0) -> Any:
    """The first_stage_model of `kind`, norm weights around 1 and biases around 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae = _MAKERS[kind]().eval().requires_grad_(False)
        for name, tensor in [*vae.named_parameters(), *vae.named_buffers()]:
            leaf = name.rsplit(".", 1)[-1]
            if leaf == "timestep_scale_multiplier":
                continue
            if leaf in ("bias", "running_mean", "mean-of-means"):
                torch.nn.init.normal_(tensor, 0.0, 0.3)
            elif leaf in ("running_var", "std-of-means"):
                torch.nn.init.uniform_(tensor, 0.5, 2.0)
            elif leaf == "gamma" or tensor.ndim == 1:
                torch.nn.init.normal_(tensor, 1.0, 0.3)
            elif tensor.is_floating_point() and isinstance(tensor, torch.nn.Parameter):
                # comfy.ops leaves weights as they were allocated.
                spread = 1.0 if tensor.ndim < 2 else (tensor[0].numel()) ** -0.5
                torch.nn.init.normal_(tensor, 0.0, spread)
    return vae


def _unet(conv3d: bool, **more: Any) -> Any:
    from comfy.ldm.models.autoencoder import AutoencoderKL

    config = {
        "double_z": True, "z_channels": 4, "resolution": 256, "in_channels": 3, "out_ch": 3,
        "ch": 32, "ch_mult": [1, 1, 2, 2], "num_res_blocks": 1, "attn_resolutions": [],
        "dropout": 0.0, **more,
    }  # fmt: skip
    if conv3d:
        config |= {"conv3d": True, "time_compress": 4}
    return AutoencoderKL(ddconfig=config, embed_dim=4)


def _hunyuan15() -> Any:
    from comfy.ldm.models.autoencoder import AutoencodingEngine

    config = {
        "block_out_channels": [8, 16, 16, 32, 32], "in_channels": 3, "out_channels": 3,
        "num_res_blocks": 1, "ffactor_spatial": 16, "ffactor_temporal": 4, "z_channels": 4,
        "downsample_match_channel": True, "upsample_match_channel": True,
    }  # fmt: skip
    home = "comfy.ldm.hunyuan_video.vae_refiner"
    return AutoencodingEngine(
        regularizer_config={"target": "comfy.ldm.models.autoencoder.EmptyRegularizer"},
        encoder_config={"target": f"{home}.Encoder", "params": config},
        decoder_config={"target": f"{home}.Decoder", "params": config},
    )


def _wan() -> Any:
    from comfy.ldm.wan.vae import WanVAE

    return WanVAE(
        dim=8, z_dim=4, dim_mult=[1, 2, 4, 4], num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )  # fmt: skip


def _wan22() -> Any:
    from comfy.ldm.wan.vae2_2 import WanVAE

    return WanVAE(
        dim=8, dec_dim=8, z_dim=4, dim_mult=[1, 2, 4, 4], num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )  # fmt: skip


def _ltx(timestep: bool) -> Any:
    from comfy.ldm.lightricks.vae.causal_video_autoencoder import VideoVAE

    up = {"residual": True, "multiplier": 2}
    config = {
        "dims": 3, "in_channels": 3, "out_channels": 3, "latent_channels": 128,
        "norm_layer": "pixel_norm", "patch_size": 2, "latent_log_var": "uniform",
        "causal_decoder": not timestep, "timestep_conditioning": timestep,
        "encoder_base_channels": 8, "decoder_base_channels": 8,
        "encoder_blocks": [
            ["res_x", {"num_layers": 1}], ["compress_space_res", {"multiplier": 2}],
            ["res_x", {"num_layers": 1}], ["compress_time_res", {"multiplier": 2}],
            ["compress_all_res", {"multiplier": 2}], ["res_x", {"num_layers": 1}],
        ],
        "decoder_blocks": [
            ["res_x", {"num_layers": 1}], ["compress_all", up],
            ["res_x", {"num_layers": 2}], ["compress_all", up],
            ["res_x_y", {"multiplier": 2}], ["res_x", {"num_layers": 1}],
        ],
    }  # fmt: skip
    if not timestep:
        config |= {"spatial_padding_mode": "zeros"}
    return VideoVAE(config=config)


_MAKERS = {
    "hunyuan": lambda: _unet(True),
    "hunyuan15": _hunyuan15,
    "wan": _wan,
    "wan22": _wan22,
    "ltx": lambda: _ltx(False),
    "ltx_timestep": lambda: _ltx(True),
    "image": lambda: _unet(False),
    "flux2": lambda: _unet(False, batch_norm_latent=True),
}


def tiny_comfy_vae(kind: str, seed: int = 0, dtype: Any = torch.float32) -> Any:
    """ComfyUI's own VAE object around tiny_vae(kind).

    comfy.sd.VAE knows a model by its state dict, with full widths; so the model is put into one
    that was made for an image VAE of no weights.
    """
    import comfy.model_patcher
    import comfy.sd

    model = tiny_vae(kind, seed).to(dtype)
    vae = comfy.sd.VAE(sd={}, config={"params": _IMAGE}, dtype=dtype)
    load, offload = vae.patcher.load_device, vae.patcher.offload_device
    vae.first_stage_model = model
    vae.patcher = type(vae.patcher)(model, load_device=load, offload_device=offload)
    if kind not in ("image", "flux2"):
        vae.latent_dim = 3
    return vae


_IMAGE = {
    "ddconfig": {
        "double_z": True, "z_channels": 4, "resolution": 256, "in_channels": 3, "out_ch": 3,
        "ch": 32, "ch_mult": [1, 1, 1, 1], "num_res_blocks": 1, "attn_resolutions": [],
        "dropout": 0.0,
    },
    "embed_dim": 4,
}  # fmt: skip
