"""Variants timed in turn (A B A B), the first call apart, memory by the allocator's counters."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hy3d_rocm.conv.errors import is_out_of_memory
from hy3d_rocm.diagnose.env.shown import first_line

if TYPE_CHECKING:
    import torch


class UnavailableError(Exception):
    """A variant cannot be measured here; the text says why."""


@dataclass(frozen=True)
class Variant:
    """prepare brings the pipeline into the variant's state and is not timed; call is one picture.

    keep, if given, is told what the first call returned.
    """

    name: str
    prepare: Callable[[], None]
    call: Callable[[], Any]
    keep: Callable[[Any], None] | None = None


@dataclass
class Measured:
    """One variant's figures: seconds of each call after the first, bytes at the peak of any call.

    peak_bytes is None where no allocator counts (a CPU); reason says why a variant stopped.
    """

    name: str
    first_seconds: float | None = None
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    reason: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The fastest and the slowest call after the first, in seconds."""
        return (min(self.seconds), max(self.seconds)) if self.seconds else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "variant": self.name,
            "first_seconds": self.first_seconds,
            "median_seconds": self.median,
            "seconds": self.seconds,
            "peak_bytes": self.peak_bytes,
            "reason": self.reason,
        }


class Meter:
    """Waits for `device` and reads its allocator's peak; on a CPU there is nothing to read."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._counts = device.type == "cuda"

    def start(self) -> float:
        """The time now. The allocator's cache stays: filling it anew is no part of a picture."""
        import torch

        if self._counts:
            gc.collect()  # what only a cycle keeps alive is not the next call's memory
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        return time.perf_counter()

    def stop(self, started: float) -> tuple[float, int | None]:
        """Seconds since `started`, and the peak of allocated bytes since then."""
        import torch

        if not self._counts:
            return time.perf_counter() - started, None
        torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - started
        return seconds, torch.cuda.max_memory_allocated(self.device)

    def release(self) -> None:
        """Gives cached memory back, so that a failed variant does not make the next one fail."""
        import torch

        gc.collect()
        if self._counts:
            torch.cuda.empty_cache()


def interleave(
    variants: Sequence[Variant],
    repeats: int,
    meter: Meter,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[Measured], bool]:
    """Measures each variant 1 + repeats times, in turn; returns the figures and "interrupted".

    A variant that fails is dropped with its reason and the others go on. Ctrl-C ends the
    measurement and keeps what there is.
    """
    rows = [Measured(variant.name) for variant in variants]
    try:
        for turn in range(1 + repeats):
            for variant, row in zip(variants, rows, strict=True):
                if row.reason is None:
                    _measure(variant, row, turn, meter)
                    say(_progress(row, turn, repeats))
    except KeyboardInterrupt:
        return rows, True
    return rows, False


def _measure(variant: Variant, row: Measured, turn: int, meter: Meter) -> None:
    made: Any = None
    try:
        variant.prepare()
        started = meter.start()
        made = variant.call()
        seconds, peak = meter.stop(started)
    except Exception as error:  # noqa: BLE001 - whatever a driver or a compiler raises is a row
        row.reason = _reason(error)
    if row.reason is not None:
        meter.release()  # here, since the exception kept the tensors alive
        return
    if turn == 0:
        row.first_seconds = seconds
        if variant.keep is not None:
            variant.keep(made)
    else:
        row.seconds.append(seconds)
    if peak is not None:
        row.peak_bytes = max(peak, row.peak_bytes or 0)


def _reason(error: Exception) -> str:
    if isinstance(error, UnavailableError):
        return str(error)
    text = first_line(error)
    return f"out of memory ({text})" if is_out_of_memory(error) else text


def _progress(row: Measured, turn: int, repeats: int) -> str:
    if row.reason is not None:
        return f"{row.name}: {row.reason}"
    if turn == 0:
        return f"{row.name}: first call {row.first_seconds:.2f} s"
    return f"{row.name}: {turn} of {repeats}, {row.seconds[-1]:.2f} s"


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float | None:
    """Median of the rounds' above / below; None where
    either has no round."""
    ratios = [a / b for a, b in zip(above, below, strict=False) if b > 0]
    return statistics.median(ratios) if ratios else None
