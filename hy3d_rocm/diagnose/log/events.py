"""The events in a log: what ran and where it failed; how it ends as far as no rule tells it.

The order of events is the decision tree of FramePack's AMD documents (specification 002 and 003):
where does it fail, while the transformer is loaded, in the VAE decode or after it; is it an error
or a hang.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field

from hy3d_rocm.diagnose.log.read import Line
from hy3d_rocm.diagnose.log.rules import signs

# Where a log is, as it is told; "" where nothing runs that is known.
LOAD, SAMPLING, SAMPLED = "while a model was loaded", "while sampling", "after sampling"
DECODE, AFTER = "in the VAE decode", "after the VAE decode"
HEADING = "traceback (most recent"
TRACEBACK_LINES = 120  # how far below an exception's text its traceback may name the place

_BAR = re.compile(r"(?<!shards: )(?<!\d)(\d{1,3})%\|(?!.*[kKMG]i?B/s)")  # not of a download
_MARKS = ("finished", "begun", "started", "going")  # of what runs; the first counts
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
    """Feed it every line with the signs that it shows; `stage` is where the log is now."""

    stage: str = ""
    begun: Line | None = None  # the decode that has begun and not ended
    own_lines: bool = False  # it was begun by "[VAE Decode] ..." or "[VAE Encode] ..." lines
    offloaded: Line | None = None  # a transformer that was only partly moved away
    sampled: bool = False

    def feed(self, line: Line, shown: Container[str]) -> None:
        if "decode done" in shown:
            self._ended(AFTER if self.begun else self.stage)
            self.offloaded = None
        elif "own start" in shown:
            self.begun, self.own_lines, self.stage = line, True, DECODE
        elif "offload" in shown:
            self.offloaded = line
        elif "vae loaded" in shown:
            # Before sampling the same line belongs to an encode.
            if self.sampled or self.offloaded:
                if self.begun is None:
                    self.begun, self.own_lines = line, False
                self.stage = DECODE
            else:
                self.stage = LOAD
        elif "model loaded" in shown:
            self._ended(LOAD)
        elif "loaded" in shown and self.stage == LOAD:
            self.stage = ""  # what it is used for is not shown
        elif "begun" in shown:
            self.sampled = False
        elif self.begun is None and "%|" in line.text and (bar := _BAR.search(line.text)):
            self.stage = SAMPLED if bar[1] == "100" else SAMPLING
            self.sampled = self.sampled or bar[1] == "100"

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
    """Feed it every line with the signs that it shows; `error_word` only those that no rule
    knows."""

    finished: bool = False  # the last run that began was shown to its end
    run_failed: bool = False  # the run that goes on now had an error
    has_runs: bool = False  # the program says where a run begins
    went_on: int = 0  # the last line at which the program is shown to work
    suspicious: deque[Line] = field(default_factory=lambda: deque(maxlen=SUSPICIOUS_LINES))
    suspicious_count: int = 0
    node: str = ""
    last_frame: str = ""
    last_pack: str = ""
    traceback: tuple[int, int] = (0, 0)  # the line of the last heading, the suspicious ones before

    def feed(self, line: Line, low: str, shown: Container[str]) -> None:
        """`low`: the line's text in lower case."""
        mark = next((mark for mark in _MARKS if mark in shown), "")
        if mark in ("finished", "begun"):
            self.finished = mark == "finished"
        if mark == "begun":
            self.run_failed, self.has_runs = False, True
        elif mark and (
            mark == "started" or not self.run_failed or (mark == "going" and not self.has_runs)
        ):
            self.went_on = line.number
        if 'file "' in low and (found := _FRAME.search(line.text)):
            self.last_frame = found[1]
            if _PACK.search(found[1]):
                self.last_pack = found[1]
        elif HEADING in low:
            self.last_frame = self.last_pack = ""
            self.traceback = (line.number, self.suspicious_count)
        elif ("node type" in low or "when executing" in low) and (found := _NODE.search(line.text)):
            self.node = found[1] or found[2]

    def error_word(self, line: Line) -> None:
        """A line with a word of an error that no rule knows."""
        if signs()["error word"].pattern.search(signs()["no error"].pattern.sub("", line.text)):
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
