"""The command line, `hy3d-rocm` or `python -m hy3d_rocm`: one module a command.

decode, plan, doctor, diagnose, miopen, bench, compare, tune, db, capture, optimize, validate; in a
checkout demo and render. Commands that lie with what they run are only listed here.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence

from hy3d_rocm import __version__
from hy3d_rocm.bench.command import add_bench_parser, run_bench_command
from hy3d_rocm.bench.compare import add_compare_parser, run_compare_command
from hy3d_rocm.cli.checkout import CHECKOUT_COMMANDS, add_checkout_parsers, run_checkout_command
from hy3d_rocm.cli.decode import add_decode_parser, run_decode_command
from hy3d_rocm.cli.plan import add_plan_parser, run_plan_command
from hy3d_rocm.cli.tools import TOOLS, add_tool_parsers, run_tool_command
from hy3d_rocm.conv.verdict_store.command import add_db_parser, run_db_command
from hy3d_rocm.diagnose.command import add_diagnose_parser, run_diagnose_command
from hy3d_rocm.doctor.command import add_doctor_parser, run_doctor_command
from hy3d_rocm.doctor.miopen.command import add_miopen_parser, run_miopen_command
from hy3d_rocm.env.streams import printed_safely
from hy3d_rocm.tune.command import add_tune_parser, run_tune_command


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hy3d-rocm",
        description="Hunyuan3D and FramePack on AMD GPUs: convolutions that go on "
        "where MIOpen fails, video VAE decodes within a memory budget, the right device and one "
        "generator.",
    )
    parser.add_argument("--version", action="version", version=f"hy3d-rocm {__version__}")
    parser.add_argument("--verbose", action="store_true", help="show the library's log lines")
    commands = parser.add_subparsers(dest="command", required=True)
    add_doctor_parser(commands)
    add_diagnose_parser(commands)
    add_miopen_parser(commands)
    add_decode_parser(commands)
    add_plan_parser(commands)
    add_tool_parsers(commands)
    add_bench_parser(commands)
    add_compare_parser(commands)
    add_tune_parser(commands)
    add_db_parser(commands)
    add_checkout_parsers(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. Bad usage exits with argparse's code 2."""
    with printed_safely():
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO if arguments.verbose else logging.WARNING, format="%(name)s: %(message)s"
    )
    return _COMMANDS[arguments.command](arguments)


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "doctor": run_doctor_command, "diagnose": run_diagnose_command,
    "miopen": run_miopen_command, "decode": run_decode_command, "plan": run_plan_command,
    **dict.fromkeys(TOOLS, run_tool_command), "bench": run_bench_command,
    "compare": run_compare_command, "tune": run_tune_command, "db": run_db_command,
    **dict.fromkeys(CHECKOUT_COMMANDS, run_checkout_command),
}  # fmt: skip
