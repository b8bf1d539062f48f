"""The `bench` command: arguments, progress on stderr, the report on stdout."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from hy3d_rocm import arguments as types
from hy3d_rocm import checkout
from hy3d_rocm.arguments import add_command, count
from hy3d_rocm.bench.terminal import BenchError, deliver
from hy3d_rocm.files import plain
from hy3d_rocm.tune.command import NoGpuError, find_gpu
from hy3d_rocm.units import GB

LEVELS = ("ref", "avx2", "avx512")
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
_DECODE_TEXT = """\
Decodes 33 frames of 640x608 with HunyuanVideo's VAE at full width (random weights), diffusers'
framewise default: by the vendor library, with it switched off, and so under protect(). Then 33
frames of 768x1280 under protect() alone. diffusers is needed, and some 25 GB of GPU memory; what
does not fit is said. On AMD cards MIOpen may hang, so it is left out unless --library is given.
--device cpu: on the CPU instead, 9 frames of 160x160 in float32 by torch and by hy3d_rocm.decode.
"""


def add_bench_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    bench = add_command(
        commands, "bench", "measure here: offload, compile, precision, resolution, decode",
        description="Measures the delight pipeline on this machine and recommends a setting from "
        "the figures; or a video decode.", epilog=_EPILOG,
    )  # fmt: skip
    kinds = bench.add_subparsers(dest="bench", required=True, metavar="BENCH")
    for name, text in _BENCHES.items():
        one = add_command(kinds, name, text, description=f"Measures {text}.", epilog=_EPILOG)
        _add_options(one)
        if name == "compile":
            one.add_argument(
                "--backend", default="inductor", help="torch.compile's backend (default inductor)"
            )
    text = "a whole video decode with and without the vendor library"
    _add_decode_options(add_command(kinds, "decode", text, description=_DECODE_TEXT))


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR",
        help="a diffusers folder, such as ComfyUI/models/diffusers/hunyuan3d-delight-v2-0 "
        "(default: random weights of the same shapes)")  # fmt: skip
    add("--tiny", action="store_true", help="a toy of random weights: tries the command, no more")
    add(
        "--device", help='such as "cuda:0" (also on ROCm) or "cpu" (default: the first accelerator)'
    )
    add("--size", type=count, metavar="PIXELS",
        help="a side of the picture (default 512; 64 on a CPU or with --tiny)")  # fmt: skip
    add("--steps", type=count, help="denoising steps (default 20; 2 on a CPU or with --tiny)")
    add("--repeats", type=count, default=3, help="calls after the first one (default 3)")
    add("--free", type=_gigabytes, metavar="GB",
        help="advise as if this much memory were free (default: what is free now)")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE as well")


def _add_decode_options(decode: argparse.ArgumentParser) -> None:
    add = decode.add_argument
    add("--policy", default="auto", help='of protect() (default "auto")')
    add("--repeats", type=count, default=5, metavar="N",
        help="timed decodes after the first (default 5)")  # fmt: skip
    add("--library", action="store_true",
        help="on AMD: by MIOpen too, in this process; it may hang")  # fmt: skip
    add("--skip-large", action="store_true", help="without 768x1280")
    add("--seconds", type=types.seconds, default=280.0, metavar="N",
        help="begin no step after this (default 280)")  # fmt: skip
    add("--cases", action="store_true",
        help="the five cases and targets of the VAE plan instead: one picture, 5, "
        "17 and 33 frames, the largest that fits; also on a CPU")  # fmt: skip
    add("--vae", default="wan", metavar="VAE",
        help="with --cases: wan, hunyuan, demo, a diffusers folder or a file "
        "beside its config.json (default wan, random weights)")  # fmt: skip
    add("--scale", type=float, metavar="SHARE",
        help="with --cases: of sides and channels; times and peaks are then not "
        "judged (default 1, on a CPU 0.25)")  # fmt: skip
    add("--budget", help="with --cases: such as 6GB")
    add("--no-stress", action="store_true",
        help="with --cases: without the largest picture that fits")  # fmt: skip
    add("--out", type=Path, metavar="DIR", help="with --cases: default test_data/benchmarks")
    add("--model", choices=("hunyuan", "wan"), help="with --device cpu (default hunyuan)")
    add("--frames", type=count, metavar="N", help="with --device cpu (default 9)")
    add("--size", type=types.size, metavar="HxW", help="with --device cpu (default 160x160)")
    add("--threads", type=count, metavar="N", help="with --device cpu (default: torch's own)")
    add("--strategy", help='of hy3d_rocm.decode, with --device cpu (default "auto")')
    add("--cpu-level", choices=LEVELS, help="with --device cpu: lower both instruction sets")
    add("--no-memory", action="store_true", help="with --device cpu: without the children that "
        "measure the peaks")  # fmt: skip
    add("--device", default="cuda", help='such as "cuda:1" (also on ROCm)')
    add("--json", type=Path, metavar="FILE", help="every figure, as JSON")


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


say = partial(types.say, "bench")


def _pipeline(arguments: argparse.Namespace) -> int:
    from hy3d_rocm.bench.benches import BENCHES
    from hy3d_rocm.bench.session import Settings

    settings = Settings(
        arguments.model, arguments.tiny, arguments.device, arguments.size, arguments.steps,
        arguments.repeats, arguments.free, getattr(arguments, "backend", "inductor"), say,
    )  # fmt: skip
    report = BENCHES[arguments.bench](settings)
    return deliver(
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
        from hy3d_rocm.bench.decode_cases import run_cases_command

        return run_cases_command(arguments)
    device = find_gpu(arguments.device)
    import torch

    from hy3d_rocm.bench.decode_gpu import DecodeSettings, decode_dict, decode_text, run_decode

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
    return deliver(
        text, plain(data), arguments.json, say,
        measured=data["measured"], interrupted=data["interrupted"],
    )  # fmt: skip


def _gigabytes(text: str) -> int:
    try:
        value = float(text.lower().removesuffix("gb"))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of gigabytes, such as 8 or 11.5")
    return int(value * GB)
