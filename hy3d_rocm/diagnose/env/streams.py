"""What is printed and logged obeys nobody: names of files and devices come from elsewhere.

A command's streams are ours to guard (`printed_safely`). In somebody else's process, ComfyUI's,
only our own log lines are (`guard_log`).
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from hy3d_rocm.diagnose.env.shown import printable

# Ours: ends of lines, tabs, and what progress lines write, to go back.
_OWN = re.compile(r"(\r?\n|\r|\t)")
_IN_LOGS = re.compile(r"([\n\t])")


def _safe_but_for(kept: re.Pattern[str], text: str) -> str:
    """`text` with what a terminal would obey written as in Python's literals. kept: what is left as
    it is, as one group."""
    if text.isprintable() and text.isascii():
        return text
    parts = kept.split(text)
    return "".join(part if n % 2 else printable(part) for n, part in enumerate(parts))


class _Stream:
    """A text stream of which write() is safe; all else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        clean = _safe_but_for(_OWN, text)
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
    with ExitStack() as both:
        for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
            if stream is not None:
                both.enter_context(redirect(_Stream(stream)))
        yield


class _LogGuard(logging.Filter):
    """Log records whose message and traceback a terminal has nothing to obey in."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # the handler tells of arguments that do not fit
            return True
        clean = _safe_but_for(_IN_LOGS, text)
        if clean != text:
            record.msg, record.args = clean, ()
        if record.exc_info and not record.exc_text:
            trace = logging.Formatter().formatException(record.exc_info)
            record.exc_text = _safe_but_for(_IN_LOGS, trace)
        return True


_LOG_GUARD = _LogGuard()


def guard_log() -> None:
    """From now on our log lines are safe, whoever's handlers write them; again is no harm."""
    logging.getLogger("hy3d_rocm").addFilter(_LOG_GUARD)
