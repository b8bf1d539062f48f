"""`hy3d-rocm bench decode`: which of its three benches the options are for, and the exit code."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from hy3d_rocm.arguments import deliver
from hy3d_rocm.bench.command import run_bench_command, say
from hy3d_rocm.files import plain
from hy3d_rocm.tune.command import find_gpu
from tools.dev.bench import children

_ON_CPU = ("model", "frames", "size", "threads", "strategy", "cpu_level", "no_memory")


def run_decode_command(arguments: argparse.Namespace) -> int:
    """The exit code; BenchError for what can't be measured, NoGpuError without a GPU."""
    if arguments.device == "cpu" and not arguments.cases:
        from tools.dev.bench import decode_cpu

        code = children.started_anew(run_bench_command, arguments, say)
        return _delivered(arguments, *decode_cpu.run(arguments)) if code is None else code
    strange = ["--" + name.replace("_", "-") for name in _ON_CPU if getattr(arguments, name)]
    if strange:
        say(f"{', '.join(strange)}: only for bench decode --device cpu, without --cases")
        return 2
    if arguments.cases:
        from tools.dev.bench.decode_cases import run_cases_command

        return run_cases_command(arguments)
    return _delivered(arguments, *_on_gpu(arguments))


def _on_gpu(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    from tools.dev.bench.decode_gpu import DecodeSettings, decode_dict, decode_text, run_decode

    report = run_decode(DecodeSettings(
        find_gpu(arguments.device), arguments.policy, arguments.repeats, arguments.seconds,
        has_large=not arguments.skip_large,
        has_library=arguments.library or torch.version.hip is None,
        say=say,
    ))  # fmt: skip
    return decode_text(report), decode_dict(report)


def _delivered(arguments: argparse.Namespace, text: str, data: dict[str, Any]) -> int:
    """The exit code, once text and data are where they belong."""
    return deliver(
        text, plain(data), arguments.json, say,
        measured=data["measured"], interrupted=data["interrupted"],
    )  # fmt: skip
