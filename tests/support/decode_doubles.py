"""Small VAEs of every kind that is known layer by layer, for the tests of the decode."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from unittest import mock

import torch

KINDS = ("hunyuan", "hunyuan15", "wan", "wan22", "ltx", "ltx_causal", "image")
EVERY_KIND = (*KINDS, "qwen", "ltx095", "ltx095_ahead", "image16", "seedvr2")
#: What vae.decode() takes beside the latent, by kind
TIMESTEP = {"ltx095": 0.05, "ltx095_ahead": 0.05}
#: GroupNorm over a few positions multiplies roundings, so that float32 says little there; these
#: VAEs' own code computes in float64 all through (the others' goes through float32)
IN_FLOAT64 = ("hunyuan", "image", "image16", "seedvr2")


def tiny_vae(kind: str, seed: int = 0) -> Any:
    """A diffusers VAE (or SeedVR2's) of `kind` with few channels, random weights, norm weights
    around 1 and norm and convolution biases around 0, all of the spread 0.3."""
    text, tensors = _pickled(kind, seed)
    return _Reader(io.BytesIO(text), tensors).load()


@cache
def _pickled(kind: str, seed: int) -> tuple[bytes, list[Any]]:
    """A tiny VAE with its tensors aside: to read one takes a fifth of what it takes to make one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae = _MAKERS[kind]().eval().requires_grad_(False)
        for name, parameter in vae.named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            if leaf == "bias":
                torch.nn.init.normal_(parameter, 0.0, 0.3)
            elif leaf == "gamma" or parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1.0, 0.3)
    writer = _Writer(file := io.BytesIO())
    writer.dump(vae)
    return file.getvalue(), writer.tensors


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, torch.Tensor):
            return None
        self.tensors.append(obj)
        return len(self.tensors) - 1


class _Reader(pickle.Unpickler):
    """Each tensor is one of the module's own."""

    def __init__(self, file: io.BytesIO, tensors: list[Any]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, pid: Any) -> Any:
        made = self.tensors[pid].detach().clone()
        is_parameter = isinstance(self.tensors[pid], torch.nn.Parameter)
        return torch.nn.Parameter(made, requires_grad=False) if is_parameter else made


def tiny_latents(vae: Any, frames: int, height: int, width: int, seed: int = 0) -> Any:
    """Normal latents (1, C, T, H, W) for a tiny VAE; image VAEs take T = 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, _latent_channels(vae), frames, height, width, generator=generator)


def _latent_channels(vae: Any) -> int:
    """As its settings say; where there are none the family is asked, which takes small decodes."""
    from hy3d_rocm.decoding.families import family_for

    config = getattr(vae, "config", None)
    told = getattr(config, "latent_channels", None) or getattr(config, "z_dim", None)
    return int(told or family_for(vae).latent_channels)


def tiny_pixels(frames: int, height: int, width: int, seed: int = 0) -> Any:
    """Uniform pixels (1, 3, T, H, W) in -1..1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(1, 3, frames, height, width, generator=generator) * 2 - 1


def unsplit(vae: Any, z: Any, timestep: float | None = None) -> Any:
    """The VAE's own decode of z (1, C, T, H, W) with its splitting off; (1, C, T, H, W)."""
    more = () if timestep is None else (torch.tensor([timestep], dtype=z.dtype),)
    return _unsplit(vae, z, lambda z: vae.decode(z, *more).sample)


def _moments(made: Any) -> Any:
    return getattr(made, "posterior", None) or made.latent_dist


def unsplit_moments(vae: Any, pixels: Any) -> Any:
    """The VAE's own encode of pixels with its splitting off: mean and log variance."""
    return _unsplit(vae, pixels, lambda x: _moments(vae.encode(x)).parameters)


def _unsplit(vae: Any, x: Any, run: Any) -> Any:
    flags = ("use_framewise_decoding", "use_framewise_encoding", "use_tiling", "use_slicing")
    kept = {name: getattr(vae, name) for name in flags if hasattr(vae, name)}
    image = (
        vae.decoder.conv_in.weight.ndim == 4 if hasattr(vae.decoder.conv_in, "weight") else False
    )
    try:
        for name in kept:
            setattr(vae, name, False)
        with torch.no_grad():
            made = run(x[:, :, 0] if image else x)
            return made if made.ndim == 5 else made.unsqueeze(2)
    finally:
        for name, value in kept.items():
            setattr(vae, name, value)


@contextmanager
def tiles_of_level(level: int) -> Iterator[None]:
    """Plans in this block have tiles of this level only: 0 the largest, and so on."""
    from hy3d_rocm import _native

    real = _native.compile_schedule
    limited = partial(_with_level, real, level + 1)
    with mock.patch.object(_native, "compile_schedule", limited):
        yield


def _with_level(real: Any, level: int, /, *given: Any, **fields: Any) -> Any:
    return real(*given, **{**fields, "only_level": level})


def relative_error(got: Any, want: Any) -> float:
    """Largest difference over the range of `want`; infinite where shapes differ or either is not
    finite."""
    if got.shape != want.shape:
        return math.inf
    error = float((got.double() - want.double()).abs().max())
    span = float(want.double().max() - want.double().min())
    return error / span if math.isfinite(error) and span > 0 else math.inf


def _hunyuan() -> Any:
    from diffusers import AutoencoderKLHunyuanVideo

    return AutoencoderKLHunyuanVideo(
        latent_channels=4, block_out_channels=(8, 8, 16, 16), norm_num_groups=4, layers_per_block=1
    )


def _hunyuan15() -> Any:
    from diffusers import AutoencoderKLHunyuanVideo15

    return AutoencoderKLHunyuanVideo15(
        latent_channels=4, block_out_channels=(8, 8, 16, 16, 16), layers_per_block=1
    )


def _wan() -> Any:
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(base_dim=8, z_dim=4, dim_mult=[1, 2, 2, 2], num_res_blocks=1)


def _wan22() -> Any:
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(
        base_dim=8, decoder_base_dim=12, z_dim=4, dim_mult=[1, 2, 2, 2], num_res_blocks=1,
        is_residual=True, patch_size=2, in_channels=12, out_channels=12, scale_factor_spatial=16,
    )  # fmt: skip


def _qwen() -> Any:
    from diffusers import AutoencoderKLQwenImage

    return AutoencoderKLQwenImage(base_dim=8, z_dim=4, dim_mult=[1, 2, 2, 2], num_res_blocks=1)


def _ltx(**changes: Any) -> Any:
    from diffusers import AutoencoderKLLTXVideo

    shape: dict[str, Any] = {
        "latent_channels": 8, "block_out_channels": (8, 8, 16, 16), "patch_size": 2,
        "decoder_block_out_channels": (8, 8, 16, 16), "layers_per_block": (1, 1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1, 1),
    }  # fmt: skip
    return AutoencoderKLLTXVideo(**(shape | changes))


def _ltx095(**changes: Any) -> Any:
    """LTX 0.9.5 and later: packing down-samplings, residual up-samplings, timestep conditioning."""
    return _ltx(
        **changes,
        block_out_channels=(8, 16, 16, 32, 32),
        down_block_types=("LTXVideo095DownBlock3D",) * 4,
        downsample_type=("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
        layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, True, True),
        decoder_block_out_channels=(8, 16, 32),
        decoder_layers_per_block=(1, 1, 1, 1),
        decoder_spatio_temporal_scaling=(True, True, True),
        decoder_inject_noise=(False, False, False, False),
        upsample_residual=(True, True, True),
        upsample_factor=(2, 2, 2),
        timestep_conditioning=True,
    )


def _image() -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(8, 16, 16), down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3, norm_num_groups=4, latent_channels=4,
    )  # fmt: skip


def _image16() -> Any:
    """As Flux has it: 16 channels, no quantising convolutions."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(8, 16), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4, latent_channels=16,
        use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip


def _seedvr2() -> Any:
    from decode_seedvr2 import SeedVr2

    return SeedVr2()


_MAKERS = {
    "hunyuan": _hunyuan, "hunyuan15": _hunyuan15, "wan": _wan, "wan22": _wan22, "qwen": _qwen,
    "ltx": _ltx, "ltx_causal": lambda: _ltx(decoder_causal=True), "ltx095": _ltx095,
    "ltx095_ahead": lambda: _ltx095(encoder_causal=False),
    "image": _image, "image16": _image16, "seedvr2": _seedvr2,
}  # fmt: skip
