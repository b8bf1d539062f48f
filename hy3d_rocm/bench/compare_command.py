"""`hy3d-rocm compare`: arguments and the exit code."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hy3d_rocm.env.shown import printable

_EPILOG = """\
A is the result before, B after: files that bench --json, validate and optimize write. A regression
is a median time beyond both files' own range (3 % at least; 25 % where a call was timed once), 5 %
and 16 MB more memory, half a dB less PSNR, a larger error, a failure or a promise that no longer
holds. Other machines and other commands are said.
Exit code: 0 no regression; 1 a regression; 2 files that can't be compared.
"""


def add_compare_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "compare",
        help="hold two results of bench, validate or optimize side by side",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path, metavar="A.json")
    parser.add_argument("after", type=Path, metavar="B.json")


def run_compare_command(arguments: argparse.Namespace) -> int:
    """Exit code: see the epilog."""
    from hy3d_rocm.bench.compare import CompareError, compare, comparison_text, read_result

    try:
        before, after = read_result(arguments.before), read_result(arguments.after)
        found = compare(before, after)
    except CompareError as error:
        sys.stderr.write(f"hy3d-rocm compare: {printable(str(error))}\n")
        return 2
    sys.stdout.write(comparison_text(found, before, after))
    return 1 if found.regressions else 0
