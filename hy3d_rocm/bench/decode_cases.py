"""`hy3d-rocm bench decode --cases`: the specification's cases and targets, on this machine."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hy3d_rocm import files
from hy3d_rocm.bench.session import versions
from hy3d_rocm.bench.timing import BenchError, Target, ending
from hy3d_rocm.diagnose.doctor import basic
from hy3d_rocm.meter import give_back, held_bytes, steady_malloc
from hy3d_rocm.tools import loading, metrics, runs
from hy3d_rocm.tools.loading import random_latents
from hy3d_rocm.tools.planning import plan_of
from hy3d_rocm.units import GB, MB, aligned, size_text

LOST_DB = 0.5  # against the VAE's own decode in its own type: less is no loss
LEAK_BYTES = 16 * MB  # of heap that may come and go on the host; on a GPU nothing may stay
_STRESS = ((480, 832), (720, 1280), (1080, 1920), (1440, 2560), (2160, 3840))  # (height, width)


@dataclass(frozen=True)
class Case:
    """frames of width x height pixels. seconds: the target, None for none. checks_quality: whether
    its frames are held against exact ones."""

    name: str
    frames: int
    height: int
    width: int
    seconds: float | None = None
    checks_quality: bool = False


# Two seconds are 32 frames at Wan's 16 a second, which its VAE makes as 33.
CASES = (
    Case("single frame", 1, 320, 320, checks_quality=True),
    Case("short video, 2-5 frames", 5, 320, 320),
    Case("medium video, 10-17 frames", 17, 320, 320, 10.0, checks_quality=True),
    Case("two seconds", 33, 320, 320, 5.0),
    Case("large video, 30+ frames", 33, 480, 720),
)
STRESS_NAME = "memory stress"
_PEAK_TARGET_GB, _ERROR_TARGET_PERCENT = 50.0, 1.0


@dataclass
class CaseRow:
    """One case. size: (frames, height, width) as decoded. psnr_own: of the VAE's own unsplit decode
    in its own type, psnr: of ours, both against exact ones."""

    case: Case
    size: tuple[int, int, int]
    outcomes: list[runs.Outcome] = field(default_factory=list)
    psnr: float = math.nan
    psnr_own: float = math.nan
    note: str = ""

    @property
    def ended(self) -> list[runs.Outcome]:
        """Decodes that made frames."""
        return [o for o in self.outcomes if o.error is None]

    @property
    def best(self) -> float:
        """Seconds of the fastest."""
        return min((o.seconds for o in self.ended), default=math.nan)

    @property
    def peak_bytes(self) -> int:
        """Of the worst."""
        return max((o.peak_bytes for o in self.ended), default=0)


@dataclass
class CasesReport:
    """held_bytes: in use after each decode of the short video (the first two warm up)."""

    subject: str
    device: str
    scale: float
    rows: list[CaseRow] = field(default_factory=list)
    held_bytes: list[int] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def is_full_size(self) -> bool:
        """Whether targets of time and memory mean what they say."""
        return self.scale == 1.0

    @property
    def measured(self) -> bool:
        """Whether any decode ended."""
        return any(row.ended for row in self.rows)


@dataclass(frozen=True)
class CaseSettings:
    """seconds: nothing is begun after. scale: of the sides of pictures, and by the caller of the
    channels. repeats: decodes of each case; leak_repeats: of the short one for leaks."""

    seconds: float = 280.0
    scale: float = 1.0
    repeats: int = 3
    leak_repeats: int = 6
    budget: int | str | None = None
    strategy: str = "auto"
    stress: bool = True
    say: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.perf_counter


def run_cases(
    vae: Any, text: str, is_random: bool, settings: CaseSettings,
    line: runs.ProgressLine | None = None,
) -> CasesReport:  # fmt: skip
    """All cases that time allows; Ctrl-C ends it with what there is."""
    subject = runs.Subject(vae, torch.empty(0, device="cpu"), text, is_random)
    device = subject.device
    where = f"CPU, torch {torch.__version__}, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        where = f"{torch.cuda.get_device_name(device)}, {versions()}"
    run = _Run(subject, settings, CasesReport(text, where, settings.scale), line)
    try:
        run.steps()
    except KeyboardInterrupt:
        run.report.interrupted = True
    run.report.seconds = settings.clock() - run.started
    return run.report


class _Run:
    def __init__(
        self, subject: runs.Subject, settings: CaseSettings, report: CasesReport,
        line: runs.ProgressLine | None,
    ) -> None:  # fmt: skip
        self.subject, self.settings, self.report = subject, settings, report
        self.line = line or runs.SILENT
        self.setting = runs.Setting("ours", settings.strategy, "auto", settings.budget)
        self.started = settings.clock()

    def steps(self) -> None:
        for case in CASES:
            self._case(case)
        self._leaks(CASES[1])
        if self.settings.stress:
            self._stress()

    def _size(self, case: Case) -> tuple[int, int, int]:
        scale = self.settings.scale
        height, width = (max(round(n * scale / 8), 2) * 8 for n in (case.height, case.width))
        return case.frames, height, width

    def _of(self, case: Case) -> runs.Subject:
        vae = self.subject.vae
        return replace(self.subject, latents=random_latents(vae, *self._size(case)))

    def _left(self) -> float:
        return self.settings.seconds - (self.settings.clock() - self.started)

    def _late(self, what: str) -> bool:
        late = self._left() < 0
        if late:
            self.report.left_out.append(what)
        return late

    def _case(self, case: Case) -> None:
        if self._late(case.name):
            return
        subject, row = self._of(case), CaseRow(case, self._size(case))
        self.report.rows.append(row)
        for number in range(self.settings.repeats):
            if number and self._left() < 0:
                break
            self.line.begin(case.name)
            made = runs.run_once(subject, self.setting, progress=self.line, keep=False)
            row.outcomes.append(made)
        if row.ended:
            self.settings.say(f"{case.name}: {row.best:.2f} s, {row.ended[-1].way}")
        else:
            why = row.outcomes[-1].error if row.outcomes else "nothing ran"
            self.settings.say(f"{case.name}: {why}")
        if case.checks_quality and row.ended and not self._late(f"{case.name}: quality"):
            self._quality(subject, row)

    def _quality(self, subject: runs.Subject, row: CaseRow) -> None:
        try:
            exact = runs.exact_frames(subject)
        except RuntimeError as error:
            row.note = str(error)
            return
        assert exact.frames is not None
        for name, setting in (("psnr", self.setting), ("psnr_own", runs.Setting("own", "whole"))):
            made = runs.run_once(subject, setting)
            if made.frames is not None:
                setattr(row, name, metrics.psnr(made.frames, exact.frames))

    def _leaks(self, case: Case) -> None:
        if self._late("leaks"):
            return
        subject, device = self._of(case), self.subject.device
        for _ in range(self.settings.leak_repeats):
            runs.run_once(subject, self.setting, keep=False)
            give_back(device)
            self.report.held_bytes.append(held_bytes(device))

    def _stress(self) -> None:
        """The largest picture whose exact decode fits, and that ends in the time that is left."""
        chosen = None
        for height, width in _STRESS:
            case = Case(STRESS_NAME, 33, height, width)
            why = self._refusal(case)
            if why is not None:
                _, rows, columns = self._size(case)
                self.settings.say(f"{columns}x{rows}: {why}")
                break
            chosen = case
        if chosen is None:
            self.report.left_out.append(f"{STRESS_NAME} (not even the smallest picture)")
        else:
            self._case(chosen)

    def _refusal(self, case: Case) -> str | None:
        left = self._left()
        try:
            plan = plan_of(self._of(case), self.settings.budget)
        except ValueError as error:
            return str(error)
        if plan.strategy not in ("whole", "streamed"):
            return f"no exact strategy fits, only {plan.variant.name}"
        speeds = [
            float(o.report.plan["gmacs"]) / o.seconds
            for row in self.report.rows
            for o in row.ended
            if o.report is not None and o.seconds > 0 and o.report.plan.get("gmacs")
        ]
        wanted = plan.need.macs * 1e-9 / max(speeds) if speeds else 0.0
        if wanted * self.settings.repeats > left:
            return f"would take {wanted:.0f} s a decode, {max(left, 0):.0f} s are left (--seconds)"
        return None


def checks(report: CasesReport) -> list[Target]:
    """The specification's targets; None as a value where there is no figure to judge, also of time
    and memory where pictures and channels were made smaller. Pure."""
    full, ended = report.is_full_size, [row for row in report.rows if row.ended]
    found = [
        Target(
            f"{row.case.frames} frames of {row.case.width}x{row.case.height}",
            row.best if full and row.ended else None, row.case.seconds, " s",
        )
        for row in report.rows
        if row.case.seconds is not None
    ]  # fmt: skip
    peak = max(row.peak_bytes for row in ended) / GB if ended and full else None
    found.append(Target("peak of all cases", peak, _PEAK_TARGET_GB, " GB"))
    outcomes = [o for row in report.rows for o in row.outcomes if o.kind != "cancelled"]
    failed = [o for o in outcomes if o.error is not None]
    share = 100.0 * len(failed) / len(outcomes) if outcomes else None
    found.append(Target(f"errors in {len(outcomes)} decodes", share, _ERROR_TARGET_PERCENT, " %"))
    for row in report.rows:
        if row.case.checks_quality:
            text = f"{row.case.name}: PSNR lost against the VAE's own decode"
            found.append(Target(text, _lost(row), LOST_DB, " dB"))
    # What is held after the decodes that warm up.
    held = report.held_bytes
    leaked = max(held[-1] - held[1], 0) / MB if len(held) > 3 else None
    most = LEAK_BYTES / MB if report.device.startswith("CPU") else 0
    return [*found, Target("memory kept after decodes", leaked, most, " MB")]


def _lost(row: CaseRow) -> float | None:
    """dB; rounding alone (beyond 100 dB, in float32) is no loss."""
    if math.isnan(row.psnr) or math.isnan(row.psnr_own):
        return None
    return max(min(row.psnr_own, 100.0) - min(row.psnr, 100.0), 0.0)


_CPU_SCALE = 0.25  # of sides and channels where no GPU is: seconds instead of hours


def run_cases_command(arguments: argparse.Namespace) -> int:
    """Exit code: 0; 1 where nothing was measured or a target was missed; 130 after Ctrl-C."""
    steady_malloc()
    device = loading.pick_device("auto" if arguments.device == "cuda" else arguments.device)
    scale = arguments.scale
    if scale is None:
        scale = 1.0 if device.type == "cuda" else _CPU_SCALE
    if not 0 < scale <= 1:
        raise BenchError(f"--scale {scale:g}: give a share above 0 and at most 1, such as 0.25")
    vae, text, is_random = loading.make_vae(arguments.vae, device, None, scale)
    line = runs.ProgressLine(device, "bench decode")
    settings = CaseSettings(
        seconds=arguments.seconds, scale=scale, repeats=min(arguments.repeats, 3),
        budget=arguments.budget, stress=not arguments.no_stress, say=line.say,
    )  # fmt: skip
    report = run_cases(vae, text, is_random, settings, line)
    path = files.stamped(arguments.out or files.BENCHMARKS, "decode_cases", ".json")
    data = {**cases_dict(report), "machine": basic.machine_facts()}
    files.write_json(path, data)
    sys.stdout.write(f"{cases_text(report)}{path}\n")
    if plot(report, path.with_suffix(".png")):
        sys.stdout.write(f"{path.with_suffix('.png')}\n")
    if arguments.json is not None:
        files.write_json(arguments.json, data)
    if report.interrupted:
        return 130
    missed = any(check.verdict == "FAIL" for check in checks(report))
    return 1 if missed or not report.measured else 0


def cases_text(report: CasesReport) -> str:
    """A table, the targets, what is missing."""
    head = ("", "size", "time", "peak", "planned", "PSNR", "own PSNR", "how")
    lines = ["hy3d-rocm bench decode --cases", "", report.subject, report.device]
    if not report.is_full_size:
        lines += [
            f"Pictures and channels are {report.scale:g} of the real ones: the targets of time and "
            "memory are not judged."
        ]
    lines += ["", *aligned([head, *map(_cells, report.rows)]), ""]
    lines += [f"{r.case.name}: {o.error}" for r in report.rows for o in r.outcomes if o.error]
    lines += [f"{r.case.name}: {r.note}" for r in report.rows if r.note]
    lines += ["Targets:", *(f"  {check.line()}" for check in checks(report)), ""]
    lines += [f"- {sentence}" for sentence in _advice(report.rows)]
    lines += ending(report.left_out, report.interrupted, report.seconds)
    return "\n".join(lines) + "\n"


def _cells(row: CaseRow) -> tuple[str, ...]:
    frames, height, width = row.size
    size = f"{frames} x {width}x{height}"
    if not row.ended:
        kind = row.outcomes[-1].kind if row.outcomes else "-"
        return (row.case.name, size, "-", "-", "-", "-", "-", kind)
    last = row.ended[-1]
    return (
        row.case.name, size, f"{row.best:.2f} s", size_text(row.peak_bytes),
        size_text(last.planned_bytes), _decibels(row.psnr), _decibels(row.psnr_own), last.way,
    )  # fmt: skip


def _advice(rows: Sequence[CaseRow]) -> list[str]:
    """The decodes' own recommendations, each once."""
    reports = [o.report for row in rows for o in row.ended if o.report is not None]
    return list(dict.fromkeys(text for report in reports for text in report.recommendations))


def _decibels(value: float) -> str:
    if math.isnan(value):
        return "-"
    return "equal" if math.isinf(value) else f"{value:.1f} dB"


def cases_dict(report: CasesReport) -> dict[str, Any]:
    """For JSON."""
    lists = ("seconds", "planning_seconds", "planned_bytes", "peak_bytes")
    return {
        "bench": "decode cases",
        **vars(report),
        "rows": [
            {
                "case": r.case.name, "frames": r.size[0], "height": r.size[1], "width": r.size[2],
                **{name: [getattr(o, name) for o in r.ended] for name in lists},
                "ways": [o.way for o in r.ended],
                "errors": [o.error for o in r.outcomes if o.error],
                "recommendations": _advice([r]),
                "psnr": r.psnr, "psnr_own": r.psnr_own, "note": r.note,
            }
            for r in report.rows
        ],
        "targets": [c.as_dict() for c in checks(report)],
    }  # fmt: skip


def plot(report: CasesReport, path: Path) -> bool:
    """Time and memory of each case beside its target (PNG); False where matplotlib is missing or
    nothing ended."""
    rows = [row for row in report.rows if row.ended]
    try:
        import matplotlib
    except ImportError:
        return False
    if not rows:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(10.5, 0.5 * len(rows) + 1.6), layout="constrained", sharey=True
    )
    places = range(len(rows))
    left.barh(places, [r.best for r in rows], color="#0f766e", height=0.6)
    for place, row in enumerate(rows):
        if row.case.seconds is not None and report.is_full_size:
            left.plot([row.case.seconds] * 2, [place - 0.4, place + 0.4], color="#b45309")
    names = [f"{r.case.name}\n{r.size[0]} x {r.size[2]}x{r.size[1]}" for r in rows]
    left.set_yticks(places, names, fontsize=8)
    left.invert_yaxis()
    left.set_xlabel("seconds" + (" (mark: target)" if report.is_full_size else ", reduced size"))
    peaks = [row.peak_bytes / GB for row in rows]
    planned = [row.ended[-1].planned_bytes / GB for row in rows]
    right.barh(places, planned, color="#d1d5db", height=0.6, label="planned")
    right.barh(places, peaks, color="#2563eb", height=0.3, label="measured")
    right.set_xlabel("GB at the peak")
    right.legend(frameon=False, fontsize=8)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{report.subject}; {report.device}", fontsize=9, x=0.01, ha="left")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
