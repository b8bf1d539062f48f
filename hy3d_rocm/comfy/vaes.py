"""ComfyUI's VAE objects, and the wrappers', as families that decode() can cut into parts."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import comfy.model_management as management
import torch

from hy3d_rocm import meter
from hy3d_rocm.comfy.memory import is_managed
from hy3d_rocm.conv.router import LOCAL, aside, protect
from hy3d_rocm.decoding.families import proof, unproven_family
from hy3d_rocm.decoding.families.base import Host
from hy3d_rocm.decoding.families.proof import CALL_ERRORS
from hy3d_rocm.decoding.families.unknown import UnknownFamily
from hy3d_rocm.decoding.faults import retried
from hy3d_rocm.decoding.layers import ModuleWeights
from hy3d_rocm.decoding.stages import flush

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decoding.families.base import StructuredFamily

__all__ = [
    "ComfyWeights", "OtherModelError", "check_channels", "encodes_as_told", "family_of",
    "is_managed", "is_proven", "place_of", "unknown_family_of",
]  # fmt: skip

logger = logging.getLogger("hy3d_rocm")

_CAST = ("weight", "bias")


class ComfyWeights:
    """Weights read as ComfyUI's own layers read them: moved, cast, dequantised and patched by
    comfy.ops.cast_bias_weight. What that lends for one call is copied; a parameter that is right as
    it stands is used itself. Other modules' parameters as ModuleWeights has them.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device | str) -> None:
        self.dtype = dtype
        self.device = torch.device(device)
        self._plain = ModuleWeights(dtype, device)
        # The module is kept with its tensors: its id stays taken for as long as it is a key.
        self._cast: dict[int, tuple[Any, dict[str, Tensor | None]]] = {}

    def of(self, module: Any, name: str) -> Tensor | None:
        """See layers.Weights."""
        if name not in _CAST or not hasattr(module, "comfy_cast_weights"):
            return self._plain.of(module, name)
        if self.device.type == "meta" or module.weight is None:
            return self._plain.of(module, name)
        if id(module) not in self._cast:
            self._cast[id(module)] = (module, self._read(module))
        return self._cast[id(module)][1][name]

    def _read(self, module: Any) -> dict[str, Tensor | None]:
        import comfy.ops

        cast: Callable[..., Any] = comfy.ops.cast_bias_weight
        how: dict[str, Any] = {
            "dtype": self.dtype, "device": self.device, "bias_dtype": self.dtype
        }  # fmt: skip
        lends = "offloadable" in inspect.signature(cast).parameters
        if lends:
            how["offloadable"] = True
        found = cast(module, **how)
        kept = {
            name: _own(tensor, getattr(module, name), lends)
            for name, tensor in zip(_CAST, found[:2], strict=True)
        }
        if lends:
            comfy.ops.uncast_bias_weight(module, *found)
        return kept


def _own(tensor: Tensor | None, parameter: Any, lent: bool) -> Tensor | None:
    """A tensor that stays: the parameter, or a copy of what is in a buffer of ComfyUI's."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    if not lent or tensor.data_ptr() == parameter.data_ptr():
        return tensor
    return tensor.clone()


def family_of(vae: Any, encode: bool = False) -> StructuredFamily:
    """The family of ComfyUI's VAE object, or of a wrapper's VAE, for a decode or an encode.
    TypeError (a sentence) where its layers are not known or were changed. Nothing is run: ask
    is_proven() or encodes_as_told() when the weights are in place."""
    module = getattr(vae, "first_stage_model", vae)
    try:
        family = unproven_family(module, encode, casts=is_managed(vae))
    except TypeError:
        raise
    except CALL_ERRORS as error:  # of code that looked for parts of another kind
        raise TypeError(f"the layers of {type(module).__name__} are not known") from error
    if is_managed(vae):
        if family.view is not family.vae:
            family.host = Host(
                torch.device(vae.device), vae.vae_dtype, ComfyWeights, casts=True
            )  # fmt: skip
        return family
    device = torch.device(management.get_torch_device())
    at_home = {p.device.type for p in family.decoder.parameters()} == {device.type}
    family.host = Host(device, family.dtype, ModuleWeights, at_home)
    return family


def place_of(family: StructuredFamily) -> torch.device:
    """Where it is going to be decoded."""
    return family.device if family.host is None else torch.device(family.host.device)


class OtherModelError(ValueError):
    """Latents that this VAE can't have anything to do with; the text is a sentence."""


def check_channels(latents: Tensor, family: Any) -> None:
    """OtherModelError where the latents are of another model's VAE, which the VAE's own code would
    say in words about convolutions."""
    if latents.ndim == 5 and latents.shape[1] != family.latent_channels:
        raise OtherModelError(
            f"the latents have {latents.shape[1]} channels (shape {tuple(latents.shape)}), but "
            f"this {family.name} VAE decodes {family.latent_channels}: connect the VAE that "
            "belongs to the model"
        )


class ManagedUnknown(UnknownFamily):
    """The module of a ComfyUI VAE whose layers are not known: its own code computes where and in
    what ComfyUI says, wherever ComfyUI keeps the weights."""

    def __init__(self, vae: Any, source: Tensor, why: str) -> None:
        super().__init__(vae.first_stage_model, source, why)
        self._place, self._dtype = torch.device(vae.device), vae.vae_dtype

    @property
    def device(self) -> torch.device:
        """ComfyUI's for this VAE; "meta" for a copy that is only priced."""
        parameter = next(self.decoder.parameters(), None)
        return parameter.device if parameter is not None and parameter.is_meta else self._place

    @property
    def dtype(self) -> torch.dtype:
        """The type that ComfyUI has this VAE compute in."""
        found: torch.dtype = self._dtype
        return found


_PICTURES = (2, 3)  # latent_dim of images and videos; sound has 1


def unknown_family_of(vae: Any, latents: Tensor, why: str) -> UnknownFamily:
    """A ComfyUI VAE as its module's own decode() alone. TypeError (`why`, or a sentence) where
    there is no such module, or it makes no pictures."""
    module = getattr(vae, "first_stage_model", None)
    if not is_managed(vae) or not callable(getattr(module, "decode", None)):
        raise TypeError(why)
    makes_pictures = (
        getattr(vae, "latent_dim", 0) in _PICTURES
        and getattr(vae, "extra_1d_channel", None) is None
        and getattr(vae, "output_channels", 3) in (3, 4)
        and latents.ndim in (4, 5)
    )
    if not makes_pictures:
        raise TypeError(f"{type(module).__name__} makes no pictures")
    return ManagedUnknown(vae, latents, why)


def is_proven(family: StructuredFamily) -> bool:
    """Whether the VAE decodes two small latent frames as its layers say; asked once of each VAE as
    it is, where its own code can run: nothing is moved for it."""
    return _answer(family, False, "VAE Decode", "two small latent frames")


def encodes_as_told(family: StructuredFamily) -> bool:
    """The same of its encoder, with one small image."""
    if getattr(family, "encoder", None) is None:
        return False
    return _answer(family, True, "VAE Encode", "one small image")


def _answer(family: StructuredFamily, encode: bool, stage: str, what: str) -> bool:
    """What is known, or what the VAE says. Where memory is short it is asked again when there is
    more; then the error goes on."""
    from hy3d_rocm.comfy.running import POLICY

    known = family.seen
    if known is not None and known.proven is not None:
        return known.proven
    # What runs then may hang as any other convolution may.
    logger.info(
        "[%s] Trying %s first, to see whether the VAE does what its layers say", stage, what
    )
    flush()
    # A back-end that gives NaN once must not count against the VAE for the whole session.
    scope = nullcontext() if LOCAL.modes else protect(policy=POLICY.get())
    away = family.host is not None and not family.host.runs_own_code
    asked = family.over(family.vae) if away else family
    with scope, aside(check_finite=True):
        told = retried(lambda: proof.proven(asked, encode), lambda: meter.give_back(family.device))
    if known is not None:
        known.proven = told
    return told
