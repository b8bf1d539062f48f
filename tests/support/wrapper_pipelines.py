"""The real classes with tiny random weights, and the calls that ComfyUI-Hunyuan3DWrapper makes.

HY3D_WRAPPER names a checkout of the wrapper (2609efa or near it); nothing of it is kept here. Its
paint pipeline is imported from its folder alone, since the package around it needs ComfyUI.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

VIEW_SIZE = 16  # pixels; the tiny VAE halves them
STEPS = 2


def tiny_delight() -> Any:
    """StableDiffusionInstructPix2PixPipeline; skips where diffusers is missing."""
    pytest.importorskip("diffusers")
    from examples.demo.delight import tiny_pipeline

    return tiny_pipeline()


def paint_module() -> Any:
    """The wrapper's hunyuanpaint/pipeline.py as a module; skips with the reason."""
    root = os.environ.get("HY3D_WRAPPER", "")
    if not root:
        pytest.skip("HY3D_WRAPPER names no checkout of ComfyUI-Hunyuan3DWrapper")
    for name in ("diffusers", "einops"):
        pytest.importorskip(name)
    folder = Path(root, "hy3dgen", "texgen", "hunyuanpaint")
    if not (folder / "pipeline.py").is_file():
        pytest.skip(f"HY3D_WRAPPER is {root}, where no {folder.relative_to(root)} is")
    if "hy3d_paint_upstream" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "hy3d_paint_upstream", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        sys.modules["hy3d_paint_upstream"] = importlib.util.module_from_spec(spec)
    return importlib.import_module("hy3d_paint_upstream.pipeline")


def tiny_paint(dtype: torch.dtype = torch.float16) -> Any:
    """Upstream's HunyuanPaintPipeline around a UNet of 2 blocks; float16 as its loader makes it."""
    module = paint_module()
    from diffusers import UNet2DConditionModel

    parts = tiny_delight()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        unet = UNet2DConditionModel(
            sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
            block_out_channels=(16, 32), norm_num_groups=8, cross_attention_dim=1024,
            attention_head_dim=4, time_embedding_dim=1280,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip
        wrapped = module.UNet2p5DConditionModel(unet)
    pipeline = module.HunyuanPaintPipeline(
        vae=parts.vae.to(dtype), text_encoder=parts.text_encoder.to(dtype),
        tokenizer=parts.tokenizer, unet=wrapped.eval().to(dtype), scheduler=parts.scheduler,
        feature_extractor=None,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def multiview(pipeline: Any, seed: int, views: int = 6, size: int = VIEW_SIZE, **more: Any) -> Any:
    """The call of Hy3DSampleMultiView, its seeding included: (views, 3, size, size) float32."""
    import numpy as np
    from PIL import Image

    source = np.random.default_rng(7)

    def maps() -> list[Any]:
        pixels = source.integers(0, 256, (views, size, size, 3), dtype=np.uint8)
        return [Image.fromarray(one) for one in pixels]

    reference = torch.from_numpy(source.random((1, 1, 3, size, size), dtype=np.float32))
    torch.manual_seed(seed)
    generator = torch.Generator(device=pipeline.device).manual_seed(seed)
    return pipeline(
        reference, width=size, height=size, generator=generator, latents=None,
        num_in_batch=views, camera_info_gen=[list(range(views))], camera_info_ref=[[0]],
        normal_imgs=[maps()], position_imgs=[maps()], num_inference_steps=STEPS,
        output_type="pt", denoise_strength=1.0, **more,
    ).images.cpu().float()  # fmt: skip


def delight(pipeline: Any, count: int, seed: int, size: int = 16, steps: int = STEPS) -> Any:
    """The loop of Hy3DDelightImage over `count` equal images: (count, 3, size, size) float32.

    Equal, so that pictures differ exactly where their noise does.
    """
    from examples.demo.delight import delight_loop

    image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    return delight_loop(pipeline, image.expand(count, -1, -1, -1), seed, steps)
