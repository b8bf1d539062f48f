"""`hy3d-rocm optimize`: a decode with each setting in turn; ends in what to set, in sentences."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hy3d_rocm.bench.report import aligned
from hy3d_rocm.decode.tools import metrics
from hy3d_rocm.decode.tools.progress import ProgressLine
from hy3d_rocm.decode.tools.runs import Outcome, Setting, exact_frames, run_once
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.tools.subjects import Subject

_ALLOWED_LOSS_DB = 0.5  # against the VAE's own decode in its own type
_SAME_SPEED = 1.05  # what is within that of the fastest counts as fast
_SAME_MEMORY = 1.05  # and what is within that of the least as little


@dataclass
class Row:
    """One setting: the outcome of its fastest decode, the seconds of all, PSNR against exact."""

    setting: Setting
    outcome: Outcome
    seconds: list[float] = field(default_factory=list)
    psnr: float = math.nan

    @property
    def ended(self) -> bool:
        """Whether it made frames."""
        return self.outcome.error is None

    @property
    def best(self) -> float:
        """Seconds of the fastest decode."""
        return min(self.seconds, default=math.inf)


@dataclass
class Sweep:
    """What was tried. left_out: settings that the limit of time did not allow. not_swept: sentences
    about what is not tried here at all."""

    subject: str
    shape: tuple[int, ...]
    dtype: str
    reference: str
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    not_swept: tuple[str, ...] = ()
    interrupted: bool = False
    seconds: float = 0.0
    is_random: bool = False


def optimize(
    subject: Subject,
    settings: Callable[[int], list[Setting]],
    *,
    limit: float = 300.0,
    repeats: int = 2,
    line: ProgressLine | None = None,
    say: Callable[[str], None] = lambda _: None,
    keep: Callable[[Sweep], object] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
    left: Sequence[str] = (),
) -> Sweep:
    """settings: of whole's planned bytes, the list to try. limit: seconds after which nothing is
    begun and what runs is cancelled at its next grain. repeats: rounds at most. keep: called after
    each decode, so that nothing is lost. left: sentences of candidates.not_swept(). Ctrl-C ends it
    with the rows so far.
    """
    started = clock()

    def late() -> bool:
        return clock() - started > limit

    if line is not None:
        line.begin("exact")
    exact = exact_frames(subject, line)
    assert exact.frames is not None
    sweep = Sweep(
        subject.text, tuple(exact.frames.shape),
        str(subject.family.dtype).removeprefix("torch."), _text_of(exact),
        not_swept=tuple(left), is_random=subject.is_random,
    )  # fmt: skip
    say(sweep.reference)
    rows: dict[str, Row] = {}
    try:
        for number in range(repeats):
            for setting in settings(exact.planned_bytes):
                if late() or (number and not rows[setting.name].ended):
                    if not number:
                        sweep.left_out.append(setting.name)
                    continue
                _try(subject, setting, exact.frames, rows, sweep, late, line)
                say(_progress(rows[setting.name]))
                sweep.seconds = clock() - started
                keep(sweep)
    except KeyboardInterrupt:
        sweep.interrupted = True
    sweep.seconds = clock() - started
    keep(sweep)
    return sweep


def _try(
    subject: Subject, setting: Setting, exact: Tensor, rows: dict[str, Row], sweep: Sweep,
    late: Callable[[], bool], line: ProgressLine | None,
) -> None:  # fmt: skip
    if line is not None:
        line.begin(setting.name)
    outcome = run_once(subject, setting, progress=line, cancel=late)
    if line is not None:
        line.clear()
    row = rows.get(setting.name)
    if row is None:
        row = rows[setting.name] = Row(setting, outcome)
        sweep.rows.append(row)
        if outcome.frames is not None:
            row.psnr = metrics.psnr(outcome.frames, exact)
    elif outcome.error is None:
        outcome.peak_bytes = max(outcome.peak_bytes, row.outcome.peak_bytes)
        row.outcome = outcome
    if outcome.error is None:
        row.seconds.append(outcome.seconds)
    outcome.frames = None


def _text_of(exact: Outcome) -> str:
    return f"exact: {exact.way} in {exact.dtype}, {exact.seconds:.1f} s"


def _progress(row: Row) -> str:
    if not row.ended:
        return f"{row.setting.name}: {row.outcome.kind}, {row.outcome.error}"
    return f"{row.setting.name}: {row.seconds[-1]:.2f} s, {size_text(row.outcome.peak_bytes)}"


@dataclass(frozen=True)
class Recommendation:
    """setting: to take, None where nothing ended. sentences: why, and what else may be wanted."""

    setting: Setting | None
    sentences: tuple[str, ...]


def recommend(sweep: Sweep) -> Recommendation:
    """The fastest that loses nothing; of those as fast the one in the least memory, and of those
    in as little the one that changes the fewest options. Pure."""
    ended = [row for row in sweep.rows if row.ended]
    if not ended:
        return Recommendation(None, ("Nothing ended: see the reasons in the table.",))
    floor = _floor(ended)
    good = [row for row in ended if row.psnr >= floor] or ended
    fastest = min(row.best for row in good)
    fast = [row for row in good if row.best <= fastest * _SAME_SPEED]
    least = min(row.outcome.peak_bytes for row in fast)
    small = [row for row in fast if row.outcome.peak_bytes <= least * _SAME_MEMORY]
    chosen = min(small, key=lambda row: (_extras(row.setting), row.outcome.peak_bytes))
    said = [
        f"Set {chosen.setting.call()}: {chosen.best:.2f} s in "
        f"{size_text(chosen.outcome.peak_bytes)}, {_decibels(chosen.psnr)} against exact."
    ]
    said += _others(sweep, ended, good, chosen, floor)
    return Recommendation(chosen.setting, tuple(said))


def _extras(setting: Setting) -> int:
    return len(setting.changed) + (setting.batch > 1)


def _floor(ended: list[Row]) -> float:
    """The quality that is there without us: the VAE's own decode in its own type."""
    own = [r.psnr for r in ended if r.setting.strategy == "whole" and r.setting.precision == "auto"]
    usual = own or [r.psnr for r in ended if r.setting.precision == "auto"] or [-math.inf]
    # An infinite or rounding-level PSNR (float32) would refuse all that only sums in another order.
    return min(max(usual), 80.0) - _ALLOWED_LOSS_DB


def _others(
    sweep: Sweep, ended: list[Row], good: list[Row], chosen: Row, floor: float
) -> list[str]:
    said = []
    least = min(good, key=lambda row: row.outcome.peak_bytes)
    if least is not chosen:
        said.append(
            f"Where memory is short, {least.setting.call()} takes "
            f"{size_text(least.outcome.peak_bytes)} and {least.best / chosen.best:.1f} times as "
            "long, without loss."
        )
    smallest = min(ended, key=lambda row: row.outcome.peak_bytes)
    if smallest is not least:
        said.append(
            f"The least memory is {smallest.setting.name}: "
            f"{size_text(smallest.outcome.peak_bytes)}, at {_decibels(smallest.psnr)}, below the "
            f"{floor:.1f} dB that count as no loss."
        )
    whole = [row for row in ended if row.setting.strategy == "whole" and row is not chosen]
    if whole:
        said.append(
            f"The VAE's own decode takes {whole[0].best:.2f} s and "
            f"{size_text(whole[0].outcome.peak_bytes)} here."
        )
    failed = [row for row in sweep.rows if not row.ended]
    if failed:
        kinds = ", ".join(f"{row.setting.name} ({row.outcome.kind})" for row in failed)
        said.append(f"These did not end: {kinds}.")
    if sweep.left_out:
        said.append(f"Not tried within the limit: {', '.join(sweep.left_out)}; raise --limit.")
    return said


def _decibels(value: float) -> str:
    return "bit-identical" if math.isinf(value) else f"{value:.1f} dB"


def sweep_text(sweep: Sweep) -> str:
    """A table and the recommendation."""
    frames, height, width = sweep.shape[2:]
    head = ("", "time", "planning", "peak", "planned", "PSNR", "how")
    lines = [
        "hy3d-rocm optimize", "", sweep.subject,
        f"{frames} frames of {width}x{height}, VAE in {sweep.dtype}; {sweep.reference}", "",
        *aligned([head, *map(_cells, sweep.rows)]), "",
    ]  # fmt: skip
    lines += [f"{r.setting.name}: {r.outcome.error}" for r in sweep.rows if not r.ended]
    if sweep.is_random:
        lines.append("Weights are random: PSNR says little about the real model, time does.")
    lines += sweep.not_swept
    reports = [r.outcome.report for r in sweep.rows if r.outcome.report is not None]
    lines += dict.fromkeys(said for report in reports for said in report.ignored)
    if sweep.interrupted:
        lines.append("Interrupted: these are the figures so far.")
    lines += ["", *recommend(sweep).sentences, f"Took {sweep.seconds:.0f} s."]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    o = row.outcome
    if not row.ended:
        return (row.setting.name, "-", "-", "-", "-", "-", o.kind)
    return (
        row.setting.name, f"{row.best:.2f} s", f"{o.planning_seconds:.2f} s",
        size_text(o.peak_bytes), size_text(o.planned_bytes), _decibels(row.psnr), o.way,
    )  # fmt: skip


def sweep_dict(sweep: Sweep) -> dict[str, Any]:
    """For JSON."""
    advice = recommend(sweep)
    return {
        "tool": "optimize",
        "subject": sweep.subject,
        "random_weights": sweep.is_random,
        "shape": sweep.shape,
        "dtype": sweep.dtype,
        "reference": sweep.reference,
        "rows": [
            {
                "name": r.setting.name, "call": r.setting.call(), "way": r.outcome.way,
                "seconds": r.seconds, "planning_seconds": r.outcome.planning_seconds,
                "planned_bytes": r.outcome.planned_bytes, "peak_bytes": r.outcome.peak_bytes,
                "psnr": r.psnr, "kind": r.outcome.kind, "error": r.outcome.error,
                "recommendations": r.outcome.report.recommendations if r.outcome.report else [],
            }
            for r in sweep.rows
        ],
        "left_out": sweep.left_out,
        "not_swept": sweep.not_swept,
        "interrupted": sweep.interrupted,
        "seconds": sweep.seconds,
        "recommendation": advice.setting.call() if advice.setting else None,
        "sentences": advice.sentences,
    }  # fmt: skip
