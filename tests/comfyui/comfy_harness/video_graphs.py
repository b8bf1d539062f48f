"""Prompts with video models: FramePack, and the core's VAE nodes on tiny VAEs."""

from __future__ import annotations

from typing import Any

from comfy_harness.graphs import images, node
from comfy_harness.server import Prompt

FRAMEPACK_MODEL = "lllyasviel/FramePackI2V_HY"
WINDOW = 2  # latent frames a section
SECONDS = 0.5  # two sections, 17 frames


def vae(kind: str) -> dict[str, Any]:
    """The core's own loader on a file of tiny_video.py."""
    return node("VAELoader", vae_name=f"tiny_{kind}.safetensors")


def framepack(
    *, seed: int = 1, steps: int = 2, seconds: float = SECONDS, precision: str = "fp32",
    preservation: float = 6.0, decode: dict[str, Any] | None = None,
) -> Prompt:  # fmt: skip
    """An image through VAEEncode, FramePackSampler and `decode` (the core's VAEDecode).

    "latents" and "hash" show the hashes of the latents and of the frames.
    """
    decode = node("VAEDecode") if decode is None else decode
    decode = {
        **decode,
        "inputs": {**decode["inputs"], "samples": ["sampler", 0], "vae": ["vae", 0]},
    }
    return {
        "vae": vae("hunyuan"),
        "image": images(1),
        "start": node("VAEEncode", pixels=["image", 0], vae=["vae", 0]),
        "positive": node("HarnessConditioning", seed=1),
        "negative": node("HarnessConditioning", seed=2),
        "seen": node("HarnessClipVision", seed=3),
        "model": node(
            "DownloadAndLoadFramePackModel", model=FRAMEPACK_MODEL, base_precision=precision,
            quantization="disabled", attention_mode="sdpa",
        ),
        "sampler": node(
            "FramePackSampler", model=["model", 0], positive=["positive", 0],
            negative=["negative", 0], start_latent=["start", 0], steps=steps, use_teacache=False,
            teacache_rel_l1_thresh=0.15, cfg=1.0, guidance_scale=10.0, shift=0.0, seed=seed,
            latent_window_size=WINDOW, total_second_length=seconds,
            gpu_memory_preservation=preservation, sampler="unipc_bh1", image_embeds=["seen", 0],
        ),
        "decode": decode,
        "latents": node("HarnessHash", value=["sampler", 0]),
        "hash": node("HarnessHash", value=["decode", 0]),
    }  # fmt: skip
