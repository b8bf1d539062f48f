"""Memory of a decode in chunks against the length of the video.

    python tests/bench/measure_long.py --kind wan --frames 241 3601

Tiny VAEs with random weights (tests/support/decode_doubles.py); frames are dropped as they come.
Prints, for each number of frames, how many came and the peak of resident memory above its start
(VmHWM) without the latent. One length after the other in one process, so the first carries
what a process needs once.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.decoding.graph import record
from hy3d_rocm.decoding.run import Run
from hy3d_rocm.meter import PeakMeter, steady_malloc

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from decode_doubles import tiny_latents, tiny_vae
from program_doubles import CPU, compiled, torch_backend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", default="wan", choices=["wan", "wan22", "ltx", "ltx_causal"])
    parser.add_argument("--frames", type=int, nargs="+", default=[241, 3601])
    parser.add_argument("--latent", type=int, nargs=2, default=(8, 8), metavar=("H", "W"))
    parser.add_argument("--chunk", type=int, default=2)
    args = parser.parse_args()
    steady_malloc()
    torch.set_num_threads(1)
    vae = tiny_vae(args.kind)
    family = family_for(vae)
    graph = record(family)
    for wanted in args.frames:
        latents = -(-(wanted - 1) // family.factor[0]) + 1
        z = tiny_latents(vae, latents, *args.latent)
        program, came = compiled(graph, z, chunk=args.chunk).program, 0
        run = Run(graph, torch_backend(), CPU, torch.float32)
        with PeakMeter(interval=0) as meter:
            for _, frames in run.section(program, 0, lambda r, z=z: z[:, :, slice(*r)]):
                came += int(frames.shape[2])
                del frames
        peak, stated = (n / 2**20 for n in (meter.peak_bytes, program.candidate["device_bytes"]))
        print(f"{args.kind}: {latents} latents, {came} frames, {peak:.1f} MB, {stated:.1f} stated")


if __name__ == "__main__":
    main()
