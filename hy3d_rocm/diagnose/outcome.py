"""How a log ends as far as no rule tells it: a run that finished, words of errors, tracebacks."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from hy3d_rocm.diagnose.read import Line
from hy3d_rocm.diagnose.signs import signs
from hy3d_rocm.diagnose.stages import TRACEBACK_LINES

_FINISH_WORDS = ("prompt", "success", "saved", "written", "wrote", "exit", "starting server",
                 "stopped server", "to see the gui", "running on local", "unsloth: ",
                 "running training", "it/s", "s/it")  # fmt: skip
Mark = Literal["", "started", "begun", "going", "finished"]
_FRAME = re.compile(r'^(?:\S{0,40} )?File "([^"]{1,300})", line \d{1,7}')
_PACK = re.compile(r"custom_nodes[\\/]{1,2}([^\\/]{1,80})[\\/]")
_PACKAGE = re.compile(r"(?:site|dist)-packages[\\/]{1,2}([^\\/]{1,80})[\\/]")
_NODE = re.compile(
    r"\*{0,2}Node Type:\*{0,2} (\S.{0,80})|^Error occurred when executing (\S.{0,80}?):$"
)
_LIBRARIES = {"torch": "PyTorch", "triton": "Triton", "_rocm_sdk_core": "ROCm"}
SUSPICIOUS_LINES = 5


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
        if any(word in low for word in _FINISH_WORDS):
            if self._signs["finished"].shown(line.text, low):
                self.finished, mark = True, "finished"
            elif self._signs["begun"].shown(line.text, low):
                self.finished, mark = False, "begun"
            elif self._signs["started"].shown(line.text, low):
                mark = "started"
            elif self._signs["going"].shown(line.text, low):
                mark = "going"
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
        no_error = self._signs["no error"].pattern
        if self._signs["error word"].shown(no_error.sub("", line.text), low):
            self.suspicious_count += 1
            self.suspicious.append(line)

    def told(self, line: Line) -> None:
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
