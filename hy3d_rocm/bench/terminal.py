"""What the bench commands share at the terminal: a count as an argument, a report that is printed
and written."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hy3d_rocm.units import brief, whole_number


def count(text: str) -> int:
    """A positive whole number, for argparse."""
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no positive whole number")
    return value


def deliver(
    text: str,
    data: dict[str, Any],
    path: Path | None,
    say: Callable[[str], None],
    *,
    measured: bool,
    interrupted: bool,
) -> int:
    """Prints the text and writes `data`, of JSON's types, to `path`. The exit code: 0; 1 if the
    file can't be written or nothing was measured; 130 after Ctrl-C."""
    sys.stdout.write(text)
    if path is not None:
        try:
            path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            say(f"{path} cannot be written: {error.strerror}")
            return 1
    if interrupted:
        return 130
    return 0 if measured else 1
