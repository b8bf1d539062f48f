"""Modules under other names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class View(SimpleNamespace):
    """A VAE, or a part of it, under diffusers' names.

    Of a VAE: decoder, encoder, post_quant_conv, quant_conv, config, own_decode, own_encode;
    attention_span and clamps where they differ from diffusers' VAE of the kind.
    """


def coder_view(module: Any, **parts: Any) -> View:
    """A decoder or encoder; its parameters are the module's own, so that all are accounted for,
    less those of time embeddings, which blocks shared with diffusion models hold and no VAE uses.
    """

    def named_parameters() -> list[tuple[str, Any]]:
        return [(n, p) for n, p in module.named_parameters() if ".temb_proj." not in n]

    return View(named_parameters=named_parameters, named_modules=module.named_modules, **parts)


def only_the_mean(name: str) -> Tensor:
    raise TypeError(
        f"this {name} VAE's own encode gives the latent's mean only: encode with a strategy other "
        'than "whole"'
    )
