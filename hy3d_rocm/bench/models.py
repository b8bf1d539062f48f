"""The pipeline that is measured: a diffusers folder, or random weights of the real shapes.

Time and memory of a diffusion model do not depend on the values of its weights, so random weights
of the real shapes measure both. What depends on values (the difference between precisions) is
labelled as such.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hy3d_rocm.env.shown import first_line

if TYPE_CHECKING:
    import torch

Width = Literal["real", "tiny"]

# Stable Diffusion 2.1, which Hunyuan3D's delight and paint models are made from (the config.json
# files of its checkpoint).
_UNET: dict[str, dict[str, Any]] = {
    "real": {
        "sample_size": 64,
        "block_out_channels": (320, 640, 1280, 1280),
        "attention_head_dim": (5, 10, 20, 20),
        "cross_attention_dim": 1024,
        "use_linear_projection": True,
    },
    "tiny": {
        "sample_size": 16,
        "block_out_channels": (16, 32),
        "attention_head_dim": 4,
        "cross_attention_dim": 16,
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    },
}
_VAE_CHANNELS: dict[str, tuple[int, ...]] = {"real": (128, 256, 512, 512), "tiny": (16, 16)}
_TEXT: dict[str, dict[str, Any]] = {
    "real": {
        "vocab_size": 49408,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 23,
        "num_attention_heads": 16,
        "max_position_embeddings": 77,
        "hidden_act": "gelu",
    },
    "tiny": {
        "vocab_size": 8,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 8,
    },
}


class BenchError(Exception):
    """The bench cannot be run; the text says why and what to do."""


def random_pipeline(
    width: Width,
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int = 0,
) -> Any:
    """StableDiffusionInstructPix2PixPipeline of random weights made from `seed` on `device`.

    "real" has the shapes of Stable Diffusion 2.1 (1.3e9 parameters), "tiny" about 2e5 and a spatial
    factor of 2. Global random states are kept. No download.
    """
    _need_diffusers()
    from diffusers import StableDiffusionInstructPix2PixPipeline

    from hy3d_rocm._rng import seeded_on

    with seeded_on(device, seed):
        modules = {
            "vae": random_vae(width).to(dtype).eval(),
            "text_encoder": random_text_encoder(width).to(dtype).eval(),
            "unet": random_unet(width, in_channels=8).to(dtype).eval(),
        }
    pipeline = StableDiffusionInstructPix2PixPipeline(
        **modules,
        tokenizer=tokenizer(width),
        scheduler=ancestral_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    for module in modules.values():
        module.requires_grad_(False)
    return pipeline


def load_pipeline(folder: Path, dtype: torch.dtype) -> Any:
    """The pipeline of a diffusers folder, on the CPU, in `dtype`; BenchError if it is none."""
    _need_diffusers()
    from diffusers import EulerAncestralDiscreteScheduler, StableDiffusionInstructPix2PixPipeline

    if not (folder / "model_index.json").is_file():
        raise BenchError(
            f"{folder} holds no model_index.json; give a diffusers folder such as "
            "ComfyUI/models/diffusers/hunyuan3d-delight-v2-0, or no --model for random weights"
        )
    try:
        pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(
            str(folder), torch_dtype=dtype, safety_checker=None, local_files_only=True
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{folder} cannot be loaded: {first_line(error)}") from error
    # The node's loader replaces the scheduler likewise.
    pipeline.scheduler = EulerAncestralDiscreteScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def random_unet(width: Width, in_channels: int, **config: Any) -> Any:
    from diffusers import UNet2DConditionModel

    shape = {**_UNET[width], **config}
    return UNet2DConditionModel(in_channels=in_channels, out_channels=4, **shape)


def random_vae(width: Width) -> Any:
    """AutoencoderKL: spatial factor 8 ("real") or 2 ("tiny"), 4 latent channels."""
    from diffusers import AutoencoderKL

    channels = _VAE_CHANNELS[width]
    return AutoencoderKL(
        block_out_channels=channels,
        layers_per_block=2 if width == "real" else 1,
        norm_num_groups=32 if width == "real" else 8,
        latent_channels=4,
        sample_size=768,
        down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels),
    )


def random_text_encoder(width: Width) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    marks = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    return CLIPTextModel(CLIPTextConfig(**_TEXT[width], **marks))


def ancestral_scheduler() -> Any:
    """EulerAncestralDiscreteScheduler with Stable Diffusion's noise levels."""
    from diffusers import EulerAncestralDiscreteScheduler

    return EulerAncestralDiscreteScheduler(
        beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012
    )


def tokenizer(width: Width) -> Any:
    """A CLIPTokenizer that knows its own two marks only: the delight prompt is empty."""
    from transformers import CLIPTokenizer

    with tempfile.TemporaryDirectory() as folder:
        vocabulary = {"<|startoftext|>": 0, "<|endoftext|>": 1}
        Path(folder, "vocab.json").write_text(json.dumps(vocabulary))
        Path(folder, "merges.txt").write_text("#version: 0.2\n")
        length = _TEXT[width]["max_position_embeddings"]
        return CLIPTokenizer.from_pretrained(folder, model_max_length=length)


def _need_diffusers() -> None:
    try:
        import diffusers  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise BenchError(
            f"{error.name} is missing; run this with ComfyUI's Python, where the Hunyuan3D nodes "
            "have installed it, or: pip install diffusers transformers accelerate"
        ) from error
