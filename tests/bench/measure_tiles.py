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
import sys
import time
from pathlib import Path
from typing import Any

import torch

from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.decoding.layers import ModuleWeights
from hy3d_rocm.decoding.memory.budget import Budget
from hy3d_rocm.decoding.plan import Tiles
from hy3d_rocm.decoding.planning.compiled import Compiled
from hy3d_rocm.decoding.planning.jobs import Job, torch_backend
from hy3d_rocm.decoding.tiled_run import TiledRun, tile_places
from hy3d_rocm.meter import PeakMeter, steady_malloc

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: examples/
CPU = torch.device("cpu")


def compiled_tiles(
    family: Any, shape: tuple[int, ...], level: int, *, chunk: int = 1, passes: int = 0,
    halo: int | None = 32,
) -> Compiled:  # fmt: skip
    """Tiles of a level on the CPU, whatever they take."""
    job = Job(family, shape, CPU, torch.float32, torch.float32, torch_backend)
    parameters = {
        "level": level, "chunk": chunk, "passes": passes, "halo_pixels": halo,
        "overlap_pixels": 16, "min_tile_pixels": 32,
    }  # fmt: skip
    resume_key = {"strategy": "tiled", "parameters": parameters}
    room = Budget(1 << 50, 1 << 50, False, "no limit")
    return Compiled(job, room, "tiled", resume_key=resume_key)


def run_of(compiled: Compiled) -> TiledRun:
    backend = compiled.job.make_backend(ModuleWeights(torch.float32, CPU), CPU)
    return TiledRun(compiled.graph, backend, CPU, torch.float32)


def steps_at_borders(frames: torch.Tensor, tiles: Tiles) -> float:
    """Mean absolute step across the borders between tiles."""
    steps = []
    for axis in (1, 2):
        places = {(g.out_start[axis], g.out_stop[axis]) for g in tiles}
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
    parser.add_argument("--passes", type=int, default=0)
    parser.add_argument("--halo", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    from examples.demo_vae import held_out_clip, load_demo_vae

    steady_malloc()
    torch.set_num_threads(args.threads)
    vae = load_demo_vae()
    with torch.no_grad():
        z = vae.encode(held_out_clip(args.frames, *args.size)).latent_dist.mode()
    family = family_for(vae)
    compiled = compiled_tiles(
        family, tuple(z.shape), args.level, chunk=args.chunk, passes=args.passes, halo=args.halo
    )
    program = compiled.program
    tiles, run = tile_places(program.tiles or {}), run_of(compiled)
    began = time.perf_counter()
    with PeakMeter(interval=0) as meter:
        out = torch.empty(family.out_shape(tuple(z.shape)))
        run.tiles(program, z, out)
    seconds = time.perf_counter() - began
    with torch.no_grad():
        wanted = family.whole(z)
    error = (out - wanted).double()
    span = float(wanted.max() - wanted.min())
    sizes = [section["size"] for section in program.sections if section["kind"] == 2]
    record = {
        "tiles": len(tiles),
        "part": sizes[:1],
        "stated_mb": round(program.candidate["device_bytes"] / 2**20, 1),
        "peak_mb": round(meter.peak_bytes / 2**20, 1),
        "seconds": round(seconds, 1),
        "psnr_db": round(10 * math.log10(span**2 / float(error.square().mean())), 1),
        "largest_error": float(error.abs().max()) / span,
        "estimate_error": run.estimate_error,
        "seams": steps_at_borders(out, tiles) / steps_at_borders(wanted, tiles),
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
