"""decode() on several GPUs of one machine beside decode() on one of them, at full width.

    torchrun --nproc-per-node 2 tests/bench/bench_ranks.py [--only hunyuan,long,wan] [--psnr]
        [--json FILE]

hunyuan: HunyuanVideo's VAE (random weights, bf16), 33 frames of 640x608; long: 129 frames of
544x960; wan: Wan 2.1, 81 frames of 720x1280. Of each: seconds (the median of the later runs) and
the most bytes that a rank takes, the time in which a rank's GPU waits for others, what it sends,
and how far the frames are from those of one GPU; with --psnr, how far both are from one GPU's in
float32 without TF32. Targets (two NVIDIA H200): 1.8 times as fast, at most 60 % of the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import bench_decode_gpu

from hy3d_rocm.bench.decode_gpu import hunyuan_vae
from hy3d_rocm.decoding.executor import decode_with_report
from hy3d_rocm.decoding.group import Group, group_of, set_variables

RUNS: dict[str, tuple[Callable[[torch.device], Any], tuple[int, ...]]] = {
    "small": (hunyuan_vae, (16, 3, 40, 38)),
    "hunyuan": (hunyuan_vae, (16, 9, 80, 76)),
    "long": (hunyuan_vae, (16, 33, 68, 120)),
    "wan": (lambda device: bench_decode_gpu.wan_vae(), (16, 21, 90, 160)),
}


def timed(work: Callable[[], Any], repeats: int) -> tuple[Any, float, float, int]:
    """Result, seconds of the first run, median of the others, the most bytes taken in the last."""
    result, seconds, peak = bench_decode_gpu.timed(work, repeats)
    return result, seconds[0], statistics.median(seconds[1:]), peak


def stalls_of(group: Group) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
    """Gets pairs of events between which the GPU's stream only waits for other ranks, until
    group.wait is deleted again."""
    own, found = group.wait, list[tuple[torch.cuda.Event, torch.cuda.Event]]()

    def wait(works: Any, held: Any, on_stream: bool, timeouts: int = 1) -> None:
        if not on_stream:
            own(works, held, on_stream, timeouts)
            return
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        own(works, held, on_stream, timeouts)
        after.record()
        found.append((before, after))

    vars(group)["wait"] = wait
    return found


def measured(
    name: str, group: Group, device: torch.device, repeats: int, in_float32: bool
) -> dict[str, Any]:  # fmt: skip
    """One row, on rank 0. in_float32: with the PSNR against that."""
    build, latent = RUNS[name]
    vae = build(device).to(device)
    torch.manual_seed(0)
    z = torch.randn(1, *latent, device=device, dtype=torch.bfloat16)
    alone = None
    with torch.backends.cudnn.flags(enabled=False):
        if group.rank == 0:
            alone = timed(lambda: decode_with_report(vae, z)[0], repeats)
        group.meet(f"{name} alone")
        run = lambda: decode_with_report(vae, z, group=group)  # noqa: E731
        run()
        before, waits = group.sent_bytes, stalls_of(group)
        (frames, report), first, median, peak = timed(run, repeats)
    torch.cuda.synchronize()
    stalls = sum(a.elapsed_time(b) for a, b in waits) / 1e3 / repeats
    del vars(group)["wait"]
    sent = (group.sent_bytes - before) / repeats
    told = group.meet(f"{name} together", values=[peak, report.predicted_peak_bytes, stalls, sent])
    if alone is None:
        return {}
    want, alone_first, alone_median, alone_peak = alone
    exact = None
    if in_float32:
        with torch.backends.cudnn.flags(enabled=False, allow_tf32=False):
            exact = decode_with_report(vae.float(), z.float())[0]
    error = (frames.float() - want.float()).abs().max().item() / want.float().abs().max().item()
    return {
        "name": name, "ranks": group.size, "alone_s": alone_median, "together_s": median,
        "times": alone_median / median, "alone_first_s": alone_first, "first_s": first,
        "alone_peak": alone_peak, "peaks": [t[0] for t in told], "planned": [t[1] for t in told],
        "memory": max(t[0] for t in told) / alone_peak, "stalled_s": [t[2] for t in told],
        "sent_bytes": [t[3] for t in told], "largest_error": error,
        "equal_share": (frames == want).float().mean().item(), "way": report.plan["way"],
        "alone_psnr": None if exact is None else bench_decode_gpu.psnr(want, exact),
        "psnr": None if exact is None else bench_decode_gpu.psnr(frames, exact),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="hunyuan,long,wan")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--psnr", action="store_true", help="against float32, by one GPU")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    bench_decode_gpu.DEVICE = device
    set_variables()
    dist.init_process_group()
    group = group_of(dist.group.WORLD, device)
    assert group is not None, "torchrun with two processes or more was expected"
    rows = [
        measured(name, group, device, arguments.repeats, arguments.psnr)
        for name in arguments.only.split(",")
    ]
    if group.rank == 0:
        print(torch.cuda.get_device_name(device), torch.__version__)
        for row in rows:
            print(json.dumps(row, indent=1))
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
