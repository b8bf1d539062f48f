"""Peak memory, time and accuracy of the tiled decode on the demo VAE and the held-out filmed clip.

    python tests/bench/measure_tiles.py --level 2 --chunk 2 --passes 1

One run a process. The peak is VmHWM above the memory after loading, the result included. PSNR and
the largest error are against the unsplit decode (made afterwards), the range of that as the peak.
Seams: mean step between neighbouring rows and columns at the tiles' borders over that of the
unsplit decode at the same places.
"""

from __future__ import annotations

import argparse
import json
import math
import time

import torch

from hy3d_rocm.decode.engines.tiles import TiledRun, TilePlan, plan_tiles
from hy3d_rocm.decode.families import family_for
from hy3d_rocm.decode.memory.meter import PeakMeter, steady_malloc
from hy3d_rocm.decode.torch_backend import TorchBackend
from hy3d_rocm.decode.weights import ModuleWeights


def steps_at_borders(frames: torch.Tensor, plan: TilePlan) -> float:
    """Mean absolute step across the borders between tiles."""
    steps = []
    for axis in (1, 2):
        places = {(g.out_start[axis], g.out_stop[axis]) for g in plan.spatial.grains}
        for edge in {start for start, _ in places if start} | {stop for _, stop in places}:
            if 0 < edge < frames.shape[axis + 2]:
                a, b = (frames.select(axis + 2, edge - n) for n in (1, 0))
                steps.append(float((a - b).abs().mean()))
    return sum(steps) / len(steps) if steps else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, nargs=2, default=(160, 128), metavar=("H", "W"))
    parser.add_argument("--frames", type=int, default=33)
    parser.add_argument("--level", type=int, default=0)
    parser.add_argument("--chunk", type=int, default=2)
    parser.add_argument("--slice-bytes", type=int)
    parser.add_argument("--passes", type=int, default=0)
    parser.add_argument("--part", type=int, help="positions that statistics are estimated from")
    parser.add_argument("--halo", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    from hy3d_rocm.demo.clips import held_out_clip
    from hy3d_rocm.demo.model import load_demo_vae

    steady_malloc()
    torch.set_num_threads(args.threads)
    vae = load_demo_vae()
    with torch.no_grad():
        z = vae.encode(held_out_clip(args.frames, *args.size)).latent_dist.mode()
    family = family_for(vae)
    plan = plan_tiles(
        family, tuple(z.shape), level=args.level, chunk=args.chunk, slice_bytes=args.slice_bytes,
        part_positions=args.part, passes=args.passes, halo_pixels=args.halo,
    )  # fmt: skip
    backend = TorchBackend(ModuleWeights(torch.float32, "cpu"))
    run = TiledRun(family, backend, plan, layerwise={"slice_bytes": 4 << 20})
    began = time.perf_counter()
    with PeakMeter(interval=0) as meter:
        out = torch.empty(family.out_shape(tuple(z.shape)))
        run.run(z, out)
    seconds = time.perf_counter() - began
    with torch.no_grad():
        wanted = family.whole(z)
    error = (out - wanted).double()
    span = float(wanted.max() - wanted.min())
    record = plan.describe() | {
        "peak_mb": round(meter.peak_bytes / 2**20, 1),
        "seconds": round(seconds, 1),
        "psnr_db": round(10 * math.log10(span**2 / float(error.square().mean())), 1),
        "largest_error": float(error.abs().max()) / span,
        "estimate_error": run.report.estimate_error,
        "seams": steps_at_borders(out, plan) / steps_at_borders(wanted, plan),
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
