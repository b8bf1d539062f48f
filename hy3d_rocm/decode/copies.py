"""A VAE's modules once more, with parameters of another type or place. The VAE itself is read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


def copied_family(family: Any, convert: Callable[[Tensor], Tensor]) -> Any:
    """The family over a copy of its VAE, each parameter and buffer replaced by `convert` of it.

    ValueError (a sentence) where the VAE can't be copied.
    """
    vae = family.vae
    memo: dict[int, Any] = {}
    for found in tensors_of(family):
        made = convert(found.detach())
        is_parameter = isinstance(found, torch.nn.Parameter)
        memo[id(found)] = torch.nn.Parameter(made, requires_grad=False) if is_parameter else made
    try:
        ghost = copy.deepcopy(vae, memo)
        return family.over(ghost) if hasattr(family, "over") else type(family)(ghost)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        raise ValueError(f"{type(vae).__name__} can't be copied: {error}") from error


def tensors_of(family: Any) -> list[Tensor]:
    """Parameters and buffers of a family's VAE; of one that is no module those of the modules that
    it holds."""
    vae = family.vae if isinstance(family.vae, torch.nn.Module) else family.decoder
    return [*vae.parameters(), *vae.buffers()]


def converted_family(family: Any, dtype: torch.dtype) -> Any:
    """The family computing in `dtype`: itself where its weights have that type."""
    if family.dtype == dtype:
        return family
    return copied_family(family, lambda t: t.to(dtype) if t.is_floating_point() else t)
