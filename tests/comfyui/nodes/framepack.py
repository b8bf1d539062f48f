"""What FramePackSampler takes besides its model: encoders of the core's classes, tiny, and latents.

The core's own nodes encode with them: CLIPTextEncode and CLIPVisionEncode.
"""

from __future__ import annotations

import json
import tempfile
from types import SimpleNamespace
from typing import Any

import torch

from .narrow import randomize

# As in tiny_video.FRAMEPACK_CONFIG: text_embed_dim, pooled_projection_dim, image_proj_dim.
TEXT_WIDTH, POOLED_WIDTH, IMAGE_WIDTH = 32, 16, 32
WORDS = 64
VISION = {
    "model_type": "siglip_vision_model", "hidden_size": IMAGE_WIDTH, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    "hidden_act": "gelu_pytorch_tanh", "num_channels": 3, "projection_dim": IMAGE_WIDTH,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip


class TinyTextEncoder(torch.nn.Module):
    """Stands for HunyuanVideoClipModel: what comfy.sd.CLIP asks of a text encoder."""

    def __init__(self, dtype: Any = None, device: Any = None, model_options: Any = None) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, TEXT_WIDTH)
        self.pooled = torch.nn.Linear(TEXT_WIDTH, POOLED_WIDTH)
        self.dtypes = {torch.float32}

    def encode_token_weights(self, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.words(torch.tensor([tokens], device=self.words.weight.device))
        return seen, self.pooled(seen.mean(1))

    def reset_clip_options(self) -> None:
        """There are none."""

    def set_clip_options(self, options: dict[str, Any]) -> None:
        """There are none."""


class TinyTokenizer:
    """A token for each letter."""

    def __init__(self, **given: Any) -> None:
        """ComfyUI tells it where embeddings lie."""

    def tokenize_with_weights(self, text: str, *rest: Any, **given: Any) -> list[int]:
        return [ord(letter) % WORDS for letter in text] or [0]


class HarnessTextEncoder:
    """CLIP: comfy.sd.CLIP around a tiny text encoder."""

    RETURN_TYPES = ("CLIP",)
    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"seed": ("INT", {"default": 0})}}

    def make(self, seed: int) -> tuple[Any]:
        import comfy.sd

        target = SimpleNamespace(params={}, clip=TinyTextEncoder, tokenizer=TinyTokenizer)
        clip = comfy.sd.CLIP(target)
        _random(clip.cond_stage_model, seed)
        return (clip,)


class HarnessImageEncoder:
    """CLIP_VISION: the core's SigLIP, tiny."""

    RETURN_TYPES = ("CLIP_VISION",)
    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"seed": ("INT", {"default": 0})}}

    def make(self, seed: int) -> tuple[Any]:
        import comfy.clip_vision

        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:  # 2025-10 takes no dict
            json.dump(VISION, file)
            file.flush()
            encoder = comfy.clip_vision.ClipVisionModel(file.name)
        _random(encoder.model, seed)
        return (encoder,)


def _random(model: Any, seed: int) -> None:
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        randomize(model)


class HarnessLatent:
    """LATENT of random numbers, (batch, channels, frames, height, width); no frames if 0.

    vae: how many channels it says instead. HunyuanVideo 1.5 has 32, in 2025-10 two frames in 64.
    """

    RETURN_TYPES = ("LATENT",)
    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        number = ("INT", {"default": 1, "min": 0})
        names = ("batch", "channels", "frames", "height", "width", "seed")
        return {"required": dict.fromkeys(names, number), "optional": {"vae": ("VAE",)}}

    def make(
        self, batch: int, channels: int, frames: int, height: int, width: int, seed: int,
        vae: Any = None,
    ) -> tuple[Any]:  # fmt: skip
        channels = channels if vae is None else vae.latent_channels
        size = (batch, channels, *((frames,) if frames else ()), height, width)
        generator = torch.Generator().manual_seed(seed)
        return ({"samples": torch.randn(size, generator=generator)},)
