#!/usr/bin/env python3
"""Measure the demo VAE on the held-out clip: reconstruction, and tiles against the whole decode.

    python examples/evaluate_demo_vae.py [--start 30] [--frames 33] [--size 192x256] [--sheet X.png]

The tiler here is deliberately crude (2 x 2 spatial tiles that overlap by 4 latents, chunks of 5
latents of which 2 are warm-up, linear cross-fades in space and none in time); the package's own
decode is `hy3d_rocm.decode`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from demo_vae import held_out_clip, load_demo_vae
from PIL import Image

CHUNK, WARM_UP, OVERLAP = 5, 2, 4  # latents


def psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    """PSNR in dB of two videos in [-1, 1], both clamped, with pixels counted as 0..1."""
    mse = (a.clamp(-1, 1) - b.clamp(-1, 1)).double().square().mean() / 4
    return float(-10 * torch.log10(mse))


def spans(length: int) -> tuple[slice, slice]:
    """Two halves of `length` latents that overlap by OVERLAP."""
    middle = length // 2
    return slice(0, middle + OVERLAP // 2), slice(middle - OVERLAP // 2, length)


def ramp(length: int, first: bool) -> torch.Tensor:
    """Weights of one half: 1, and a linear fade over the overlap's pixels."""
    fade, weights = 8 * OVERLAP, torch.ones(length)
    rise = (torch.arange(fade) + 0.5) / fade
    if first:
        weights[-fade:] = rise.flip(0)
    else:
        weights[:fade] = rise
    return weights


def decode_tile(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """One spatial tile, in temporal chunks whose warm-up frames are thrown away."""
    parts, start, total = [], 0, latents.shape[2]
    while True:
        end = min(start + CHUNK, total)
        frames = vae.decode(latents[:, :, start:end]).sample
        parts.append(frames if start == 0 else frames[:, :, 4 * WARM_UP - 3 :])
        if end == total:
            return torch.cat(parts, 2)
        start = end - WARM_UP


def decode_in_tiles(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """All four tiles, cross-faded."""
    t, h, w = latents.shape[2:]
    out = torch.zeros(1, 3, 4 * t - 3, 8 * h, 8 * w)
    for i, rows in enumerate(spans(h)):
        for j, columns in enumerate(spans(w)):
            tile = decode_tile(vae, latents[:, :, :, rows, columns])
            weight = ramp(tile.shape[3], i == 0)[:, None] * ramp(tile.shape[4], j == 0)
            top, left = 8 * rows.start, 8 * columns.start
            out[..., top : top + tile.shape[3], left : left + tile.shape[4]] += tile * weight
    return out


def write_sheet(path: Path, videos: list[torch.Tensor]) -> None:
    """Five frames of each video, one row a video."""
    count = videos[0].shape[2]
    picks = [i * (count - 1) // 4 for i in range(5)]
    rows = [torch.cat([video[0, :, i] for i in picks], 2) for video in videos]
    sheet = torch.cat(rows, 1).clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)
    Image.fromarray(sheet.permute(1, 2, 0).contiguous().numpy()).save(path)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--start", type=int, default=30, help="first frame of the clip")
    parser.add_argument("--frames", type=int, default=33)
    parser.add_argument("--size", default="192x256", help="height x width, multiples of 8")
    parser.add_argument("--weights", type=Path, help="other weights than the published ones")
    parser.add_argument("--sheet", type=Path, help="write source, whole and tiled frames here")
    arguments = parser.parse_args()
    height, width = (int(side) for side in arguments.size.split("x"))
    vae = load_demo_vae(arguments.weights, check=arguments.weights is None)
    clip = held_out_clip(arguments.frames, height, width, arguments.start)
    latents = vae.encode(clip).latent_dist.mode()
    started = time.monotonic()
    whole = vae.decode(latents).sample
    seconds = time.monotonic() - started
    tiled = decode_in_tiles(vae, latents)
    last = arguments.start + arguments.frames - 1
    print(f"frames {arguments.start}..{last} at {height}x{width}: "
          f"whole against source {psnr(whole, clip):.2f} dB, tiles against whole "
          f"{psnr(tiled, whole):.2f} dB; whole decode {seconds:.1f} s on "
          f"{torch.get_num_threads()} threads")  # fmt: skip
    if arguments.sheet:
        write_sheet(arguments.sheet, [clip, whole, tiled])


if __name__ == "__main__":
    main()
