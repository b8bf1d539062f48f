"""The `bench` command: arguments, progress on stderr, the report on stdout."""

from __future__ import annotations

import argparse
from functools import partial

from hy3d_rocm import arguments as types
from hy3d_rocm import checkout
from hy3d_rocm.bench import BenchError
from hy3d_rocm.tune.command import NoGpuError

say = partial(types.say, "bench")


def run_bench_command(arguments: argparse.Namespace) -> int:
    """Exit code: 0; 1 if nothing could be measured; 2 without a GPU or for options that don't fit
    together; 130 after Ctrl-C."""
    try:
        return (_decode if arguments.bench == "decode" else _pipeline)(arguments)
    except NoGpuError as error:
        say(str(error))
        return 2
    except BenchError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted before anything was measured")
        return 130


def _pipeline(arguments: argparse.Namespace) -> int:
    from hy3d_rocm.bench.benches import BENCHES
    from hy3d_rocm.bench.session import Settings

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
    """A bench of the source checkout, as those of kernels are."""
    bench = checkout.module("tools.dev.bench.decode")
    if bench is None:
        raise BenchError(
            "decode is part of a source checkout, not of an installed package: clone the "
            "repository and run this there"
        )
    code: int = bench.run_decode_command(arguments)
    return code
