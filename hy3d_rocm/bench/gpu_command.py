"""`hy3d-rocm bench gpu` and `bench decode`: arguments, progress on stderr, the report on stdout."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from hy3d_rocm.bench.cpu_command import (
    add_cpu_decode_options,
    cpu_options_given,
    run_cpu_command,
)
from hy3d_rocm.bench.decode_cases_text import add_cases_options, run_cases_command
from hy3d_rocm.bench.gpu_device import NoGpuError, find_gpu
from hy3d_rocm.bench.plain import plain
from hy3d_rocm.bench.terminal import count, deliver

GPU_BENCHES = ("gpu", "decode")
_GPU_TEXT = """\
For each layer, in one run and in turn: PyTorch's default call (MIOpen or cuDNN) and each tier, with
NCDHW and with channels-last tensors. float32 is computed without TF32. The targets at the end are
set for an NVIDIA H200; on other cards they are for comparison. On AMD cards MIOpen's calls are
tried in a child process first, since they may hang; that may take half of the time. Close other
programs that use the GPU first. Ctrl-C ends it early with the figures so far.
"""
_DECODE_TEXT = """\
Decodes 33 frames of 640x608 with HunyuanVideo's VAE at full width (random weights), diffusers'
framewise default: by the vendor library, with it switched off, and so under protect(). Then 33
frames of 768x1280 under protect() alone. diffusers is needed, and some 25 GB of GPU memory; what
does not fit is said. On AMD cards MIOpen may hang, so it is left out unless --library is given.
--device cpu: on the CPU instead, 9 frames of 160x160 in float32 by torch and by hy3d_rocm.decode.
"""


def add_gpu_parsers(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `gpu` and `decode` to `bench`."""
    gpu = _parser(kinds, "gpu", "the tiers beside MIOpen or cuDNN on the layers of video VAEs",
                  _GPU_TEXT)  # fmt: skip
    gpu.add_argument(
        "--shapes", type=Path, metavar="FILE", help="layers to take (default: the package's)"
    )
    gpu.add_argument("--sets", type=_names, metavar="A,B", help="sets of layers in that file")
    gpu.add_argument("--dtypes", type=_names, metavar="A,B", help="of bf16,f16,f32 (default: all)")
    gpu.add_argument("--tiers", type=_names, metavar="A,B",
                     help="default: triton,gemm,conv2d,native; also vendor, cpu")  # fmt: skip
    gpu.add_argument("--min-gflop", type=_number, default=1.0, metavar="N",
                     help="smallest layer (default 1)")  # fmt: skip
    gpu.add_argument("--seconds", type=_number, metavar="N",
                     help="begin nothing that would end later (default 225; 540 with --sweep); "
                     "what is left out is listed")  # fmt: skip
    gpu.add_argument(
        "--sweep", action="store_true", help="also time every tile that the Triton tier offers"
    )
    decode = _parser(kinds, "decode", "a whole video decode with and without the vendor library",
                     _DECODE_TEXT)  # fmt: skip
    decode.add_argument("--policy", default="auto", help='of protect() (default "auto")')
    decode.add_argument("--repeats", type=count, default=5, metavar="N",
                        help="timed decodes after the first (default 5)")  # fmt: skip
    decode.add_argument("--library", action="store_true",
                        help="on AMD: by MIOpen too, in this process; it may hang")  # fmt: skip
    decode.add_argument("--skip-large", action="store_true", help="without 768x1280")
    decode.add_argument("--seconds", type=_number, default=280.0, metavar="N",
                        help="begin no step after this (default 280)")  # fmt: skip
    add_cases_options(decode)
    add_cpu_decode_options(decode)
    for parser in (gpu, decode):
        parser.add_argument("--device", default="cuda", help='such as "cuda:1" (also on ROCm)')
        parser.add_argument("--json", type=Path, metavar="FILE", help="every figure, as JSON")


def _parser(kinds: Any, name: str, text: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        name, help=text, description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    return parser


def run_gpu_command(arguments: argparse.Namespace) -> int:
    """Exit code: 0; 1 if nothing was measured or the device was lost; 2 without a GPU; 130 after
    Ctrl-C."""
    from hy3d_rocm.bench.models import BenchError

    is_cases = getattr(arguments, "cases", False)
    if arguments.bench == "decode" and arguments.device == "cpu" and not is_cases:
        return run_cpu_command(arguments)
    strange = cpu_options_given(arguments) if arguments.bench == "decode" else []
    if strange:
        _say(f"{', '.join(strange)}: only for bench decode --device cpu, without --cases")
        return 2
    if is_cases:
        return run_cases_command(arguments)
    try:
        device = find_gpu(arguments.device)
        text, data = (_gpu if arguments.bench == "gpu" else _decode)(arguments, device)
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
    from hy3d_rocm.bench.gpu import DEFAULT_TIERS, GpuSettings, run_gpu
    from hy3d_rocm.bench.gpu_cells import DTYPES
    from hy3d_rocm.bench.gpu_layers import DEFAULT_SETS, load_layers
    from hy3d_rocm.bench.gpu_text import gpu_dict, gpu_text
    from hy3d_rocm.conv.tiers import TIER_NAMES

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


def _decode(arguments: argparse.Namespace, device: Any) -> tuple[str, dict[str, Any]]:
    import torch

    from hy3d_rocm.bench.gpu_decode import DecodeSettings, run_decode
    from hy3d_rocm.bench.gpu_decode_text import decode_dict, decode_text

    settings = DecodeSettings(
        device, arguments.policy, arguments.repeats, arguments.seconds,
        has_large=not arguments.skip_large,
        has_library=arguments.library or torch.version.hip is None,
        say=_say,
    )  # fmt: skip
    report = run_decode(settings)
    return decode_text(report), decode_dict(report)


def _known(wanted: Any, there: Any, option: str) -> tuple[str, ...]:
    from hy3d_rocm.bench.models import BenchError

    for name in wanted:
        if name not in there:
            raise BenchError(f"{option}: {name!r} is none of {', '.join(there)}")
    return tuple(dict.fromkeys(wanted))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return value


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
