"""What lies beside this package in a source checkout, imported on demand: `examples/`, which an
installed package has within it, and `tools/`, which it has not. And the commands of `examples/`."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).resolve().parent
ROOTS = (_PACKAGE.parent, _PACKAGE / "_bundled")  # setup.py makes the second


def module(name: str) -> ModuleType | None:
    """The module of this name; None where this is an installed package, which has it not."""
    for root in ROOTS:
        if root.joinpath(*name.split(".")).with_suffix(".py").is_file():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                    raise  # of what it imports something is missing
    return None  # or another program's module has this name here


EXAMPLES = {
    "demo": "decode a filmed clip whole, and under a budget through failing convolutions",
    "render": "draw a mesh on the CPU: normal, position, depth and face maps, and a turntable",
}


def add_example_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Each takes what follows as it is, --help too: the example has a parser of its own."""
    for name, text in EXAMPLES.items():
        # No argument begins with a NUL, so none is an option here.
        parser = commands.add_parser(name, help=text, add_help=False, prefix_chars="\0")
        parser.set_defaults(function="checkout:run_example")
        parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run_example(arguments: argparse.Namespace) -> int:
    """The example's exit code; 1 where it is not there."""
    name = arguments.command
    example = module(f"examples.{name}.__main__")
    if example is None:
        sys.stderr.write(
            f"hy3d-rocm {name}: its files are missing from this installation: install hy3d-rocm "
            "again, or run it in a clone of the repository\n"
        )
        return 1
    code: int = example.main(arguments.rest)
    return code
