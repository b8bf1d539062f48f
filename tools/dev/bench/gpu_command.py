"""`bench gpu`: arguments, progress on stderr, the report on stdout."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hy3d_rocm.arguments import deliver, seconds
from hy3d_rocm.bench.timing import BenchError
from hy3d_rocm.files import plain
from hy3d_rocm.tune.command import NoGpuError, find_gpu
from tools.dev.bench.cpu_command import gflop

_GPU_TEXT = """\
For each layer, in one run and in turn: PyTorch's default call (MIOpen or cuDNN) and each tier, with
NCDHW and with channels-last tensors. float32 is computed without TF32. The targets at the end are
set for an NVIDIA H200; on other cards they are for comparison. On AMD cards MIOpen's calls are
tried in a child process first, since they may hang; that may take half of the time. Close other
programs that use the GPU first. Ctrl-C ends it early with the figures so far.
"""


def add_gpu_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `gpu` to `bench`."""
    gpu = kinds.add_parser(
        "gpu",
        help="the tiers beside MIOpen or cuDNN on the layers of video VAEs",
        description=_GPU_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    gpu.add_argument(
        "--shapes",
        type=Path,
        metavar="FILE",
        help="layers to take (default: those in tests/shapes)",
    )
    gpu.add_argument("--sets", type=_names, metavar="A,B", help="sets of layers in that file")
    gpu.add_argument("--dtypes", type=_names, metavar="A,B", help="of bf16,f16,f32 (default: all)")
    gpu.add_argument("--tiers", type=_names, metavar="A,B",
                     help="default: triton,gemm,conv2d,native; also vendor, cpu")  # fmt: skip
    gpu.add_argument("--min-gflop", type=gflop, default=1.0, metavar="N",
                     help="smallest layer (default 1)")  # fmt: skip
    gpu.add_argument("--seconds", type=seconds, metavar="N",
                     help="begin nothing that would end later (default 225; 540 with --sweep); "
                     "what is left out is listed")  # fmt: skip
    gpu.add_argument(
        "--sweep", action="store_true", help="also time every tile that the Triton tier offers"
    )
    gpu.add_argument("--device", default="cuda", help='such as "cuda:1" (also on ROCm)')
    gpu.add_argument("--json", type=Path, metavar="FILE", help="every figure, as JSON")


def run_gpu_command(arguments: argparse.Namespace) -> int:
    """Exit code: 0; 1 if nothing was measured or the device was lost; 2 without a GPU; 130 after
    Ctrl-C."""
    try:
        device = find_gpu(arguments.device)
        text, data = _gpu(arguments, device)
    except NoGpuError as error:
        _say(str(error))
        return 2
    except BenchError as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say("interrupted before anything was measured")
        return 130
    return deliver(
        text,
        plain(data),
        arguments.json,
        _say,
        measured=data["measured"],
        interrupted=data["interrupted"],
    )


def _gpu(arguments: argparse.Namespace, device: Any) -> tuple[str, dict[str, Any]]:
    from hy3d_rocm.conv.tiers import TIER_NAMES
    from tools.dev.bench.gpu import DEFAULT_TIERS, GpuSettings, run_gpu
    from tools.dev.bench.gpu_cells import DTYPES
    from tools.dev.bench.gpu_layers import DEFAULT_SETS, load_layers
    from tools.dev.bench.gpu_text import gpu_dict, gpu_text

    others = [name for name in TIER_NAMES if name != "current"]
    usual = 540.0 if arguments.sweep else 225.0
    settings = GpuSettings(
        load_layers(arguments.shapes, arguments.sets or DEFAULT_SETS, arguments.min_gflop),
        device,
        _known(arguments.dtypes or tuple(DTYPES), tuple(DTYPES), "--dtypes"),
        _known(arguments.tiers or DEFAULT_TIERS, others, "--tiers"),
        arguments.seconds or usual,
        arguments.sweep,
        _say,
    )
    report = run_gpu(settings)
    return gpu_text(report), {
        **gpu_dict(report),
        "measured": bool(report.cells) and not report.fault,
    }


def _known(wanted: Any, there: Any, option: str) -> tuple[str, ...]:
    for name in wanted:
        if name not in there:
            raise BenchError(f"{option}: {name!r} is none of {', '.join(there)}")
    return tuple(dict.fromkeys(wanted))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
