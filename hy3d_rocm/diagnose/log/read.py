"""Lines out of a log, whatever its encoding, line ends and colours, in constant memory."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

CHUNK_BYTES = 1 << 16
PIECE_CHARS = 4096  # what a pattern sees at once of a longer line (a workflow in JSON)
OVERLAP_CHARS = 512  # no sentence that a rule looks for is longer

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,512}\x07?|[@-Z\\^_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff]")
_PREFIX = re.compile(
    r"(?:"
    r"[>|│] ?"
    r"|\[?\d{4}-\d\d-\d\d[T ][\d:.,]{5,15}\]?(?: - |: | )?"  # ComfyUI's and logging's time stamps
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,64} \S{1,64}: "  # syslog
    r"|\[ {0,6}\d{1,7}\.\d{1,6}\] "  # dmesg
    r"|\[(?:INFO|ERROR|WARNING|DEBUG|WARN|Warning|Debug|Info|rank\d+)\s?\]:? "
    r"|\[ComfyUI-\d+/STD(?:ERR|OUT)\] "
    r"|[\w.-]{1,40} {1,4}\| "  # docker compose
    r"|\(\w{1,40} pid=\d{1,9}\) "
    r"|(?:ERROR|WARNING|INFO):[\w.]{1,60}:"
    r")"
)


class Line(NamedTuple):
    """`text`: without colours and line end, white space collapsed; `number` counts from 1.

    A line of more than PIECE_CHARS comes in several overlapping pieces with the same number; so do
    the states of a progress bar, which a carriage return parts.
    """

    number: int
    text: str


def clean(raw: str) -> str:
    """Without escape sequences and control characters, white space collapsed."""
    if "\x1b" in raw:
        raw = _ESCAPES.sub("", raw)
    text = " ".join(raw.split())
    return text if text.isprintable() else _CONTROL.sub("", text)


def without_prefix(text: str) -> str:
    """`text` without the time stamps, levels and names that loggers put before a line."""
    for _ in range(4):
        found = _PREFIX.match(text)
        if found is None:
            break
        text = text[found.end() :]
    return text


def lines_of_text(text: str) -> Iterator[Line]:
    return _lines([text])


def lines_of_stream(stream: BinaryIO) -> Iterator[Line]:
    """Lines of a binary stream. Bytes that its encoding has not got become U+FFFD."""
    return _lines(_decoded(stream))


def _decoded(stream: BinaryIO) -> Iterator[str]:
    chunk = stream.read(CHUNK_BYTES)
    decoder = codecs.getincrementaldecoder(_encoding_of(chunk))(errors="replace")
    while chunk:
        yield decoder.decode(chunk)
        chunk = stream.read(CHUNK_BYTES)
    yield decoder.decode(b"", final=True)


def _encoding_of(head: bytes) -> str:
    """UTF-16 by its mark or by its zeros (what PowerShell's `>` writes), else UTF-8."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:4096]
    if len(sample) >= 8:
        odd, even = sample[1::2].count(0), sample[::2].count(0)
        if odd > 0.4 * len(sample) / 2 and even == 0:
            return "utf-16-le"
        if even > 0.4 * len(sample) / 2 and odd == 0:
            return "utf-16-be"
    return "utf-8-sig"


def _lines(texts: Iterable[str]) -> Iterator[Line]:
    number, rest = 1, ""
    for text in texts:
        parts = (rest + text).split("\n")
        rest = parts.pop()
        for part in parts:
            yield from _segments(number, part)
            number += 1
        while len(rest) > 4 * PIECE_CHARS:
            yield from _segments(number, rest[:PIECE_CHARS])
            rest = rest[PIECE_CHARS - OVERLAP_CHARS :]
    yield from _segments(number, rest)


def _segments(number: int, raw: str) -> Iterator[Line]:
    for segment in raw.split("\r"):
        text = clean(segment)
        for begin in range(0, max(1, len(text)), PIECE_CHARS - OVERLAP_CHARS):
            piece = text[begin : begin + PIECE_CHARS]
            if piece and (begin == 0 or len(piece) > OVERLAP_CHARS):
                yield Line(number, piece)
