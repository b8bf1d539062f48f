"""decode() on a GPU beside diffusers' unsplit decode by cuDNN or MIOpen, at full width.

    python tests/bench/bench_decode_gpu.py [--only hunyuan,budgets,long,wan,others,tight,boxes]

hunyuan: HunyuanVideo's VAE (random weights, bf16), 33 frames of 640x608: unsplit by the library,
then decode() with the library off. budgets: the same under less and less memory. long: 97 frames of
768x1280 with all the memory, then with the process limited to 24 GiB; whether the frames are equal.
wan: Wan 2.1, 33 frames of 480x832, diffusers' decode by the library, then decode(); others: the
same for Wan at 81 frames of 480x832, HunyuanVideo 1.5, LTX and Qwen-Image. tight: VAEs of many
weights within less than these take twice. boxes: decode() with
other sizes of a box of rows (work.py's ROWS_BYTES). PSNR is against
the unsplit decode in float32 without TF32. Needs some 100 GB of GPU memory for the reference of
hunyuan, some 60 GB of host memory for `long`. Targets (an NVIDIA H200): see the lines that say so.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hy3d_rocm.bench.decode_gpu import hunyuan_vae
from hy3d_rocm.decoding.backends.triton.backend import TritonBackend
from hy3d_rocm.decoding.executor import decode_with_report
from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.tools.loading import SHAPES
from hy3d_rocm.units import size_text

DEVICE = torch.device("cuda", 0)
GIB = 1 << 30
BUDGETS = ("6GB", "4GB", "3GB", "2GB", "1GB")
LONG_LIMIT_BYTES = 24 * GIB
BOXES_MIB = (40, 160, 640)


def psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    """dB, with the range of b as the peak."""
    error = (a.float() - b.float()).square().mean().item()
    span = (b.max() - b.min()).item()
    return 10 * math.log10(span * span / error) if error else math.inf


def timed(function: Callable[[], Any], repeats: int) -> tuple[Any, list[float], int]:
    """Result, seconds of the first and of later runs, and the most bytes taken in a later one (in
    the only one where there is one)."""
    seconds, peak, result = [], 0, None
    for _ in range(repeats):
        result = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        start = time.perf_counter()
        result = function()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        peak = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()
    return result, seconds, peak


class Bench:
    """Runs parts, prints a line for each figure and keeps them."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.rows: list[dict[str, Any]] = []

    def row(self, name: str, seconds: list[float], peak: int, **more: Any) -> None:
        best = sorted(seconds[1:] or seconds)[len(seconds[1:] or seconds) // 2]
        row = {"name": name, "first_s": seconds[0], "median_s": best, "peak_bytes": peak, **more}
        self.rows.append(row)
        told = ", ".join(f"{k} {v}" for k, v in more.items() if v is not None)
        print(
            f"{name:<34} first {seconds[0]:6.2f} s  then {best:6.3f} s  peak "
            f"{size_text(peak, 2):>9}  {told}",
            flush=True,
        )

    def ours(
        self, name: str, vae: Any, z: torch.Tensor, want: torch.Tensor | None, repeats: int,
        **options: Any,
    ) -> torch.Tensor:  # fmt: skip
        (out, report), seconds, peak = timed(lambda: decode_with_report(vae, z, **options), repeats)
        planned = report.predicted_peak_bytes
        self.row(
            name, seconds, peak, planned=size_text(planned, 2),
            within="yes" if peak <= planned else "NO", way=report.plan["way"],
            psnr=None if want is None else round(psnr(out, want), 2),
            planning_ms=round(1e3 * report.planning_seconds, 1),
            statistics_off=report.estimate_error, left_to_torch=report.delegated or None,
        )  # fmt: skip
        return out

    def hunyuan(self, has_budgets: bool) -> None:
        vae = hunyuan_vae(DEVICE).to(DEVICE)
        torch.manual_seed(0)
        z = torch.randn(1, 16, 9, 80, 76, device=DEVICE, dtype=torch.bfloat16)
        family = family_for(vae)
        with torch.no_grad():
            want = self._exact(hunyuan_vae, z)
            out, seconds, peak = timed(lambda: family.whole(z).cpu(), self.repeats)
        library = sorted(seconds[1:])[len(seconds[1:]) // 2]
        quality = psnr(out, want)
        self.row("unsplit, library", seconds, peak, psnr=round(quality, 2))
        with torch.backends.cudnn.flags(enabled=False):
            self.ours("decode(), library off", vae, z, want, self.repeats)
            row = self.rows[-1]
            self._target("time over the library's", row["median_s"] / library, 0.75)
            self._target("peak, GiB", row["peak_bytes"] / GIB, 10.0)
            self._target("PSNR lost, dB", quality - row["psnr"], 0.5)
            for budget in BUDGETS if has_budgets else ():
                self.ours(f"budget {budget}", vae, z, want, 2, budget=budget)

    def long(self) -> None:
        vae = hunyuan_vae(DEVICE).to(DEVICE)
        torch.manual_seed(0)
        z = torch.randn(1, 16, 25, 96, 160, device=DEVICE, dtype=torch.bfloat16)
        total = torch.cuda.get_device_properties(DEVICE).total_memory
        with torch.backends.cudnn.flags(enabled=False):
            free = self.ours("97 x 768x1280", vae, z, None, 1)
            torch.cuda.set_per_process_memory_fraction(LONG_LIMIT_BYTES / total)
            try:
                tight = self.ours("97 x 768x1280 within 24 GiB", vae, z, None, 1, budget="22GB")
            finally:
                torch.cuda.set_per_process_memory_fraction(1.0)
        print("  its frames are", "equal" if torch.equal(free, tight) else "NOT EQUAL", flush=True)

    def wan(self) -> None:
        seconds, peak = self._beside_diffusers("Wan", wan_vae, (16, 9, 60, 104))
        self._target("time over diffusers'", self.rows[-1]["median_s"] / seconds, 0.75)
        self._target("peak over diffusers'", self.rows[-1]["peak_bytes"] / peak, 1.0)

    def others(self) -> None:
        for name, build, latent in OTHERS:
            seconds, _ = self._beside_diffusers(name, build, latent)
            print(f"  {seconds / self.rows[-1]['median_s']:.2f} times diffusers' speed", flush=True)
            torch.cuda.empty_cache()

    def tight(self) -> None:
        for name, build, latent, budgets in TIGHT:
            vae = build()
            z = torch.randn(1, *latent, device=DEVICE, dtype=torch.bfloat16)
            with torch.backends.cudnn.flags(enabled=False):
                want = self.ours(name, vae, z, None, self.repeats)
                for budget in budgets:
                    self.ours(f"  budget {budget}", vae, z, want, 2, budget=budget)

    def boxes(self) -> None:
        """HunyuanVideo and Wan as above with other sizes of a box of rows, in turn."""
        plain = TritonBackend.target
        cases = ("HunyuanVideo", hunyuan_vae(DEVICE).to(DEVICE), (16, 9, 80, 76)), (
            "Wan", wan_vae(), (16, 9, 60, 104)
        )  # fmt: skip
        try:
            for mib in BOXES_MIB:
                size = mib << 20
                TritonBackend.target = lambda it: plain(it)._replace(rows_bytes=size)  # noqa: B023
                for name, vae, latent in cases:
                    z = torch.randn(1, *latent, device=DEVICE, dtype=torch.bfloat16)
                    with torch.backends.cudnn.flags(enabled=False):
                        self.ours(f"{name}, boxes of {mib} MiB", vae, z, None, self.repeats)
        finally:
            TritonBackend.target = plain

    def _beside_diffusers(
        self, name: str, build: Callable[[], Any], latent: tuple[int, ...]
    ) -> tuple[float, int]:
        """diffusers' decode by the library, its seconds and peak, then ours."""
        z = torch.randn(1, *latent, device=DEVICE, dtype=torch.bfloat16)
        vae = build()
        with torch.no_grad():
            exact = build().float()
            want = exact.decode(z.float()).sample.cpu()
            del exact
            out, seconds, peak = timed(lambda: vae.decode(z).sample.cpu(), self.repeats)
        library = sorted(seconds[1:])[len(seconds[1:]) // 2]
        self.row(f"{name}, diffusers, library", seconds, peak, psnr=round(psnr(out, want), 2))
        with torch.backends.cudnn.flags(enabled=False):
            label = f"{name}, decode(), library off"
            self.ours(label, vae, z, want, self.repeats, strategy="streamed")
        return library, peak

    def _exact(self, build: Callable[[torch.device], Any], z: torch.Tensor) -> torch.Tensor:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            frames: torch.Tensor = family_for(build(DEVICE).to(DEVICE).float()).whole(z.float())
            return frames.cpu()

    def _target(self, what: str, value: float, most: float) -> None:
        print(f"  {'pass' if value <= most else 'FAIL'}: {what} {value:.3g} of at most {most:g}")


def vae_of(kind: str, **config: Any) -> Any:
    """diffusers' VAE of that class at full width with random weights, the same ones each time."""
    import diffusers

    torch.manual_seed(0)
    with DEVICE:
        vae = getattr(diffusers, kind)(**config)
    return torch.nn.Module.to(vae, torch.bfloat16).eval().requires_grad_(False)


wan_vae = functools.partial(vae_of, "AutoencoderKLWan")  # Wan 2.1
wan22_vae = functools.partial(vae_of, "AutoencoderKLWan", **SHAPES["vaes"]["wan22"]["config"])
# Name, VAE, latents (C, T, H, W).
OTHERS = (
    ("Wan, 81x480x832", wan_vae, (16, 21, 60, 104)),
    ("HunyuanVideo 1.5, 33x480x832", functools.partial(vae_of, "AutoencoderKLHunyuanVideo15"),
     (32, 9, 30, 52)),
    ("LTX, 97x512x768", functools.partial(vae_of, "AutoencoderKLLTXVideo"), (128, 13, 16, 24)),
    ("Qwen-Image, 1328x1328", functools.partial(vae_of, "AutoencoderKLQwenImage"),
     (16, 1, 166, 166)),
)  # fmt: skip

# Name, VAE, latents, budgets: of these the packed weights would leave nothing, or little.
TIGHT = (
    ("HunyuanVideo 1.5, 33x480x832", OTHERS[1][1], OTHERS[1][2], ("6GB", "3GB", "2GB")),
    ("Wan 2.2, 33x704x1280", wan22_vae, (48, 9, 44, 80), ("8GB", "4GB", "2.5GB")),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="hunyuan,budgets,long,wan")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU is here that torch can use", file=sys.stderr)
        return 2
    parts = arguments.only.split(",")
    bench = Bench(max(2, arguments.repeats))
    if "hunyuan" in parts or "budgets" in parts:
        bench.hunyuan("budgets" in parts)
    for name in ("long", "wan", "others", "tight", "boxes"):
        if name in parts:
            torch.cuda.empty_cache()
            getattr(bench, name)()
    if arguments.json:
        arguments.json.write_text(json.dumps(bench.rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
