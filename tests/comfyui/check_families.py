"""ComfyUI's own VAE classes through the families' layers, against their own unsplit code.

    PYTHON tests/comfyui/check_families.py --comfyui DIR

PYTHON has ComfyUI's packages, DIR is a checkout of ComfyUI. Small widths, random weights, norm
weights around 1 and biases around 0, float32 on the CPU, T = 1 to 9 latent frames. One line a
class; "own decode" is what the class itself gives, which for HunyuanVideo is not the unsplit
decode, since it takes GroupNorm per part of the video. The exit status is 1 if an error against the
unsplit code is above 1e-5 of the range.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
BOUND = 1e-5
LENGTHS = (1, 2, 3, 4, 6, 9)
LATENT_DIFFUSION = {
    "double_z": True, "z_channels": 4, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 32,
    "ch_mult": [1, 1, 2, 2], "num_res_blocks": 1, "attn_resolutions": [], "dropout": 0.0,
}  # fmt: skip
PACKING = {
    "block_out_channels": [8, 8, 16, 16, 16], "in_channels": 3, "out_channels": 3,
    "num_res_blocks": 1, "ffactor_spatial": 16, "ffactor_temporal": 4, "z_channels": 4,
    "downsample_match_channel": True, "upsample_match_channel": True,
}  # fmt: skip
WAN = {
    "z_dim": 4, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1,
    "temperal_downsample": [False, True, True],
}  # fmt: skip
LTX = {
    "dims": 3, "in_channels": 3, "out_channels": 3, "latent_channels": 8, "patch_size": 2,
    "norm_layer": "pixel_norm", "latent_log_var": "uniform", "use_quant_conv": False,
    "encoder_base_channels": 8, "decoder_base_channels": 8,
}  # fmt: skip
LTX_BLOCKS = [
    ["res_x", 1], ["compress_all", 1], ["res_x_y", 1], ["res_x", 1], ["compress_all", 1],
    ["res_x", 1],
]  # fmt: skip
LTX_PACKING = {
    "decoder_blocks": [
        ["res_x", {"num_layers": 1}], ["compress_all", {"residual": True, "multiplier": 2}],
        ["res_x", {"num_layers": 1}], ["compress_all", {"residual": True, "multiplier": 2}],
        ["res_x", {"num_layers": 1}],
    ],
    "encoder_blocks": [
        ["res_x", {"num_layers": 1}], ["compress_space_res", {"multiplier": 2}],
        ["res_x", {"num_layers": 1}], ["compress_time_res", {"multiplier": 2}],
        ["compress_all_res", {"multiplier": 2}], ["res_x", {"num_layers": 1}],
    ],
    "timestep_conditioning": True,
}  # fmt: skip


def makers() -> dict[str, Callable[[], Any]]:
    """The classes, by a name for the line."""
    from comfy.ldm.lightricks.vae.causal_video_autoencoder import VideoVAE
    from comfy.ldm.models.autoencoder import AutoencoderKL, AutoencodingEngine
    from comfy.ldm.wan import vae, vae2_2

    where = "comfy.ldm.hunyuan_video.vae_refiner."
    coders = {
        f"{name}_config": {"target": where + name.title(), "params": PACKING}
        for name in ("encoder", "decoder")
    }
    plain = {"target": "comfy.ldm.models.autoencoder.EmptyRegularizer"}
    video = {"conv3d": True, "time_compress": 4}
    causal = {"causal_decoder": True, "spatial_padding_mode": "zeros"}
    return {
        "Wan 2.1": lambda: vae.WanVAE(dim=8, **WAN),
        "Wan 2.2": lambda: vae2_2.WanVAE(dim=8, dec_dim=12, **WAN),
        "image": lambda: AutoencoderKL(ddconfig=LATENT_DIFFUSION, embed_dim=4),
        "HunyuanVideo": lambda: AutoencoderKL(ddconfig=LATENT_DIFFUSION | video, embed_dim=4),
        "HunyuanVideo 1.5": lambda: AutoencodingEngine(regularizer_config=plain, **coders),
        "LTX": lambda: VideoVAE(config=LTX | {"blocks": LTX_BLOCKS}),
        "LTX causal": lambda: VideoVAE(config=LTX | causal | {"blocks": LTX_BLOCKS}),
        "LTX 0.9.5": lambda: VideoVAE(config=LTX | LTX_PACKING),
    }


def made(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    vae = make().eval().requires_grad_(False)
    for name, parameter in vae.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.0, 0.3)
        elif name.endswith("gamma") or parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
        elif parameter.ndim > 1:
            torch.nn.init.normal_(parameter, 0.0, (2 / parameter[0].numel()) ** 0.5)
    return vae


def errors(vae: Any, family: Any) -> Iterator[tuple[str, float]]:
    """("decode", "encode" or "own decode", error) for each length."""
    from decode_doubles import relative_error
    from plain_engine import PlainEngine

    image = family.name == "image"
    for frames in (1,) if image else LENGTHS:
        z = torch.randn(1, family.latent_channels, frames, 3, 4)
        got = family.decode(PlainEngine(), z)
        yield "decode", relative_error(got, family.whole(z))
        if family.name != "LTX":  # whose own decode mixes noise in
            own = vae.decode(z[:, :, 0]).unsqueeze(2) if image else vae.decode(z)
            yield "own decode", relative_error(got, own)
        side = family.factor[1] * 2
        count = 1 if image else 1 + 8 * (frames - 1)
        pixels = torch.rand(1, 3, count, 3 * side, 2 * side) * 2 - 1
        moments = family.encode(PlainEngine(), pixels)
        try:
            wanted = family.whole(pixels, encode=True)
        except TypeError:  # its own code gives the mean only
            wanted = vae.encode(pixels)
        yield "encode", relative_error(moments[:, : wanted.shape[1]], wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comfyui", type=Path, required=True, metavar="DIR")
    given = parser.parse_args()
    sys.path[:0] = [str(given.comfyui), str(ROOT), str(ROOT / "tests" / "support")]
    sys.argv = [sys.argv[0], "--cpu"]
    import comfy.options

    comfy.options.enable_args_parsing()
    from hy3d_rocm.decoding.families import family_for

    failed = False
    for name, make in makers().items():
        vae = made(make)
        try:
            family = family_for(vae)
        except TypeError as error:
            print(f"{name:17s} refused: {error}")
            continue
        worst: dict[str, float] = {}
        with torch.no_grad():
            for what, error in errors(vae, family):
                worst[what] = max(worst.get(what, 0.0), error)
        failed |= max(worst["decode"], worst["encode"]) > BOUND
        texts = ", ".join(f"{what} {error:.1e}" for what, error in worst.items())
        print(f"{name:17s} as {family.name}: largest error {texts}", flush=True)
    return int(failed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
