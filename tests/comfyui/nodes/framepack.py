"""What FramePackSampler takes besides its model and a latent: embeddings, from seeds."""

from __future__ import annotations

from typing import Any

import torch

# As in tiny_video.FRAMEPACK_CONFIG: text_embed_dim, pooled_projection_dim, image_proj_dim.
TEXT_WIDTH, POOLED_WIDTH, IMAGE_WIDTH = 32, 16, 32
TOKENS, PATCHES = 5, 4


class HarnessConditioning:
    """CONDITIONING as CLIPTextEncode gives it for HunyuanVideo: tokens and a pooled vector."""

    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"seed": ("INT", {"default": 0})}}

    def make(self, seed: int) -> tuple[Any]:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randn((1, TOKENS, TEXT_WIDTH), generator=generator)
        pooled = torch.randn((1, POOLED_WIDTH), generator=generator)
        return ([[tokens, {"pooled_output": pooled}]],)


class HarnessClipVision:
    """CLIP_VISION_OUTPUT as CLIPVisionEncode gives it."""

    RETURN_TYPES = ("CLIP_VISION_OUTPUT",)
    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"seed": ("INT", {"default": 0})}}

    def make(self, seed: int) -> tuple[Any]:
        import comfy.clip_vision

        generator = torch.Generator().manual_seed(seed)
        output = comfy.clip_vision.Output()
        output["last_hidden_state"] = torch.randn((1, PATCHES, IMAGE_WIDTH), generator=generator)
        return (output,)


class HarnessLatent:
    """LATENT of random numbers, (1, channels, frames, height, width), or without frames if 0."""

    RETURN_TYPES = ("LATENT",)
    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        number = ("INT", {"default": 1, "min": 0})
        names = ("batch", "channels", "frames", "height", "width", "seed")
        return {"required": dict.fromkeys(names, number)}

    def make(
        self, batch: int, channels: int, frames: int, height: int, width: int, seed: int
    ) -> tuple[Any]:
        size = (batch, channels, *((frames,) if frames else ()), height, width)
        generator = torch.Generator().manual_seed(seed)
        return ({"samples": torch.randn(size, generator=generator)},)
