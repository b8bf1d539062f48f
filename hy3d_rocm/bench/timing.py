"""What the benches share: variants timed in turn (A B A B), the first call apart, memory by the
allocator's counters; targets, and how a report ends."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from hy3d_rocm.arguments import CommandError
from hy3d_rocm.conv.errors import is_out_of_memory
from hy3d_rocm.diagnose.env.shown import first_line
from hy3d_rocm.meter import PeakMeter, give_back


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

    def cells(self, digits: int) -> tuple[str, str, str, str]:
        """For a table: name, first call, median, fastest..slowest."""
        first, median = (
            "-" if value is None else f"{value:.{digits}f} s"
            for value in (self.first_seconds, self.median)
        )
        if self.spread is None:
            return self.name, first, median, "-"
        return self.name, first, median, "..".join(f"{s:.{digits}f}" for s in self.spread) + " s"

    def as_dict(self) -> dict[str, Any]:
        figures = {name: value for name, value in vars(self).items() if name != "name"}
        return {"variant": self.name, **figures, "median_seconds": self.median}


def interleave(
    variants: Sequence[Variant], repeats: int, device: torch.device,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[Measured], bool]:  # fmt: skip
    """Measures each variant 1 + repeats times, in turn; returns the figures and "interrupted".

    A variant that fails is dropped with its reason and the others go on. Ctrl-C ends the
    measurement and keeps what there is.
    """
    rows = [Measured(variant.name) for variant in variants]
    try:
        for turn in range(1 + repeats):
            for variant, row in zip(variants, rows, strict=True):
                if row.reason is None:
                    _measure(variant, row, turn, device)
                    say(_progress(row, turn, repeats))
    except KeyboardInterrupt:
        return rows, True
    return rows, False


def _measure(variant: Variant, row: Measured, turn: int, device: torch.device) -> None:
    on_gpu, made = device.type == "cuda", None
    meter = PeakMeter(device, interval=0, keeps_cache=True)
    try:
        variant.prepare()
        with meter if on_gpu else nullcontext():  # a CPU has no allocator that counts
            began = time.perf_counter()
            made = variant.call()
            if on_gpu:
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - began
    except Exception as error:  # noqa: BLE001 - whatever a driver or a compiler raises is a row
        row.reason = _reason(error)
    if row.reason is not None:
        give_back(device)  # here, since the exception kept the tensors alive
        return
    if turn == 0:
        row.first_seconds = seconds
        if variant.keep is not None:
            variant.keep(made)
    else:
        row.seconds.append(seconds)
    if on_gpu:
        row.peak_bytes = max(meter.baseline_bytes + meter.peak_bytes, row.peak_bytes or 0)


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


class BenchError(CommandError):
    """The bench cannot be run; the text says why and what to do."""


@dataclass(frozen=True)
class Target:
    """`value` at most (is_least: at least) `limit`; None where there is no figure."""

    text: str
    value: float | None
    limit: float
    unit: str = "x"
    at: str = ""
    is_least: bool = False

    @property
    def verdict(self) -> str:
        """pass, FAIL or "no figure". NaN fails."""
        if self.value is None:
            return "no figure"
        is_met = self.value >= self.limit if self.is_least else self.value <= self.limit
        return "pass" if is_met else "FAIL"

    def line(self) -> str:
        value = "-" if self.value is None else f"{self.value:.3g}{self.unit}"
        bound = f"at {'least' if self.is_least else 'most'} {self.limit:.3g}{self.unit}"
        where = f"  ({self.at})" if self.at else ""
        return f"{self.verdict:9}  {self.text}: {value} of {bound}{where}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**dataclasses.asdict(self), "verdict": self.verdict}


def ending(left_out: Sequence[str], interrupted: bool, seconds: float) -> list[str]:
    """The last lines of a bench that looks at the clock."""
    lines = [f"Left out for want of time (--seconds): {', '.join(left_out)}"] if left_out else []
    if interrupted:
        lines.append("Interrupted: these are the figures so far.")
    return [*lines, f"Took {seconds:.0f} s."]
