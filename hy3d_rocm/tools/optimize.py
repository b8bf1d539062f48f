"""`hy3d-rocm optimize`: what it tries on a machine; a decode with each of these settings in turn;
what to set, in sentences."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from hy3d_rocm.decoding.precision import SHORT, name_of
from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.tools import metrics, runs
from hy3d_rocm.units import MB, aligned, size_text

CHUNKS = (1, 2, 4, 8)  # the specification's
_SLICES = {"cpu": (16 * MB, 32 * MB, 64 * MB), "cuda": (128 * MB, 256 * MB, 512 * MB)}
_CLEANUPS = (1, 0)  # after each result; never
_THRESHOLDS = (0.5, 0.95)  # below and above the usual share of what is free
_BATCH = 2
_ALLOWED_LOSS_DB = 0.5  # against the VAE's own decode in its own type
_SAME_SPEED = 1.05  # what is within that of the fastest counts as fast
_SAME_MEMORY = 1.05  # and what is within that of the least as little


@dataclass(frozen=True)
class Choices:
    """What is tried of. precisions: None for the VAE's own, and on a GPU bf16, fp16 and fp32, too.
    chunks: None for CHUNKS. budget: None for as much as there is, and a quarter of what whole takes
    for tiles."""

    strategies: Sequence[str] = ("whole", "streamed", "tiled", "cpu")
    precisions: Sequence[str] | None = None
    chunks: Sequence[int] | None = None
    budget: int | str | None = None


@dataclass
class Row:
    """One setting: the outcome of its fastest decode, the seconds of all, PSNR against exact."""

    setting: runs.Setting
    outcome: runs.Outcome
    seconds: list[float] = field(default_factory=list)
    psnr: float = math.nan

    @property
    def ended(self) -> bool:
        """Whether it made frames."""
        return self.outcome.error is None

    @property
    def best(self) -> float:
        return min(self.seconds, default=math.inf)

    def take(self, outcome: runs.Outcome, exact: Tensor) -> str:
        """One more decode of it, whose frames are let go; a line about it."""
        name, frames, outcome.frames = self.setting.name, outcome.frames, None
        if outcome.error is not None:
            return f"{name}: {outcome.kind}, {outcome.error}"
        if frames is not None and not self.seconds:
            self.psnr = metrics.psnr(frames, exact)
        outcome.peak_bytes = max(outcome.peak_bytes, self.outcome.peak_bytes)
        self.outcome = outcome
        self.seconds.append(outcome.seconds)
        return f"{name}: {outcome.seconds:.2f} s, {size_text(outcome.peak_bytes)}"


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
    subject: runs.Subject,
    choices: Choices = Choices(),
    *,
    limit: float = 300.0,
    repeats: int = 2,
    listener: runs.Listener = runs.SILENT,
    keep: Callable[[Sweep], object] = lambda _: None,
) -> Sweep:
    """limit: seconds after which nothing is begun and what runs is cancelled at its next step.
    repeats: rounds at most. keep: called after each decode, so that nothing is lost. Ctrl-C ends it
    with the rows so far.
    """
    started = time.perf_counter()
    left_out = not_swept(subject.family, subject.device.type, choices)

    def late() -> bool:
        return time.perf_counter() - started > limit

    listener.begin("exact")
    exact = runs.exact_frames(subject, listener)
    assert exact.frames is not None
    sweep = Sweep(
        subject.text, tuple(exact.frames.shape),
        name_of(subject.family.dtype), f"exact: {exact.told}",
        not_swept=left_out, is_random=subject.is_random,
    )  # fmt: skip
    listener.say(sweep.reference)
    rows: dict[str, Row] = {}
    settings = settings_for(subject, choices, exact.planned_bytes // 4)
    try:
        for number in range(repeats):
            for setting in settings:
                row = rows.get(setting.name)
                if late() or (row is not None and not row.ended):
                    if not number:
                        sweep.left_out.append(setting.name)
                    continue
                listener.begin(setting.name)
                outcome = runs.run_once(subject, setting, progress=listener, cancel=late)
                if row is None:
                    row = rows[setting.name] = Row(setting, outcome)
                    sweep.rows.append(row)
                listener.say(row.take(outcome, exact.frames))
                sweep.seconds = time.perf_counter() - started
                keep(sweep)
    except KeyboardInterrupt:
        sweep.interrupted = True
    sweep.seconds = time.perf_counter() - started
    keep(sweep)
    return sweep


@dataclass(frozen=True)
class Recommendation:
    """setting: to take, None where nothing ended. sentences: why, and what else may be wanted."""

    setting: runs.Setting | None
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
    extras = {r.setting.name: len(r.setting.changed) + (r.setting.batch > 1) for r in small}
    chosen = min(small, key=lambda row: (extras[row.setting.name], row.outcome.peak_bytes))
    said = [
        f"Set {chosen.setting.call()}: {chosen.best:.2f} s in "
        f"{size_text(chosen.outcome.peak_bytes)}, {_decibels(chosen.psnr)} against exact."
    ]
    said += _others(sweep, ended, good, chosen, floor)
    return Recommendation(chosen.setting, tuple(said))


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
    figures = ("way", "planning_seconds", "planned_bytes", "peak_bytes", "kind", "error")
    return {
        "tool": "optimize",
        "subject": sweep.subject,
        "random_weights": sweep.is_random,
        "shape": sweep.shape,
        "dtype": sweep.dtype,
        "reference": sweep.reference,
        "rows": [
            {
                "name": r.setting.name, "call": r.setting.call(), "psnr": r.psnr,
                **r.outcome.figures(*figures), "seconds": r.seconds,
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


def settings_for(
    subject: runs.Subject, choices: Choices, quarter: int | None = None
) -> list[runs.Setting]:
    """In the order in which they are tried: what is likely best first, on a GPU memory_settings()
    last. quarter: the budget that tiles are cut for where none is chosen."""
    family, device, budget = subject.family, subject.device, choices.budget
    choices = replace(choices, strategies=runs.strategies_for(subject, choices.strategies))
    usual = ("auto", "bf16", "fp16", "fp32") if device.type == "cuda" else ("auto",)
    names = choices.precisions or usual
    is_own = SHORT.get(name_of(family.dtype), "")
    frames = int(subject.latents.shape[2])
    sizes = [c for c in choices.chunks or CHUNKS if c <= frames] or [1]
    found: list[runs.Setting] = []
    for precision in dict.fromkeys("auto" if p == is_own else p for p in names):
        for strategy in choices.strategies:
            if strategy == "cpu" and (device.type == "cpu" or precision != "auto"):
                continue  # on the CPU that is "streamed" by another convolution
            for options, note in _variants(strategy, family, device.type, sizes):
                room = budget if budget is not None or strategy != "tiled" else quarter
                name = " ".join(filter(None, [strategy, "" if precision == "auto" else precision,
                                              note]))  # fmt: skip
                found.append(runs.Setting(name, strategy, precision, room, options))
    return found + memory_settings(device.type, choices, quarter)


def memory_settings(
    device: str, choices: Choices, quarter: int | None = None
) -> list[runs.Setting]:
    """What may be chosen about memory on a GPU, one thing at a time: cleanup_frequency, a batch,
    cpu_offload at a quarter of whole's memory, memory_threshold. None on a CPU: see not_swept()."""
    strategies, budget = choices.strategies, choices.budget
    if device == "cpu" or not strategies:
        return []
    base = "streamed" if "streamed" in strategies else strategies[0]
    cleanups = {n: DecodeOptions(cleanup_frequency=n) for n in _CLEANUPS}
    found = [
        runs.Setting(f"{base} cleanup {n}", base, "auto", budget, options)
        for n, options in cleanups.items()
    ]
    found.append(runs.Setting(f"{base} batch of {_BATCH}", base, "auto", budget, batch=_BATCH))
    if "streamed" in strategies:
        found += [
            runs.Setting(f"streamed {word}", "streamed", "auto", budget or quarter,
                    DecodeOptions(cpu_offload=offloads))
            for word, offloads in (("offloading", True), ("without offload", False))
        ]  # fmt: skip
    if budget is None:
        found += [
            runs.Setting(f"auto threshold {share}", options=DecodeOptions(memory_threshold=share))
            for share in _THRESHOLDS
        ]
    return found


def not_swept(family: Any, device: str, choices: Choices) -> tuple[str, ...]:
    """Sentences about what is not tried, and why."""
    said = []
    if choices.chunks and "streamed" in choices.strategies and family.has_global_norms:
        said.append(
            f"chunk_size is ignored by streamed: the norms of {family.name} see the whole video, "
            "so slices are tried in place of chunks."
        )
    elif choices.chunks and getattr(family, "is_image", False):
        said.append(f"chunk_size is ignored: {family.name} makes single images.")
    if device == "cpu":
        said.append(
            "Tried on a GPU only: cpu_offload (here everything is in the host's memory), "
            "cleanup_frequency, memory_threshold and a batch (they change what a GPU's allocator "
            "holds), and fp32 beside the VAE's own type (--precisions auto,fp32 tries it)."
        )
        return tuple(said)
    if "streamed" not in choices.strategies:
        said.append("cpu_offload is not tried: streamed alone moves activations to the host.")
    if choices.budget is not None:
        said.append("memory_threshold is not tried: it is a share for the budget auto.")
    return tuple(said)


def _variants(
    strategy: str, family: Any, device: str, sizes: list[int]
) -> list[tuple[DecodeOptions, str]]:
    if strategy == "streamed" and family.has_global_norms:
        return [
            (DecodeOptions(slice_bytes=size), f"slices of {size_text(size, 0)}")
            for size in _SLICES.get(device, _SLICES["cpu"])
        ]
    if strategy in ("streamed", "tiled"):
        chosen = sizes if strategy == "streamed" else sizes[:2]
        return [(DecodeOptions(chunk_size=size), f"chunks of {size}") for size in chosen]
    return [(DecodeOptions(), "")]
