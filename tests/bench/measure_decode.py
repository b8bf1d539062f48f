"""Peak memory, time and accuracy of decode() under budgets, each in a fresh process.

    python tests/bench/measure_decode.py --family hunyuan --latent 9 20 16
    python tests/bench/measure_decode.py --weights DIR --latents z.pt --budgets 0.5 0.25 0.1 0

A budget below or equal to 1 is a share of what the whole decode took by measurement, 0 the smallest
that decode() accepts. The peak is VmHWM (reset after loading) above the memory after loading, that
is with the result included; "over" is by how much it passed the budget. PSNR is against the whole
decode, with its range (max - min) as the peak. Exit code 1 if a peak passes the budget by more than
--allow bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MB = 2**20


def build_vae(job: dict[str, Any]) -> Any:
    """The VAE of a job: trained weights from a folder, or random ones (GroupNorm affine too)."""
    import torch
    from diffusers import AutoencoderKLHunyuanVideo, AutoencoderKLWan

    kinds = {"hunyuan": AutoencoderKLHunyuanVideo, "wan": AutoencoderKLWan}
    if job["weights"]:
        return kinds[job["family"]].from_pretrained(job["weights"]).eval()
    torch.manual_seed(0)
    width = job["width"]
    if job["family"] == "wan":
        return AutoencoderKLWan(base_dim=width, z_dim=16, dim_mult=[1, 2, 2, 2]).eval()
    vae = AutoencoderKLHunyuanVideo(
        block_out_channels=(width, 2 * width, 2 * width, 2 * width),
        norm_num_groups=8,
        layers_per_block=job["layers"],
    ).eval()
    for module in vae.modules():
        if isinstance(module, torch.nn.GroupNorm):
            torch.nn.init.normal_(module.weight, 1.0, 0.3)
            torch.nn.init.normal_(module.bias, 0.0, 0.3)
    return vae


def build_latents(job: dict[str, Any]) -> Any:
    """Given latents, or smooth random ones with a little noise, as pictures give."""
    import torch

    if job["latents"]:
        return torch.load(job["latents"], weights_only=True)
    torch.manual_seed(1)
    coarse = [max(2, n // 4) for n in job["latent"]]
    smooth = torch.nn.functional.interpolate(
        torch.randn(1, 16, *coarse), size=job["latent"], mode="trilinear"
    )
    return 1.5 * smooth + 0.2 * torch.randn(1, 16, *job["latent"])


def run_child(job: dict[str, Any]) -> None:
    """One decode; the record goes to job["record"], the frames to job["frames"]."""
    import torch

    from hy3d_rocm.decoding.executor import decode_with_report
    from hy3d_rocm.decoding.report import DecodeOptions
    from hy3d_rocm.meter import PeakMeter, steady_malloc

    steady_malloc()
    torch.set_num_threads(job["threads"])
    vae, latents = build_vae(job), build_latents(job)
    with torch.no_grad():  # code pages of the back-ends are loaded before the count begins
        torch.nn.functional.conv3d(torch.randn(1, 16, 3, 64, 64), torch.randn(16, 16, 3, 3, 3))
    options = DecodeOptions(statistic_passes=job["passes"], halo_pixels=job["halo"])
    with PeakMeter(interval=0) as meter:
        frames, report = decode_with_report(
            vae, latents, job["budget"], job["strategy"], options=options
        )
    torch.save(frames, job["frames"])
    record = report.as_dict() | {"peak_bytes": meter.peak_bytes, "exact": meter.exact}
    Path(job["record"]).write_text(json.dumps(record))


def run(job: dict[str, Any], folder: Path, name: str) -> dict[str, Any]:
    """Starts a child for `job`; its record. RuntimeError with its messages if it fails."""
    job = job | {"record": str(folder / f"{name}.json"), "frames": str(folder / f"{name}.pt")}
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    record: dict[str, Any] = json.loads(Path(job["record"]).read_text())
    return record


def psnr(folder: Path, name: str) -> float:
    """dB of a run's frames against those of the whole decode; inf where equal."""
    import torch

    whole = torch.load(folder / "whole.pt", weights_only=True).double()
    other = torch.load(folder / f"{name}.pt", weights_only=True).double()
    error = float((whole - other).square().mean())
    span = float(whole.max() - whole.min())
    return math.inf if error == 0 else 10 * math.log10(span * span / error)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def line(record: dict[str, Any], budget: int | None, db: float) -> str:
    plan = record["plan"]
    how = "whole"
    if record["strategy"] == "tiled":
        how = (
            f"trunk {plan['trunk_blocks']} chunks {plan['chunks']} tiles "
            f"{plan['tiles'][0]}x{plan['tiles'][1]} passes {plan['passes']}"
        )
    limit = "-" if budget is None else f"{budget / MB:.1f}"
    return (
        f"budget {limit:>8} MB  level {record['level']}  predicted "
        f"{record['predicted_peak_bytes'] / MB:8.1f}  measured {record['peak_bytes'] / MB:8.1f} MB"
        f"  {record['seconds']:6.1f} s  {db:6.1f} dB  {how}"
    )


def smallest_budget(job: dict[str, Any], folder: Path) -> int:
    """What decode() names when it is given one byte."""
    try:
        run(job | {"budget": 1, "strategy": "tiled"}, folder, "refused")
    except RuntimeError as refusal:
        return int(str(refusal).split("give at least ")[1].split()[0])
    raise RuntimeError("a budget of one byte was accepted")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--family", choices=("hunyuan", "wan"), default="hunyuan")
    parser.add_argument("--weights", help="folder of trained weights (else random ones)")
    parser.add_argument("--latents", help="a .pt tensor (else smooth random ones)")
    parser.add_argument("--latent", type=int, nargs=3, default=[9, 20, 16], metavar=("T", "H", "W"))
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--budgets", type=float, nargs="*", default=[0.5, 0.25, 0.1, 0])
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--halo", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--allow", type=float, default=16e6, help="bytes over the budget allowed")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_child(json.loads(args.child))
        return 0
    job = {k: v for k, v in vars(args).items() if k not in ("child", "budgets", "allow")}
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = run(job | {"budget": None, "strategy": "whole"}, folder, "whole")
        say(line(whole, None, math.inf))
        for share in args.budgets:
            budget = int(whole["peak_bytes"] * share) or smallest_budget(job, folder)
            try:
                record = run(job | {"budget": budget, "strategy": "tiled"}, folder, "tiled")
            except RuntimeError as refusal:
                say(f"budget {budget / MB:8.1f} MB  {refusal}")
                continue
            say(line(record, budget, psnr(folder, "tiled")))
            worst = max(worst, record["peak_bytes"] - budget)
    say(f"most over a budget: {worst / MB:.1f} MB (allowed {args.allow / MB:.1f} MB)")
    return 1 if worst > args.allow else 0


if __name__ == "__main__":
    sys.exit(main())
