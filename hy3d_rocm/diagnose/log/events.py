"""The events in a log: what ran and where it failed; how it ends as far as no rule tells it.

The order of events is the decision tree of FramePack's AMD documents (specification 002 and 003):
where does it fail, while the transformer is loaded, in the VAE decode or after it; is it an error
or a hang.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from hy3d_rocm.diagnose.log.machine import signs
from hy3d_rocm.diagnose.log.read import Line

# Where a log is, as it is told; "" where nothing runs that is known.
LOAD, SAMPLING, SAMPLED = "while a model was loaded", "while sampling", "after sampling"
DECODE, AFTER = "in the VAE decode", "after the VAE decode"
TRACEBACK_LINES = 120  # how far below an exception's text its traceback may name the place

_BAR = re.compile(r"(?<!shards: )(?<!\d)(\d{1,3})%\|(?!.*[kKMG]i?B/s)")  # not of a download
Mark = Literal["", "finished", "begun", "started", "going"]
_MARKS: tuple[Mark, ...] = ("finished", "begun", "started", "going")
_FRAME = re.compile(r'^(?:\S{0,40} )?File "([^"]{1,300})", line \d{1,7}')
_PACK = re.compile(r"custom_nodes[\\/]{1,2}([^\\/]{1,80})[\\/]")
_PACKAGE = re.compile(r"(?:site|dist)-packages[\\/]{1,2}([^\\/]{1,80})[\\/]")
_NODE = re.compile(
    r"\*{0,2}Node Type:\*{0,2} (\S.{0,80})|^Error occurred when executing (\S.{0,80}?):$"
)
_LIBRARIES = {"torch": "PyTorch", "triton": "Triton", "_rocm_sdk_core": "ROCm"}
SUSPICIOUS_LINES = 5


@dataclass
class Stages:
    """Feed it every line; `stage` is where the log is now."""

    stage: str = ""
    begun: Line | None = None  # the decode that has begun and not ended
    own_lines: bool = False  # it was begun by "[VAE Decode] ..." or "[VAE Encode] ..." lines
    last: Line | None = None
    offloaded: Line | None = None  # a transformer that was only partly moved away
    sampled: bool = field(default=False)

    def __post_init__(self) -> None:
        self._signs = signs()

    def feed(self, line: Line, low: str) -> None:
        """`low`: the line's text in lower case."""
        self.last = line
        if not self._signs["stage event"].has_word(low):
            return
        if self._shows("decode done", line, low):
            self._ended(AFTER if self.begun else self.stage)
            self.offloaded = None
        elif self._shows("own start", line, low):
            self._begins(line, own=True)
        elif self._shows("offload", line, low):
            self.offloaded = line
        elif self._shows("vae loaded", line, low):
            # Before sampling the same line belongs to an encode.
            if self.sampled or self.offloaded:
                self._begins(line, own=False)
            else:
                self.stage = LOAD
        elif self._shows("model loaded", line, low):
            self._ended(LOAD)
        elif self._shows("loaded", line, low) and self.stage == LOAD:
            self.stage = ""  # what it is used for is not shown
        else:
            self._progress(line)

    def _shows(self, name: str, line: Line, low: str) -> bool:
        return self._signs[name].shown(line.text, low)

    def _progress(self, line: Line) -> None:
        bar = _BAR.search(line.text)
        if bar is not None and self.begun is None:
            self.stage = SAMPLED if bar[1] == "100" else SAMPLING
            self.sampled = self.sampled or bar[1] == "100"
        elif line.text.endswith("got prompt"):
            self.sampled = False

    def _begins(self, line: Line, own: bool) -> None:
        if self.begun is None or own:
            self.begun, self.own_lines = line, own
        self.stage = DECODE

    def _ended(self, stage: str) -> None:
        self.begun, self.own_lines, self.stage = None, False, stage
        if stage != AFTER:
            self.sampled = self.sampled and stage == LOAD

    def failed(self) -> Line | None:
        """An error was read. Returns the line of a partial offload if the decode beside it failed;
        that is told once."""
        beside = self.offloaded if self.begun is not None else None
        self.begun = None
        if beside is not None:
            self.offloaded = None
        return beside


def names_a_decode(text: str) -> bool:
    """Whether a line of a traceback or of an error report lies in a VAE's decode."""
    return signs()["decode frame"].pattern.search(text) is not None


def _named(path: str) -> str:
    """Whose file that is, and its name without the folders above it."""
    name = re.split(r"[\\/]+", path)[-1]
    if found := _PACK.search(path):
        return f"in the custom node pack {found[1]} ({name})"
    if found := _PACKAGE.search(path):
        whose = _LIBRARIES.get(found[1], f"the Python package {found[1]}")
        return f"in {whose} ({name})"
    return f"in {name}"


@dataclass
class Outcome:
    """Feed it every line; `error_word` only those that no rule knows."""

    finished: bool = False  # the last run that began was shown to its end
    suspicious: deque[Line] = field(default_factory=lambda: deque(maxlen=SUSPICIOUS_LINES))
    suspicious_count: int = 0
    node: str = ""
    last_frame: str = ""
    last_pack: str = ""
    traceback: tuple[int, int] = (0, 0)  # the line of the last heading, the suspicious ones before

    def __post_init__(self) -> None:
        self._signs = signs()

    def feed(self, line: Line, low: str) -> Mark:
        """What the line shows of the program: it started, a run began, it takes steps, a run
        came to its end."""
        mark: Mark = ""
        if self._signs["run event"].has_word(low):
            shown = (name for name in _MARKS if self._signs[name].shown(line.text, low))
            mark = next(shown, "")
            if mark in ("finished", "begun"):
                self.finished = mark == "finished"
        if 'file "' in low and (found := _FRAME.search(line.text)):
            self.last_frame = found[1]
            if _PACK.search(found[1]):
                self.last_pack = found[1]
        elif "traceback (most recent" in low:
            self.last_frame = self.last_pack = ""
            self.traceback = (line.number, self.suspicious_count)
        elif ("node type" in low or "when executing" in low) and (found := _NODE.search(line.text)):
            self.node = found[1] or found[2]
        return mark

    def error_word(self, line: Line, low: str) -> None:
        """A line that no rule knows."""
        word, no_error = self._signs["error word"], self._signs["no error"]
        if word.has_word(low) and word.pattern.search(no_error.pattern.sub("", line.text)):
            self.suspicious_count += 1
            self.suspicious.append(line)

    def explained(self, line: Line) -> None:
        """A rule knows the error that this line ends: the traceback above it tells no other."""
        begins, count = self.traceback
        if begins and line.number - begins <= TRACEBACK_LINES:
            rest = [row for row in self.suspicious if row.number < begins]
            self.suspicious = deque(rest, maxlen=SUSPICIOUS_LINES)
            self.suspicious_count = count
        self.traceback = (0, 0)

    @property
    def origin(self) -> str:
        """Where the last traceback ends: a custom node pack before a library; "" without one."""
        parts = [_named(self.last_pack or self.last_frame)] if self.last_frame else []
        if self.node:
            parts.append(f"node {self.node}")
        return ", ".join(parts)
