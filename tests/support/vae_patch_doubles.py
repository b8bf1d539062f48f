"""ComfyUI's VAE class, its executor and two wrappers' VAEs, as stand-ins that patches act on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import patches_doubles
import pytest
import torch
from patches_doubles import module

from hy3d_rocm.conv.router import LOCAL

fake_comfy = patches_doubles.fake_comfy

VAE_SOURCE = """
import torch


class VAE:
    def __init__(self, model):
        self.first_stage_model, self.latent_dim, self.extra_1d_channel = model, 2, None
        self.memory_used_decode = self.memory_used_encode = lambda shape, dtype: 5
        self.process_input = lambda pixels: pixels * 2
        self.process_output = lambda frames: frames + 1
        self.loaded, self.tiled = [], []

    def load_models_gpu(self, memory):
        self.loaded.append(memory)

    def decode(self, samples_in, vae_options={}):
        try:
            self.load_models_gpu(self.memory_used_decode(samples_in.shape, None))
            out = self.process_output(self.first_stage_model.decode(samples_in, **vae_options))
        except torch.OutOfMemoryError:
            out = None
        if out is None:
            out = self.decode_tiled_(samples_in)
        return out.movedim(1, -1)

    def decode_tiled_(self, samples):
        self.tiled.append(samples.shape)
        return self.process_output(self.first_stage_model.decode(samples))

    decode_tiled_3d = encode_tiled_3d = decode_tiled_

    def decode_tiled(self, samples, tile_x=None, tile_y=None, overlap=None, tile_t=None,
                     overlap_t=None):
        self.load_models_gpu(1)
        if samples.ndim == 5:
            return self.decode_tiled_3d(samples)
        return self.decode_tiled_(samples).movedim(1, -1)

    def encode(self, pixel_samples):
        pixels = self.process_input(pixel_samples.movedim(-1, 1))
        self.load_models_gpu(self.memory_used_encode(pixels.shape, None))
        return self.first_stage_model.encode(pixels)

    def encode_tiled_(self, pixels):
        return self.first_stage_model.encode(self.process_input(pixels))

    def encode_tiled(self, pixel_samples, tile_x=None, tile_y=None, overlap=None, tile_t=None,
                     overlap_t=None):
        self.load_models_gpu(1)
        pixels = pixel_samples.movedim(-1, 1)
        return self.encode_tiled_3d(pixels) if pixels.ndim == 5 else self.encode_tiled_(pixels)
"""

EXECUTION_SOURCE = """
async def get_output_data(prompt_id, unique_id, obj, input_data_all, **more):
    return getattr(obj, obj.FUNCTION)(**input_data_all)
"""

WAN_SOURCE = """
import torch


class WanVideoVAE:
    def __init__(self, model):
        self.model = model

    def single_decode(self, latent, device):
        return self.model.decode(latent)

    def single_encode(self, video, device):
        return self.model.encode(video)

    def decode(self, hidden_states, device, tiled=False, end_=False, tile_size=(34, 34)):
        videos = []
        for latent in hidden_states:
            videos.append(self.single_decode(latent, device))
        return videos

    def encode(self, videos, device, tiled=False, end_=False, tile_size=None, sample=False):
        return torch.stack([self.single_encode(video, device) for video in videos])
"""

HUNYUAN_SOURCE = """
from types import SimpleNamespace


class DiagonalGaussianDistribution:
    def __init__(self, parameters):
        self.parameters = parameters


class DecoderOutput(SimpleNamespace):
    pass


class AutoencoderKLOutput(SimpleNamespace):
    pass


class AutoencoderKLCausal3D:
    use_spatial_tiling = use_temporal_tiling = False
    tile_latent_min_tsize, tile_sample_min_size, tile_latent_min_size = 16, 256, 32

    def __init__(self, model):
        self.model = self.quant_conv = model

    def _decode(self, z):
        return DecoderOutput(sample=self.model.decode(z))

    def decode(self, z, return_dict=True, generator=None):
        frames = self._decode(z).sample
        return DecoderOutput(sample=frames) if return_dict else (frames,)

    def encode(self, x, return_dict=True):
        posterior = DiagonalGaussianDistribution(self.quant_conv.encode(x))
        return AutoencoderKLOutput(latent_dist=posterior) if return_dict else (posterior,)
"""


class Model:
    """A VAE's model of one convolution with whole-number weights, so that every way to compute it
    gives the same bits. `modes` notes how many function modes of ours were active."""

    def __init__(self) -> None:
        self.weight = torch.arange(2 * 2 * 9, dtype=torch.float32).reshape(2, 2, 3, 3) % 5 - 2
        self.modes: list[int] = []
        self.options: list[dict[str, Any]] = []
        self.before: Callable[[], None] = lambda: None

    def decode(self, z: torch.Tensor, **options: Any) -> torch.Tensor:
        self.modes.append(len(LOCAL.modes))
        self.options.append(options)
        self.before()
        return torch.nn.functional.conv2d(z, self.weight, padding=1)

    encode = decode


def latents() -> torch.Tensor:
    return torch.arange(2 * 2 * 4 * 4, dtype=torch.float32).reshape(2, 2, 4, 4) % 7 - 3


def pixels() -> torch.Tensor:
    return latents().movedim(1, -1)


def run_source(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = module(name)
    exec(compile(source, f"<{name}>", "exec"), made.__dict__)
    monkeypatch.setitem(sys.modules, name, made)
    return made


@pytest.fixture
def core(fake_comfy: Any, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """ComfyUI's VAE class and executor."""
    sd = run_source("comfy.sd", VAE_SOURCE, monkeypatch)
    execution = run_source("execution", EXECUTION_SOURCE, monkeypatch)
    return SimpleNamespace(VAE=sd.VAE, execution=execution, comfy=fake_comfy)


@contextmanager
def applied(place: Any, *specs: Any) -> Iterator[None]:
    """These specs applied to what was found, and taken back without a trace."""
    from hy3d_rocm.comfy.patches.engine import PatchSet

    sets = []
    for spec in specs:
        assert spec.expects(place) is None
        sets.append(PatchSet(spec.name))
        sets[-1].apply(spec.changes(place))
    try:
        yield
    finally:
        for patches in reversed(sets):
            assert patches.revert() == ()


@contextmanager
def core_patched() -> Iterator[None]:
    from hy3d_rocm.comfy.patches import upstream, vaes

    (place,) = upstream.find("comfyui", {})
    with applied(place, *vaes.CORE_SPECS):
        yield
