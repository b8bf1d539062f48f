"""Tiny random-weight stand-ins for the two texture models, saved as upstream's loaders read them.

    python tests/comfyui/tiny_models.py MODELS WRAPPER

writes MODELS/diffusers/hunyuan3d-delight-v2-0 and MODELS/diffusers/hunyuan3d-paint-v2-0 (about
10 MB, fixed seeds, float16), and MODELS/inputs, a picture and a mesh. The classes are the real
ones: diffusers' and transformers', and the paint model's UNet2p5DConditionModel from WRAPPER, a
checkout of ComfyUI-Hunyuan3DWrapper. Only the widths differ, except where upstream's code fixes
them: prompt width 1024, time embedding 1280. Nothing is downloaded. The pictures mean nothing;
their bits do.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

DELIGHT = "hunyuan3d-delight-v2-0"
PAINT = "hunyuan3d-paint-v2-0"
PROMPT_TOKENS = 77


def write_models(models: Path, wrapper: Path) -> None:
    """Writes both models under models/diffusers; what is there already is left as it is."""
    folder = models / "diffusers"
    for name, write in (
        (DELIGHT, lambda at: write_delight(at)),
        (PAINT, lambda at: write_paint(at, wrapper)),
    ):
        if not (folder / name / "done").exists():
            write(folder / name)
            (folder / name / "done").touch()


def write_inputs(folder: Path) -> None:
    """What the example workflows load: example.png and 3d/mesh.glb."""
    import numpy as np
    import trimesh
    from PIL import Image

    (folder / "3d").mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "example.png")
    trimesh.creation.box().export(folder / "3d/mesh.glb")


def write_delight(folder: Path) -> None:
    """StableDiffusionInstructPix2PixPipeline as its save_pretrained writes it."""
    import torch
    from diffusers import (
        EulerAncestralDiscreteScheduler,
        StableDiffusionInstructPix2PixPipeline,
        UNet2DConditionModel,
    )

    torch.manual_seed(1)
    unet = UNet2DConditionModel(
        in_channels=8,
        out_channels=4,
        block_out_channels=(16, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=4,
        sample_size=8,
    )
    pipeline = StableDiffusionInstructPix2PixPipeline(
        vae=_vae(),
        text_encoder=_text_encoder(16),
        tokenizer=_tokenizer(folder),
        unet=unet,
        scheduler=EulerAncestralDiscreteScheduler(timestep_spacing="trailing"),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.to(torch.float16).save_pretrained(folder)


def write_paint(folder: Path, wrapper: Path) -> None:
    """The parts that DownloadAndLoadHy3DPaintModel reads, each in its subfolder."""
    import torch
    from diffusers import EulerAncestralDiscreteScheduler, UNet2DConditionModel
    from safetensors.torch import save_file
    from transformers import CLIPImageProcessor

    torch.manual_seed(2)
    unet = UNet2DConditionModel(
        in_channels=4,
        out_channels=4,
        block_out_channels=(16,),
        down_block_types=("CrossAttnDownBlock2D",),
        up_block_types=("CrossAttnUpBlock2D",),
        layers_per_block=1,
        cross_attention_dim=1024,
        attention_head_dim=8,
        norm_num_groups=4,
        time_embedding_dim=1280,
        sample_size=8,
    )
    unet.save_config(folder / "unet")
    around = _upstream_unet(wrapper)(unet).to(torch.float16)
    save_file(dict(around.named_parameters()), folder / "unet/diffusion_pytorch_model.safetensors")
    _vae().to(torch.float16).save_pretrained(folder / "vae")
    _text_encoder(32).to(torch.float16).save_pretrained(folder / "text_encoder")
    _tokenizer(folder).save_pretrained(folder / "tokenizer")
    EulerAncestralDiscreteScheduler(
        prediction_type="v_prediction", timestep_spacing="trailing", beta_schedule="scaled_linear"
    ).save_pretrained(folder / "scheduler")
    CLIPImageProcessor().save_pretrained(folder / "feature_extractor")


def _upstream_unet(wrapper: Path) -> Any:
    """The class UNet2p5DConditionModel, from its own file, which imports nothing of the pack."""
    source = wrapper / "hy3dgen/texgen/hunyuanpaint/unet/modules.py"
    spec = importlib.util.spec_from_file_location("hunyuanpaint_unet", source)
    if spec is None or spec.loader is None or not source.exists():
        raise SystemExit(f"{source} is not there; --wrapper is a ComfyUI-Hunyuan3DWrapper checkout")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.UNet2p5DConditionModel


def _vae() -> Any:
    """AutoencoderKL with the real spatial factor, 8."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        norm_num_groups=4,
        sample_size=64,
    )


def _text_encoder(width: int) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=2,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=PROMPT_TOKENS,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return CLIPTextModel(config)


def _tokenizer(folder: Path) -> Any:
    """A CLIPTokenizer whose vocabulary is its own two marks: every prompt here is empty."""
    from transformers import CLIPTokenizer

    source = folder / "tokenizer"
    source.mkdir(parents=True, exist_ok=True)
    marks = {"<|startoftext|>": 0, "<|endoftext|>": 1}
    (source / "vocab.json").write_text(json.dumps(marks))
    (source / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer.from_pretrained(source, model_max_length=PROMPT_TOKENS)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    write_models(Path(sys.argv[1]), Path(sys.argv[2]))
    write_inputs(Path(sys.argv[1]) / "inputs")
