"""`hy3d-rocm plan`: how a decode would go, without a GPU and without weights."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

import torch

from hy3d_rocm import meter
from hy3d_rocm.cli.program import sections_of, table
from hy3d_rocm.decoding.backends.triton.backend import refusal
from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.decoding.memory.budget import NO_LIMIT, Budget, make_budget, parse_budget
from hy3d_rocm.decoding.planning import jobs
from hy3d_rocm.decoding.precision import PRECISIONS
from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.diagnose.env.shown import printable
from hy3d_rocm.tools import loading
from hy3d_rocm.tools.planning import Explained, explain
from hy3d_rocm.units import brief, size_text, whole_number


def run_plan_command(arguments: argparse.Namespace) -> int:
    """Exit code: see the epilog."""
    try:
        found, rules = _explained(arguments)
        if arguments.json:
            sys.stdout.write(json.dumps(_described(found, rules, arguments.program)) + "\n")
        else:
            for line in _lines(found, rules, arguments.program):
                sys.stdout.write(f"{printable(line)}\n")
    except (OSError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        sys.stderr.write(f"hy3d-rocm plan: {error}\n")
        return 1
    if found.plan is None and not arguments.json:
        sys.stderr.write(f"hy3d-rocm plan: {found.why}\n")
    return 0 if found.plan is not None else 1


def _explained(arguments: argparse.Namespace) -> tuple[Explained, str]:
    """The plan, and in words whose rules the layers' memory goes by."""
    on_cpu = arguments.device == "cpu"
    dtype = PRECISIONS[arguments.dtype or "auto"] or (torch.float32 if on_cpu else torch.bfloat16)
    room = _budget(arguments, on_cpu)
    options = DecodeOptions(chunk_size=arguments.chunk_size, cpu_offload=not arguments.no_offload)
    backend, rules = _rules(arguments.device, dtype)
    device = torch.device("cpu" if on_cpu else "cuda")
    with torch.no_grad():
        vae = torch.nn.Module.to(loading.bare_vae(arguments.vae), dtype)
        family = family_for(vae)
        shape = _shape(arguments, family)
        job = jobs.Job(family, shape, device, dtype, dtype, backend)
        return explain(job, room, arguments.strategy, options), rules


def _rules(device: str, dtype: torch.dtype) -> tuple[Any, str]:
    """What computes the layers, and in words whose rules that are. ValueError (a sentence) for a
    device that is none."""
    if device == "cpu":
        made = jobs.best_backend(torch.device("cpu"), dtype)
        whose = "the C convolution's" if made.computes_natively else "torch's operators'"
        return made, f"{whose} rules"
    if device == "gpu":
        return jobs.host_backend, (
            "torch's operators' rules on a GPU (--device gfx1100, or another architecture, asks "
            "the fused kernels)"
        )
    if not re.fullmatch(r"gfx[0-9a-f]{3,4}|sm_[0-9]{2,3}", device):
        raise ValueError(
            f"--device {brief(device)}: give cpu, gpu, or the name of an architecture such as "
            "gfx1100 or sm_90"
        )
    reason = refusal(torch.device("cuda"), dtype, device)
    if reason is None:
        return jobs.MakeBackend(device), f"the fused kernels' rules on {device}"
    return jobs.host_backend, f"torch's operators' rules on a GPU ({reason})"


def _budget(arguments: argparse.Namespace, on_cpu: bool) -> Budget:
    """Of this machine's host on the CPU; of a GPU that is not here what is given."""
    request, host = parse_budget(arguments.budget), parse_budget(arguments.host_budget)
    if on_cpu:
        if arguments.host_budget is not None:
            raise ValueError("--host-budget: on the CPU all memory is one budget: give --budget")
        return make_budget(arguments.budget, meter.machine_of(torch.device("cpu")))
    for name, given in (("--budget", request), ("--host-budget", host)):
        if isinstance(given, float):
            raise ValueError(
                f"{name}: a share needs a GPU whose memory can be looked at: give a size such as "
                "6GB"
            )
    said = [
        f"{size_text(given, 2)} on {where} as given" if isinstance(given, int)
        else f"{where} without a limit"  # nobody can look at what is free there
        for where, given in (("the device", request), ("the host", host))
    ]  # fmt: skip
    sizes = [given if isinstance(given, int) else NO_LIMIT for given in (request, host)]
    return Budget(sizes[0], sizes[1], False, "; ".join(said))


def _shape(arguments: argparse.Namespace, family: Any) -> tuple[int, ...]:
    """(B, C, T, H, W). ValueError (a sentence) for a latent that this VAE does not take."""
    channels = int(family.latent_channels)
    text = arguments.latent
    if text is None:
        width, height = arguments.size
        return loading.latent_shape(family, arguments.frames, height, width)
    sizes = tuple(map(whole_number, re.split("[xX]", text)))
    if not 3 <= len(sizes) <= 5 or not all(sizes):
        raise ValueError(
            f"--latent {brief(text)}: give three whole numbers of 1 or more, frames x rows x "
            "columns of the latent, such as 9x40x64 (with channels 16x9x40x64)"
        )
    if len(sizes) > 3 and sizes[-4] != channels:
        raise ValueError(
            f"--latent {brief(text)} has {sizes[-4]} channels, but this {family.name} VAE decodes "
            f"{channels}: give {'x'.join(map(str, sizes[-3:]))}"
        )
    if family.is_image and sizes[-3] != 1:
        raise ValueError(
            f"--latent {brief(text)}: {family.name} makes single images: give 1x"
            f"{'x'.join(map(str, sizes[-2:]))}"
        )
    batch = sizes[0] if len(sizes) == 5 else 1
    return batch, channels, *sizes[-3:]


def _lines(found: Explained, rules: str, program: bool) -> list[str]:
    lines = found.lines()
    lines.insert(2, f"what layers take: by {rules}")
    if program and found.plan is not None and found.plan.compiled is not None:
        lines += ["", *table(found.plan.compiled)]
    return lines


def _described(found: Explained, rules: str, program: bool) -> dict[str, Any]:
    told = found.describe() | {"rules": rules}
    if program and found.plan is not None and found.plan.compiled is not None:
        told["program"] = list(sections_of(found.plan.compiled))
    return told
