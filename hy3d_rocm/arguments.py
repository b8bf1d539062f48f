"""What the commands share: types of arguments, with their sentences, and how a command speaks."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

from hy3d_rocm.files import write_whole
from hy3d_rocm.units import GB, brief, whole_number

STRATEGIES = ("whole", "streamed", "tiled", "cpu")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
_TERMINAL_SECONDS = 0.2  # between two states of a line


class CommandError(Exception):
    """Why a command can't do it, a sentence for the user; and its exit code."""

    code = 1


def add_command(commands: Any, name: str, help_text: str, **texts: str) -> argparse.ArgumentParser:
    """A sub-command whose description and epilog are shown as they are written."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help_text, formatter_class=argparse.RawDescriptionHelpFormatter, **texts
    )
    return parser


def say(command: str, text: str) -> None:
    sys.stderr.write(f"hy3d-rocm {command}: {text}\n")
    sys.stderr.flush()


class StatusLine:
    """A line of a terminal that is written over and over. Where there is no terminal: a new line
    each `seconds`, none for None."""

    def __init__(self, stream: IO[str], seconds: float | None = None) -> None:
        self.stream = stream
        self.is_terminal = stream.isatty()
        self._between = _TERMINAL_SECONDS if self.is_terminal else seconds
        self._width = 0
        self._last = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time to show(), which is taken as done."""
        now = time.monotonic()
        if self._between is None or now - self._last < self._between:
            return False
        self._last = now
        return True

    def show(self, text: str) -> None:
        if self.is_terminal:
            self.stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self.stream.write(text + "\n")
        self.stream.flush()

    def end(self) -> None:
        """The last state stays, and other text goes below."""
        if self._width:
            self.stream.write("\n")
            self._width = 0

    def clear(self) -> None:
        """Before other text goes to the same stream."""
        if self._width:
            self.stream.write("\r" + " " * self._width + "\r")
            self._width = 0


def check_names(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    """ValueError (a sentence) for none, and for one that is not known."""
    if not given:
        raise ValueError(f"{option}: give some of {', '.join(known)}")
    for name in given:
        if name not in known:
            raise ValueError(f"{option}: {name!r} is none of {', '.join(known)}")


def deliver(
    text: str, data: dict[str, Any], path: Path | None, say: Callable[[str], None], *,
    measured: bool, interrupted: bool,
) -> int:  # fmt: skip
    """Prints the text and writes `data`, of JSON's types, to `path`. The exit code: 0; 1 if the
    file can't be written or nothing was measured; 130 after Ctrl-C."""
    sys.stdout.write(text)
    if path is not None:
        try:
            write_whole(path, json.dumps(data, indent=1) + "\n")
        except OSError as error:
            say(f"{path} cannot be written: {error.strerror}")
            return 1
    if interrupted:
        return 130
    return 0 if measured else 1


def count(text: str) -> int:
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no whole number of 1 or more")
    return value


def keys(text: str) -> int:
    """How many; 0 stands for all."""
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no number of keys")
    return int(text)


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


def patience(text: str) -> float:
    """Seconds that an examination may take."""
    return _number(text, 3600, "time; give 5 to 3600 seconds", least=5)


def gigabytes(text: str) -> int:
    """Bytes."""
    return int(_number(text, 1e6, "number of gigabytes, such as 8 or 11.5", "gb") * GB)


def _number(text: str, most: float, what: str, unit: str = "", least: float = 0.0) -> float:
    """More than 0, at least `least` and at most `most`."""
    try:
        value = float(text.lower().removesuffix(unit))
    except ValueError:
        value = 0.0
    if not (value > 0 and least <= value <= most):
        raise argparse.ArgumentTypeError(f"{brief(text)} is no {what}")
    return value


def budget(text: str) -> str:
    """As decode() takes it, looked at before anything is loaded."""
    from hy3d_rocm.decoding.memory.budget import parse_budget

    try:
        parse_budget(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def chunk_size(text: str) -> int | None:
    """None for "auto"."""
    if text == "auto":
        return None
    if not (value := whole_number(text)):
        raise argparse.ArgumentTypeError(
            f'{brief(text)}: give a whole number of 1 or more, or "auto"'
        )
    return value


def fps(text: str) -> Fraction:
    """23.976, 29.97 and 59.94 as the standards mean them: n * 1000 / 1001."""
    # No exponents and no endless digits: Fraction("1e999999999") works for minutes.
    value = Fraction(0)
    if re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{0,9}|/[0-9]{1,9})?", text):
        try:
            value = Fraction({"23.976": 24, "29.97": 30, "59.94": 60}.get(text, 0) * 1000, 1001)
            value = value or Fraction(text)
        except (ValueError, ZeroDivisionError):
            pass
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no frame rate; give 24 or 30000/1001")
    return value.limit_denominator(100_000)


# What a table of arguments calls them by.
TYPES: dict[str, Any] = {
    "path": Path, "int": int, "float": float,
    **{made.__name__: made for made in (
        budget, chunk_size, count, counts, fps, gigabytes, keys, names, patience, seconds, share,
        size,
    )},
}  # fmt: skip
