"""Peak memory, time and error of a HunyuanVideo decode, whole and layer by layer.

    python tests/bench/measure_layerwise.py [--latent 5x32x32] [--width 32] [--device cuda]

Each line is a process of its own: peak above what it held before the decode (CPU: VmHWM; GPU: the
allocator's counter), result included. The error is the largest difference to the whole decode over
its range. Random weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from hy3d_rocm.decode.engines.layerwise import LayerEngine
from hy3d_rocm.decode.families import family_for
from hy3d_rocm.decode.memory.meter import PeakMeter
from hy3d_rocm.decode.torch_backend import TorchBackend
from hy3d_rocm.decode.weights import ModuleWeights

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latent", default="5x32x32", help="TxHxW")
    parser.add_argument("--width", type=int, default=32, help="channels of the last block")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slice-mib", type=int, nargs="*", default=[4, 32])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.child is not None:
        print(json.dumps(measure(options, json.loads(options.child))))
        return
    with tempfile.TemporaryDirectory() as folder:
        cases: list[dict[str, Any]] = [{"name": "whole"}]
        for mib in options.slice_mib:
            cases.append({"name": f"layers, slices of {mib} MiB", "slice": mib * MIB})
        spilled = {"slice": options.slice_mib[0] * MIB, "spill": True}
        cases.append({"name": "layers, half of the slices on the host", **spilled})
        peaks: dict[str, int] = {}
        for case in cases:
            run(case | {"folder": folder}, peaks)


def run(case: dict[str, Any], peaks: dict[str, int]) -> None:
    """One line. peaks: bytes of slices that the cases before held."""
    if case.get("spill"):
        case["resident"] = peaks["slices"] // 2
    command = [sys.executable, *sys.argv, "--child", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{case['name']:42} failed: {done.stderr.strip().splitlines()[-1]}")
        return
    found = json.loads(done.stdout.splitlines()[-1])
    if found["slices"]:
        peaks.setdefault("slices", found["slices"])
    peak, slices, sent = (found[k] / 1e6 for k in ("peak", "slices", "sent"))
    print(
        f"{case['name']:40} peak {peak:8.1f} MB  slices {slices:8.1f} MB  sent {sent:8.1f} MB"
        f"  {found['seconds']:6.2f} s  error {found['error']:.1e}",
        flush=True,
    )


def measure(options: argparse.Namespace, case: dict[str, Any]) -> dict[str, Any]:
    device = torch.device(options.device)
    dtype = getattr(torch, options.dtype)
    family = family_for(make_vae(options.width).to(device=device, dtype=dtype))
    t, h, w = (int(n) for n in options.latent.split("x"))
    z = torch.randn(1, 16, t, h, w, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    engine = None
    with torch.no_grad():
        warm_up(family, z)
        with PeakMeter(device, interval=0) as meter:
            began = time.perf_counter()
            if case["name"] == "whole":
                frames = family.whole(z)
            else:
                engine = make_engine(device, dtype, case)
                parts = [p for _, p in engine.leave(family.decode(engine, engine.enter(z)))]
                frames = torch.cat(parts, 2)
                del parts
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - began
    kept = Path(case["folder"]) / "whole.pt"
    if case["name"] == "whole":
        torch.save(frames.cpu(), kept)
    whole = torch.load(kept).float()
    error = float((frames.cpu().float() - whole).abs().max() / (whole.max() - whole.min()))
    keeper = None if engine is None else engine.keeper
    return {
        "peak": meter.peak_bytes,
        "seconds": seconds,
        "error": error,
        "slices": 0 if keeper is None else keeper.peak_resident,
        "sent": 0 if keeper is None else keeper.sent,
    }


def make_engine(device: torch.device, dtype: torch.dtype, case: dict[str, Any]) -> LayerEngine:
    folder = case["folder"] if device.type == "cpu" and case.get("resident") else None
    return LayerEngine(
        TorchBackend(ModuleWeights(dtype, device)),
        device,
        case["slice"],
        case.get("resident"),
        folder=folder,
    )


def warm_up(family: Any, z: torch.Tensor) -> None:
    """What libraries take once, for code and tables, is not the decode's."""
    engine = make_engine(z.device, z.dtype, {"slice": MIB, "folder": None})
    family.whole(z[:, :, :2, :4, :4])
    for _ in engine.leave(family.decode(engine, engine.enter(z[:, :, :2, :4, :4]))):
        pass


def make_vae(width: int) -> Any:
    from diffusers import AutoencoderKLHunyuanVideo

    torch.manual_seed(0)
    vae = AutoencoderKLHunyuanVideo(
        block_out_channels=(width, 2 * width, 4 * width, 4 * width),
        norm_num_groups=min(32, width),
    )
    return vae.eval().requires_grad_(False)


if __name__ == "__main__":
    main()
