"""How well GroupNorm's statistics of a video can be told from a part of its latents.

    python tests/bench/measure_statistics.py [--size 160 128] [--frames 33] [--random]

For each way to take a part (blocks of neighbours, every n-th row, averages) and its size: the
largest error of a norm's mean (in standard deviations) or standard deviation, and the PSNR of the
decode with these statistics against the unsplit one, peak value its range. Demo VAE and held-out
filmed clip; --random: the same architecture with random weights and a smooth random latent.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from hy3d_rocm.decode.engines.tile_parts import cut_of, head, trunk
from hy3d_rocm.decode.families import family_for
from hy3d_rocm.decode.statistics import Statistics, StatisticsEngine, blocks
from hy3d_rocm.decode.torch_backend import TorchBackend
from hy3d_rocm.decode.weights import ModuleWeights

Way = Callable[[torch.Tensor, tuple[int, int, int]], torch.Tensor]
CPU = torch.device("cpu")


def demo(frames: int, height: int, width: int) -> tuple[Any, torch.Tensor]:
    """The demo VAE and the latents of the held-out clip."""
    from hy3d_rocm.demo.clips import held_out_clip
    from hy3d_rocm.demo.model import load_demo_vae

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
        times = blocks(grid.shape[2], t, frames, from_start=True)
        across = blocks(grid.shape[3], h, rows), blocks(grid.shape[4], w, rows)
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


def measure(
    vae: Any, z: torch.Tensor, shares: list[tuple[float, float]], ways: dict[str, Way]
) -> None:
    """Prints a line for each way and size."""
    family = family_for(vae)
    cut = cut_of(family)
    backend = TorchBackend(ModuleWeights(torch.float32, CPU))

    def run(
        grid: torch.Tensor, known: list[Statistics] | None = None
    ) -> tuple[list[Statistics], torch.Tensor]:
        engine = _Given(backend, CPU) if known is not None else StatisticsEngine(backend, CPU)
        if isinstance(engine, _Given):
            engine.known = known or []
        made = engine.leave(head(family, cut)(engine, engine.enter(grid)))
        return engine.used, torch.cat([f.clone() for _, f in made], 2)

    engine = StatisticsEngine(backend, CPU)
    grid = torch.cat(
        [f.clone() for _, f in engine.leave(trunk(family, cut)(engine, engine.enter(z)))], 2
    )
    truth, wanted = run(grid)
    span = float(wanted.max() - wanted.min())
    for (share_t, share), (name, way) in itertools.product(shares, ways.items()):
        t, h, w = grid.shape[2:]
        keep = (max(1, round(t * share_t)), round(h * share), round(w * share))
        found, _ = run(way(grid, keep))
        error = max(f.deviation(s) for f, s in zip(found, truth, strict=True))
        _, frames = run(grid, found)
        mse = float((frames - wanted).double().square().mean())
        psnr = 10 * math.log10(span * span / mse) if mse else math.inf
        size = "x".join(str(n) for n in keep)
        print(f"{size:>12} of {t}x{h}x{w}  {name:20}  error {error:.1e}  {psnr:5.1f} dB")


class _Given(StatisticsEngine):
    """Takes the statistics it is given."""

    known: list[Statistics]

    def affine(self, x: Any, norm: Any) -> Any:
        if norm is None or norm.kind != "group":
            return None
        found = self.known[len(self.used)]
        self.used.append(found)
        return found.affine(norm, self.backend.weights, x.shape[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, nargs=2, default=(160, 128), metavar=("H", "W"))
    parser.add_argument("--frames", type=int, default=33)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.6, 0.4])
    parser.add_argument("--times", type=float, nargs="+", default=[1.0, 0.34])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    vae, z = (random if args.random else demo)(args.frames, *args.size)
    with torch.no_grad():
        shares = [(t, s) for t in args.times for s in args.shares]
        measure(vae, z, shares, {n: w for n, w in WAYS.items() if n in args.ways})


if __name__ == "__main__":
    main()
