"""Nodes with ComfyUI's own VAE objects around tiny models, and the core's unsplit decoder."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch

from .broken import refuse
from .probes import Probe, tensor_digest

# Followed through the link in custom_nodes: the makers of tiny VAEs are the tests'.
TESTS = Path(__file__).resolve().parents[2] / "support"


class HarnessVae:
    """A VAE of `kind` and latents for it, from seeds. patched: one weight is patched."""

    RETURN_TYPES = ("VAE", "LATENT")
    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        text = ("STRING", {"default": "image"})
        patched = ("BOOLEAN", {"default": False})
        return {"required": {"kind": text, "frames": ("INT", {"default": 1}), "patched": patched}}

    def make(self, kind: str, frames: int, patched: bool) -> tuple[Any, Any]:
        import comfy.model_management as management

        if str(TESTS) not in sys.path:
            sys.path.append(str(TESTS))
        from comfy_vaes_tiny import tiny_comfy_vae

        vae = tiny_comfy_vae(kind)
        first = vae.first_stage_model.decoder
        first = first.conv_in if hasattr(first, "conv_in") else first.conv1
        first = getattr(first, "conv", first)
        if patched:
            management.load_models_gpu([vae.patcher])
            first.comfy_cast_weights = True
            first.weight_function = [lambda weight: weight + 0.05]
        channels = first.weight.shape[1]
        decoder = vae.first_stage_model.decoder
        if getattr(decoder, "refiner_vae", False) and hasattr(decoder.conv_in, "padding"):
            channels *= 2  # in 0.3.64 a latent of HunyuanVideo 1.5 holds two frames
        size = (3, 2) if vae.latent_dim == 2 else (frames, 3, 2)
        generator = torch.Generator().manual_seed(frames)
        latents = torch.randn((1, channels, *size), generator=generator)
        return vae, {"samples": latents}


class HarnessVaeCheck(Probe):
    """How far images are from those of the core's unsplit decoder, and the VAE's state."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"vae": ("VAE",), "samples": ("LATENT",), "images": ("IMAGE",)}}

    def look(self, vae: Any, samples: Any, images: torch.Tensor) -> dict[str, Any]:
        refuse(0)
        state = vae_state(vae)
        with torch.no_grad():
            latents = samples["samples"]
            if vae.latent_dim == 2 and latents.ndim == 5:  # as the core's decode() does
                latents = latents[:, :, 0]
            made = unsplit(vae).decode(beside_weights(vae, latents))
            frames = vae.process_output(made.float()).cpu()
        wanted = frames.movedim(1, -1)
        wanted = wanted.flatten(0, 1) if wanted.ndim == 5 else wanted
        same = images.shape == wanted.shape
        error = float((images - wanted).abs().max()) if same else None
        return {"ui": {"check": [{"error": error, "shape": list(images.shape), "state": state}]}}


class HarnessVaeEncodeCheck(Probe):
    """How far a LATENT is from that of the core's unsplit encoder, over the range of that."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"vae": ("VAE",), "pixels": ("IMAGE",), "samples": ("LATENT",)}}

    def look(self, vae: Any, pixels: torch.Tensor, samples: Any) -> dict[str, Any]:
        refuse(0)
        images = vae.process_input(vae.vae_encode_crop_pixels(pixels).movedim(-1, 1))
        if vae.latent_dim == 3:
            video = not vae.not_video
            images = images.movedim(1, 0).unsqueeze(0) if video else images.unsqueeze(2)
        with torch.no_grad():
            wanted = unsplit(vae).encode(beside_weights(vae, images.float())).float().cpu()
        got = samples["samples"]
        same = got.shape == wanted.shape
        spread = wanted.max() - wanted.min()
        error = float((got - wanted).abs().max() / spread) if same else None
        return {"ui": {"check": [{"error": error, "shape": list(got.shape)}]}}


def beside_weights(vae: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor where the weights are, and in their type."""
    weight = next(vae.first_stage_model.parameters())
    return tensor.to(weight.device, weight.dtype)


def unsplit(vae: Any) -> Any:
    """The model, or a shallow copy that does not split HunyuanVideo's frames, as ComfyUI 0.33 does,
    with GroupNorm per part."""
    model = vae.first_stage_model
    if not getattr(model.decoder, "carried", False):
        return model
    model = copy.copy(model)
    coders = {name: copy.copy(getattr(model, name)) for name in ("encoder", "decoder")}
    model._modules = {**model._modules, **coders}
    for coder in coders.values():
        coder.carried = False
    return model


def vae_state(vae: Any) -> list[str]:
    """Types, devices, bits and hooks of the VAE, hashed."""
    model = vae.first_stage_model
    named = [*model.named_parameters(), *model.named_buffers()]
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    found = {f"{t.dtype} {t.device}" for _, t in named}
    bits = [tensor_digest(t.detach()) for _, t in named]
    return [*sorted(found), str(hooks), str(hash(tuple(bits)))]
