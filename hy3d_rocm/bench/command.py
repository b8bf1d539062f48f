"""The `bench` command: arguments, progress on stderr, the report on stdout."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hy3d_rocm.bench.cpu_command import CPU_BENCHES, add_conv_parser, run_cpu_command
from hy3d_rocm.bench.gpu_command import GPU_BENCHES, add_gpu_parsers, run_gpu_command
from hy3d_rocm.bench.raster_command import (
    RASTER_BENCHES,
    add_raster_parser,
    run_raster_command,
)
from hy3d_rocm.bench.terminal import count, deliver
from hy3d_rocm.units import GB

_EPILOG = """\
Run it with the Python that runs ComfyUI (diffusers, transformers and accelerate are needed), and
close ComfyUI first: what it holds in memory is missing here. Without --model, random weights of
the delight model's shapes are measured; time and memory are the same, pictures mean nothing.
Ctrl-C ends a bench early with the figures so far. Variants run in turn (A B A B) in one process.
"""
_BENCHES = {
    "offload": "weights resident against enable_model_cpu_offload(): seconds and memory of both",
    "compile": "torch.compile against none: from how many pictures on it pays",
    "precision": "float32, float16, bfloat16: seconds, memory, difference to float32, NaN",
    "resolution": "the size, 3/4 and 1/2 of it (512, 384, 256): seconds and memory a picture",
}


def add_bench_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure here: offload, compile, precision, resolution, gpu, conv, decode, raster",
        description="Measures the delight pipeline on this machine and recommends a setting from "
        "the figures; or the GPU's or the CPU's convolutions, a video decode, the rasteriser.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = bench.add_subparsers(dest="bench", required=True, metavar="BENCH")
    for name, text in _BENCHES.items():
        one = kinds.add_parser(
            name,
            help=text,
            description=f"Measures {text}.",
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_options(one)
        if name == "compile":
            one.add_argument(
                "--backend", default="inductor", help="torch.compile's backend (default inductor)"
            )
    add_gpu_parsers(kinds)
    add_conv_parser(kinds)
    add_raster_parser(kinds)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="a diffusers folder, such as ComfyUI/models/diffusers/hunyuan3d-delight-v2-0 "
        "(default: random weights of the same shapes)",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="a toy of random weights: tries the command, no more"
    )
    parser.add_argument(
        "--device", help='such as "cuda:0" (also on ROCm) or "cpu" (default: the first accelerator)'
    )
    parser.add_argument(
        "--size",
        type=count,
        metavar="PIXELS",
        help="a side of the picture (default 512; 64 on a CPU or with --tiny)",
    )
    parser.add_argument(
        "--steps", type=count, help="denoising steps (default 20; 2 on a CPU or with --tiny)"
    )
    parser.add_argument(
        "--repeats", type=count, default=3, help="calls after the first one (default 3)"
    )
    parser.add_argument(
        "--free",
        type=_gigabytes,
        metavar="GB",
        help="advise as if this much memory were free (default: what is free now)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every figure to FILE as well"
    )


def run_bench_command(arguments: argparse.Namespace) -> int:
    """Exit code: 0, 1 if nothing could be measured, 130 after Ctrl-C."""
    if arguments.bench in CPU_BENCHES:
        return run_cpu_command(arguments)
    if arguments.bench in RASTER_BENCHES:
        return run_raster_command(arguments)
    if arguments.bench in GPU_BENCHES:
        return run_gpu_command(arguments)
    from hy3d_rocm.bench.benches import BENCHES
    from hy3d_rocm.bench.models import BenchError
    from hy3d_rocm.bench.session import Settings

    settings = Settings(
        model=arguments.model,
        tiny=arguments.tiny,
        device=arguments.device,
        size=arguments.size,
        steps=arguments.steps,
        repeats=arguments.repeats,
        free_bytes=arguments.free,
        backend=getattr(arguments, "backend", "inductor"),
        say=_say,
    )
    try:
        report = BENCHES[arguments.bench](settings)
    except BenchError as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say("interrupted before anything was measured")
        return 130
    return deliver(
        report.as_text(),
        report.as_dict(),
        arguments.json,
        _say,
        measured=report.measured,
        interrupted=report.interrupted,
    )


def _say(text: str) -> None:
    sys.stderr.write(f"hy3d-rocm bench: {text}\n")
    sys.stderr.flush()


def _gigabytes(text: str) -> int:
    try:
        value = float(text.lower().removesuffix("gb"))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of gigabytes, such as 8 or 11.5")
    return int(value * GB)
