"""`bench conv`: arguments, its child, its output."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hy3d_rocm.arguments import count, deliver
from hy3d_rocm.bench.timing import BenchError
from hy3d_rocm.files import plain
from hy3d_rocm.units import brief, whole_number
from tools.dev.bench import children

# The same as cpu_layers has, which imports torch.
_SETS = ("hunyuan_video_9x160x160", "wan21_9x160x160")
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_LEVELS = ("ref", "avx2", "avx512")
_CONV_TEXT = """\
Measures hy3d_rocm.conv3d on the CPU beside torch's (oneDNN), on the layers of two real video VAE
decodes: in one process, on the same threads, in turn, medians. Weights are prepared before the
timed calls. Errors are held against float64 on a sample of outputs. Close other programs first.
--cpu-level avx2 holds torch to AVX2, too; with bfloat16 and float16 oneDNN runs without AMX, which
AMD's processors don't have: for both the bench starts itself anew with the variables set.
"""


def add_conv_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `conv` to `bench`."""
    conv = kinds.add_parser(
        "conv",
        help="the CPU convolution beside torch's (oneDNN), layer by layer",
        description=_CONV_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = conv.add_argument
    add(
        "--shapes",
        type=Path,
        metavar="FILE",
        help="layers to take (default: those in tests/shapes)",
    )
    add("--entries", nargs="+", default=list(_SETS), metavar="NAME", help="sets of layers in it")
    add("--min-channels", type=count, default=1, metavar="N", help="of input and output")
    add("--kernel", type=_kernel, metavar="3x3x3", help='such as 3x3x3 or 3x3 (default "any")')
    add("--min-gflop", type=gflop, default=0.05, metavar="X", help="smallest layer (0.05)")
    add("--max-gflop", type=gflop, default=math.inf, metavar="X", help="largest layer")
    add("--threads", type=count, metavar="N", help="default: torch's own number")
    add("--dtype", choices=_DTYPES, default="float32", help="of input, weight and output")
    add("--accuracy", choices=("fast", "exact"), default="fast", help='default "fast"')
    add("--cpu-level", choices=_LEVELS, help="lower the instruction set, torch's as well")
    add("--repeats", type=count, default=5, metavar="N", help="rounds (default 5)")
    add("--clock", choices=("wall", "cpu"), default="wall",
        help="cpu: the calling thread's time, for one thread on a shared machine")  # fmt: skip
    add("--cold", action="store_true", help="also calls that prepare their weights")
    add("--memory", action="store_true", help="also memory of a call, in children (slow)")
    add("--json", type=Path, metavar="FILE", help="every figure, as JSON")
    add("--plot", type=Path, metavar="FILE.png", help="bars of GFLOP/s; needs matplotlib")


def run_conv_command(arguments: argparse.Namespace) -> int:
    """Exit code: 0; 1 if nothing was measured, or a call took more memory than it said; 2 for
    options that don't fit together; 130 after Ctrl-C."""
    from hy3d_rocm import _native

    try:
        code = children.started_anew(run_conv_command, arguments, _say)
        if code is not None:
            return code
        if not _native.available:
            raise BenchError(f"the C core is not there ({_native.missing}), and this measures it")
        return _conv(arguments)
    except BenchError as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say("interrupted before anything was measured")
        return 130


def _conv(arguments: argparse.Namespace) -> int:
    import torch

    from tools.dev.bench.cpu_conv import ConvSettings, run_conv
    from tools.dev.bench.cpu_layers import Choice, choose_layers
    from tools.dev.bench.cpu_plot import need_matplotlib, plot_conv
    from tools.dev.bench.cpu_text import conv_dict, conv_text, is_over

    threads = arguments.threads or torch.get_num_threads()
    if arguments.clock == "cpu" and threads != 1:
        _say("--clock cpu measures one thread: add --threads 1")
        return 2
    if arguments.plot is not None:
        need_matplotlib()
    layers = choose_layers(
        Choice(arguments.shapes, arguments.entries, arguments.min_channels, arguments.kernel and
               tuple(arguments.kernel), arguments.min_gflop, arguments.max_gflop)
    )  # fmt: skip
    extra = _memory(arguments, threads) if arguments.memory else None
    report = run_conv(
        ConvSettings(layers, arguments.dtype, arguments.accuracy, threads, arguments.repeats,
                     arguments.clock, arguments.cold, extra=extra, say=_say)
    )  # fmt: skip
    code = deliver(
        conv_text(report), plain(conv_dict(report)), arguments.json, _say,
        measured=report.measured, interrupted=report.interrupted,
    )  # fmt: skip
    if arguments.plot is not None and report.measured:
        try:
            plot_conv(report, arguments.plot)
        except (OSError, ValueError) as error:
            _say(f"{arguments.plot} cannot be written: {error}")
            return 1
    return code or int(any(is_over(row) for row in report.rows))


def _memory(arguments: argparse.Namespace, threads: int) -> Callable[[Any], tuple[int, int]]:
    from tools.dev.bench.cpu_memory import memory_job

    # Else glibc keeps an arena a thread, which is not the convolution's memory.
    steady = {"MALLOC_ARENA_MAX": "1"}

    def measure(layer: Any) -> tuple[int, int]:
        jobs = [memory_job(layer, which, arguments.dtype, arguments.accuracy, threads)
                for which in ("ours", "torch")]  # fmt: skip
        ours, theirs = (int(children.run_quietly(job, steady)["bytes"]) for job in jobs)
        return ours, theirs

    return measure


def _say(text: str) -> None:
    sys.stderr.write(f"bench conv: {text}\n")
    sys.stderr.flush()


def gflop(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GFLOP, such as 0.05 or 100")
    return value


def _kernel(text: str) -> list[int] | None:
    if text == "any":
        return None
    sizes = text.split("x")
    if len(sizes) not in (2, 3) or not all(map(whole_number, sizes)):
        raise argparse.ArgumentTypeError(f'{brief(text)} is no kernel: write 3x3x3, 3x3 or "any"')
    return [int(size) for size in sizes]
