"""What lies in a source checkout and in no wheel (`examples/`, `tools/`): imported on demand; and
its commands."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def module(name: str) -> ModuleType | None:
    """The module of this name in the checkout; None where this is an installed package."""
    path = ROOT.joinpath(*name.split("."))
    if not path.with_suffix(".py").is_file():
        return None
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(name)


# `demo` and `render`, which the folder `examples` holds.
CHECKOUT_COMMANDS = {
    "demo": "decode a filmed clip whole, and under a budget through failing convolutions",
    "render": "draw a mesh on the CPU: normal, position, depth and face maps, and a turntable",
}


def add_checkout_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Each takes what follows as it is, --help too: the example has a parser of its own."""
    for name, text in CHECKOUT_COMMANDS.items():
        # No argument begins with a NUL, so none is an option here.
        parser = commands.add_parser(
            name, help=f"{text} (in a source checkout)", add_help=False, prefix_chars="\0"
        )
        parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run_checkout_command(arguments: argparse.Namespace) -> int:
    """The example's exit code; 1 where there is no checkout."""
    name = arguments.command
    example = module(f"examples.{name}.__main__")
    if example is None:
        sys.stderr.write(
            f"hy3d-rocm {name}: this is part of a source checkout, not of an installed package: "
            f"clone the repository, run `make env` there and then `hy3d-rocm {name}`\n"
        )
        return 1
    code: int = example.main(arguments.rest)
    return code
