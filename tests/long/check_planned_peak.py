"""The measured peak of a decode never passes the planned one: random jobs, each in a fresh process.

    python tests/long/check_planned_peak.py --count 500
    python tests/long/check_planned_peak.py --device cuda --count 50
    python tests/long/check_planned_peak.py --replay 1234567

A job is a kind of VAE (small, random weights), a shape, a type, a strategy and a budget, all drawn
from its seed, and is decoded by decode_with_report(). On the CPU the peak is VmHWM above the
memory before the first step; planned has an allowance of max(32 MiB, 5 %). On a GPU it is
torch.cuda.max_memory_allocated above what was allocated, and planned is computed + 5 %. A budget
that nothing fits counts as refused; then the same job runs with the least budget that the refusal
names. A decode that does not end as it was planned has failed. Exit code 1 if any peak passes, with
a line to replay it.

On the CPU a fresh process is forked from one that has only imported (--exec: a new interpreter).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

MB = 2**20
TIMEOUT_S = 600
PARTS = ("executor", "execution", "run", "backends.native", "planning.compiled")
# kind of decode_doubles.tiny_vae: wider than there, so that memory is worth measuring
KINDS = ("hunyuan", "wan", "wan22", "hunyuan15", "ltx", "image", "seedvr2")
STRATEGIES = ("auto", "auto", "whole", "streamed", "tiled", "cpu")


def draw(seed: int, device: str) -> dict[str, Any]:
    """The job of a seed: everything random is in it."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    frames = 1 if kind == "image" else rng.choice((1, 2, 3, 4, 5, 7, 9))
    return {
        "seed": seed,
        "device": device,
        "kind": kind,
        "frames": frames,
        "rows": rng.randint(3, 12) * (3 if kind == "image" else 1),
        "columns": rng.randint(3, 12) * (3 if kind == "image" else 1),
        "batch": rng.choice((1, 1, 1, 2)),
        "dtype": rng.choice(("float32", "float32", "bfloat16")),
        "strategy": rng.choice(STRATEGIES),
        "share": rng.choice((None, 1.0, 0.7, 0.45, 0.3, 0.2, 0.1)),
        "threads": rng.choice((1, 2)),
        "fused": rng.random() < 0.7,
    }


def wide_vae(kind: str) -> Any:
    """A VAE of `kind` with random weights: as wide as a measurement needs."""
    import diffusers
    import torch

    torch.manual_seed(0)
    video = {"latent_channels": 4, "block_out_channels": (32, 32, 64, 64), "layers_per_block": 1}
    wan = {"base_dim": 32, "z_dim": 4, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1}
    made = {
        "hunyuan": lambda: diffusers.AutoencoderKLHunyuanVideo(**video, norm_num_groups=8),
        "hunyuan15": lambda: diffusers.AutoencoderKLHunyuanVideo15(
            **video | {"block_out_channels": (32, 32, 64, 64, 64)}
        ),
        "wan": lambda: diffusers.AutoencoderKLWan(**wan),
        "wan22": lambda: diffusers.AutoencoderKLWan(
            **wan, decoder_base_dim=32, is_residual=True, patch_size=2, in_channels=12,
            out_channels=12, scale_factor_spatial=16,
        ),
        "ltx": lambda: diffusers.AutoencoderKLLTXVideo(
            latent_channels=8, block_out_channels=(16, 16, 32, 32), patch_size=2,
            decoder_block_out_channels=(16, 32, 32, 32), layers_per_block=(1, 1, 1, 1, 1),
            decoder_layers_per_block=(1, 1, 1, 1, 1),
        ),
        "image": lambda: diffusers.AutoencoderKL(
            block_out_channels=(32, 64, 64), down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3, norm_num_groups=8, latent_channels=4,
        ),
        "seedvr2": lambda: importlib.import_module("decode_seedvr2").SeedVr2(
            video["block_out_channels"], groups=8
        ),
    }  # fmt: skip
    return made[kind]().eval().requires_grad_(False)


def run_child(job: dict[str, Any]) -> dict[str, Any]:
    """Decodes the job; what was planned and measured."""
    import torch

    from hy3d_rocm import meter
    from hy3d_rocm.decoding.families import family_for
    from hy3d_rocm.decoding.planning.planner import DoesNotFitError

    torch.set_num_threads(job["threads"])
    meter.steady_malloc()
    device, dtype = torch.device(job["device"]), getattr(torch, job["dtype"])
    vae = wide_vae(job["kind"]).to(device, dtype)
    try:
        family = family_for(vae)
    except TypeError as error:
        return {"skipped": str(error)}
    shape = (job["batch"], family.latent_channels, job["frames"], job["rows"], job["columns"])
    z = torch.randn(shape, generator=torch.Generator().manual_seed(job["seed"])).to(dtype)
    warm_up(dtype)
    try:
        room = 1 << 40
        if job["share"] is not None:
            room = max(int(least_of(vae, z, job | {"strategy": "whole"}) * job["share"]), 1)
        try:
            refused, record = False, measure(vae, z, room, job)
        except DoesNotFitError as error:
            room, refused = error.smallest, True
            record = measure(vae, z, room, job)
    except ValueError as error:
        return {"skipped": str(error)}
    return record | {"budget_bytes": room, "refused": refused, "shape": shape}


def least_of(vae: Any, z: Any, job: dict[str, Any]) -> int:
    """The least budget of a strategy, as the refusal names it."""
    from hy3d_rocm.decoding.planning.planner import DoesNotFitError

    try:
        measure(vae, z, 1, job)
    except DoesNotFitError as error:
        return error.smallest
    raise AssertionError("a decode fits a budget of one byte")


def measure(vae: Any, z: Any, room: int, job: dict[str, Any]) -> dict[str, Any]:
    """Decodes once; peak bytes from the first step on above what was there before."""
    import torch

    from hy3d_rocm import meter
    from hy3d_rocm.decoding import decode_with_report
    from hy3d_rocm.decoding.execution import Execution
    from hy3d_rocm.decoding.report import DecodeOptions

    device = torch.device(job["device"])
    peak = meter.PeakMeter(device, interval=0)
    attempt = Execution._attempt

    def metered(self: Any) -> Any:
        with peak:
            failure = attempt(self)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        assert failure is None, failure
        return failure

    options = DecodeOptions(backend="auto" if job["fused"] else "torch")
    Execution._attempt = metered  # type: ignore[method-assign]
    try:
        out, report = decode_with_report(
            vae, z.to(device), room, job["strategy"], options=options
        )  # fmt: skip
    finally:
        Execution._attempt = attempt  # type: ignore[method-assign]
    assert bool(torch.isfinite(out).all())
    if report.strategy == "cpu" and device.type != "cpu":
        return {"skipped": "computes on the host"}
    return {
        "planned_bytes": report.predicted_peak_bytes, "peak_bytes": peak.peak_bytes,
        "exact": peak.exact, "seconds": peak.seconds, "way": report.plan["way"],
        "planning_seconds": report.planning_seconds,
    }  # fmt: skip


def warm_up(dtype: Any) -> None:
    """Code pages of the back-ends are loaded before the count begins."""
    import torch

    with torch.no_grad():
        x = torch.randn(1, 16, 3, 8, 8, dtype=dtype)
        torch.nn.functional.conv3d(x, torch.randn(16, 16, 3, 3, 3, dtype=dtype))
        torch.randn(64, 64, dtype=dtype) @ torch.randn(64, 64, dtype=dtype)


def run(job: dict[str, Any], by_exec: bool = False) -> dict[str, Any]:
    """The job in a fresh process; its record, with "error" where it failed."""
    if by_exec:
        command = [sys.executable, __file__, "--child", json.dumps(job)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
        last = lines[-1] if lines else f"exit code {done.returncode}"
        return {"error": last} if done.returncode else dict(json.loads(last))
    return forked(job) if job["device"] == "cpu" else here(job)


def here(job: dict[str, Any]) -> dict[str, Any]:
    """The job in this process: an allocator's counters need no fresh one."""
    import torch

    try:
        record = run_child(job)
    except Exception as error:  # noqa: BLE001  it is told with the seed
        traceback.print_exc()
        record = {"error": f"{type(error).__name__}: {error}"}
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return record


def forked(job: dict[str, Any]) -> dict[str, Any]:
    """The job in a forked child, which is killed after TIMEOUT_S."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            try:
                record = run_child(job)
            except BaseException as error:  # noqa: BLE001  it is all that the parent gets to see
                traceback.print_exc()
                record = {"error": f"{type(error).__name__}: {error}"}
            json.dump(record, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        ready = select.select([pipe], [], [], TIMEOUT_S)[0]
        if not ready:
            os.kill(child, signal.SIGKILL)
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return {"error": f"the child ended with status {status} and said nothing"}
    return dict(json.loads(text))


def import_all() -> None:
    """What children need; runs nothing, so that no thread is there when they are forked."""
    for name in ("diffusers", "torch", *(f"hy3d_rocm.decoding.{part}" for part in PARTS)):
        importlib.import_module(name)
    diffusers = importlib.import_module("diffusers")
    for name in ("HunyuanVideo", "HunyuanVideo15", "Wan", "LTXVideo", ""):
        getattr(diffusers, f"AutoencoderKL{name}")  # diffusers imports a class when it is asked for


def verdict(job: dict[str, Any], record: dict[str, Any]) -> tuple[str, bool]:
    """A line about the run, and whether it is well."""
    what = (
        f"seed {job['seed']}: {job['kind']} {job['batch']}x{job['frames']}x{job['rows']}x"
        f"{job['columns']} {job['dtype']} {job['strategy']} share {job['share']}"
    )
    if "error" in record:
        return f"FAILED {what}: {record['error']}", False
    if "skipped" in record:
        return f"skipped {what}: {record['skipped'][:100]}", True
    planned, peak = record["planned_bytes"], record["peak_bytes"]
    text = f"{what} -> {record['way']}: planned {planned / MB:.1f} MB, measured {peak / MB:.1f} MB"
    if planned > record["budget_bytes"]:
        return f"OVER THE BUDGET {text}", False
    return (f"ok {text}", True) if peak <= planned else (f"OVER {text}", False)


def check(seeds: list[int], device: str, by_exec: bool, verbose: bool) -> dict[str, Any]:
    """Runs the seeds; counts, and the lines of those that failed."""
    totals = {"ok": 0, "skipped": 0, "failed": 0, "lines": [], "least_room": None}
    if not by_exec:
        import_all()
    for seed in seeds:
        job = draw(seed, device)
        record = run(job, by_exec)
        line, well = verdict(job, record)
        kind = "failed" if not well else "skipped" if "skipped" in record else "ok"
        totals[kind] += 1
        if kind == "ok":
            room = record["planned_bytes"] - record["peak_bytes"]
            totals["least_room"] = min(room, totals["least_room"] or room)
        if not well:
            line += f"\n  replay: python tests/long/check_planned_peak.py --device {device}"
            line += f" --replay {job['seed']}"
            totals["lines"].append(line)
        if verbose or not well:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None, help="of the first job (else by time)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--exec", action="store_true", help="new interpreters instead of forks")
    parser.add_argument("--replay", type=int, nargs="*", help="seeds of single jobs")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        sys.stdout.write(json.dumps(run_child(json.loads(args.child))) + "\n")
        return 0
    first = int(time.time()) if args.seed is None else args.seed
    seeds = args.replay or list(range(first, first + args.count))
    totals = check(seeds, args.device, args.exec, args.verbose or bool(args.replay))
    room = totals["least_room"]
    said = "" if room is None else f", least room {room / MB:.1f} MB"
    sys.stdout.write(
        f"{totals['ok']} within their plan, {totals['skipped']} skipped, {totals['failed']} "
        f"failed{said} (seeds {seeds[0]} to {seeds[-1]})\n"
    )
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
