"""The order in which FramePack's models leave the card, as specification 003 has it. Pure.

Text encoders, then the VAE that encoded, then the image encoder, then the transformer before the
VAE decodes, then the VAE. Each goes as a whole: a part that is left behind is what makes the
decode run out of memory.
"""

from __future__ import annotations

from typing import Any, Literal

Kind = Literal["text encoders", "VAE", "image encoder", "transformer", "other models"]
Stage = Literal["VAE Encode", "Image Encode", "Transformer", "VAE Decode"]

ORDER: tuple[Kind, ...] = ("text encoders", "VAE", "image encoder", "transformer", "other models")

# What has done its work when a stage begins, and when it ends. A text encoder is left alone until
# the next stage begins, since it is called twice, for the prompt and for the negative one.
_DONE_BEFORE: dict[Stage, tuple[Kind, ...]] = {
    "VAE Encode": ("text encoders",),
    "Image Encode": ("text encoders", "VAE"),
    "Transformer": ("text encoders", "VAE", "image encoder", "other models"),
    "VAE Decode": ("text encoders", "image encoder", "transformer"),
}
_DONE_AFTER: dict[Stage, tuple[Kind, ...]] = {
    "VAE Encode": ("VAE",),
    "Image Encode": ("image encoder",),
    "Transformer": ("transformer",),
    "VAE Decode": ("VAE",),
}


def done_before(stage: Stage) -> tuple[Kind, ...]:
    """What leaves the card before `stage` begins, in this order."""
    return _DONE_BEFORE[stage]


def done_after(stage: Stage) -> tuple[Kind, ...]:
    """What leaves the card when `stage` has ended, however it ended."""
    return _DONE_AFTER[stage]


def kind_of(model: Any) -> Kind:
    """Which of them a model is, by what it has (ComfyUI's classes have no common names)."""
    if hasattr(model, "encode_token_weights"):
        return "text encoders"
    if hasattr(model, "vision_model"):
        return "image encoder"
    if hasattr(model, "diffusion_model"):
        return "transformer"
    if hasattr(model, "decoder") or hasattr(model, "decode"):
        return "VAE"
    return "other models"
