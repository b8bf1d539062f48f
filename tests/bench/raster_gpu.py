"""Rasterising on a GPU against copying to main memory, the C core, and copying back; milliseconds.

    python tests/bench/raster_gpu.py [--repeat 20] [--sweep]

Each picture is first compared with the C core's, bit for bit (status 1 if one differs). Times are
medians with the device synchronised before and after, tensors beginning and ending on the GPU; the
first call of all compiles kernels and is shown apart. "doubts": tiles with exact arithmetic, of
those that were not drawn by a lane. --sweep: other sizes of blocks. On NVIDIA this stands in for an
AMD card as a check of correctness only: it says nothing of AMD's times.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "bench"), str(ROOT / "tests" / "long")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import raster_gpu_scenes as scenes  # noqa: E402
import torch  # noqa: E402

from hy3d_rocm import raster  # noqa: E402
from hy3d_rocm.raster.gpu import dispatch, draw, kernels  # noqa: E402

CASES = (
    ("sphere", 100_000, 1024), ("grid", 100_000, 1024), ("soup", 100_000, 1024),
    ("sphere", 1_000_000, 2048), ("soup", 1_000_000, 2048), ("quad", 2, 2048),
)  # fmt: skip


def scene_of(name: str, faces: int, side: int, rule: str) -> scenes.Scene:
    if name != "quad":
        return scenes.mesh(name, faces, (side, side), rule)
    corners = torch.tensor([[-1.0, -1, 0, 1], [1, -1, 0.5, 1], [1, 1, 1, 1], [-1, 1, 0.25, 1]])
    triangles = torch.tensor([[0, 1, 2], [0, 2, 3]], dtype=torch.int32)
    return scenes.Scene(name, rule, corners, triangles, None, (side, side))


def median_ms(call: Callable[[], Any], repeat: int) -> float:
    call()
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def through_the_cpu(clip: Any, faces: Any, size: tuple[int, int], rule: str) -> list[Any]:
    """What the door does where there is no Triton."""
    made = raster.rasterize(clip.cpu(), faces.cpu(), size, rule=rule)
    return [tensor.to(clip.device) for tensor in made]


def doubts_of(clip: Any, faces: Any, size: tuple[int, int], rule: str) -> str:
    """Tiles that settle_tiles had to look at, of all, by a double of its launch."""
    seen: list[tuple[int, int]] = []
    original = kernels.settle_tiles

    class Watch:
        def __getitem__(self, grid: tuple[int]) -> Any:
            def launch(*given: Any, **more: Any) -> Any:
                seen.append((int((given[6][: grid[0]] != 0).sum()), grid[0]))
                return original[grid](*given, **more)

            return launch

    kernels.settle_tiles = Watch()
    try:
        draw.draw(clip, faces, *size, compat=rule == "compat")
    finally:
        kernels.settle_tiles = original
    return f"{sum(a for a, _ in seen)} of {sum(b for _, b in seen)}"


def compare(name: str, count: int, side: int, rule: str, repeat: int) -> int:
    of = scene_of(name, count, side, rule)
    clip, faces = of.clip.cuda(), of.faces.cuda()
    torch.cuda.synchronize()
    start = time.perf_counter()
    made = dispatch.rasterize_on_gpu(clip, faces, of.size, rule)
    torch.cuda.synchronize()
    first = (time.perf_counter() - start) * 1e3
    assert made is not None, "the kernels failed or are refused: the log says why"
    differ = [scenes.differing(a, b) for a, b in zip(made, scenes.core(of), strict=True)]
    gpu = median_ms(lambda: dispatch.rasterize_on_gpu(clip, faces, of.size, rule), repeat)
    cpu = median_ms(lambda: through_the_cpu(clip, faces, of.size, rule), min(repeat, 5))
    values = clip[:, :3].contiguous()
    shaded = median_ms(lambda: dispatch.interpolate_on_gpu(values, faces, *made[:2]), repeat)
    print(
        f"{name:7} {len(of.faces):>8} faces {side:>5}x{side:<5} {rule:8} GPU {gpu:8.3f}  "
        f"by the CPU {cpu:8.2f}  interpolate 3 {shaded:6.3f}  first call {first:8.0f}  "
        f"doubts {doubts_of(clip, faces, of.size, rule)}  "
        f"{'equal bits' if not any(differ) else f'DIFFERENT: {differ}'}",
        flush=True,
    )
    return int(any(differ))


def sweep(repeat: int) -> None:
    base = draw.sizes_for(32)
    for name, count, side in CASES[:5]:
        of = scene_of(name, count, side, "topleft")
        clip, faces = of.clip.cuda(), of.faces.cuda()
        found = []
        for most, (tile, warps) in itertools.product(
            (16, 48, 128, 256), ((8, 1), (16, 1), (16, 2), (32, 4))
        ):
            sizes = replace(base, most_pixels=most, tile=tile, tile_warps=warps)

            def once(sizes: Any = sizes, clip: Any = clip, faces: Any = faces) -> Any:
                return draw.draw(clip, faces, side, side, compat=False, sizes=sizes)  # noqa: B023

            found.append((median_ms(once, repeat), most, tile, warps))
        print(name, count, side, "  ".join(f"{t:.2f}:{m}/{s}w{w}" for t, m, s, w in sorted(found)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA or HIP device: nothing is measured")
        return 0
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    differ = 0
    for name, count, side in CASES:
        for rule in ("topleft", "compat"):
            differ += compare(name, count, side, rule, options.repeat)
    if options.sweep:
        sweep(max(options.repeat // 4, 3))
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main())
