"""What each budget buys: way, planned peak, estimated work, and with --decode the seconds it takes.

    python tests/bench/budget_table.py --kind wan --latents 5x16x16
    python tests/bench/budget_table.py --kind hunyuan --latents 5x16x16 --budgets 400 300 250
    python tests/bench/budget_table.py --kind wan --latents 5x16x16 --decode
    python tests/bench/budget_table.py --kind hunyuan --latents 9x76x80 --device sm_90 \
        --strategy streamed --budgets 3072 4096 6144 8192

A VAE of real width with random weights; budgets in MB, by default those at which the plan changes.
Work is in multiply-accumulates, as a multiple of the least. Planning needs no memory (weights on
"meta"); with --decode each budget is decoded once, in this process, one after the other, without
prepared weights of the one before. A line whose work jumps where the budget hardly fell is a cliff.
--device: the architecture of a GPU that need not be here, in bfloat16 by the fused kernels' rules;
then what is copied to the host and back is told.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

MB = 2**20
KINDS = {
    "wan": "AutoencoderKLWan", "hunyuan": "AutoencoderKLHunyuanVideo",
    "hunyuan15": "AutoencoderKLHunyuanVideo15", "ltx": "AutoencoderKLLTXVideo",
    "image": "AutoencoderKL",
}  # fmt: skip


def make_vae(kind: str, real: bool) -> Any:
    import diffusers
    import torch

    torch.manual_seed(0)
    with torch.device("cpu" if real else "meta"):
        return getattr(diffusers, KINDS[kind])().eval().requires_grad_(False)


def plans_of(budgets: list[int], plan: Any) -> list[Any]:
    """A plan for each budget in bytes; without budgets, from all the memory down, each next one a
    byte less than the plan before took."""
    found = []
    try:
        for budget in budgets:
            found.append(plan(budget))
        while not budgets:
            found.append(plan(found[-1].need.device_bytes - 1 if found else 1 << 50))
    except ValueError as error:
        print(error)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kind", choices=KINDS, default="wan")
    parser.add_argument("--latents", default="5x16x16", help="frames x rows x columns")
    parser.add_argument("--budgets", type=int, nargs="*", default=[], help="MB")
    parser.add_argument("--device", default="cpu", help="cpu, or an architecture such as gfx1100")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--decode", action="store_true", help="on the CPU")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    import torch

    from hy3d_rocm import meter
    from hy3d_rocm.conv import prepared
    from hy3d_rocm.decoding.executor import decode_with_report
    from hy3d_rocm.decoding.families import family_for
    from hy3d_rocm.decoding.memory.budget import NO_LIMIT, Budget
    from hy3d_rocm.decoding.planning.compiled import plan_job
    from hy3d_rocm.decoding.planning.jobs import Job, MakeBackend, best_backend

    if args.threads:
        torch.set_num_threads(args.threads)
    meter.steady_malloc()
    on_cpu = args.device == "cpu"
    if args.decode and not on_cpu:
        parser.error("--decode is for the CPU")
    device, dtype = torch.device("cpu"), torch.float32
    backend = best_backend(device, dtype)
    if not on_cpu:
        device, dtype, backend = torch.device("cuda"), torch.bfloat16, MakeBackend(args.device)
    vae = torch.nn.Module.to(make_vae(args.kind, args.decode), dtype)
    family = family_for(vae)
    size = [int(n) for n in args.latents.split("x")]
    job = Job(
        family, (1, family.latent_channels, *size), device, dtype, dtype, backend,
    )  # fmt: skip

    def plan_of(count: int) -> Any:
        budget = Budget(count, count if on_cpu else NO_LIMIT, on_cpu, "given")
        return plan_job(job, budget, args.strategy)

    plans = plans_of([n * MB for n in args.budgets], plan_of)
    least = min(plan.need.macs for plan in plans)
    z = torch.empty(0) if not args.decode else torch.randn(job.shape)
    more = " seconds | measured peak |" * args.decode + " to the host | back |" * (not on_cpu)
    print("| budget | way | planned peak | work |" + more)
    print("|---|---|---|---|" + "---|" * (more.count("|")))
    for plan in plans:
        need = -(-plan.need.device_bytes // MB)
        line = f"| {need} MB | {plan.variant.name} | {plan.need.device_bytes / MB:.0f} MB "
        line += f"| {plan.need.macs / least:.1f}x |"
        if not on_cpu:
            line += (
                f" {plan.need.stored_bytes / 1e9:.1f} GB | {plan.need.loaded_bytes / 1e9:.1f} GB |"
            )
        if args.decode:
            prepared.give_back()
            began = time.perf_counter()
            with meter.PeakMeter(device, interval=0) as peak:
                report = decode_with_report(vae, z, need * MB)[1]
            assert report.plan["way"] == plan.variant.name, report.plan["way"]
            line += f" {time.perf_counter() - began:.1f} | {peak.peak_bytes / MB:.0f} MB |"
        print(line, flush=True)


if __name__ == "__main__":
    main()
