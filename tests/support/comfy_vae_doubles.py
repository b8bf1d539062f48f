"""Stand-ins for comfy.sd.VAE around tiny models, and for ComfyUI's interrupt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from comfy_doubles import Comfy, Interrupt


class ManagedVae:
    """As comfy.sd.VAE, as far as our nodes look at it. calls: of its own methods."""

    crop_input = True
    not_video = False
    disable_offload = False
    extra_1d_channel = None
    output_channels = 3
    format_encoded = None

    def __init__(self, model: Any, latent_dim: int = 3, space: int = 8) -> None:
        self.first_stage_model = model
        self.patcher = SimpleNamespace()
        self.latent_dim, self.space = latent_dim, space
        self.device = self.output_device = torch.device("cpu")
        self.vae_dtype = torch.float32
        self.calls: list[str] = []

    def process_input(self, image: torch.Tensor) -> torch.Tensor:
        return image * 2.0 - 1.0

    def process_output(self, image: torch.Tensor) -> torch.Tensor:
        return image.add_(1.0).div_(2.0).clamp_(0.0, 1.0)

    def vae_encode_crop_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        for axis in range(1, pixels.ndim - 1):
            size = pixels.shape[axis] // self.space * self.space
            rest = pixels.shape[axis] % self.space
            pixels = pixels.narrow(axis, rest // 2, size)
        return pixels[..., : self.output_channels]

    def decode(self, samples: torch.Tensor, vae_options: Any = None) -> torch.Tensor:
        self.calls.append("decode")
        if self.latent_dim == 2 and samples.ndim == 5:
            samples = samples[:, :, 0]
        return self.process_output(self.first_stage_model.decode(samples)).movedim(1, -1)

    def decode_tiled(self, samples: torch.Tensor, tile_x: int = 8) -> torch.Tensor:
        self.calls.append(f"decode_tiled {tile_x}")
        return self.process_output(self.first_stage_model.decode(samples)).movedim(1, -1)

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        self.calls.append("encode")
        x = self.vae_encode_crop_pixels(pixels).movedim(-1, 1)
        if self.latent_dim == 3:
            x = x.movedim(1, 0).unsqueeze(0)
        made: torch.Tensor = self.first_stage_model.encode(self.process_input(x))
        return made


class OddDecoder(torch.nn.Module):
    """A VAE of images whose layers nobody knows. A latent position decides on 4x4 pixels and on
    what is one pixel beside them."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(3)
            self.enter = torch.nn.Conv2d(4, width, 1)
            self.leave = torch.nn.Conv2d(width, 3, 3, padding=1)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.interpolate(self.enter(z), scale_factor=4.0)
        made: torch.Tensor = self.leave(x)
        return made


class Flag:
    """ComfyUI's interrupt: reset by whoever raises for it."""

    def __init__(self, comfy: Comfy, monkeypatch: Any) -> None:
        self.up = False
        self.resets = 0
        monkeypatch.setattr(comfy.management, "processing_interrupted", lambda: self.up)
        monkeypatch.setattr(
            comfy.management, "throw_exception_if_processing_interrupted", self.throw
        )

    def throw(self) -> None:
        if self.up:
            self.up = False
            self.resets += 1
            raise Interrupt
