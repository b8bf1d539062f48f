"""The image stage of the demo: Hy3DDelightImage's loop, run through PipelineProxy.

The pipeline has the class and the call of the real one and a tiny network of RANDOM weights: the
pictures mean nothing, the devices, generators and bits do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from PIL import Image

    Photograph = npt.NDArray[np.uint8]

SEED = 42
CELL, MARGIN, LABEL = 160, 8, 170


@dataclass(frozen=True)
class DelightDemo:
    """facts: what was measured, by title; pictures: by file name."""

    facts: dict[str, Any]
    pictures: dict[str, Image.Image] = field(default_factory=dict)


def run_delight_demo(
    images: Sequence[Photograph], size: int = 96, steps: int = 4, seed: int = SEED
) -> DelightDemo:
    """Runs `images` (each H x W x 3 uint8) as one batch of size x size, several times, compares.

    size is a multiple of 16, in pixels. Needs diffusers and transformers. What it runs in "legacy"
    and as upstream does reseeds the global random states, and leaves torch's as the last picture of
    that left them; "stream" leaves them as they were, which is one of the facts.
    """
    import torch

    from hy3d_rocm import _rng
    from hy3d_rocm.device import resolve_device
    from hy3d_rocm.pipeline import PipelineProxy

    if not images or size < 16 or size % 16:
        raise ValueError(f"{len(images)} images at size {size}: give images, size in 16ths")
    started = time.perf_counter()
    pipeline, batch = tiny_pipeline(), _as_batch(images, size)
    stream = PipelineProxy(pipeline)
    device, rule = resolve_device(pipeline)
    before = _rng.capture()
    with stream.batch():
        first = delight_loop(stream, batch, seed, steps)
    untouched = _rng.same(before, _rng.capture())
    with stream.batch():
        again = delight_loop(stream, batch, seed, steps)
    legacy_proxy = PipelineProxy(pipeline, seed_mode="legacy")
    with legacy_proxy.batch():
        legacy = delight_loop(legacy_proxy, batch, seed, steps)
        upstream = delight_loop(pipeline, batch, seed, steps)
    facts = {
        "pipeline": f"{type(pipeline).__name__}, tiny, RANDOM weights",
        "images": f"{len(images)} photographs at {size}x{size}, {steps} steps, seed {seed}",
        "input device": str(device),
        "decided by": rule,
        "same seed, same bits": bool(torch.equal(first, again)),
        "first image equals upstream's, bit for bit": bool(torch.equal(first[0], upstream[0])),
        "legacy equals upstream's, all images": bool(torch.equal(legacy, upstream)),
        "images that differ from legacy": _differing(first, legacy),
        "global random states untouched": untouched,
        "seconds": round(time.perf_counter() - started, 2),
    }
    rows = [
        ("photograph", "as given", batch),
        ("stream", "one generator\nfor the batch", first),
        ("difference", "to a second run,\nsame seed, x8", (first - again).abs() * 8),
        ("legacy", "reseeded per image,\nas upstream", legacy),
    ]
    return DelightDemo(facts, {"delight.png": _sheet(rows)})


def delight_loop(pipeline: Any, batch: torch.Tensor, seed: int, steps: int) -> torch.Tensor:
    """Calls `pipeline` once an image of (N, 3, H, W) in 0..1, reseeding each time.

    The call is the one that ComfyUI-Hunyuan3DWrapper's Hy3DDelightImage makes (2609efa, nodes.py
    ~343), its global reseeding included. Returns (N, 3, H, W) float32 in 0..1 on the CPU.
    """
    import torch

    height, width = batch.shape[-2:]
    results = [
        pipeline(
            prompt="",
            image=image,
            generator=torch.manual_seed(seed),
            height=height,
            width=width,
            num_inference_steps=steps,
            image_guidance_scale=1.5,
            guidance_scale=1.01,
            output_type="pt",
        ).images[0]
        for image in batch
    ]
    return torch.stack(results).cpu().float()


def tiny_pipeline(seed: int = 0) -> Any:
    """StableDiffusionInstructPix2PixPipeline of about 0.2 M random weights made from `seed`.

    Spatial factor 2, no hub access, global random states kept.
    """
    import torch
    from diffusers import (
        AutoencoderKL,
        EulerAncestralDiscreteScheduler,
        StableDiffusionInstructPix2PixPipeline,
        UNet2DConditionModel,
    )
    from transformers import CLIPTextConfig, CLIPTextModel

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        unet = UNet2DConditionModel(
            sample_size=16, in_channels=8, out_channels=4, layers_per_block=1,
            block_out_channels=(16, 32), norm_num_groups=8, cross_attention_dim=16,
            attention_head_dim=4, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip
        vae = AutoencoderKL(
            block_out_channels=(16, 16), layers_per_block=1, norm_num_groups=8, latent_channels=4,
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        )  # fmt: skip
        text_encoder = CLIPTextModel(
            CLIPTextConfig(
                vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                num_attention_heads=2, max_position_embeddings=8, bos_token_id=0, eos_token_id=1,
                pad_token_id=1,
            )
        )  # fmt: skip
    pipeline = StableDiffusionInstructPix2PixPipeline(
        vae=vae.eval(), text_encoder=text_encoder.eval(), tokenizer=_tokenizer(), unet=unet.eval(),
        scheduler=EulerAncestralDiscreteScheduler(), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _tokenizer() -> Any:
    """A CLIPTokenizer whose vocabulary is its own two marks: the prompt is empty anyway."""
    import json
    import tempfile
    from pathlib import Path

    from transformers import CLIPTokenizer

    with tempfile.TemporaryDirectory() as folder:
        vocabulary = {"<|startoftext|>": 0, "<|endoftext|>": 1}
        Path(folder, "vocab.json").write_text(json.dumps(vocabulary))
        Path(folder, "merges.txt").write_text("#version: 0.2\n")
        return CLIPTokenizer.from_pretrained(folder, model_max_length=8)


def _as_batch(images: Sequence[Photograph], size: int) -> torch.Tensor:
    """(N, 3, size, size) float32 in 0..1: the middle square of each photograph, resized."""
    import numpy as np
    import torch
    from PIL import Image, ImageOps

    squares = [ImageOps.fit(Image.fromarray(image[..., :3]), (size, size)) for image in images]
    pixels = np.stack([np.asarray(square, dtype=np.float32) / 255 for square in squares])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def _differing(first: torch.Tensor, second: torch.Tensor) -> str:
    import torch

    pairs = zip(first, second, strict=True)
    numbers = [i + 1 for i, (a, b) in enumerate(pairs) if not torch.equal(a, b)]
    return ", ".join(map(str, numbers)) or "none"


def _sheet(rows: Sequence[tuple[str, str, torch.Tensor]]) -> Image.Image:
    """A labelled grid: one row a (title, note, (N, 3, H, W) in 0..1), one column an image."""
    import torch
    from PIL import Image, ImageDraw, ImageFont

    count, step = rows[0][2].shape[0], CELL + MARGIN
    sheet = Image.new("RGB", (LABEL + count * step, len(rows) * step + MARGIN), (250, 250, 248))
    draw, title_font = ImageDraw.Draw(sheet), ImageFont.load_default(16)
    for row, (title, note, pictures) in enumerate(rows):
        top = MARGIN + row * step
        draw.text((MARGIN, top + 4), title, fill=(30, 34, 40), font=title_font)
        draw.multiline_text(
            (MARGIN, top + 30), note, fill=(110, 116, 125), font=ImageFont.load_default(13)
        )
        for column, picture in enumerate(pictures):
            pixels = (picture.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
            cell = Image.fromarray(pixels).resize((CELL, CELL), Image.Resampling.NEAREST)
            sheet.paste(cell, (LABEL + column * step, top))
    return sheet
