"""VAEs in the layout of their authors, as ComfyUI and the wrappers around it hold them.

The layers are those of a family over a view of the modules (original.py). Around them is what the
VAE's own decode() does beside its decoder, as functions of single frames: statistics that latents
are multiplied with (LTX, the WanVideoWrapper), latents that hold two frames or a square of
positions (HunyuanVideo 1.5 in ComfyUI of 2025-10, Flux 2). And a host may say where, in which type
and with which weights the VAE computes, wherever its parameters are now.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.backends.torch_ops import shuffled
from hy3d_rocm.decode.families.base import StructuredFamily
from hy3d_rocm.decode.families.original import View, view_of
from hy3d_rocm.decode.families.parts import same_frames
from hy3d_rocm.decode.families.proof import inner_vae
from hy3d_rocm.decode.layers import Engine, Handle, Local, Shuffle
from hy3d_rocm.decode.weights import ModuleWeights

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.layers import Weights

# How ComfyUI's attention function is called whose memory can be told beforehand.
_TOLD = "pytorch_attention"


@dataclass(frozen=True)
class Host:
    """What a program that manages a VAE's weights itself says about it. make_weights: of a type
    and device; each decode makes its own. runs_own_code: whether the VAE's own code can run there
    as things are. casts: whether these weights have ComfyUI's patches in them."""

    device: torch.device
    dtype: torch.dtype
    make_weights: Callable[[torch.dtype, torch.device], Weights]
    runs_own_code: bool = True
    casts: bool = False


@cache
def hosted(kind: type[StructuredFamily]) -> type[HostedFamily]:
    """The class of families of this kind over a view."""
    return type(f"Hosted{kind.__name__}", (HostedFamily, kind), {})


class HostedFamily(StructuredFamily):
    """See the module's text; made by hosted(kind)(vae). host: None where the weights are as the
    modules hold them. view: view_of() the VAE's modules, where it is known."""

    def __init__(self, vae: Any, host: Host | None = None, view: View | None = None) -> None:
        modules = inner_vae(vae)
        super().__init__(view or view_of(modules))
        self.vae, self.host = vae, host
        self.decoder, self.encoder = modules.decoder, getattr(modules, "encoder", None)
        self.around: Surroundings = surroundings_of(vae, modules)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights, or the one that the host computes in."""
        return super().dtype if self.host is None else self.host.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are, or where the host computes."""
        return super().device if self.host is None else self.host.device

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return super().latent_channels * self.around.packed

    def make_weights(self, dtype: torch.dtype, device: torch.device) -> Weights:
        """The weights for one decode."""
        make: Any = ModuleWeights if self.host is None else self.host.make_weights
        weights: Weights = make(dtype, device)
        return weights

    def weights(self) -> Weights:
        """The weights as the VAE itself computes with them."""
        return (
            super().weights() if self.host is None else self.make_weights(self.dtype, self.device)
        )

    def noised(self, z: Tensor) -> Tensor:
        """Latents with the noise that the VAE's own decode() mixes into them (LTX), drawn from
        the global generator as there; others as they are."""
        scale = self.around.noise
        return z if scale is None else torch.randn_like(z) * scale + (1.0 - scale) * z

    def decode(self, engine: Engine, z: Handle) -> Handle:
        """As vae.decode, unsplit, of latents that are noised already."""
        if self.around.enter is not None:
            z = engine.local(z, self.around.enter)
        x = super().decode(engine, z)  # type: ignore[safe-super]
        return x if self.around.leave is None else engine.local(x, self.around.leave)

    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """Mean and log variance of what vae.encode gives the mean of."""
        self.around.check_encode()
        x = super().encode(engine, pixels)  # type: ignore[safe-super]
        return x if self.around.encoded is None else engine.local(x, self.around.encoded)

    def whole(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, unsplit."""
        if self.around.enter is not None:
            z = self.around.enter.run(z, 0)
        with _priced(self.decoder, z):
            x = super().whole(z)
        return x if self.around.leave is None else self.around.leave.run(x, 0)

    def whole_encode(self, pixels: Tensor) -> Tensor:
        """Moments by the VAE's own code."""
        self.around.check_encode()
        with _priced(self.encoder, pixels):
            x = super().whole_encode(pixels)
        return x if self.around.encoded is None else self.around.encoded.run(x, 0)


@contextmanager
def _priced(coder: Any, x: Tensor) -> Iterator[None]:
    """Around the VAE's own code: on "meta", where it is only to be priced, what can't be told is a
    ValueError (a sentence)."""
    if x.device.type != "meta":
        yield
        return
    for module in coder.modules():
        attention = getattr(module, "optimized_attention", None)
        if attention is not None and getattr(attention, "__name__", "") != _TOLD:
            raise ValueError("ComfyUI's attention in this VAE takes what memory is free")
    try:
        yield
    except (RuntimeError, TypeError, AttributeError, AssertionError, KeyError) as error:
        said = (str(error).splitlines() or [""])[0]
        raise ValueError(f"what its own code takes can't be told beforehand ({said})") from error


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
    x = shuffled(latents, Shuffle((2, 1, 1), "time first"))
    return x[:, :, 1:] if first == 0 else x


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.to(device=like.device, dtype=like.dtype).view(1, -1, 1, 1, 1)


def _scaled(read: Callable[[], Sequence[Tensor]], divides: bool, **more: Any) -> Surroundings:
    """read: the mean and a scale of each channel. Latents are divided by it, or multiplied with it,
    and the mean is added."""

    def enter(latents: Tensor, first: int) -> Tensor:
        mean, scale = (_column(t, latents) for t in read())
        return (latents / scale if divides else latents * scale) + mean

    def encoded(moments: Tensor, first: int) -> Tensor:
        mean, scale = (_column(t, moments) for t in read())
        inverse = scale if divides else 1 / scale
        means, variances = moments.chunk(2, 1)
        return torch.cat([(means - mean) * inverse, variances + 2 * inverse.log()], 1)

    enters, gives = Local(enter, same_frames), Local(encoded, same_frames)
    return Surroundings(enter=enters, encoded=gives, **more)


def _wan_wrapper(vae: Any) -> Surroundings:
    """The WanVideoWrapper: `scale` holds mean and 1 / spread, and frames are clamped (2025-03); or
    `mean` and `inv_std` do, and they are not (2026)."""
    if not hasattr(vae, "scale"):
        return _scaled(lambda: (vae.mean, vae.inv_std), True)
    clamped = Local(lambda frames, first: frames.clamp(-1.0, 1.0), same_frames)
    return _scaled(lambda: vae.scale, True, leave=clamped)


def _ltx(vae: Any) -> Surroundings:
    """LTX: mean and spread of each channel; noise where the decoder takes a timestep."""
    names, read = ("mean-of-means", "std-of-means"), vae.per_channel_statistics.get_buffer
    noise = _noise(vae) if getattr(vae, "timestep_conditioning", False) else None
    return _scaled(lambda: [read(name) for name in names], False, noise=noise)


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
