"""What a command prints and logs obeys nobody: names of files and devices come from elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hy3d_rocm.env.shown import printable

# Ours: ends of lines, tabs, and what progress lines write, to go back and to clear the rest.
_OWN = re.compile(r"(\r?\n|\r\x1b\[K|\r|\t)")


def safe(text: str) -> str:
    """`text` with all characters that a terminal would obey written as in Python's literals, but
    for ends of lines, tabs and what our own progress lines are made of."""
    if text.isprintable() and text.isascii():
        return text
    parts = _OWN.split(text)
    return "".join(part if n % 2 else printable(part) for n, part in enumerate(parts))


class _Stream:
    """A text stream whose write() goes through safe(); all else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        clean = safe(text)
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(clean.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def printed_safely() -> Iterator[None]:
    """sys.stdout and sys.stderr are safe inside, for log lines too."""
    before = sys.stdout, sys.stderr
    mine: list[Any] = [stream if stream is None else _Stream(stream) for stream in before]
    sys.stdout, sys.stderr = mine
    try:
        yield
    finally:
        # Whoever put another stream there meanwhile takes it back himself.
        if sys.stdout is mine[0]:
            sys.stdout = before[0]
        if sys.stderr is mine[1]:
            sys.stderr = before[1]
