"""The kinds of VAE that are known layer by layer, and which of them a VAE is.

A VAE is known by what its modules have, not by its class's name: a subclass, or a class of another
package that is built alike, is as good. Its layers are then gone through once on shapes alone,
so that a part that is missing, does not fit or is not known is found before anything is decoded.
What forward() does with the parts only a decode can tell: a class that is not one of diffusers' own
is asked for one of two latent frames of 2x2.
"""

from __future__ import annotations

from typing import Any

from hy3d_rocm.conv.protection import aside
from hy3d_rocm.decoding.families import proof
from hy3d_rocm.decoding.families.base import StructuredFamily
from hy3d_rocm.decoding.families.blocks import (
    Hunyuan15Family,
    HunyuanFamily,
    ImageFamily,
    SeedVr2Family,
)
from hy3d_rocm.decoding.families.changes import examined, is_as_built
from hy3d_rocm.decoding.families.ltx import LtxFamily
from hy3d_rocm.decoding.families.original import inner_vae, view_of
from hy3d_rocm.decoding.families.unknown import UnknownFamily
from hy3d_rocm.decoding.families.wan import WanFamily
from hy3d_rocm.decoding.faults import attempt, retry_out_of_memory
from hy3d_rocm.decoding.layers import StrangeModuleError
from hy3d_rocm.meter import give_back

_CLASSES = (
    "AutoencoderKLHunyuanVideo",
    "AutoencoderKLHunyuanVideo15",
    "AutoencoderKLWan",
    "AutoencoderKLQwenImage",
    "AutoencoderKLLTXVideo",
    "AutoencoderKL",
)
_KNOWN = (
    f"diffusers' {', '.join(_CLASSES[:-1])} and {_CLASSES[-1]}, ComfyUI's of the same "
    "models, SeedVR2's VideoAutoencoderKL, and whatever is built alike"
)


_KINDS: tuple[type[StructuredFamily], ...] = (
    HunyuanFamily, Hunyuan15Family, WanFamily, LtxFamily, SeedVr2Family, ImageFamily
)  # fmt: skip
_OWN_CODE = "call the VAE's own decode under hy3d_rocm.protect()"


def _kind(vae: Any) -> type[StructuredFamily] | None:
    return next((kind for kind in _KINDS if kind.recognises(vae)), None)


def family_for(
    vae: Any, *, timestep: float | None = None, encode: bool = False
) -> StructuredFamily:
    """The family of `vae` for a decode, or an encode; TypeError (a sentence) where it has none, is
    not complete or was changed so that its layers do not say what it computes.

    timestep: for an LTX VAE that is conditioned on one, and no other (ValueError); its decode()
    and whole() need it.
    """
    name = type(vae).__name__
    if getattr(inner_vae(vae), "decoder", None) is None:
        raise TypeError(
            f"the {name} has no decoder: pass the complete VAE with its weights loaded, not a part "
            "of it"
        )
    family = unproven_family(vae, encode)
    _prove(family, encode)
    if timestep is not None:
        if not family.conditioned:
            raise ValueError(
                f"a timestep is given, but this {name} decodes without one: leave it out"
            )
        family.timestep = float(timestep)
    return family


def family_or_unknown(
    vae: Any, source: Any, encode: bool = False
) -> StructuredFamily | UnknownFamily:
    """family_for(vae), or for what has no known layers but decode(latents) (for an encode:
    encode(pixels)) a family of that alone. source: the latents or pixels. TypeError (a sentence)
    where there is neither."""
    try:
        return family_for(vae, encode=encode)
    except proof.CALL_ERRORS as error:
        if not callable(getattr(vae, "encode" if encode else "decode", None)):
            raise
        # The error without its advice, which is to do what is done now.
        reason, _, advice = str(error).rpartition(": ")
        advises = isinstance(error, TypeError) and advice.startswith(("call ", "pass "))
        if not advises or reason.endswith("has no decoder"):
            reason = f"the layers of {type(vae).__name__} are not known"
        return UnknownFamily(vae, source, reason, encode)


def unproven_family(vae: Any, encode: bool = False, casts: bool = False) -> StructuredFamily:
    """The family of `vae` by its parts, which are gone through on shapes alone; TypeError. casts:
    whoever reads the weights applies ComfyUI's patches to them."""
    modules, view = inner_vae(vae), None
    kind, name = _kind(vae) if modules is vae else None, type(modules).__name__
    if kind is None:
        try:
            view = view_of(vae)
        except (StrangeModuleError, AttributeError, ValueError) as error:
            if not hasattr(modules, "decoder"):  # it looks like no VAE at all
                raise
            raise TypeError(
                f"the {name} looks like a VAE under its authors' names, but {error}: {_OWN_CODE}"
            ) from error
        kind = _kind(view)
    if kind is None:
        raise TypeError(
            f"{name} is no VAE whose layers are known ({_KNOWN}): pass one of these, or {_OWN_CODE}"
        )
    family = kind(vae, view)
    _look_at(family, encode, casts)
    return family


def check_unchanged(family: Any, encode: bool = False) -> None:
    """TypeError (a sentence) where the VAE of a family that was made before is now changed so that
    the family does not say what it computes. Families of other makers answer for themselves."""
    if isinstance(family, StructuredFamily):
        _look_at(family, encode, family.host is not None and family.host.casts)
        if family.host is None:  # whoever hosts a VAE has asked it
            _prove(family, encode)


def _look_at(family: StructuredFamily, encode: bool, casts: bool) -> None:
    """Notes what is known of the family's VAE as it is now."""
    vae, name = family.vae, type(family.vae).__name__
    family.seen = known = examined(vae, encode, casts)
    if known.change:
        raise TypeError(
            f"the {name} was changed, {known.change}: call the VAE's own code under "
            "hy3d_rocm.protect()"
        )
    if known.facts is None:
        looks = f"the {name} looks like a {family.name} VAE, but"
        try:
            family.check()
        except StrangeModuleError as error:
            raise TypeError(f"{looks} {error}: {_OWN_CODE}") from error
        except AttributeError as error:
            raise TypeError(
                f"{looks} a part is missing ({error}): pass the complete VAE with its weights "
                "loaded"
            ) from error
        known.facts = family.facts
    family.__dict__["facts"] = known.facts
    # What diffusers' own code does is known, where the VAE is as diffusers builds it.
    if known.proven is None and name in _CLASSES and is_as_built(vae, known, encode):
        known.proven = True


def _prove(family: StructuredFamily, encode: bool) -> None:
    """TypeError (a sentence) unless the VAE does what the family's layers say."""
    known, vae = family.seen, family.vae
    if known is None or known.proven:
        return

    can_say = not encode or callable(getattr(vae, "encode", None))
    with aside():
        again = retry_out_of_memory(give_back)
        is_verified = not can_say or attempt(proof.proven, family, encode, recover=again)
    if not is_verified:
        what = "encodes a small image" if encode else "decodes two small latent frames"
        raise TypeError(
            f"the {type(vae).__name__} has the parts of a {family.name} VAE, but {what} to "
            "other values than these parts in their usual order: call the VAE's own "
            f"{'encode' if encode else 'decode'} under hy3d_rocm.protect()"
        )
    known.proven = True
