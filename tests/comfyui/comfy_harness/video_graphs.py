"""Prompts with video models: FramePack, and the core's VAE nodes on tiny VAEs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from comfy_harness.graphs import images, node
from comfy_harness.server import Prompt

FRAMEPACK_MODEL = "lllyasviel/FramePackI2V_HY"
FRAMEPACK_FILE = "tiny_framepack.safetensors"
WINDOW = 2  # latent frames a section
SECONDS = 0.5  # two sections, 17 frames


def vae(kind: str) -> dict[str, Any]:
    """The core's own loader on a file of tiny_video.py."""
    return node("VAELoader", vae_name=f"tiny_{kind}.safetensors")


def framepack(
    shelf: Path, keep: bool = False, *, seed: int = 1, steps: int = 2, precision: str = "fp32",
    preservation: float = 6.0, decode: dict[str, Any] | None = None, from_file: bool = False,
) -> Prompt:  # fmt: skip
    """An image and a text through the core's encoders, FramePackSampler and `decode` (VAEDecode).

    from_file: the transformer from one file, whose sizes the wrapper's folder says.
    "latents-seen" and "decode-seen" show how far they are from what `keep` put on the shelf.
    """
    decode = node("VAEDecode") if decode is None else decode
    decode = {
        **decode,
        "inputs": {**decode["inputs"], "samples": ["sampler", 0], "vae": ["vae", 0]},
    }
    loaded = {"base_precision": precision, "quantization": "disabled", "attention_mode": "sdpa"}
    prompt = {
        "vae": vae("hunyuan"),
        "picture": images(1),
        "image": node("HarnessFresh", value=["picture", 0]),
        "start": node("VAEEncode", pixels=["image", 0], vae=["vae", 0]),
        "words": node("HarnessTextEncoder", seed=1),
        "text": node("HarnessFresh", value=["words", 0]),
        "positive": node("CLIPTextEncode", clip=["text", 0], text="a dancer in the rain"),
        "negative": node("CLIPTextEncode", clip=["text", 0], text="blurred"),
        "eyes": node("HarnessImageEncoder", seed=3),
        "seen": node(
            "CLIPVisionEncode", clip_vision=["eyes", 0], image=["image", 0], crop="center"
        ),
        "model": node("DownloadAndLoadFramePackModel", model=FRAMEPACK_MODEL, **loaded),
        "sampler": node(
            "FramePackSampler", model=["model", 0], positive=["positive", 0],
            negative=["negative", 0], start_latent=["start", 0], steps=steps, use_teacache=False,
            teacache_rel_l1_thresh=0.15, cfg=1.0, guidance_scale=10.0, shift=0.0, seed=seed,
            latent_window_size=WINDOW, total_second_length=SECONDS,
            gpu_memory_preservation=preservation, sampler="unipc_bh1", image_embeds=["seen", 0],
        ),
        "decode": decode,
    }  # fmt: skip
    if from_file:
        loaded |= {"model": FRAMEPACK_FILE, "load_device": "main_device"}
        prompt["model"] = node("LoadFramePackModel", **loaded)
    prompt["samples"] = node("HarnessFresh", value=["sampler", 0])
    for name, source in (("latents", "sampler"), ("decode", "decode")):
        file = shelf / f"framepack-{precision}-{name}.pt"
        prompt[f"{name}-seen"] = shelved([source, 0], file, keep)
    return prompt


def shelved(value: list[Any], file: Path, keep: bool) -> dict[str, Any]:
    """A look at `value`: it is kept in the file, or compared with it."""
    paths = {"keep": str(file), "like": ""} if keep else {"keep": "", "like": str(file)}
    return node("HarnessShelf", value=value, **paths)


# Latents of each tiny VAE: channels, frames (0: an image), height, width; and its pixels' side.
SIZES = {
    "hunyuan": (16, 3, 8, 12),
    "hunyuan15": (32, 3, 4, 6),
    "wan21": (16, 3, 8, 12),
    "wan22": (48, 3, 4, 6),
    "image": (4, 0, 8, 12),
}
SIDE = 80  # of the pictures that are encoded
TILES = {"tile_size": 64, "overlap": 16, "temporal_size": 8, "temporal_overlap": 4}
CORE = {
    "decode": node("VAEDecode"),
    "tiled": node("VAEDecodeTiled", **TILES),
    "encode": node("VAEEncode"),
    "encode-tiled": node("VAEEncodeTiled", **TILES),
}
# What the nodes that encode call their pictures.
INPUTS = {
    "VAEEncode": "pixels", "VAEEncodeTiled": "pixels", "WanVideoEncode": "image",
    "HyVideoEncode": "image",
}  # fmt: skip
_WAN_TILES = {"tile_x": 64, "tile_y": 64, "tile_stride_x": 32, "tile_stride_y": 32}
_HUNYUAN_TILES = {
    "temporal_tiling_sample_size": 64, "spatial_tile_sample_min_size": 64, "auto_tile_size": False,
}  # fmt: skip
OURS = {
    "decode": node("Hy3DRocmVAEDecode", budget="auto", strategy="auto", precision="auto"),
}


# kijai's own VAE nodes, by the pack's option of run.py; latents of 16 channels, 8x12.
WRAPPERS: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "wan": (
        node("HarnessWanWrapperVae", seed=1),
        {
            "decode": node("WanVideoDecode", **_WAN_TILES, enable_vae_tiling=False),
            "tiled": node("WanVideoDecode", **_WAN_TILES, enable_vae_tiling=True),
            "encode": node("WanVideoEncode", **_WAN_TILES, enable_vae_tiling=False),
        },
    ),
    "hunyuanvideo": (
        node("HarnessHunyuanWrapperVae", seed=2),
        {
            "decode": node("HyVideoDecode", **_HUNYUAN_TILES, enable_vae_tiling=False),
            "tiled": node("HyVideoDecode", **_HUNYUAN_TILES, enable_vae_tiling=True),
            "encode": node(
                "HyVideoEncode", **_HUNYUAN_TILES, enable_vae_tiling=False, latent_dist="mode"
            ),
        },
    ),
}


def latent(kind: str, *, batch: int = 1, seed: int = 5) -> dict[str, Any]:
    channels, frames, height, width = SIZES["wan21" if kind in WRAPPERS else kind]
    its = {} if kind in WRAPPERS else {"vae": ["vae", 0]}
    return node(
        "HarnessLatent", **its, batch=batch, channels=channels, frames=frames, height=height,
        width=width, seed=seed,
    )  # fmt: skip


def through_vae(
    kind: str, nodes: dict[str, Any], shelf: Path, keep: bool = False, first: Any = None,
    loader: dict[str, Any] | None = None,
) -> Prompt:  # fmt: skip
    """A tiny VAE through each of `nodes`, a name to a node without its inputs "samples" or
    "pixels" and "vae".

    "NAME-seen" shows how far it is from the file that `keep` had put on the shelf. first: a node
    between what is decoded and all of them, with an input "value". loader: instead of the core's.
    """
    frames = max(1, 4 * SIZES.get(kind, (0, 3))[1] - 3)
    first = node("HarnessFresh") if first is None else first
    prompt: Prompt = {
        "vae": vae(kind) if loader is None else loader,
        "latent": latent(kind),
        "pixels": {**images(frames, seed=5), "inputs": {**images(frames)["inputs"], "size": SIDE}},
        "samples": {**first, "inputs": {**first["inputs"], "value": ["latent", 0]}},
        "fresh": node("HarnessFresh", value=["pixels", 0]),
    }
    for name, one in nodes.items():
        pixels = INPUTS.get(one["class_type"])
        given = {pixels: ["fresh", 0]} if pixels else {"samples": ["samples", 0]}
        prompt[name] = {**one, "inputs": {**one["inputs"], **given, "vae": ["vae", 0]}}
        prompt[f"{name}-seen"] = shelved([name, 0], shelf / f"{kind}-{name}.pt", keep)
    return prompt


def upscale(shelf: Path, keep: bool = False, first: Any = None) -> Prompt:
    """A picture through the core's ImageUpscaleWithModel, which decodes nothing."""
    first = node("HarnessFresh") if first is None else first
    return {
        "picture": images(1, seed=5),
        "samples": {**first, "inputs": {**first["inputs"], "value": ["picture", 0]}},
        "model": node("UpscaleModelLoader", model_name="tiny_esrgan.safetensors"),
        "upscale": node("ImageUpscaleWithModel", upscale_model=["model", 0], image=["samples", 0]),
        "upscale-seen": shelved(["upscale", 0], shelf / "upscale.pt", keep),
        "fired": node("HarnessFired", value=["upscale", 0]),
    }


def with_check(prompt: Prompt, name: str) -> Prompt:
    """`prompt` and how far its node `name` is from the core's unsplit decoder: "check"."""
    check = node("HarnessVaeCheck", vae=["vae", 0], samples=["samples", 0], images=[name, 0])
    return {**prompt, "check": check}


def with_encode_check(prompt: Prompt, name: str) -> Prompt:
    """The same for a node that encodes, and the core's unsplit encoder: "encode-check"."""
    check = node("HarnessVaeEncodeCheck", vae=["vae", 0], pixels=["fresh", 0], samples=[name, 0])
    return {**prompt, "encode-check": check}
