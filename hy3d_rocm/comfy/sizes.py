"""Sizes of a decode that is only asked about: pixels and frames to the shape of a latent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hy3d_rocm.comfy.decode import latents_of

__all__ = ["Wanted", "latent_shape"]


@dataclass(frozen=True)
class Wanted:
    """What the user asks about: frames of width x height pixels, or the size of a LATENT."""

    width: int
    height: int
    frames: int
    samples: Any = None


def latent_shape(family: Any, wanted: Wanted) -> tuple[int, ...]:
    """(B, C, T, H, W). Sides and frames are rounded up to what the VAE makes of whole latents.

    ValueError (a sentence) for a LATENT that is none, or of another model.
    """
    if wanted.samples is not None:
        return _of_latent(family, wanted.samples)
    for name in ("width", "height", "frames"):
        value = getattr(wanted, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; give a whole number of 1 or more")
    time, space = family.factor
    rows, columns = -(-wanted.height // space), -(-wanted.width // space)
    channels = int(family.latent_channels)
    if family.is_image:
        return wanted.frames, channels, 1, rows, columns
    first = int(family.out_shape((1, channels, 1, rows, columns))[2])
    more = max(wanted.frames - first, 0)
    return 1, channels, 1 + -(-more // time), rows, columns


def _of_latent(family: Any, samples: Any) -> tuple[int, ...]:
    shape = tuple(latents_of(samples).shape)
    if family.is_image and len(shape) == 5:  # as ComfyUI's decode() does
        shape = (shape[0], shape[1], *shape[3:])
    if len(shape) == 4:
        shape = (*shape[:2], 1, *shape[2:])
    if len(shape) != 5 or shape[1] != family.latent_channels:
        raise ValueError(
            f"samples has shape {shape}, but this {family.name} VAE decodes "
            f"{family.latent_channels} channels: connect a latent of its model, or none"
        )
    return shape
