"""`hy3d-rocm bench decode`: a video decode by the vendor library, without it, and protected."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import hy3d_rocm
from hy3d_rocm._rng import seeded_on
from hy3d_rocm.bench.gpu import machine_facts
from hy3d_rocm.bench.gpu_cells import exact_float32
from hy3d_rocm.bench.models import BenchError
from hy3d_rocm.bench.timing import Measured, Meter, Variant, interleave

LIBRARY, GUARDED, BARE, PROTECTED = (
    "library",
    "library under protect()",
    "library off",
    "library off, protect()",
)
LARGE = "library off, protect(), 768x1280"
EXACT = "float32"
# Latents (T, H, W) of 33 frames of 640x608 and of 768x1280.
_LATENT, _LARGE_LATENT = (9, 80, 76), (9, 96, 160)


def hunyuan_vae(device: torch.device) -> Any:
    """HunyuanVideo's VAE at full width with random weights, without its encoder, in bfloat16."""
    try:
        from diffusers import AutoencoderKLHunyuanVideo
    except ImportError as error:
        raise BenchError(
            f"{error.name} is missing; run this with ComfyUI's Python, where diffusers is, or:"
            " pip install diffusers"
        ) from error
    with seeded_on(device, 0):
        vae = AutoencoderKLHunyuanVideo()
    vae.encoder = None
    # torch's own to(): diffusers' one warns of layers to be kept in float32 even if there are none.
    return torch.nn.Module.to(vae, torch.bfloat16).eval().requires_grad_(False)


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
        self.meter = Meter(settings.device)
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
            compared.insert(0, self._variant(LIBRARY, True, contextlib.nullcontext()))
            compared.append(self._variant(GUARDED, True, self.guards[GUARDED]))
        self._measure("the decodes", compared, self.settings.repeats)
        self.report.table = self.guards[PROTECTED].stats.table()
        # What follows fills the allocator's cache: after the timings that matter.
        self._compare()
        if self.settings.has_large:
            self.z = self._latents(self.settings.large)
            self._measure(LARGE, [self._variant(LARGE, False, self.guards[PROTECTED])], 1)
            self.meter.release()
            self.z = self._latents(self.settings.latent)
        bare = self._variant(BARE, False, contextlib.nullcontext())
        self._measure(BARE, [bare], 1)

    def _latents(self, size: tuple[int, int, int]) -> torch.Tensor:
        generator = torch.Generator("cpu").manual_seed(1)
        channels = int(self.vae.config.latent_channels)
        z = torch.randn(1, channels, *size, generator=generator, device="cpu")
        return z.to(self.settings.device, torch.bfloat16)

    def _variant(self, name: str, is_on: bool, scope: Any) -> Variant:
        def call() -> torch.Tensor:
            with library(is_on), scope:
                frames: torch.Tensor = self.vae.decode(self.z).sample
            return frames

        def keep(frames: torch.Tensor) -> None:
            self.kept[name] = frames.cpu()

        return Variant(name, lambda: None, call, keep)

    def _measure(self, what: str, variants: list[Variant], repeats: int) -> None:
        if self._is_late(what):
            return
        rows, is_interrupted = interleave(variants, repeats, self.meter, self.settings.say)
        self.report.rows.update({row.name: row for row in rows})
        if is_interrupted:
            raise KeyboardInterrupt

    def _is_late(self, what: str) -> bool:
        late = self.settings.clock() - self.started > self.settings.seconds
        if late:
            self.report.left_out.append(what)
        return late

    def _compare(self) -> None:
        """PSNR of what was kept against the same weights and latents in float32, without TF32."""
        kept = {name: self.kept[name] for name in (LIBRARY, PROTECTED) if name in self.kept}
        if not kept or self._is_late("PSNR"):
            return
        z, self.z = self.z, self.z.float()
        torch.nn.Module.float(self.vae)
        try:
            # Where the library may hang, float32 too is computed without it.
            is_on, guard = self.settings.has_library, self.guards[PROTECTED]
            exact = self._variant(EXACT, is_on, contextlib.nullcontext() if is_on else guard)
            with exact_float32():
                rows, is_interrupted = interleave([exact], 0, self.meter, self.settings.say)
        finally:
            torch.nn.Module.to(self.vae, torch.bfloat16)
            self.z = z
        self.report.rows[EXACT] = rows[0]
        self.meter.release()
        if is_interrupted:
            raise KeyboardInterrupt
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


def psnr(frames: torch.Tensor, exact: torch.Tensor) -> float:
    """dB, with the range (max - min) of `exact` as the peak; infinite where equal."""
    reach = float(exact.max() - exact.min())
    total = sum(
        float((a.double() - b.double()).square().sum())
        for a, b in zip(frames.unbind(2), exact.unbind(2), strict=True)
    )
    if total == 0.0:
        return math.inf
    return 10.0 * math.log10(reach**2 * exact.numel() / total)
