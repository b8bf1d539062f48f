"""decode() within what is left of a card: how often memory runs out, and what is held of it.

    python tests/bench/bench_room.py [--count 24] [--seed 1]

Random decodes of full VAEs (random weights, bf16) in a process that PyTorch limits to a part of
what the decode takes with all memory: with the allocator followed (what the C core does) and, in
turn, without. Of each: bytes planned, allocated and held by PyTorch, how often a decode began again
since memory had run out (in two decodes), seconds of the second, and how far its frames are from
those of the decode with all memory. Exit code 1 if following the allocator runs out of memory more
often than not following it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from bench_decode_gpu import DEVICE, psnr, vae_of, wan_vae

from hy3d_rocm.bench.decode_gpu import hunyuan_vae
from hy3d_rocm.decoding import executor
from hy3d_rocm.decoding.executor import decode_with_report

GB = 10**9
# Name, VAE, channels of its latents, the most positions (frames, rows, columns) of one.
KINDS = (
    ("HunyuanVideo", lambda: hunyuan_vae(DEVICE), 16, (17, 90, 120)),
    ("Wan", wan_vae, 16, (13, 90, 120)),
    ("HunyuanVideo 1.5", lambda: vae_of("AutoencoderKLHunyuanVideo15"), 32, (13, 45, 60)),
    ("LTX", lambda: vae_of("AutoencoderKLLTXVideo"), 128, (17, 24, 40)),
)
SHARES = (0.9, 0.7, 0.5, 0.35, 0.25)


def decoded(vae: Any, z: torch.Tensor, room: int, is_followed: bool) -> dict[str, Any]:
    """The second of two decodes, in a process that gets `room` beside what it holds; 0: all."""
    module: Any = executor
    plain = module.make_budget

    def without(*given: Any, **named: Any) -> Any:
        return replace(plain(*given, **named), device_room=0)

    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    before, held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    module.make_budget = plain if is_followed else without
    if room:
        torch.cuda.set_per_process_memory_fraction((held + room) / total)
    times = 0
    try:
        for _ in range(2):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            frames, report = decode_with_report(vae, z)
            seconds = time.perf_counter() - begin
            times += sum(event.get("event") == "out of memory" for event in report.events)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        module.make_budget = plain
    return {
        "frames": frames, "seconds": seconds, "times": times, "way": report.plan["way"],
        "planned": report.predicted_peak_bytes,
        "used": torch.cuda.max_memory_allocated() - before,
        "held": torch.cuda.max_memory_reserved() - held,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng, vaes = random.Random(arguments.seed), dict[str, Any]()
    times, seconds = {True: 0, False: 0}, {True: 0.0, False: 0.0}
    torch.backends.cudnn.enabled = False
    head = "planned", "used", "held", "again", "seconds", "dB"
    print("{:44} {:>7} {:>6} {:>6} {:>5} {:>7} {:>5}".format("decode, GB that it may take", *head))
    for _ in range(arguments.count):
        name, build, channels, most = rng.choice(KINDS)
        vae = vaes.get(name) or vaes.setdefault(name, build().to(DEVICE))
        shape = tuple(rng.randint(max(n // 3, 1), n) for n in most)
        z = torch.randn(1, channels, *shape, device=DEVICE, dtype=torch.bfloat16)
        free = decoded(vae, z, 0, True)
        # Of it "auto" leaves 500 MiB alone, and plans with four fifths of the rest.
        room = int(free["planned"] * rng.choice(SHARES)) + (256 << 20)
        what = f"{name} {'x'.join(map(str, shape))} {room / GB:.2f}"
        for is_followed in (True, False):
            row = decoded(vae, z, room, is_followed)
            figures = (f"{row[k] / GB:.2f}" for k in ("planned", "used", "held"))
            label = what if is_followed else "  not followed"
            print("{:44} {:>7} {:>6} {:>6} {:>5} {:7.2f} {:>5.1f}  {}".format(
                label, *figures, row["times"], row["seconds"],
                psnr(row["frames"], free["frames"]), row["way"]), flush=True)  # fmt: skip
            times[is_followed] += row["times"]
            seconds[is_followed] += row["seconds"]
    for is_followed, label in ((True, "followed"), (False, "not followed")):
        print(f"{label}: began again {times[is_followed]} times, {seconds[is_followed]:.1f} s")
    return int(times[True] > times[False])


if __name__ == "__main__":
    sys.exit(main())
