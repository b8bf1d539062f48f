"""The order of events in a log: what ran, where it failed, whether it ends inside a decode.

The decision tree of FramePack's AMD documents (specification 002 and 003): where does it fail,
while the transformer is loaded, in the VAE decode or after it; is it an error or a hang.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from hy3d_rocm.diagnose.read import Line
from hy3d_rocm.diagnose.signs import signs

Stage = Literal["", "load", "sampling", "sampled", "decode", "after"]
STAGE_WORDS: dict[Stage, str] = {
    "": "",
    "load": "while a model was loaded",
    "sampling": "while sampling",
    "sampled": "after sampling",
    "decode": "in the VAE decode",
    "after": "after the VAE decode",
}
TRACEBACK_LINES = 120  # how far below an exception's text its traceback may name the place

_WORDS = (
    "vae",
    "autoenc",
    "decod",
    "prompt",
    "%|",
    "dynamicswap",
    "requested to load",
    "loaded ",
    "interrupt",
)
_BAR = re.compile(r"(?<!shards: )(?<!\d)(\d{1,3})%\|(?!.*[kKMG]i?B/s)")  # not of a download


@dataclass
class Stages:
    """Feed it every line; `stage` is where the log is now."""

    stage: Stage = ""
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
        if not any(word in low for word in _WORDS):
            return
        if self._shows("decode done", line, low):
            self._ended("after" if self.begun else self.stage)
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
                self.stage = "load"
        elif self._shows("model loaded", line, low):
            self._ended("load")
        elif self._shows("loaded", line, low) and self.stage == "load":
            self.stage = ""  # what it is used for is not shown
        else:
            self._progress(line)

    def _shows(self, name: str, line: Line, low: str) -> bool:
        return self._signs[name].shown(line.text, low)

    def _progress(self, line: Line) -> None:
        bar = _BAR.search(line.text)
        if bar is not None and self.begun is None:
            self.stage = "sampled" if bar[1] == "100" else "sampling"
            self.sampled = self.sampled or bar[1] == "100"
        elif line.text.endswith("got prompt"):
            self.sampled = False

    def _begins(self, line: Line, own: bool) -> None:
        if self.begun is None or own:
            self.begun, self.own_lines = line, own
        self.stage = "decode"

    def _ended(self, stage: Stage) -> None:
        self.begun, self.own_lines, self.stage = None, False, stage
        if stage != "after":
            self.sampled = self.sampled and stage == "load"

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
