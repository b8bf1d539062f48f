"""The command line, `hy3d-rocm` or `python -m hy3d_rocm`: one module a command.

decode, plan, doctor, diagnose, miopen, bench, compare, tune, db, capture, optimize, validate, and
demo and render, which are examples. Commands that lie with what they run are only listed here. Only
the one that is run is imported: most need torch, and help and wrong words need not wait for it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from hy3d_rocm import __version__
from hy3d_rocm.arguments import TYPES, CommandError, add_command, say
from hy3d_rocm.checkout import add_example_parsers
from hy3d_rocm.diagnose.env.shown import printed_safely


@cache
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
    table = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
    for name, command in table["commands"].items():
        _add(commands, name, command, table["groups"])
    add_example_parsers(commands)
    return parser


def _add(commands: Any, name: str, written: dict[str, Any], groups: Any, above: Any = "") -> None:
    """A command of the table. above: the epilog of the command that it is an action of."""
    texts = {key: written[key] for key in ("description", "epilog") if key in written}
    if texts.get("epilog") is True:
        texts["epilog"] = above
    parser = add_command(commands, name, written["help"], **texts)
    if "function" in written:
        parser.set_defaults(function=written["function"])
    for key, given in written.get("arguments", {}).items():
        for argument, options in groups[key[1:]].items() if key[0] == "_" else [(key, given)]:
            _add_argument(parser, argument, dict(options))
    if "actions" in written:
        actions = parser.add_subparsers(dest=name, required=True, metavar=written["metavar"])
        for key, action in written["actions"].items():
            _add(actions, key, action, groups, texts["epilog"])


def _add_argument(parser: argparse.ArgumentParser, name: str, options: dict[str, Any]) -> None:
    if options.pop("flag", False):
        options["action"] = "store_true"
    if "type" in options:
        options["type"] = TYPES[options["type"]]
    parser.add_argument(name, **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. Bad usage exits with argparse's code 2."""
    with printed_safely():
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO if arguments.verbose else logging.WARNING, format="%(name)s: %(message)s"
    )
    try:
        module, _, name = arguments.function.partition(":")
        code: int = getattr(import_module(f"hy3d_rocm.{module}"), name)(arguments)
        return code
    except CommandError as error:
        say(arguments.command, str(error))
        return error.code
    except KeyboardInterrupt:  # of a command that has nothing of its own to say
        say(arguments.command, "interrupted")
        return 130
    except ModuleNotFoundError as error:
        package = _PACKAGES.get(error.name or "")
        if package is None:
            raise
        how = f"{package}: {sys.executable} -m pip install {package}"
        if package == "PyTorch":
            how = f"{package}, which is not installed for {sys.executable}: install the build for "
            how += "your card first"
        say(arguments.command, f"this needs {how}")
        return 1


# What commands import once they need it, by the module that is then missing as a whole.
_PACKAGES = {
    "torch": "PyTorch", "PIL": "Pillow",
    **{n: n for n in ("accelerate", "av", "diffusers", "matplotlib", "safetensors",
                      "transformers")},
}  # fmt: skip
