"""The `bench` command: arguments, progress on stderr, the report on stdout."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from hy3d_rocm import arguments as types
from hy3d_rocm import checkout
from hy3d_rocm.bench.benches import BENCHES
from hy3d_rocm.bench.decode_cases import run_cases_command
from hy3d_rocm.bench.decode_gpu import DecodeSettings, decode_dict, decode_text, run_decode
from hy3d_rocm.bench.session import Settings
from hy3d_rocm.bench.timing import BenchError
from hy3d_rocm.files import plain
from hy3d_rocm.tools.loading import LoadingError
from hy3d_rocm.tune.command import find_gpu


def run_bench_command(arguments: argparse.Namespace) -> int:
    """Exit code: 0; 1 if nothing could be measured; 2 without a GPU or for options that don't fit
    together; 130 after Ctrl-C."""
    try:
        return (_decode if arguments.bench == "decode" else _pipeline)(arguments)
    except (types.CommandError, LoadingError) as error:
        say(str(error))
        return getattr(error, "code", 1)
    except KeyboardInterrupt:
        say("interrupted before anything was measured")
        return 130


say = partial(types.say, "bench")


def _pipeline(arguments: argparse.Namespace) -> int:
    settings = Settings(
        arguments.model, arguments.tiny, arguments.device, arguments.size, arguments.steps,
        arguments.repeats, arguments.free, getattr(arguments, "backend", "inductor"), say,
    )  # fmt: skip
    report = BENCHES[arguments.bench](settings)
    return types.deliver(
        report.as_text(), report.as_dict(), arguments.json, say,
        measured=report.measured, interrupted=report.interrupted,
    )  # fmt: skip


def _decode(arguments: argparse.Namespace) -> int:
    if arguments.device == "cpu" and not arguments.cases:
        return _decode_on_cpu(arguments)
    names = ("model", "frames", "size", "threads", "strategy", "cpu_level", "no_memory")
    strange = ["--" + name.replace("_", "-") for name in names if getattr(arguments, name)]
    if strange:
        say(f"{', '.join(strange)}: only for bench decode --device cpu, without --cases")
        return 2
    if arguments.cases:
        return run_cases_command(arguments)
    device = find_gpu(arguments.device)
    settings = DecodeSettings(
        device, arguments.policy, arguments.repeats, arguments.seconds,
        has_large=not arguments.skip_large,
        has_library=arguments.library or torch.version.hip is None,
        say=say,
    )  # fmt: skip
    report = run_decode(settings)
    return delivered(arguments, decode_text(report), decode_dict(report))


def _decode_on_cpu(arguments: argparse.Namespace) -> int:
    """Beside torch's own: a bench of the source checkout, as those of kernels are."""
    bench = checkout.module("tools.dev.bench.decode_cpu")
    if bench is None:
        raise BenchError(
            "decode --device cpu without --cases is part of a source checkout, not of an installed "
            "package: clone the repository and run this there, or add --cases"
        )
    code: int = bench.run_decode_command(arguments)
    return code


def delivered(arguments: argparse.Namespace, text: str, data: dict[str, Any]) -> int:
    """The exit code, once text and data are where they belong."""
    return types.deliver(
        text, plain(data), arguments.json, say,
        measured=data["measured"], interrupted=data["interrupted"],
    )  # fmt: skip
