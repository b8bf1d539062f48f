"""`hy3d-rocm demo`, or `python -m examples.demo` in a checkout: the arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.demo.run import DemoError, run_demo


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hy3d-rocm demo")
    parser.add_argument("--out", type=Path, default=Path("demo_out"), help="folder to write to")
    parser.add_argument("--frames", type=int, default=33, help="4 n + 1 frames (default 33)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code. Bad usage exits with argparse's code 2."""
    arguments = build_parser().parse_args(argv)
    try:
        run_demo(arguments.out, frames=arguments.frames)
    except DemoError as error:
        sys.stderr.write(f"hy3d-rocm demo: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
