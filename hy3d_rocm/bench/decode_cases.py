"""`hy3d-rocm bench decode --cases`: the specification's cases and targets, on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.bench.gpu_summary import Check
from hy3d_rocm.tools import metrics
from hy3d_rocm.tools.loading import random_latents
from hy3d_rocm.tools.runs import Outcome, Setting, Subject, exact_frames, run_once
from hy3d_rocm.units import GB, MB

if TYPE_CHECKING:
    from hy3d_rocm.tools.runs import ProgressLine

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
    outcomes: list[Outcome] = field(default_factory=list)
    psnr: float = math.nan
    psnr_own: float = math.nan
    note: str = ""

    @property
    def ended(self) -> list[Outcome]:
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
    """held: bytes in use after each decode of the short video (the first two warm up)."""

    subject: str
    device: str
    scale: float
    rows: list[CaseRow] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
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
    vae: Any, text: str, is_random: bool, settings: CaseSettings, line: ProgressLine | None = None
) -> CasesReport:
    """All cases that time allows; Ctrl-C ends it with what there is."""
    subject = Subject(vae, torch.empty(0, device="cpu"), text, is_random)
    report = CasesReport(text, _device_text(subject.device), settings.scale)
    run = _Run(subject, settings, report, line)
    try:
        run.steps()
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds = settings.clock() - run.started
    return report


class _Run:
    def __init__(
        self, subject: Subject, settings: CaseSettings, report: CasesReport,
        line: ProgressLine | None,
    ) -> None:  # fmt: skip
        self.subject, self.settings, self.report, self.line = subject, settings, report, line
        self.started = settings.clock()

    def steps(self) -> None:
        for case in CASES:
            self._case(case, self._scaled(case))
        self._leaks(CASES[1])
        if self.settings.stress:
            self._stress()

    def _scaled(self, case: Case) -> tuple[int, int, int]:
        def side(pixels: int) -> int:
            return max(round(pixels * self.settings.scale / 8), 2) * 8

        return case.frames, side(case.height), side(case.width)

    def _of(self, size: tuple[int, int, int]) -> Subject:
        s = self.subject
        return Subject(s.vae, random_latents(s.vae, *size), s.text, s.is_random)

    def _late(self, what: str) -> bool:
        late = self.settings.clock() - self.started > self.settings.seconds
        if late:
            self.report.left_out.append(what)
        return late

    def _setting(self) -> Setting:
        return Setting("ours", self.settings.strategy, "auto", self.settings.budget)

    def _case(self, case: Case, size: tuple[int, int, int]) -> None:
        if self._late(case.name):
            return
        subject, row = self._of(size), CaseRow(case, size)
        self.report.rows.append(row)
        for number in range(self.settings.repeats):
            if number and self.settings.clock() - self.started > self.settings.seconds:
                break
            self._once(subject, row)
        self.settings.say(_line_of(row))
        if case.checks_quality and row.ended and not self._late(f"{case.name}: quality"):
            self._quality(subject, row)

    def _once(self, subject: Subject, row: CaseRow) -> None:
        if self.line is not None:
            self.line.begin(row.case.name)
        row.outcomes.append(
            run_once(subject, self._setting(), progress=self.line, keep=False, cancel=None)
        )
        if self.line is not None:
            self.line.line.clear()

    def _quality(self, subject: Subject, row: CaseRow) -> None:
        try:
            exact = exact_frames(subject)
        except RuntimeError as error:
            row.note = str(error)
            return
        assert exact.frames is not None
        for name, setting in (("psnr", self._setting()), ("psnr_own", Setting("own", "whole"))):
            made = run_once(subject, setting)
            if made.frames is not None:
                setattr(row, name, metrics.psnr(made.frames, exact.frames))

    def _leaks(self, case: Case) -> None:
        if self._late("leaks"):
            return
        from hy3d_rocm.meter import give_back, resident_bytes

        subject, device = self._of(self._scaled(case)), self.subject.device
        for _ in range(self.settings.leak_repeats):
            run_once(subject, self._setting(), keep=False)
            give_back(device)
            on_gpu = device.type == "cuda"
            held = torch.cuda.memory_allocated(device) if on_gpu else resident_bytes()
            self.report.held.append(int(held))

    def _stress(self) -> None:
        """The largest picture whose exact decode fits, and that ends in the time that is left."""
        chosen = None
        for height, width in _STRESS:
            case = Case(STRESS_NAME, 33, height, width)
            size = self._scaled(case)
            why = self._refusal(size)
            if why is not None:
                self.settings.say(f"{size[2]}x{size[1]}: {why}")
                break
            chosen = case
        if chosen is None:
            self.report.left_out.append(f"{STRESS_NAME} (not even the smallest picture)")
        else:
            self._case(chosen, self._scaled(chosen))

    def _refusal(self, size: tuple[int, int, int]) -> str | None:
        from hy3d_rocm.tools.planning import plan_of

        left = self.settings.seconds - (self.settings.clock() - self.started)
        try:
            plan = plan_of(self._of(size), self.settings.budget)
        except ValueError as error:
            return str(error)
        if plan.strategy not in ("whole", "streamed"):
            return f"no exact strategy fits, only {plan.way.name}"
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


def _device_text(device: torch.device) -> str:
    if device.type != "cuda":
        return f"CPU, torch {torch.__version__}, {torch.get_num_threads()} threads"
    platform = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, {platform}"


def _line_of(row: CaseRow) -> str:
    if not row.ended:
        return f"{row.case.name}: {row.outcomes[-1].error if row.outcomes else 'nothing ran'}"
    return f"{row.case.name}: {row.best:.2f} s, {row.ended[-1].way}"


def checks(report: CasesReport) -> list[Check]:
    """The specification's targets; None as a value where there is no figure to judge, also of time
    and memory where pictures and channels were made smaller. Pure."""
    full = report.is_full_size
    found = []
    for row in report.rows:
        if row.case.seconds is not None:
            value = row.best if full and row.ended else None
            found.append(Check(f"{row.case.frames} frames of {row.case.width}x{row.case.height}",
                               value, row.case.seconds, " s"))  # fmt: skip
    peaks = [row.peak_bytes for row in report.rows if row.ended]
    peak = max(peaks) / GB if peaks and full else None
    found.append(Check("peak of all cases", peak, _PEAK_TARGET_GB, " GB"))
    outcomes = [o for row in report.rows for o in row.outcomes if o.kind != "cancelled"]
    failed = (
        100.0 * sum(o.error is not None for o in outcomes) / len(outcomes) if outcomes else None
    )
    found.append(Check(f"errors in {len(outcomes)} decodes", failed, _ERROR_TARGET_PERCENT, " %"))
    found += [
        Check(
            f"{row.case.name}: PSNR lost against the VAE's own decode", _lost(row), LOST_DB, " dB"
        )
        for row in report.rows
        if row.case.checks_quality
    ]
    on_gpu = not report.device.startswith("CPU")
    found.append(
        Check("memory kept after decodes", _leaked(report), 0 if on_gpu else LEAK_BYTES / MB, " MB")
    )
    return found


def _lost(row: CaseRow) -> float | None:
    """dB; rounding alone (beyond 100 dB, in float32) is no loss."""
    if math.isnan(row.psnr) or math.isnan(row.psnr_own):
        return None
    return max(min(row.psnr_own, 100.0) - min(row.psnr, 100.0), 0.0)


def _leaked(report: CasesReport) -> float | None:
    """MB by which what is held grew after the decodes that warm up."""
    if len(report.held) < 4:
        return None
    return max(report.held[-1] - report.held[1], 0) / MB
