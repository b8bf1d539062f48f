"""A convolution of an up-sampled video: the source read as it is, beside the up-sampled video read,
beside torch's convolution of that (oneDNN).

    python tests/bench/bench_upsampled.py [--threads 1] [--rounds 3]

Layers of HunyuanVideo's decoder (9 frames of 160x160) and, of one frame, of an image VAE's; in one
process, in turn, the least of the rounds; processor time where one thread computes. The up-sampled
video is made before the clock starts; weights are made while running, as in a decode by layers.
Errors are the largest against float64 at 2,000 outputs, over the largest of these.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as functional

from hy3d_rocm import _native
from hy3d_rocm.conv import functional as conv
from hy3d_rocm.conv.prepared import steady

# Channels, taps in time, frames of the source, its rows and columns, repeats in time.
LAYERS = [(512, 3, 3, 20, 20, 1), (512, 3, 3, 40, 40, 2), (256, 3, 5, 80, 80, 2),
          (256, 1, 1, 120, 120, 1)]  # fmt: skip
AROUND = ((0, 0), (1, 1), (1, 1))


def source_of(
    channels: int, taps: int, frames: int, rows: int, columns: int, repeats: int
) -> list[torch.Tensor]:
    """The frames that the outputs read, causal padding and repeats included."""
    made = [torch.randn(channels, rows, columns) for _ in range(frames)]
    up = [made[0], *(frame for frame in made[1:] for _ in range(repeats))]
    return [made[0]] * (taps - 1) + up


def measured(layer: tuple[int, ...], rounds: int, clock: Callable[[], float]) -> str:
    """One layer's line."""
    frames, (channels, taps) = source_of(*layer), layer[:2]
    weight = torch.randn(channels, channels, taps, 3, 3) / (channels * taps * 9) ** 0.5
    wide = torch.stack(frames, 1)[None].repeat_interleave(2, 3).repeat_interleave(2, 4)
    repeated = [wide[0, :, t] for t in range(len(frames))]
    out = torch.empty(1, channels, len(frames) - taps + 1, *wide.shape[3:])
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "torch": lambda: functional.conv3d(wide, weight, padding=(0, 1, 1)),
        "up-sampled": lambda: conv.fused_conv3d(repeated, weight, padding=AROUND, out=out),
        "as it is": lambda: conv.fused_conv3d(
            frames, weight, padding=AROUND, upsample=(2, 2), out=out
        ),
    }
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            with torch.no_grad(), steady(0):
                start = clock()
                way()
                least[name] = min(least[name], clock() - start)
    return (
        f"{channels} channels, {tuple(out.shape[2:])} from {tuple(frames[0].shape[1:])}: "
        + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in least.items())
        + f"; {least['torch'] / least['as it is']:.1f} x torch, "
        f"{least['up-sampled'] / least['as it is']:.2f} x up-sampled; "
        f"error {error_of(out, wide, weight):.1e}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    clock = time.process_time if given.threads == 1 else time.perf_counter
    for layer in LAYERS:
        print(measured(layer, given.rounds, clock), flush=True)
    return 0


def error_of(made: torch.Tensor, wide: torch.Tensor, weight: torch.Tensor) -> float:
    """At random outputs, edges among them."""
    _, channels, frames, rows, columns = made.shape
    padded = functional.pad(wide[0], (1, 1, 1, 1))
    generator = torch.Generator().manual_seed(1)
    worst = most = 0.0
    for _ in range(2000):
        sizes = (channels, frames, rows, columns)
        m, t, i, j = (int(torch.randint(n, (), generator=generator)) for n in sizes)
        window = padded[:, t : t + weight.shape[2], i : i + 3, j : j + 3].double()
        value = float((window * weight[m].double()).sum())
        worst, most = max(worst, abs(value - float(made[0, m, t, i, j]))), max(most, abs(value))
    return worst / most


if __name__ == "__main__":
    if not _native.available:
        raise SystemExit("bench_upsampled: the C core is not built here")
    raise SystemExit(main())
