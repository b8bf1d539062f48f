"""How well GroupNorm's statistics of a video can be told from a part of its latents.

    python tests/bench/measure_statistics.py [--size 160 128] [--frames 33] [--random]

For each way to take a part (blocks of neighbours, every n-th row, averages) and its size, which is
that of a level of tiles: the largest error of a norm's mean (in standard deviations) or standard
deviation, and the PSNR of the decode with these statistics against the unsplit one, peak value its
range. Demo VAE and held-out filmed clip; --random: the same architecture with random weights and a
smooth random latent.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from measure_tiles import compiled_tiles, run_of

from hy3d_rocm.decoding.backends.statistics import spread
from hy3d_rocm.decoding.families import family_for

Way = Callable[[torch.Tensor, tuple[int, int, int]], torch.Tensor]


def demo(frames: int, height: int, width: int) -> tuple[Any, torch.Tensor]:
    """The demo VAE and the latents of the held-out clip."""
    from examples.demo_vae import held_out_clip, load_demo_vae

    vae = load_demo_vae()
    clip = held_out_clip(frames, height, width)
    with torch.no_grad():
        return vae, vae.encode(clip).latent_dist.mode()


def random(frames: int, height: int, width: int) -> tuple[Any, torch.Tensor]:
    """Random weights, GroupNorm's too, and a smooth latent with a little noise."""
    vae, _ = demo(1, 32, 32)
    torch.manual_seed(0)
    for module in vae.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
        if isinstance(module, torch.nn.GroupNorm):
            torch.nn.init.normal_(module.weight, 1.0, 0.3)
            torch.nn.init.normal_(module.bias, 0.0, 0.3)
    size = ((frames - 1) // 4 + 1, height // 8, width // 8)
    coarse = [max(2, n // 4) for n in size]
    smooth = torch.nn.functional.interpolate(
        torch.randn(1, 16, *coarse), size=size, mode="trilinear"
    )
    return vae, 1.5 * smooth + 0.2 * torch.randn(1, 16, *size)


def in_blocks(rows: int, frames: int) -> Way:
    """Runs of so many neighbouring rows and columns, and frames."""

    def way(grid: torch.Tensor, keep: tuple[int, int, int]) -> torch.Tensor:
        t, h, w = keep
        times = spread(grid.shape[2], t, frames, from_start=True)
        across = spread(grid.shape[3], h, rows), spread(grid.shape[4], w, rows)
        return grid[:, :, times][:, :, :, across[0]][..., across[1]]

    return way


def averaged(grid: torch.Tensor, keep: tuple[int, int, int]) -> torch.Tensor:
    """Means over neighbours."""
    return torch.nn.functional.adaptive_avg_pool3d(grid, keep)


WAYS: dict[str, Way] = {
    "every n-th": in_blocks(1, 1),
    "every n-th, 3 frames": in_blocks(1, 3),
    "blocks of 2": in_blocks(2, 1),
    "blocks of 4": in_blocks(4, 3),
    "blocks of 8": in_blocks(8, 3),
    "one crop": in_blocks(1000, 1000),
    "averages": averaged,
}


def measure(vae: Any, z: torch.Tensor, levels: list[int], ways: dict[str, Way]) -> None:
    """Prints a line for each way and size."""
    family = family_for(vae)
    with torch.no_grad():
        wanted = family.whole(z)
    span = float(wanted.max() - wanted.min())
    for level, (name, way) in itertools.product(levels, ways.items()):
        compiled = compiled_tiles(family, tuple(z.shape), level)
        run, out = run_of(compiled), torch.empty_like(wanted)

        def part(
            fetch: Any, size: tuple[int, int, int], keep: tuple[int, int, int], way: Way = way
        ) -> torch.Tensor:
            return way(fetch((0, size[0])), keep)

        with mock.patch("hy3d_rocm.decoding.tiled_run.reduced", part):
            run.tiles(compiled.program, z, out)
        mse = float((out - wanted).double().square().mean())
        psnr = 10 * math.log10(span * span / mse) if mse else math.inf
        keep = next(s["size"] for s in compiled.program.sections if s["kind"] == 2)
        size = "x".join(map(str, keep))
        print(f"{size:>12}  {name:20}  error {run.estimate_error:.1e}  {psnr:5.1f} dB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, nargs=2, default=(160, 128), metavar=("H", "W"))
    parser.add_argument("--frames", type=int, default=33)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 3, 6])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    vae, z = (random if args.random else demo)(args.frames, *args.size)
    measure(vae, z, args.levels, {n: w for n, w in WAYS.items() if n in args.ways})


if __name__ == "__main__":
    main()
