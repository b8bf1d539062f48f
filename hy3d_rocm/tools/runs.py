"""One decode, timed and weighed, for the tools that compare decodes; and the line that a user sees
meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any, Protocol

import torch

from hy3d_rocm.bench.models import first_line
from hy3d_rocm.decode.black_box import is_opaque
from hy3d_rocm.decode.executor import decode_with_report
from hy3d_rocm.decode.faults import is_out_of_memory
from hy3d_rocm.decode.memory.meter import PeakMeter, resident_bytes
from hy3d_rocm.decode.moments import wide_type
from hy3d_rocm.decode.report import DecodeCancelled, DecodeOptions, DecodeReport
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.counter import Progress
    from hy3d_rocm.decode.report import Step
    from hy3d_rocm.tools.subjects import Subject


_SECONDS = 0.2  # between two states of the line


@dataclass(frozen=True)
class Setting:
    """What decode() is given. name: for a table. batch: so many times the latents at once."""

    name: str
    strategy: str = "auto"
    precision: str = "auto"
    budget: int | str | None = None
    options: DecodeOptions = field(default_factory=DecodeOptions)
    batch: int = 1

    @property
    def changed(self) -> dict[str, Any]:
        """The options that are not as they usually are."""
        usual = DecodeOptions()
        return {k: v for k, v in asdict(self.options).items() if v != getattr(usual, k)}

    def call(self) -> str:
        """The call that sets it, in Python."""
        said = [
            f'{name}="{value}"'
            for name, value in (("strategy", self.strategy), ("precision", self.precision))
            if value != "auto"
        ]
        if self.budget is not None:
            said.append(f"budget={self.budget!r}".replace("'", '"'))
        if self.changed:
            inner = ", ".join(f"{k}={v!r}" for k, v in self.changed.items())
            said.append(f"options=DecodeOptions({inner})")
        latents = "latents" if self.batch == 1 else f"torch.cat([latents] * {self.batch})"
        return f"decode_with_report(vae, {latents}{''.join(', ' + s for s in said)})"


@dataclass
class Outcome:
    """How one decode went. Seconds without planning, of one sample of a batch; bytes above what was
    in use, on the device (on the CPU with the result). error: None where it ended; frames (of the
    first sample) only where they were kept. smallest_bytes: the least budget that would do, where
    one was refused; else 0. instead_of: of exact_frames(), what was tried before and why it did
    not end; "" where it was the first."""

    setting: Setting
    seconds: float = 0.0
    planning_seconds: float = 0.0
    planned_bytes: int = 0
    peak_bytes: int = 0
    way: str = ""
    strategy: str = ""
    dtype: str = ""
    error: str | None = None
    kind: str = "done"  # "refused", "out of memory", "failed", "cancelled"
    smallest_bytes: int = 0
    instead_of: str = ""
    report: DecodeReport | None = None
    frames: Tensor | None = None

    @property
    def told(self) -> str:
        """How it was made, in what, how long."""
        return f"{self.way} in {self.dtype}, {self.seconds:.1f} s"


def run_once(
    subject: Subject,
    setting: Setting,
    *,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    keep: bool = True,
    wide: bool = False,
) -> Outcome:
    """keep: the frames, too. wide: in float32 or float64 whatever type the VAE has. Raises
    KeyboardInterrupt only; everything else a decode may raise is told in the outcome."""
    outcome = Outcome(setting)
    family, latents = subject.family, torch.cat([subject.latents] * setting.batch)
    out = None
    if wide:
        shape = family.out_shape(tuple(latents.shape))
        out = torch.empty(shape, dtype=wide_type(family.dtype), device="cpu")
    try:
        with PeakMeter(subject.device, interval=0) as meter:
            frames, report = decode_with_report(
                subject.vae, latents, setting.budget, setting.strategy, setting.precision,
                progress, cancel, setting.options, out,
            )  # fmt: skip
    except Exception as error:  # noqa: BLE001  whatever a driver raises is a row of the table
        outcome.kind, outcome.error = _kind(error), first_line(error)
        if isinstance(error, ValueError):  # a sentence of ours; of all else the class counts, too
            outcome.error = outcome.error.removeprefix(f"{type(error).__name__}: ")
        outcome.smallest_bytes = int(getattr(error, "smallest", 0) or 0)
        return outcome
    return replace(
        outcome, seconds=report.seconds / setting.batch, planning_seconds=report.planning_seconds,
        planned_bytes=report.predicted_peak_bytes, peak_bytes=meter.peak_bytes,
        way=str(report.plan.get("way", report.strategy)), strategy=report.strategy,
        dtype=report.dtype, report=report,
        frames=frames[: len(subject.latents)] if keep else None,
    )  # fmt: skip


def _kind(error: Exception) -> str:
    if isinstance(error, DecodeCancelled):
        return "cancelled"
    if isinstance(error, (ValueError, TypeError)):
        return "refused"
    return "out of memory" if is_out_of_memory(error) else "failed"


def strategies_for(subject: Subject, asked: Sequence[str]) -> tuple[str, ...]:
    """Those of `asked` that decode() has for this VAE: where its layers are not known only "whole"
    and "tiled". ValueError (a sentence) where none is left."""
    if not is_opaque(subject.family):
        return tuple(asked)
    left = tuple(name for name in asked if name in ("whole", "tiled"))
    if not left:
        raise ValueError(
            f"{', '.join(asked)}: {subject.family.why}, so there are whole and tiled only"
        )
    return left


def exact_frames(
    subject: Subject,
    progress: Progress | None = None,
    budget: int | str | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Outcome:
    """The reference: unsplit in float32 (a float64 VAE's in that), or streamed in it where that
    does not fit, or streamed in the VAE's own type; the outcome says which. RuntimeError where none
    ends, DecodeCancelled where `cancel` asked for it."""
    failed: list[str] = []
    wide = "auto" if subject.family.dtype == torch.float64 else "fp32"
    tried = (("whole", wide), ("streamed", wide), ("streamed", "auto"))
    for strategy, precision in dict.fromkeys(tried):
        setting = Setting(f"{strategy} {precision}", strategy, precision, budget)
        outcome = run_once(subject, setting, progress=progress, cancel=cancel, wide=True)
        if outcome.frames is not None:
            outcome.instead_of = "; ".join(failed)
            return outcome
        if outcome.kind == "cancelled" or (cancel is not None and cancel()):
            raise DecodeCancelled("cancelled before the exact frames were there")
        failed.append(f"{setting.name}: {outcome.error}")
    raise RuntimeError(f"no exact decode ends here: {'; '.join(failed)}")


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
        self.label = label
        self.peak_bytes = 0
        self._began = time.perf_counter()

    def __call__(self, done: int, total: int, step: Step) -> None:
        now = time.perf_counter()
        if not self.shows or now - self._last < _SECONDS:
            return
        self._last = now
        held = held_bytes(self.device)
        self.peak_bytes = max(self.peak_bytes, held)
        of = f" of {total}" if total else ""
        text = (
            f"{self.label}: {step.kind} {done}{of}, {now - self._began:.0f} s, "
            f"{size_text(held)} (most {size_text(self.peak_bytes)})"
        )
        self.stream.write("\r" + text.ljust(self._width))
        self._width = len(text)
        self.stream.flush()

    def clear(self) -> None:
        """Before other text goes to the same stream."""
        if self.shows and self._width:
            self.stream.write("\r" + " " * self._width + "\r")
            self._width = 0


def held_bytes(device: torch.device) -> int:
    """What the process holds: of a GPU torch's tensors there, else resident memory."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return resident_bytes()
