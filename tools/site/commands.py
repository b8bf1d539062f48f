"""The page of commands, from their argparse parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from examples.demo.__main__ import build_parser as demo_parser
from examples.render.command import build_parser as render_parser
from hy3d_rocm.cli import build_parser
from tools.dev.bench.__main__ import build_parser as bench_parser

# Commands of a checkout, which have parsers of their own.
OWN_PARSERS = {"hy3d-rocm demo": demo_parser, "hy3d-rocm render": render_parser}
HEAD = """# Commands

Made from the parsers when this page was built; `hy3d-rocm COMMAND --help` says the same. Without
the package installed, `python -m hy3d_rocm COMMAND` does it from a checkout or the pack's folder.
"""


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def helped(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        if action.help == argparse.SUPPRESS:
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.dest}`"
        if action.choices is not None:
            names += " one of " + ", ".join(f"`{choice}`" for choice in action.choices)
        elif action.option_strings and action.nargs != 0:
            names += f" {action.metavar or action.dest.upper()}"
        yield f"| {names} | {cell(helped(action, parser))} |"


def described(name: str, parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{name}`"
    if parser.description:
        yield cell(parser.description)
    table = list(rows(parser))
    if table:
        yield "\n".join(["| argument | meaning |", "|---|---|", *table])
    if parser.epilog:
        yield "```text\n" + parser.epilog.strip() + "\n```"
    for child, below in subparsers(parser).items():
        whole = f"{name} {child}"
        own = OWN_PARSERS[whole]() if whole in OWN_PARSERS else below
        yield from described(whole, own, min(level + 1, 4))


def page() -> str:
    return (
        "\n\n".join(
            [
                HEAD,
                *described("hy3d-rocm", build_parser(), 2),
                *described("python -m tools.dev.bench", bench_parser(), 2),
            ]
        )
        + "\n"
    )
