"""`hy3d-rocm bench decode`: a video decode by the vendor library, without it, and protected."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import hy3d_rocm
from hy3d_rocm.bench.timing import Measured, Target, Variant, ending, interleave
from hy3d_rocm.conv.verdict_store.records import this_machine
from hy3d_rocm.meter import give_back
from hy3d_rocm.tools.loading import make_vae
from hy3d_rocm.tools.metrics import psnr
from hy3d_rocm.units import GB, aligned, size_text

LIBRARY, GUARDED = "library", "library under protect()"
BARE, PROTECTED = "library off", "library off, protect()"
LARGE = "library off, protect(), 768x1280"
EXACT = "float32"
# Latents (T, H, W) of 33 frames of 640x608 and of 768x1280.
_LATENT, _LARGE_LATENT = (9, 80, 76), (9, 96, 160)


def hunyuan_vae(device: torch.device) -> Any:
    """HunyuanVideo's VAE at full width with random weights, without its encoder, in bfloat16."""
    return make_vae("hunyuan", device, torch.bfloat16)[0]


@dataclass(frozen=True)
class DecodeSettings:
    """seconds: no step is begun after that."""

    device: torch.device
    policy: str = "auto"
    repeats: int = 5
    seconds: float = 280.0
    has_large: bool = True
    has_library: bool = True
    say: Callable[[str], None] = lambda _: None
    build: Callable[[torch.device], Any] = hunyuan_vae
    latent: tuple[int, int, int] = _LATENT
    large: tuple[int, int, int] = _LARGE_LATENT
    clock: Callable[[], float] = time.perf_counter


@dataclass
class DecodeReport:
    """rows by name; base_bytes: weights and latents, which peaks in the rows still contain; psnr:
    against float32, dB; table: what protect() did with the library off."""

    facts: list[str]
    base_bytes: int = 0
    rows: dict[str, Measured] = field(default_factory=dict)
    psnr: dict[str, float] = field(default_factory=dict)
    table: str = ""
    left_out: list[str] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0


def run_decode(settings: DecodeSettings) -> DecodeReport:
    """All steps that time allows; Ctrl-C ends it with what there is."""
    report = DecodeReport(machine_facts(settings.device))
    run = _Run(settings, report)
    with torch.no_grad():
        try:
            run.steps()
        except KeyboardInterrupt:
            report.interrupted = True
    report.seconds = settings.clock() - run.started
    return report


class _Run:
    def __init__(self, settings: DecodeSettings, report: DecodeReport) -> None:
        self.settings, self.report = settings, report
        self.started = settings.clock()
        self.vae = settings.build(settings.device)
        self.z = self._latents(settings.latent)
        self.kept: dict[str, torch.Tensor] = {}
        if settings.device.type == "cuda":
            report.base_bytes = torch.cuda.memory_allocated(settings.device)
        # One guard each for the whole bench: what a first decode learns serves the next ones.
        self.guards = {
            name: hy3d_rocm.protect(policy=settings.policy) for name in (GUARDED, PROTECTED)
        }

    def steps(self) -> None:
        compared = [self._variant(PROTECTED, False, self.guards[PROTECTED])]
        if self.settings.has_library:
            compared.insert(0, self._variant(LIBRARY, True))
            compared.append(self._variant(GUARDED, True, self.guards[GUARDED]))
        self._measure("the decodes", compared, self.settings.repeats)
        self.report.table = self.guards[PROTECTED].stats.table()
        # What follows fills the allocator's cache: after the timings that matter.
        self._compare()
        if self.settings.has_large:
            self.z = self._latents(self.settings.large)
            self._measure(LARGE, [self._variant(LARGE, False, self.guards[PROTECTED])], 1)
            give_back(self.settings.device)
            self.z = self._latents(self.settings.latent)
        self._measure(BARE, [self._variant(BARE, False)], 1)

    def _latents(self, size: tuple[int, int, int]) -> torch.Tensor:
        generator = torch.Generator("cpu").manual_seed(1)
        channels = int(self.vae.config.latent_channels)
        z = torch.randn(1, channels, *size, generator=generator, device="cpu")
        return z.to(self.settings.device, torch.bfloat16)

    def _variant(self, name: str, is_on: bool, guard: Any = None) -> Variant:
        def call() -> torch.Tensor:
            with library(is_on), contextlib.nullcontext() if guard is None else guard:
                frames: torch.Tensor = self.vae.decode(self.z).sample
            return frames

        def keep(frames: torch.Tensor) -> None:
            self.kept[name] = frames.cpu()

        return Variant(name, lambda: None, call, keep)

    def _measure(self, what: str, variants: list[Variant], repeats: int) -> None:
        """The variants, unless it is late by now."""
        if self.settings.clock() - self.started > self.settings.seconds:
            self.report.left_out.append(what)
            return
        rows, is_interrupted = interleave(
            variants, repeats, self.settings.device, self.settings.say
        )
        self.report.rows.update({row.name: row for row in rows})
        if is_interrupted:
            raise KeyboardInterrupt

    def _compare(self) -> None:
        """PSNR of what was kept against the same weights and latents in float32, without TF32."""
        kept = {name: self.kept[name] for name in (LIBRARY, PROTECTED) if name in self.kept}
        if not kept:
            return
        z, self.z = self.z, self.z.float()
        torch.nn.Module.float(self.vae)
        try:
            # Where the library may hang, float32 too is computed without it.
            is_on = self.settings.has_library
            exact = self._variant(EXACT, is_on, None if is_on else self.guards[PROTECTED])
            with exact_float32():
                self._measure("PSNR", [exact], 0)
        finally:
            torch.nn.Module.to(self.vae, torch.bfloat16)
            self.z = z
            give_back(self.settings.device)
        if EXACT in self.kept:
            for name, frames in kept.items():
                self.report.psnr[name] = psnr(frames, self.kept[EXACT])


@contextlib.contextmanager
def library(is_on: bool) -> Iterator[None]:
    """MIOpen or cuDNN switched on or off for the process, as ComfyUI does it."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = is_on
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """float32 without TF32 inside, in convolutions and products; the switches as found after."""
    spots: list[tuple[Any, str, Any]] = []
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    for older, newer in ((cudnn, getattr(cudnn, "conv", None)), (matmul, matmul)):
        try:
            spots.append((older, "allow_tf32", older.allow_tf32))
        except RuntimeError:  # chosen by fp32_precision, which forbids the older name
            spots.append((newer, "fp32_precision", getattr(newer, "fp32_precision", "none")))
    try:
        for owner, name, _ in spots:
            setattr(owner, name, False if name == "allow_tf32" else "ieee")
        yield
    finally:
        for owner, name, value in spots:
            setattr(owner, name, value)


def machine_facts(device: torch.device) -> list[str]:
    """Who measured: the card and the versions that figures hang on."""
    here = this_machine(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    versions = ", ".join(filter(None, (here.architecture, here.driver, here.vendor)))
    return [f"{name}: {versions}", f"torch {here.torch}, hy3d_rocm {here.ours}"]


_ORDER = (LIBRARY, GUARDED, BARE, PROTECTED, EXACT, LARGE)


def decode_text(report: DecodeReport) -> str:
    """Rows, what protect() did, targets, what is missing."""
    head = ("", "first", "median", "fastest..slowest", "peak", "PSNR")
    rows = [report.rows[name] for name in _ORDER if name in report.rows]
    lines = ["hy3d-rocm bench decode", "", *report.facts, ""]
    lines += [*aligned([head, *(_row(report, row) for row in rows)]), ""]
    lines += ["peak: beyond weights and latents, the frames included; PSNR: against float32", ""]
    lines += [f"{row.name}: {row.reason}" for row in rows if row.reason]
    if report.table:
        lines += ["What protect() did with the library off:", report.table, ""]
    lines += ["Targets:", *(f"  {check.line()}" for check in decode_checks(report)), ""]
    lines += ending(report.left_out, report.interrupted, report.seconds)
    return "\n".join(lines) + "\n"


def decode_checks(report: DecodeReport) -> list[Target]:
    """The targets; the overhead of a scope only where nobody but AMD's users pays it."""
    sound = {name: row for name, row in report.rows.items() if row.reason is None}

    def over_the_library(name: str) -> float | None:
        mine, base = (sound[n].median if n in sound else None for n in (name, LIBRARY))
        return None if mine is None or not base else mine / base

    def peak_gb(name: str) -> float | None:
        peak = sound[name].peak_bytes if name in sound else None
        return None if peak is None else (peak - report.base_bytes) / GB

    loss = None
    if LIBRARY in report.psnr and PROTECTED in report.psnr:
        same = report.psnr[LIBRARY] == report.psnr[PROTECTED]
        loss = 0.0 if same else report.psnr[LIBRARY] - report.psnr[PROTECTED]
    ratio = over_the_library(PROTECTED)
    found = [
        Target("protect() without the library: time over the library's", ratio, 1.1),
        Target("protect() without the library: peak", peak_gb(PROTECTED), 16, " GB"),
        Target("protect() without the library: PSNR lost", loss, 0.5, " dB"),
        Target("768x1280: peak", peak_gb(LARGE), 40, " GB"),
    ]
    if torch.version.hip is None:
        ratio = over_the_library(GUARDED)
        percent = None if ratio is None else 100 * (ratio - 1)
        found.append(Target("protect() with the library: overhead", percent, 2, " %"))
    return found


def decode_dict(report: DecodeReport) -> dict[str, Any]:
    """JSON-able."""
    return {
        "bench": "decode",
        **{name: value for name, value in vars(report).items() if name != "table"},
        "rows": [row.as_dict() for row in report.rows.values()],
        "targets": [c.as_dict() for c in decode_checks(report)],
        "measured": any(row.first_seconds is not None for row in report.rows.values()),
    }


def _row(report: DecodeReport, row: Measured) -> tuple[str, ...]:
    peak = None if row.peak_bytes is None else row.peak_bytes - report.base_bytes
    decibels = report.psnr.get(row.name)
    return (
        *row.cells(3),
        "-" if peak is None else size_text(peak, 2),
        "-" if decibels is None else f"{decibels:.2f} dB",
    )  # fmt: skip
