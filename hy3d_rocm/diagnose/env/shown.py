"""What is shown of texts that came from elsewhere: printable, and without names and secrets.

Captures, the doctor, its route and diagnose are read by others than the user, so what they hold
goes through anonymous(), and values of variables through rules.public_value(). Whatever is printed
or logged goes through printable(): a command's streams are ours to guard (`printed_safely`), in
somebody else's process, ComfyUI's, only our own log lines are (`guard_log`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from typing import Any

from hy3d_rocm.diagnose.tables import words_of

MASK = "..."
SHOWN_CHARACTERS = 120  # of a value, in a line

# Compiled by re where they are used first: this module is read at each start of ComfyUI.
# A folder's name may hold spaces where a separator follows it, not directly beside one.
_PART = r"[^\s/\\:*?\"'<>|,;()\[\]]+"
_SPACED = rf"{_PART}(?: {_PART}){{0,3}}"
_LAST = r"[^\s/\\:*?\"'<>|,;()\[\]]*"
_SEPARATOR = r"[/\\]{1,2}"
# Not the rest of an address such as https://host/page, nor of a relative path.
_FREE = r"(?<![\w:/.\\~%])"
_ROOT = rf"(?:[\\/]{{2,4}}[?.][\\/]{{1,2}})?[A-Za-z]:{_SEPARATOR}"
_PATHS = (
    rf"(?P<quote>['\"])(?P<quoted>(?:file:|{_ROOT}|\\\\|~|/)[^'\"\r\n]*)(?P=quote)"
    rf"|(?P<url>\bfile:/+[^\s'\"<>]+(?: {_PART}{_SEPARATOR}{_LAST})*)"
    rf"|(?<![\w])(?P<drive>{_ROOT}(?:{_SPACED}{_SEPARATOR})*{_LAST})"
    rf"|{_FREE}(?P<share>\\\\{{1,3}}{_PART}(?:\\{{1,2}}{_SPACED}(?=\\))*\\{{1,2}}{_LAST})"
    rf"|{_FREE}(?P<home>~[\w.-]*(?:{_SEPARATOR}{_SPACED}(?=[/\\]))*{_SEPARATOR}{_LAST})"
    rf"|{_FREE}(?P<path>/(?:{_SPACED}/)+{_LAST})"
)
# Folders beside each other in these are people's.
_HOMES = (
    rf"(?:{_ROOT}(?:Users|Documents and Settings)|(?<![\w.])(?:/(?:mnt|media)/[a-z])?"
    rf"/(?:home|Users|var/home|export/home|media|run/media)){_SEPARATOR}"
    rf"(?:{_SPACED}(?=[/\\'\"])|{_PART} [A-Z]{_PART}$|{_PART})"
)
_CREDENTIALS = r"(?<=://)[^\s/@'\"]+@"
_ADDRESS = r"(?<![\w.+-])\w[\w.+-]*@(?:[\w-]+\.)+[A-Za-z]{2,}\b"


def printable(text: str, most: int | None = None) -> str:
    """`text` on one line, with whatever a terminal would obey (control characters, escape
    sequences, marks that turn the direction of reading) or cannot encode written as in Python's
    literals. most: characters, cut with "..."."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    if not clean.isprintable():
        clean = "".join(c if c.isprintable() else repr(c)[1:-1] for c in clean)
    return clean if most is None or len(clean) <= most else clean[: most - 3] + "..."


def anonymous(
    value: Any, environ: Mapping[str, str] = os.environ, *, keep_paths: bool = False
) -> Any:
    """JSON-able `value` without the names of the user, the host and home folders, and without
    credentials in addresses. Mappings, lists and tuples come back as dicts and lists.

    Paths are cut to their last part, or, with keep_paths, kept with home folders as "~". environ:
    whose names and home folder.
    """
    return _anonymous(value, _names(environ), keep_paths)


def _anonymous(value: Any, names: tuple[str, str], keep_paths: bool) -> Any:
    if isinstance(value, str):
        return _text(value, names, keep_paths)
    if isinstance(value, Mapping):
        # Keys are words of ours, unless they are paths.
        return {
            _text(key, names, keep_paths)
            if isinstance(key, str) and re.search(r"[/\\]", key) else key:
            _anonymous(one, names, keep_paths)
            for key, one in value.items()
        }  # fmt: skip
    if isinstance(value, list | tuple):
        return [_anonymous(one, names, keep_paths) for one in value]
    return value


def _text(text: str, names: tuple[str, str], keep_paths: bool) -> str:
    home, own = names
    if home:
        text = re.sub(rf"{home}(?![^/\\\s'\":,;)])", "~", text)
    if "/" in text or "\\" in text or "~" in text:
        text = re.sub(_CREDENTIALS, f"{MASK}@", text)
        text = re.sub(_HOMES, "~", text, flags=re.IGNORECASE)
        text = re.sub(_PATHS, _kept if keep_paths else _last_part, text)
    if "@" in text:
        text = re.sub(_ADDRESS, MASK, text)
    return re.sub(own, MASK, text, flags=re.IGNORECASE) if own else text


def _last_part(found: re.Match[str]) -> str:
    quote = found["quote"] or ""
    whole = found["quoted"] if quote else found[0]
    parts = [part for part in re.split(r"[/\\]+", whole) if part]
    is_share = whole.startswith("\\\\") and not re.match(r"[\\/]+[?.][\\/]", whole)
    is_bare = is_share and len(parts) < 3  # a server, and what it shares
    return f"{quote}{MASK if is_bare or not parts else parts[-1]}{quote}"


def _kept(found: re.Match[str]) -> str:
    """Addresses of files and shares name a machine."""
    whole = found["quoted"] or found[0]
    is_remote = whole.startswith(("file:", "\\\\")) and not re.match(r"[\\/]+[?.][\\/]", whole)
    return _last_part(found) if is_remote else found[0]


@cache
def _host() -> tuple[str, ...]:
    import platform

    name = platform.node()
    return name, name.partition(".")[0]


def _names(environ: Mapping[str, str]) -> tuple[str, str]:
    """Patterns of the user's home folder and of the user's and the host's names, or ""."""
    import getpass

    names = {*_host(), *(environ.get(key, "") for key in ("USERDOMAIN", "COMPUTERNAME"))}
    try:
        names.add(getpass.getuser())
    except (OSError, KeyError, ImportError):  # no such user in the system's list
        pass
    names |= {environ.get(key, "") for key in ("LOGNAME", "USER", "USERNAME")}
    homes = {environ.get(key, "").rstrip("/\\") for key in ("HOME", "USERPROFILE")}
    homes = {home for home in homes if len(home) > 3}  # none, or "/"
    names |= {re.split(r"[/\\]", home)[-1] for home in homes}
    anybody = words_of("ANYBODY")
    own = sorted((n for n in names if len(n) > 1 and n.lower() not in anybody), key=len)
    # As they are, and as repr() and JSON write them.
    home = "|".join(
        re.escape(form) for home in sorted(homes, key=len, reverse=True)
        for form in {home, home.replace("\\", "\\\\"), home.replace("\\", "/")}
    )  # fmt: skip
    told = "|".join(re.escape(name) for name in reversed(own))
    return (
        rf"(?<![\w.]/)(?<![\w.])(?:{home})" if home else "",
        rf"(?<![^\W_])(?:{told})(?![^\W_])" if told else "",
    )


def first_line(error: BaseException) -> str:
    """The error's class and first line; the second too where the first only introduces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # "backend='inductor' raised:" says nothing without the line after it.
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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
