"""Every known VAE through its family's layers, for every length up to 40 latent frames and odd
sizes, against diffusers' own unsplit decode and encode: by the plain engine, and as a program of
the C core, carried out with torch's operators and, in float32, with the C convolution.

    python tests/long/check_families.py [--kinds wan,ltx] [--frames 40]

Small widths, random weights, norm weights around 1 and biases around 0. A line a kind, direction
and engine; the exit status is 1 if a shape differs or an error is above the bound (of the range;
those with GroupNorm in float64, since over a few positions it multiplies roundings).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

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
from plain_engine import PlainEngine

from hy3d_rocm import _native
from hy3d_rocm.decoding import decode_with_report, encode_with_report
from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.decoding.report import DecodeOptions

BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12}
BUDGET = "8GB"  # a number: what else is in memory must not choose the program
SIZES = ((3, 4), (2, 3), (5, 2), (3, 3))


Errors = dict[str, list[tuple[float, tuple[int, ...]]]]  # of each engine: with the source's shape


def decode_errors(kind: str, longest: int) -> Errors:
    vae = tiny_vae(kind).to(dtype_of(kind))
    family = family_for(vae, timestep=TIMESTEP.get(kind))
    found: Errors = {}
    for frames in lengths(kind, longest):
        z = tiny_latents(vae, frames, *SIZES[frames % 4], seed=frames).to(family.dtype)
        wanted = unsplit(vae, z, TIMESTEP.get(kind))
        note(found, "plain", family.decode(PlainEngine(), z), wanted, z)
        for backend in backends(kind):
            note(found, backend, program(decode_with_report, family, z, backend), wanted, z)
    return found


def encode_errors(kind: str, longest: int) -> Errors:
    vae = tiny_vae(kind).to(dtype_of(kind))
    family = family_for(vae)
    step, _ = family.pixel_steps
    found: Errors = {}
    for frames in range(1, 2 if kind.startswith("image") else longest + 1, step):
        height, width = (n * family.factor[1] for n in SIZES[frames % 4])
        x = tiny_pixels(frames, height, width, seed=frames).to(family.dtype)
        wanted = unsplit_moments(vae, x)
        note(found, "plain", family.encode(PlainEngine(), x), wanted, x)
        for backend in backends(kind):
            made = program(partial(encode_with_report, moments=True), family, x, backend)
            note(found, backend, made, wanted, x)
    return found


def program(call: Callable[..., Any], family: Any, source: Any, backend: str) -> Any:
    """The result of a program; AssertionError where something else gave it."""
    options = DecodeOptions(backend=backend)
    result, report = call(family, source, BUDGET, "streamed", options=options)
    assert report.strategy == "streamed", report.strategy
    assert not report.events, report.events
    return result


def note(found: Errors, engine: str, got: Any, wanted: Any, source: Any) -> None:
    assert got.shape == wanted.shape, (engine, got.shape, wanted.shape)
    found.setdefault(engine, []).append((relative_error(got, wanted), tuple(source.shape)))


def backends(kind: str) -> tuple[str, ...]:
    if not _native.available:
        return ()
    return ("torch",) if dtype_of(kind) == torch.float64 else ("torch", "native")


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
            for engine, made in errors(kind, options.frames).items():
                worst = max(made)
                failed |= not worst[0] <= BOUNDS[dtype_of(kind)]
                print(
                    f"{kind:12s} {name}, {engine}: {len(made)} shapes, largest error "
                    f"{worst[0]:.1e} at {worst[1]}, {time.monotonic() - start:.0f} s",
                    flush=True,
                )
    return int(failed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
