"""Calling a VAE's own decode() and encode(), and finding the tensor in what they give."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

#: What code that was written for other input raises
CALL_ERRORS = (
    RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError,
    ArithmeticError,
)  # fmt: skip
_SPLITTING = ("use_framewise_decoding", "use_framewise_encoding", "use_tiling", "use_slicing")
_SURE = -30.0  # the least log variance that diffusers' distribution has


def unsplit(vae: Any) -> Any:
    """The VAE with its own splitting off: a shallow copy where one is on, else itself."""
    on = [flag for flag in _SPLITTING if getattr(vae, flag, False)]
    if not on:
        return vae
    shadow = copy.copy(vae)
    for flag in on:
        setattr(shadow, flag, False)
    return shadow


def frames_of(made: Any) -> Tensor:
    """The tensor in what decode() gave; TypeError (a sentence)."""
    found = made[0] if isinstance(made, (tuple, list)) and made else made
    if not isinstance(found, torch.Tensor):
        found = getattr(found, "sample", found)
    if not isinstance(found, torch.Tensor) or found.ndim not in (4, 5):
        raise TypeError(f"its decode() gives {_described(made)}, not frames")
    return found


def moments_of(made: Any) -> Tensor:
    """Mean and log variance, one after the other, in what encode() gave; TypeError (a sentence)."""
    inner = made[0] if isinstance(made, (tuple, list)) and made else made
    # SeedVR2's tuple has the latent first, and names the distribution "posterior".
    found: Any = getattr(inner, "latent_dist", getattr(made, "posterior", inner))
    if hasattr(found, "logvar"):
        return torch.cat([found.mean, found.logvar], 1)
    for name in ("latents", "latent", "sample"):
        if not isinstance(found, torch.Tensor):
            found = getattr(found, name, found)
    if not isinstance(found, torch.Tensor) or found.ndim not in (4, 5):
        raise TypeError(f"its encode() gives {_described(made)}, not latents")
    return torch.cat([found, torch.full_like(found, _SURE)], 1)


def _described(made: Any) -> str:
    if isinstance(made, torch.Tensor):
        return f"a tensor of shape {tuple(made.shape)}"
    return f"a {type(made).__name__}"


def one_line(error: BaseException) -> str:
    """The first line of an error, with its type."""
    text = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
