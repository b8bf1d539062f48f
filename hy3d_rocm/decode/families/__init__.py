"""The kinds of VAE that are known layer by layer, and which of them a VAE is.

A VAE is known by what its modules have, not by its class's name: a subclass, or a class of another
package that is built alike, is as good. Its layers are then gone through once on shapes alone,
so that a part that is missing, does not fit or is not known is found before anything is decoded.
What forward() does with the parts only a decode can tell: a class that is not one of diffusers' own
is asked for one of two latent frames of 2x2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.families import seen

if TYPE_CHECKING:
    from hy3d_rocm.decode.families.base import StructuredFamily
    from hy3d_rocm.decode.families.unknown import UnknownFamily

_CLASSES = (
    "AutoencoderKL",
    "AutoencoderKLHunyuanVideo",
    "AutoencoderKLHunyuanVideo15",
    "AutoencoderKLLTXVideo",
    "AutoencoderKLQwenImage",
    "AutoencoderKLWan",
)
_KNOWN = (
    "diffusers' AutoencoderKLHunyuanVideo, AutoencoderKLHunyuanVideo15, AutoencoderKLWan, "
    "AutoencoderKLQwenImage, AutoencoderKLLTXVideo and AutoencoderKL, ComfyUI's of the same "
    "models, and whatever is built alike"
)


def family_for(vae: Any, *, timestep: float | None = None) -> StructuredFamily:
    """The family of `vae`; TypeError (a sentence) where it has none or is not complete.

    timestep: for an LTX VAE that is conditioned on one, and no other (ValueError); its decode()
    and whole() need it.
    """
    name = type(vae).__name__
    from hy3d_rocm.decode.families.hosted import inner_vae

    if getattr(inner_vae(vae), "decoder", None) is None:
        raise TypeError(
            f"the {name} has no decoder: pass the complete VAE with its weights loaded, not a part "
            "of it"
        )
    family = unproven_family(vae)
    own = name in _CLASSES and type(vae).__module__.startswith("diffusers.")
    if not own and not seen.recall(inner_vae(vae), family, proven=True):
        from hy3d_rocm.decode.families.proof import proven

        if not proven(family):
            raise TypeError(
                f"the {name} has the parts of a {family.name} VAE, but decodes two small latent "
                "frames to other values than these parts in their usual order: call the VAE's own "
                "decode under hy3d_rocm.protect()"
            )
        seen.note(inner_vae(vae), family, proven=True)
    if timestep is not None:
        if not getattr(family, "conditioned", False):
            raise ValueError(
                f"a timestep is given, but this {name} decodes without one: leave it out"
            )
        family.set_timestep(float(timestep))  # type: ignore[attr-defined]
    return family


def family_or_unknown(
    vae: Any, source: Any, encode: bool = False
) -> StructuredFamily | UnknownFamily:
    """family_for(vae), or for what has no known layers but decode(latents) (for an encode:
    encode(pixels)) a family of that alone. source: the latents or pixels. TypeError (a sentence)
    where there is neither."""
    from hy3d_rocm.decode.families.calls import CALL_ERRORS
    from hy3d_rocm.decode.families.unknown import UnknownFamily

    try:
        return family_for(vae)
    except CALL_ERRORS as error:
        if not callable(getattr(vae, "encode" if encode else "decode", None)):
            raise
        return UnknownFamily(vae, source, _cause(error, type(vae).__name__), encode)


def _cause(error: Exception, name: str) -> str:
    """An error of family_for() without its advice, which is to do what is done now."""
    said, _, advice = str(error).rpartition(": ")
    if not isinstance(error, TypeError) or not advice.startswith(("call ", "pass ")):
        return f"the layers of {name} are not known"
    return f"the layers of {name} are not known" if said.endswith("has no decoder") else said


def unproven_family(vae: Any) -> StructuredFamily:
    """The family of `vae` by its parts, which are gone through on shapes alone; TypeError."""
    from hy3d_rocm.decode.families.hosted import HostedFamily, inner_vae

    name = type(vae).__name__
    kind = _kind(vae) if inner_vae(vae) is vae else None
    family = HostedFamily(vae) if kind is None else kind(vae)
    if not seen.recall(inner_vae(vae), family, proven=False):
        _checked(family, name)
        seen.note(inner_vae(vae), family, proven=False)
    return family


def family_of_view(vae: Any) -> StructuredFamily:
    """The family of a VAE under its authors' names; TypeError (a sentence) where it is none."""
    from hy3d_rocm.decode.families.original import view_of
    from hy3d_rocm.decode.families.parts import StrangeModuleError

    name = type(vae).__name__
    try:
        view = view_of(vae)
    except (StrangeModuleError, AttributeError, ValueError) as error:
        raise TypeError(
            f"the {name} looks like a VAE under its authors' names, but {error}: call the VAE's "
            "own decode under hy3d_rocm.protect()"
        ) from error
    kind = None if view is None else _kind(view)
    if kind is None:
        raise TypeError(
            f"{name} is no VAE whose layers are known ({_KNOWN}): pass one of these, or call the "
            "VAE's own decode under hy3d_rocm.protect()"
        )
    return kind(view)


def _kind(vae: Any) -> type[StructuredFamily] | None:
    from hy3d_rocm.decode.families.hunyuan import HunyuanFamily
    from hy3d_rocm.decode.families.hunyuan15 import Hunyuan15Family
    from hy3d_rocm.decode.families.image import ImageFamily
    from hy3d_rocm.decode.families.ltx import LtxFamily
    from hy3d_rocm.decode.families.wan import WanFamily

    kinds: tuple[type[StructuredFamily], ...] = (
        HunyuanFamily, Hunyuan15Family, WanFamily, LtxFamily, ImageFamily
    )  # fmt: skip
    for kind in kinds:
        try:
            if kind.recognises(vae):
                return kind
        except AttributeError:
            continue
    return None


def _checked(family: StructuredFamily, name: str) -> None:
    from hy3d_rocm.decode.families.parts import StrangeModuleError

    try:
        family.check()
    except StrangeModuleError as error:
        raise TypeError(
            f"the {name} looks like a {family.name} VAE, but {error}: call the VAE's own decode "
            "under hy3d_rocm.protect()"
        ) from error
    except AttributeError as error:
        raise TypeError(
            f"the {name} looks like a {family.name} VAE, but a part is missing ({error}): pass "
            "the complete VAE with its weights loaded"
        ) from error
