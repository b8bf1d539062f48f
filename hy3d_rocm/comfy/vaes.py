"""ComfyUI's VAE objects, and the wrappers', as families that decode() can cut into parts."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import comfy.model_management as management
import torch

from hy3d_rocm.decode.engines.weights import ModuleWeights
from hy3d_rocm.decode.families import unproven_family
from hy3d_rocm.decode.families.hosted import Host, HostedFamily
from hy3d_rocm.decode.families.proof import proven

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.families.base import StructuredFamily

__all__ = ["ComfyWeights", "family_of", "is_managed", "is_proven", "place_of"]

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


def is_managed(vae: Any) -> bool:
    """Whether ComfyUI loads and casts this VAE's weights."""
    return hasattr(vae, "patcher") and hasattr(vae, "first_stage_model")


def family_of(vae: Any) -> StructuredFamily:
    """The family of ComfyUI's VAE object, or of a wrapper's VAE. TypeError (a sentence) where its
    layers are not known. Nothing is run: ask is_proven() when the weights are in place."""
    family = unproven_family(getattr(vae, "first_stage_model", vae))
    if is_managed(vae):
        if isinstance(family, HostedFamily):
            family.host = Host(torch.device(vae.device), vae.vae_dtype, ComfyWeights)
        return family
    device = torch.device(management.get_torch_device())
    at_home = {p.device.type for p in family.decoder.parameters()} == {device.type}
    family.host = Host(device, family.dtype, ModuleWeights, at_home)
    return family


def place_of(family: StructuredFamily) -> torch.device:
    """Where it is going to be decoded."""
    return family.device if family.host is None else torch.device(family.host.device)


# VAEs that were found to decode as their layers say, by the decoder.
_PROVEN: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def is_proven(family: StructuredFamily) -> bool:
    """Whether the VAE decodes two small latent frames as its layers say; asked once of each VAE,
    where its own code can run: nothing is moved for it."""
    if family.decoder not in _PROVEN:
        away = family.host is not None and not family.host.runs_own_code
        asked = type(family)(family.vae) if away else family
        _PROVEN[family.decoder] = proven(asked)
    return _PROVEN[family.decoder]
