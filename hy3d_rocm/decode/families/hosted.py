"""VAEs in the layout of their authors, as ComfyUI and the wrappers around it hold them.

Inside is a family over a view of the modules (original.py). Around it is what the VAE's own
decode() does beside its decoder, as functions of single frames: statistics that latents are
multiplied with (LTX, the WanVideoWrapper), latents that hold two frames or a square of positions
(HunyuanVideo 1.5 in ComfyUI of 2025-10, Flux 2). And a host may say where, in which type and with
which weights the VAE computes, wherever its parameters are now.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.families.base import StructuredFamily
from hy3d_rocm.decode.families.surroundings import Surroundings, surroundings_of
from hy3d_rocm.decode.layers import Engine, Handle
from hy3d_rocm.decode.plain import OwnWeights

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.families.survey import Size, Survey
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


class HostedFamily(StructuredFamily):
    """See the module's text. TypeError (a sentence) where the VAE's layout is not known.

    inner: the family of the layers. host: None where the weights are as the modules hold them.
    """

    def __init__(self, vae: Any, host: Host | None = None) -> None:
        from hy3d_rocm.decode.families import family_of_view

        modules = inner_vae(vae)
        super().__init__(modules)
        self.vae = vae
        self.inner = family_of_view(modules)
        self.around: Surroundings = surroundings_of(vae, modules)
        self.host: Host | None = host
        self.name = self.inner.name
        self.is_image = self.inner.is_image
        self.lengths = self.inner.lengths

    @classmethod
    def recognises(cls, vae: Any) -> bool:
        """It is made for a VAE whose view is known."""
        return False

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights, or the one that the host computes in."""
        return self.inner.dtype if self.host is None else self.host.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are, or where the host computes."""
        return self.inner.device if self.host is None else self.host.device

    @property
    def decoder_conv_in(self) -> Any:
        """The module with the weights of the decoder's first convolution."""
        return self.inner.decoder_conv_in

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return self.inner.latent_channels * self.around.packed

    @property
    def pixel_steps(self) -> tuple[int, int]:
        """As of the inner family."""
        return self.inner.pixel_steps

    @property
    def conditioned(self) -> bool:
        """Whether the decoder takes a timestep (LTX)."""
        return bool(getattr(self.inner, "conditioned", False))

    @property
    def timestep(self) -> float | None:
        """The one that it takes: the VAE's own until another is set."""
        return getattr(self.inner, "timestep", None)

    def set_timestep(self, timestep: float) -> None:
        """Another one, for the layers and for the VAE's own code."""
        self.inner.set_timestep(timestep)  # type: ignore[attr-defined]

    def make_weights(self, dtype: torch.dtype, device: torch.device) -> Weights:
        """The weights for one decode."""
        from hy3d_rocm.decode.weights import ModuleWeights

        make = ModuleWeights if self.host is None else self.host.make_weights
        return make(dtype, device)

    def weights(self) -> Weights:
        """The weights as the VAE itself computes with them."""
        return OwnWeights() if self.host is None else self.make_weights(self.dtype, self.device)

    def check(self) -> None:
        """As of the inner family."""
        self.inner.check()

    def noised(self, z: Tensor) -> Tensor:
        """Latents with the noise that the VAE's own decode() mixes into them (LTX), drawn from
        the global generator as there; others as they are."""
        scale = self.around.noise
        return z if scale is None else torch.randn_like(z) * scale + (1.0 - scale) * z

    def surveyed(self, survey: Survey, z: Size) -> Size:
        """decode() on sizes."""
        return self._decoded(survey, z, self.inner.surveyed)  # type: ignore[no-any-return]

    def probed(self, engine: Engine, z: Handle, timestep: float) -> Handle:
        """decode(), with this timestep where the VAE takes one."""
        return self._decoded(engine, z, lambda e, x: self.inner.probed(e, x, timestep))

    def decode(self, engine: Engine, z: Handle) -> Handle:
        """As vae.decode, unsplit, of latents that are noised already."""
        return self._decoded(engine, z, self.inner.decode)

    def _decoded(self, engine: Any, z: Any, inner: Callable[[Any, Any], Any]) -> Any:
        if self.around.enter is not None:
            z = engine.local(z, self.around.enter)
        x = inner(engine, z)
        return x if self.around.leave is None else engine.local(x, self.around.leave)

    def encode(self, engine: Engine, pixels: Handle) -> Handle:
        """Mean and log variance of what vae.encode gives the mean of."""
        self.around.check_encode()
        x = self.inner.encode(engine, pixels)
        return x if self.around.encoded is None else engine.local(x, self.around.encoded)

    def own_decode(self, z: Tensor) -> Tensor:
        """Frames by the VAE's own code, unsplit."""
        if self.around.enter is not None:
            z = self.around.enter.run(z, 0)
        with _priced(self.decoder, z):
            x = self.inner.whole(z)
        return x if self.around.leave is None else self.around.leave.run(x, 0)

    def own_encode(self, pixels: Tensor) -> Tensor:
        """Moments by the VAE's own code."""
        self.around.check_encode()
        with _priced(self.encoder, pixels):
            x = self.inner.whole_encode(pixels)
        return x if self.around.encoded is None else self.around.encoded.run(x, 0)

    def vae_decode(self, z: Tensor) -> Tensor | None:
        """What the VAE's own decode() makes of two latent frames at most, by a shallow copy; None
        where there is none, or one that draws random numbers or asks for more than latents."""
        shadow = self._shadow()
        if self.vae is not inner_vae(self.vae):
            return torch.stack(list(shadow.decode(z, device=z.device))).to(z.device)
        if self.around.noise is not None or not _takes_latents_only(
            getattr(shadow, "decode", None)
        ):
            return None
        made: Tensor = shadow.decode(z[:, :, 0] if self.is_image else z)
        return made.unsqueeze(2) if self.is_image else made

    def vae_encode(self, pixels: Tensor) -> Any:
        """What the VAE's own encode() makes of pixels, by a shallow copy: the latent, or what its
        class gives for it."""
        shadow = self._shadow()
        if self.vae is not inner_vae(self.vae):
            return shadow.encode(pixels, device=pixels.device).to(pixels.device)
        made = shadow.encode(pixels[:, :, 0] if self.is_image else pixels)
        made = getattr(getattr(made, "latent_dist", None), "mean", made)
        return made.unsqueeze(2) if self.is_image and isinstance(made, torch.Tensor) else made

    def _shadow(self) -> Any:
        """A copy that may keep caches of its own; the weights are the VAE's."""
        shadow = copy.copy(self.vae)
        if self.vae is not inner_vae(self.vae):
            shadow._modules = {**self.vae._modules, "model": copy.copy(self.vae.model)}
        return shadow


def _takes_latents_only(decode: Any) -> bool:
    if decode is None:
        return False
    empty = inspect.Parameter.empty
    asked = [p for p in inspect.signature(decode).parameters.values() if p.default is empty]
    return sum(p.kind is not inspect.Parameter.VAR_KEYWORD for p in asked) == 1


def inner_vae(vae: Any) -> Any:
    """The module with encoder and decoder of a VAE that only scales around it."""
    model = getattr(vae, "model", None)
    scales = hasattr(vae, "scale") or hasattr(vae, "inv_std")
    if scales and not hasattr(vae, "decoder") and hasattr(model, "decoder"):
        return model
    return vae


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
