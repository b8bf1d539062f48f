"""What a user sees while a tool decodes: one line with grains, time and memory, written over."""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING, Protocol

import torch

from hy3d_rocm.decode.memory.meter import resident_bytes
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from hy3d_rocm.decode.report import Step

_SECONDS = 0.2


class Watched(Protocol):
    """decode()'s `progress` over several decodes, told of each before it begins."""

    def begin(self, label: str) -> None:
        """Another decode begins."""

    def __call__(self, done: int, total: int, step: Step, /) -> None:
        """A grain of it is done."""


class ProgressLine:
    """decode()'s `progress`. On a terminal one line written over and over, elsewhere nothing."""

    def __init__(self, device: torch.device, stream: IO[str]) -> None:
        self.device = device
        self.stream = stream
        self.label = ""
        self.shows = stream.isatty()
        self.peak_bytes = 0
        self._width = 0
        self._began = self._last = time.perf_counter()

    def begin(self, label: str) -> None:
        """Another decode begins."""
        self.label = label
        self.peak_bytes = 0
        self._began = time.perf_counter()

    def __call__(self, done: int, total: int, step: Step) -> None:
        now = time.perf_counter()
        if not self.shows or now - self._last < _SECONDS:
            return
        self._last = now
        held = self._held()
        self.peak_bytes = max(self.peak_bytes, held)
        of = f" of {total}" if total else ""
        self._write(
            f"{self.label}: {step.kind} {done}{of}, {now - self._began:.0f} s, "
            f"{size_text(held)} (most {size_text(self.peak_bytes)})"
        )

    def clear(self) -> None:
        """Before other text goes to the same stream."""
        if self.shows and self._width:
            self.stream.write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        self.stream.write("\r" + text.ljust(self._width))
        self._width = len(text)
        self.stream.flush()

    def _held(self) -> int:
        if self.device.type == "cuda":
            return int(torch.cuda.memory_allocated(self.device))
        return resident_bytes()
