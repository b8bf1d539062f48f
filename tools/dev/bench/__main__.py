"""`python -m tools.dev.bench conv|gpu|raster`: the arguments, and which bench they are for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hy3d_rocm.diagnose.env.shown import printed_safely
from tools.dev.bench.cpu_command import add_conv_parser, run_conv_command
from tools.dev.bench.gpu_command import add_gpu_parser, run_gpu_command
from tools.dev.bench.raster_command import add_raster_parser, run_raster_command

_COMMANDS = {"conv": run_conv_command, "gpu": run_gpu_command, "raster": run_raster_command}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.dev.bench",
        description="Measures kernels beside their peers: the GPU's or the CPU's convolutions, the "
        "rasteriser.",
    )
    kinds = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    add_conv_parser(kinds)
    add_gpu_parser(kinds)
    add_raster_parser(kinds)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code. Bad usage exits with argparse's code 2."""
    arguments = build_parser().parse_args(argv)
    with printed_safely():
        return _COMMANDS[arguments.bench](arguments)


if __name__ == "__main__":
    sys.exit(main())
