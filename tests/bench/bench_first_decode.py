"""The first decodes on a new machine: no kernel was ever compiled. Needs a GPU.

    python tests/bench/bench_first_decode.py [--processes 15,0] [--only hunyuan,wan]

For each number of processes that compile ahead (0: this one alone compiles) two processes of their
own, with an empty folder as Triton's cache: in the first HunyuanVideo's VAE (random weights, bf16)
decodes 33 frames of 640x608, the same again, under 6 GB, under 3 GB, then 25 frames of 544x960;
Wan 2.1's 33 frames of 480x832. The second begins with what the first left on disk. The vendor
library is off. Seconds from the call to the frames, GPU and Python being ready.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HUNYUAN = (
    ("33x640x608", (9, 80, 76), None), ("again", (9, 80, 76), None),
    ("in 6 GB", (9, 80, 76), "6GB"), ("in 3 GB", (9, 80, 76), "3GB"),
    ("25x544x960", (7, 68, 120), None),
)  # fmt: skip
WAN = (("33x480x832", (9, 60, 104), None), ("again", (9, 60, 104), None))


def child(processes: int, only: str) -> None:
    """One process's decodes."""
    import torch
    from bench_decode_gpu import DEVICE, wan_vae

    from hy3d_rocm.bench.decode_gpu import hunyuan_vae
    from hy3d_rocm.conv.triton import ahead
    from hy3d_rocm.decoding.executor import decode_with_report

    ahead.most_processes = processes
    torch.backends.cudnn.enabled = False
    for name, build, decodes in (
        ("HunyuanVideo", lambda: hunyuan_vae(DEVICE), HUNYUAN), ("Wan", wan_vae, WAN)
    ):  # fmt: skip
        if name[:3].lower() not in only:
            continue
        vae = build().to(DEVICE)
        torch.ones(1, device=DEVICE).sum().item()
        for what, size, budget in decodes:
            z = torch.randn(1, 16, *size, device=DEVICE, dtype=torch.bfloat16)
            torch.cuda.synchronize()
            start = time.perf_counter()
            _, report = decode_with_report(vae, z, budget=budget)
            seconds = time.perf_counter() - start
            print(f"  {name} {what:<12} {seconds:6.2f} s  {report.plan['way']}", flush=True)
            del _


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--processes", default="15,0")
    parser.add_argument("--only", default="hunyuan,wan")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.child, arguments.only)
        return 0
    failed = 0
    for count in map(int, arguments.processes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            for state in ("an empty cache", "what that left on disk"):
                print(f"{count} processes beside this one, {state}:", flush=True)
                command = [sys.executable, __file__, "--child", str(count), "--only"]
                environment = {**os.environ, "TRITON_CACHE_DIR": str(Path(folder) / "triton")}
                failed |= subprocess.call([*command, arguments.only], env=environment)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
