"""VAEs of kijai's video packs: their own classes at small widths, random weights from a seed."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import nodes as comfy_nodes

from .narrow import CHANNELS, DIM, randomize


class _Loader:
    """Never cached: upstream's nodes write to a VAE (HyVideoDecode switches its tiling on)."""

    FUNCTION = "make"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"seed": ("INT", {"default": 0})}}

    @classmethod
    def IS_CHANGED(cls, **inputs: Any) -> float:
        return float("nan")


class HarnessWanWrapperVae(_Loader):
    """WANVAE: what WanVideoVAELoader makes, in float32."""

    RETURN_TYPES = ("WANVAE",)

    def make(self, seed: int) -> tuple[Any]:
        home = _module("WanVideoDecode", "wanvideo.wan_video_vae")
        inner = home.VideoVAE_

        def small(z_dim: int) -> Any:
            return inner(dim=DIM, z_dim=z_dim, num_res_blocks=1)

        with mock.patch.object(home, "VideoVAE_", small):
            vae = home.WanVideoVAE(dtype=torch.float32)
        return (_random(vae, seed),)


class HarnessHunyuanWrapperVae(_Loader):
    """VAE: what HyVideoVAELoader makes, in float32."""

    RETURN_TYPES = ("VAE",)

    def make(self, seed: int) -> tuple[Any]:
        home = _module("HyVideoDecode", "hyvideo.vae.autoencoder_kl_causal_3d")
        folder = Path(str(home.__file__)).parents[2]
        config = json.loads((folder / "configs/hy_vae_config.json").read_text())
        channels = [CHANNELS, CHANNELS, 2 * CHANNELS, 2 * CHANNELS]
        config |= {"block_out_channels": channels, "layers_per_block": 1}
        return (_random(home.AutoencoderKLCausal3D.from_config(config), seed),)


def _module(node: str, name: str) -> Any:
    """The module `name` of the pack that has `node`, whatever its folder is called."""
    around = sys.modules[comfy_nodes.NODE_CLASS_MAPPINGS[node].__module__].__package__
    return importlib.import_module(f"{around}.{name}")


def _random(vae: Any, seed: int) -> Any:
    vae = vae.eval().requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        randomize(vae)
    return vae
