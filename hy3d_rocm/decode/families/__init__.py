"""The kinds of VAE that are known layer by layer, and which of them a VAE is.

A VAE is known by what its modules have, not by its class's name: a subclass, or a class of another
package that is built alike, is as good. Its layers are then gone through once on shapes alone,
so that a part that is missing, does not fit or is not known is found before anything is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hy3d_rocm.decode.families.base import StructuredFamily

_KNOWN = (
    "diffusers' AutoencoderKLHunyuanVideo, AutoencoderKLWan and AutoencoderKLQwenImage, and "
    "whatever is built like them"
)


def family_for(vae: Any) -> StructuredFamily:
    """The family of `vae`; TypeError (a sentence) where it has none or is not complete."""
    name = type(vae).__name__
    if getattr(vae, "decoder", None) is None:
        raise TypeError(
            f"the {name} has no decoder: pass the complete VAE with its weights loaded, not a part "
            "of it"
        )
    kind = _kind(vae)
    if kind is None:
        raise TypeError(
            f"{name} is no VAE whose layers are known ({_KNOWN}): pass one of these, or call the "
            "VAE's own decode under hy3d_rocm.protect()"
        )
    family = kind(vae)
    _checked(family, name)
    return family


def _kind(vae: Any) -> type[StructuredFamily] | None:
    from hy3d_rocm.decode.families.hunyuan import HunyuanFamily
    from hy3d_rocm.decode.families.wan import WanFamily

    kinds: tuple[type[StructuredFamily], ...] = (HunyuanFamily, WanFamily)
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
