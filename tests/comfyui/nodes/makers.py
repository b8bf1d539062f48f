"""Nodes that make what upstream's nodes take: images, a mesh, pipelines of the real classes."""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any
from unittest import mock

import numpy as np
import torch

import nodes as comfy_nodes

from .probes import ANY
from .stand_ins import KINDS, disguised, watched


class HarnessImages:
    """IMAGE (count, height, width, 3) of random pixels, from a generator of its own."""

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        number = ("INT", {"default": 1, "min": 0, "max": 2**31})
        return {
            "required": {"count": number, "size": number, "seed": number, "first": number},
            "optional": {"alike": ("BOOLEAN", {"default": False})},
        }

    def make(
        self, count: int, size: int, seed: int, first: int, alike: bool = False
    ) -> tuple[torch.Tensor]:
        """Images first .. first + count - 1 of the endless row that belongs to `seed`.

        alike: the first of them `count` times.
        """
        generator = torch.Generator().manual_seed(seed)
        row = torch.rand((first + count, size, size, 3), generator=generator)[first:]
        return (row[:1].repeat(count, 1, 1, 1) if alike else row,)


class HarnessSeedGlobals:
    """Passes `value` on and puts the global random states to known ones, before the next node."""

    RETURN_TYPES = (ANY,)
    FUNCTION = "seed_globals"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": (ANY,), "seed": ("INT", {"default": 0})}}

    def seed_globals(self, value: Any, seed: int) -> tuple[Any]:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        return (value,)


class HarnessLoad:
    """Loads a tiny model with upstream's own loader class, its request for offload left unmet.

    Without our pack that request fails on a machine without accelerator. kind: see stand_ins.py.
    """

    RETURN_TYPES = ("HY3DDIFFUSERSPIPE",)
    FUNCTION = "load"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"model": (["delight", "paint"],), "kind": (list(KINDS),)}}

    def load(self, model: str, kind: str) -> tuple[Any]:
        from diffusers import DiffusionPipeline

        node, name = {
            "delight": ("DownloadAndLoadHy3DDelightModel", "hunyuan3d-delight-v2-0"),
            "paint": ("DownloadAndLoadHy3DPaintModel", "hunyuan3d-paint-v2-0"),
        }[model]
        loader = comfy_nodes.NODE_CLASS_MAPPINGS[node]()
        with mock.patch.object(DiffusionPipeline, "enable_model_cpu_offload"):
            (pipeline,) = loader.loadmodel(model=name)
        return (disguised(watched(pipeline), kind),)


class HarnessBox:
    """TRIMESH: a cube with texture coordinates."""

    RETURN_TYPES = ("TRIMESH",)
    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {}}

    def make(self) -> tuple[Any]:
        import trimesh

        box = trimesh.creation.box()
        uv = np.random.default_rng(0).random((len(box.vertices), 2))
        box.visual = trimesh.visual.TextureVisuals(uv=uv)
        return (box,)


class HarnessShape:
    """Upstream's shape pipeline and ShapeVAE around tiny networks, random weights from `seed`."""

    RETURN_TYPES = ("HY3DMODEL", "HY3DVAE")
    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"seed": ("INT", {"default": 3})}}

    def make(self, seed: int) -> tuple[Any, Any]:
        upstream = sys.modules[comfy_nodes.NODE_CLASS_MAPPINGS["Hy3DGenerateMesh"].__module__]
        kind = upstream.Hunyuan3DDiTFlowMatchingPipeline
        models = importlib.import_module(kind.__module__.removesuffix(".pipelines") + ".models")
        torch.manual_seed(seed)
        model = models.Hunyuan3DDiT(
            in_channels=64, context_in_dim=32, hidden_size=64, num_heads=1, depth=1,
            depth_single_blocks=1, axes_dim=[64],
        )  # fmt: skip
        encoder = {"type": "DinoImageEncoder", "kwargs": {"config": _DINO, "image_size": 28}}
        pipeline = kind(
            model=model,
            scheduler=upstream.FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000),
            conditioner=models.SingleImageEncoder(main_image_encoder=encoder),
            image_processor=None,
            device=torch.device("cpu"),
            offload_device=torch.device("cpu"),
        )
        vae = upstream.ShapeVAE(
            num_latents=3072, embed_dim=64, width=32, heads=2, num_decoder_layers=1, qk_norm=True,
            include_pi=False, qkv_bias=False,
        )  # fmt: skip
        return pipeline, vae.eval().to(torch.float16)


_DINO = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "mlp_ratio": 2,
}
