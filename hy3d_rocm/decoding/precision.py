"""Which type a decode computes in, and which comes next where that gave NaN or infinities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

PRECISIONS: dict[str, torch.dtype | None] = {
    "auto": None,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
# AMD's GPUs without bf16 instructions (RDNA1 and 2, GCN): each product is widened and multiplied as
# float32, and some kernels spill (docs/triton.md).
_NO_BF16 = ("gfx8", "gfx9000", "gfx900", "gfx902", "gfx906", "gfx909", "gfx90c", "gfx101", "gfx103")


def name_of(dtype: object) -> str:
    """ "bfloat16"."""
    return str(dtype).removeprefix("torch.")


# "bfloat16" -> "bf16"
SHORT = {name_of(dtype): short for short, dtype in PRECISIONS.items() if dtype is not None}


def only_stores(dtype: torch.dtype) -> bool:
    """Whether it is a float of a byte (float8), in which numbers are kept and nothing computes."""
    return dtype.is_floating_point and dtype.itemsize == 1


def computed_in(vae: Any, stored: torch.dtype) -> torch.dtype:
    """The type that a VAE computes in whose weights are stored in `stored`: of float8 the one that
    they are cast to layer by layer (diffusers' enable_layerwise_casting), else bfloat16, which
    holds them exactly."""
    if not only_stores(stored):
        return stored
    own = getattr(vae, "dtype", None)
    if isinstance(own, torch.dtype) and own.is_floating_point and not only_stores(own):
        return own
    return torch.bfloat16


class NonFiniteError(ArithmeticError):
    """A finite latent came out as NaN or infinite in the type that was computed in."""


@dataclass(frozen=True)
class Precision:
    """dtype: computed in. reason: a few words. fallback: where that gives NaN; None for the next
    wider one."""

    dtype: torch.dtype
    reason: str
    fallback: torch.dtype | None = None


def choose_precision(
    asked: str, own: torch.dtype, device: torch.device, fallback: str
) -> Precision:
    """asked, fallback: names of PRECISIONS; own: the VAE's type, which "auto" is, but float32 for a
    bf16 VAE on a card without bf16 instructions."""
    dtype, after = PRECISIONS[asked], PRECISIONS[fallback]
    if dtype is not None:
        return Precision(dtype, "asked for", after)
    if own == torch.bfloat16 and device.type == "cuda":
        architecture = getattr(torch.cuda.get_device_properties(device), "gcnArchName", "")
        if architecture.startswith(_NO_BF16):
            return Precision(torch.float32, f"{architecture} has no bf16 instructions", after)
    return Precision(own, "the VAE's own", after)


def wider(dtype: torch.dtype, fallback: torch.dtype | None = None) -> torch.dtype | None:
    """The next type to try after NaN or infinities in `dtype`; None where nothing is left.

    fp16 overflows at 65504, which bf16's exponent cures; but bf16's three digits may be too few, so
    what follows fp16 is float32 unless bf16 is the given fallback.
    """
    reach = torch.finfo(dtype).max
    if fallback is not None and (torch.finfo(fallback).max > reach or fallback == torch.float32):
        return fallback if fallback != dtype else None
    return None if dtype in (torch.float32, torch.float64) else torch.float32
