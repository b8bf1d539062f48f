"""What the commands share: types of arguments, with their sentences, and how a command speaks."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from hy3d_rocm.units import brief, whole_number

STRATEGIES = ("whole", "streamed", "tiled", "cpu")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


def add_command(commands: Any, name: str, help_text: str, **texts: str) -> argparse.ArgumentParser:
    """A sub-command whose description and epilog are shown as they are written."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help_text, formatter_class=argparse.RawDescriptionHelpFormatter, **texts
    )
    return parser


def say(command: str, text: str) -> None:
    sys.stderr.write(f"hy3d-rocm {command}: {text}\n")
    sys.stderr.flush()


def count(text: str) -> int:
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no whole number of 1 or more")
    return value


def size(text: str) -> tuple[int, int]:
    """Width and height."""
    sizes = tuple(map(whole_number, re.split("[xX]", text)))
    if len(sizes) != 2 or not all(sizes):
        raise argparse.ArgumentTypeError(f"{brief(text)} is no size, such as 640x480")
    return sizes[0], sizes[1]


def names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def counts(text: str) -> tuple[int, ...]:
    return tuple(map(count, names(text)))


def seconds(text: str) -> float:
    return _number(text, 1e7, "number of seconds")


def share(text: str) -> float:
    return _number(text, 1.0, "share, such as 0.25")


def _number(text: str, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no {what}")
    return value
