"""The core's own VAE classes at small widths, and its VAELoader reading files of these.

comfy.sd.VAE knows a model by its weights and takes most widths as given: 128 channels for an image
VAE. While a file "tiny_*.safetensors" is loaded the classes get other widths here; detection, sizes
of the latent, estimates of memory and all methods are the core's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

CHANNELS = 32  # GroupNorm has 32 groups
DIM = 8  # Wan's norms have no groups
HUNYUAN15 = [8, 16, 32, 64, 64]  # the last at least twice the latent's channels
_KL = {
    "double_z": True, "z_channels": 4, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128,
    "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0,
}  # fmt: skip
_VIDEO = {"conv3d": True, "time_compress": 4}
_WAN = {
    "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_scales": [],
    "temperal_downsample": [False, True, True], "dropout": 0.0,
}  # fmt: skip
_HUNYUAN15 = {
    "in_channels": 3, "out_channels": 3, "num_res_blocks": 2, "ffactor_spatial": 16,
    "ffactor_temporal": 4, "downsample_match_channel": True, "upsample_match_channel": True,
    "z_channels": 32,
}  # fmt: skip


def narrowed(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration of the core's with small widths; what is no width stays."""
    small = {
        "ch": CHANNELS, "ch_mult": [1, 1, 2, 2], "block_out_channels": HUNYUAN15, "dim": DIM,
        "num_res_blocks": 1,
    }  # fmt: skip
    return {key: small.get(key, value) for key, value in config.items()}


def _kl(kind: Any) -> Callable[..., Any]:
    @functools.wraps(kind)
    def make(ddconfig: dict[str, Any], embed_dim: int, **more: Any) -> Any:
        return kind(ddconfig=narrowed(ddconfig), embed_dim=embed_dim)

    return make


def _engine(kind: Any) -> Callable[..., Any]:
    @functools.wraps(kind)
    def make(encoder_config: Any, decoder_config: Any, **more: Any) -> Any:
        parts = [
            {**config, "params": narrowed(config["params"])}
            for config in (encoder_config, decoder_config)
        ]
        return kind(encoder_config=parts[0], decoder_config=parts[1], **more)

    return make


def _wan(kind: Any) -> Callable[..., Any]:
    @functools.wraps(kind)
    def make(**config: Any) -> Any:
        # Wan 2.2's decoder has a width of its own, which the core leaves at its default.
        own = {"dec_dim": DIM} if config["z_dim"] == 48 else {}
        return kind(**narrowed(config), **own)

    return make


@contextmanager
def narrow() -> Iterator[None]:
    """Inside, comfy.sd.VAE makes small models."""
    import comfy.ldm.wan.vae
    import comfy.ldm.wan.vae2_2
    import comfy.sd

    places = (
        (comfy.sd, "AutoencoderKL", _kl),
        (comfy.sd, "AutoencodingEngine", _engine),
        (comfy.ldm.wan.vae, "WanVAE", _wan),
        (comfy.ldm.wan.vae2_2, "WanVAE", _wan),
    )
    with ExitStack() as stack:
        for module, name, around in places:
            stack.enter_context(mock.patch.object(module, name, around(getattr(module, name))))
        yield


def _make_kl(z_channels: int, **more: Any) -> Any:
    import comfy.sd

    config = {**_KL, **more, "z_channels": z_channels}
    return comfy.sd.AutoencoderKL(ddconfig=config, embed_dim=z_channels)


def _make_wan(home: str, z_dim: int) -> Any:
    import comfy.ldm.wan.vae
    import comfy.ldm.wan.vae2_2

    return getattr(comfy.ldm.wan, home).WanVAE(dim=96, z_dim=z_dim, **_WAN)


def _make_hunyuan15() -> Any:
    import comfy.sd

    config = {**_HUNYUAN15, "block_out_channels": HUNYUAN15}
    home = "comfy.ldm.hunyuan_video.vae_refiner"
    return comfy.sd.AutoencodingEngine(
        regularizer_config={"target": "comfy.ldm.models.autoencoder.EmptyRegularizer"},
        encoder_config={"target": f"{home}.Encoder", "params": config},
        decoder_config={"target": f"{home}.Decoder", "params": config},
    )


def _small(make: Callable[..., Any], *given: Any, **more: Any) -> Callable[[], Any]:
    def made() -> Any:
        with narrow():
            return make(*given, **more)

    return made


# By the middle of the file's name.
VAES: dict[str, Callable[[], Any]] = {
    "hunyuan": _small(_make_kl, 16, **_VIDEO),
    "hunyuan15": _small(_make_hunyuan15),
    "wan21": _small(_make_wan, "vae", 16),
    "wan22": _small(_make_wan, "vae2_2", 48),
    "image": _small(_make_kl, 4),
}


def randomize(model: Any) -> None:
    """Weights that keep the size of what goes through: comfy.ops leaves them as allocated."""
    import torch

    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "bias":
            torch.nn.init.normal_(tensor, 0.0, 0.3)
        elif leaf == "gamma" or tensor.ndim == 1:
            torch.nn.init.normal_(tensor, 1.0, 0.3)
        elif tensor.is_floating_point():
            torch.nn.init.normal_(tensor, 0.0, tensor[0].numel() ** -0.5)


def let_the_core_load_them() -> None:
    """Wraps VAELoader.load_vae for files named tiny_*; all others are loaded as before."""
    import nodes

    load = nodes.VAELoader.load_vae

    @functools.wraps(load)
    def load_vae(self: Any, vae_name: str, *more: Any, **given: Any) -> Any:
        if not vae_name.startswith("tiny_"):
            return load(self, vae_name, *more, **given)
        with narrow():
            return load(self, vae_name, *more, **given)

    nodes.VAELoader.load_vae = load_vae
