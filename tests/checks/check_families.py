"""Every known VAE through its family's layers, for every length up to 40 latent frames and odd
sizes, against diffusers' own unsplit decode and encode.

    python tests/checks/check_families.py [--kinds wan,ltx] [--frames 40]

Small widths, random weights, norm weights around 1 and biases around 0. A line a kind; the exit
status is 1 if a shape differs or an error is above the bound (of the range; those with GroupNorm in
float64, since over a few positions it multiplies roundings).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "py"))

from decode_doubles import (
    EVERY_KIND,
    IN_FLOAT64,
    TIMESTEP,
    relative_error,
    tiny_latents,
    tiny_pixels,
    tiny_vae,
    unsplit,
    unsplit_moments,
)

from hy3d_rocm.decode.families import family_for
from hy3d_rocm.decode.plain import PlainEngine

BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12}
SIZES = ((3, 4), (2, 3), (5, 2), (3, 3))


def decode_errors(kind: str, longest: int) -> Iterator[tuple[tuple[int, ...], float]]:
    vae = tiny_vae(kind).to(dtype_of(kind))
    family = family_for(vae, timestep=TIMESTEP.get(kind))
    for frames in lengths(kind, longest):
        z = tiny_latents(vae, frames, *SIZES[frames % 4], seed=frames).to(family.dtype)
        wanted = unsplit(vae, z, TIMESTEP.get(kind))
        yield tuple(z.shape), relative_error(family.decode(PlainEngine(), z), wanted)


def encode_errors(kind: str, longest: int) -> Iterator[tuple[tuple[int, ...], float]]:
    vae = tiny_vae(kind).to(dtype_of(kind))
    family = family_for(vae)
    step, _ = family.pixel_steps
    for frames in range(1, 2 if kind.startswith("image") else longest + 1, step):
        height, width = (n * family.factor[1] for n in SIZES[frames % 4])
        pixels = tiny_pixels(frames, height, width, seed=frames).to(family.dtype)
        wanted = unsplit_moments(vae, pixels)
        yield tuple(pixels.shape), relative_error(family.encode(PlainEngine(), pixels), wanted)


def dtype_of(kind: str) -> torch.dtype:
    return torch.float64 if kind in IN_FLOAT64 else torch.float32


def lengths(kind: str, longest: int) -> Any:
    return (1,) if kind.startswith("image") else range(1, longest + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(EVERY_KIND))
    parser.add_argument("--frames", type=int, default=40)
    options = parser.parse_args()
    failed = False
    for kind in options.kinds.split(","):
        for name, errors in (("decode", decode_errors), ("encode", encode_errors)):
            start = time.monotonic()
            shapes = list(errors(kind, options.frames))
            worst = max(shapes, key=lambda pair: pair[1])
            failed |= worst[1] > BOUNDS[dtype_of(kind)]
            print(
                f"{kind:12s} {name}: {len(shapes)} shapes, largest error {worst[1]:.1e} at "
                f"{worst[0]}, {time.monotonic() - start:.0f} s",
                flush=True,
            )
    return int(failed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
