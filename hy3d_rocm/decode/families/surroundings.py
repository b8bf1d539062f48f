"""What decode() of a VAE in its authors' layout does beside the decoder."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.families.parts import same_frames
from hy3d_rocm.decode.layers import Local, Shuffle
from hy3d_rocm.decode.plain import shuffled

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Surroundings:
    """enter: latents to what the decoder takes. leave: what it gives to frames. encoded: moments of
    the encoder to those of the latent. packed: how many times more channels a latent has than the
    decoder takes. noise: share of noise that is mixed into latents, None without. no_encode: a
    sentence where the encoder is not known.
    """

    enter: Local | None = None
    leave: Local | None = None
    encoded: Local | None = None
    packed: int = 1
    noise: float | None = None
    no_encode: str = ""

    def check_encode(self) -> None:
        """TypeError where the encoder is not known."""
        if self.no_encode:
            raise TypeError(f"{self.no_encode}: call its own encode")


def surroundings_of(vae: Any, modules: Any) -> Surroundings:
    """Of a VAE, whose encoder and decoder `modules` holds."""
    if vae is not modules:
        return _wan_wrapper(vae)
    if hasattr(vae, "per_channel_statistics"):
        return _ltx(vae)
    if getattr(vae, "bn", None) is not None:
        return _batch_norm(vae)
    if getattr(vae.decoder, "refiner_vae", False) and hasattr(vae.decoder.conv_in, "padding"):
        return Surroundings(
            enter=Local(_two_frames, lambda n: 2 * n - 1),
            packed=2,
            no_encode="this HunyuanVideo 1.5 VAE's latents hold two frames, which is not known of "
            "its encoder",
        )
    return Surroundings()


def _two_frames(latents: Tensor, first: int) -> Tensor:
    """(1, 2 C, t, H, W) -> (1, C, 2 t, H, W), less the first of the video."""
    b, c, t, h, w = latents.shape
    x = latents.reshape(b, 2, c // 2, t, h, w).permute(0, 2, 3, 1, 4, 5)
    x = x.reshape(b, c // 2, 2 * t, h, w)
    return x[:, :, 1:] if first == 0 else x


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.to(device=like.device, dtype=like.dtype).view(1, -1, 1, 1, 1)


def _wan_wrapper(vae: Any) -> Surroundings:
    """The WanVideoWrapper: `scale` holds mean and 1 / spread, and frames are clamped (2025-03); or
    `mean` and `inv_std` do, and they are not (2026)."""
    clamps = hasattr(vae, "scale")

    def scales(like: Tensor) -> tuple[Tensor, Tensor]:
        mean, inverse = vae.scale if clamps else (vae.mean, vae.inv_std)
        return _column(mean, like), _column(inverse, like)

    def enter(latents: Tensor, first: int) -> Tensor:
        mean, inverse = scales(latents)
        return latents / inverse + mean

    def encoded(moments: Tensor, first: int) -> Tensor:
        return _normalised(moments, *scales(moments))

    return Surroundings(
        enter=Local(enter, same_frames),
        leave=Local(lambda frames, first: frames.clamp(-1.0, 1.0), same_frames) if clamps else None,
        encoded=Local(encoded, same_frames),
    )


def _normalised(moments: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    means, variances = moments.chunk(2, 1)
    return torch.cat([(means - mean) * inverse, variances + 2 * inverse.log()], 1)


def _ltx(vae: Any) -> Surroundings:
    """LTX: mean and spread of each channel; noise where the decoder takes a timestep."""
    statistics = vae.per_channel_statistics

    def scales(like: Tensor) -> tuple[Tensor, Tensor]:
        names = ("mean-of-means", "std-of-means")
        mean, spread = (_column(statistics.get_buffer(n), like) for n in names)
        return mean, spread

    def enter(latents: Tensor, first: int) -> Tensor:
        mean, spread = scales(latents)
        return latents * spread + mean

    def encoded(moments: Tensor, first: int) -> Tensor:
        mean, spread = scales(moments)
        return _normalised(moments, mean, 1 / spread)

    return Surroundings(
        enter=Local(enter, same_frames),
        encoded=Local(encoded, same_frames),
        noise=_noise(vae) if getattr(vae, "timestep_conditioning", False) else None,
    )


def _noise(vae: Any) -> float:
    """An attribute, or the default of decode()'s parameter."""
    own = getattr(vae, "decode_noise_scale", None)
    if own is not None:
        return float(own)
    parameter = inspect.signature(vae.decode).parameters.get("noise_scale")
    if parameter is None or parameter.default is inspect.Parameter.empty:
        raise TypeError("this LTX VAE takes a timestep, but does not say how much noise with it")
    return float(parameter.default)


def _batch_norm(vae: Any) -> Surroundings:
    """Flux 2: squares of positions in the channels, scaled by a batch norm's moments."""
    if not hasattr(vae, "ps") or not hasattr(vae, "bn_eps"):
        raise TypeError(
            f"the {type(vae).__name__} normalises and packs its latents before it decodes, but "
            "does not say how: call the VAE's own decode under hy3d_rocm.protect()"
        )
    height, width = (int(n) for n in vae.ps)

    def enter(latents: Tensor, first: int) -> Tensor:
        mean, variance = (_column(t, latents) for t in (vae.bn.running_mean, vae.bn.running_var))
        scaled = latents * (variance + vae.bn_eps).sqrt() + mean
        return shuffled(scaled, Shuffle((1, height, width), "channel first"))

    return Surroundings(
        enter=Local(enter, same_frames),
        packed=height * width,
        no_encode="this VAE packs and normalises its latents, which is not known of its encoder",
    )
