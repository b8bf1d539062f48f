"""One decode, timed and weighed, for the tools that compare decodes: what is decoded, how it is
asked for, how it went; and the line that a user sees meanwhile."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.arguments import StatusLine
from hy3d_rocm.capture import fingerprint, read_capture
from hy3d_rocm.conv.errors import is_out_of_memory
from hy3d_rocm.decoding.backends.statistics import wide_type
from hy3d_rocm.decoding.black_box import is_opaque
from hy3d_rocm.decoding.executor import decode_with_report
from hy3d_rocm.decoding.families import family_or_unknown
from hy3d_rocm.decoding.report import DecodeCancelled, DecodeOptions, DecodeReport, Progress, Step
from hy3d_rocm.diagnose.env.shown import first_line
from hy3d_rocm.meter import PeakMeter, held_bytes
from hy3d_rocm.tools import loading
from hy3d_rocm.tools.loading import LoadingError
from hy3d_rocm.units import size_text


@dataclass
class Subject:
    """What is decoded. vae: on the device, in its type, or a family. latents: (B, C, T, H, W), on
    the host. text: a line on what it is. is_random: whether the weights mean nothing (time and
    memory do)."""

    vae: Any
    latents: Tensor
    text: str
    is_random: bool

    @cached_property
    def family(self) -> Any:
        """As decode() takes the VAE: by its layers, or where they are not known by its own
        decode(); or what was given as a family (ComfyUI's VAEs are, with their host). TypeError (a
        sentence) where it is none of these."""
        if hasattr(self.vae, "has_global_norms"):
            return self.vae
        return family_or_unknown(self.vae, self.latents)

    @property
    def device(self) -> torch.device:
        """Where the weights are, or their host computes."""
        device: torch.device = self.family.device
        return device


def subject_from_size(
    name: str, device: torch.device, frames: int, height: int, width: int, scale: float = 1.0
) -> Subject:
    """By --vae, --size and --frames. The demo VAE gets the filmed clip, others random latents."""
    vae, text, is_random = loading.make_vae(name, device, None, scale)
    if name == loading.DEMO:
        frames = math.ceil((frames - 1) / 4) * 4 + 1
        latents = loading.filmed_latents(vae, frames, height, width)
        text += ", latents of a filmed clip it was never trained on"
    else:
        latents = loading.random_latents(vae, frames, height, width)
        text += ", random latents"
    return Subject(vae, latents, text, is_random)


def subject_from_capture(path: Path, name: str | None, device: torch.device) -> Subject:
    """A captured decode again. Without --vae its class and configuration with random weights:
    time and memory are the same, values mean nothing."""
    found = read_capture(path)
    if found.facts["kind"] != "decode":
        raise LoadingError(f"{found.path.name} is a capture of an encode; only decodes are run")
    facts = found.facts["vae"]
    dtype = getattr(torch, str(facts["dtype"]), None)
    if name is None:
        try:
            vae = loading.vae_like(str(facts["class"]), facts["config"], device, dtype)
        except LoadingError as error:
            raise LoadingError(
                f"{found.path.name}: {error}; the VAE can't be built from the capture: name it "
                "with --vae"
            ) from error
        return Subject(vae, found.latents, f"{facts['class']} as captured, random weights", True)
    vae, text, is_random = loading.make_vae(name, device, dtype)
    same = fingerprint(vae) == facts["fingerprint"]
    text += " with captured latents, "
    text += "the same weights as captured" if same else "not the weights that were captured"
    return Subject(vae, found.latents, text, is_random)


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

    def figures(self, *names: str) -> dict[str, Any]:
        """These fields, for JSON."""
        return {name: getattr(self, name) for name in names}


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
        text = first_line(error)
        if isinstance(error, ValueError):  # a sentence of ours; of all else the class counts, too
            text = text.removeprefix(f"{type(error).__name__}: ")
        smallest = int(getattr(error, "smallest", 0) or 0)
        return Outcome(setting, error=text, kind=_kind(error), smallest_bytes=smallest)
    return Outcome(
        setting, seconds=report.seconds / setting.batch, planning_seconds=report.planning_seconds,
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
    subject: Subject, progress: Progress | None = None, cancel: Callable[[], bool] | None = None
) -> Outcome:
    """The reference: unsplit in float32 (a float64 VAE's in that), or streamed in it where that
    does not fit, or streamed in the VAE's own type; the outcome says which. RuntimeError where none
    ends, DecodeCancelled where `cancel` asked for it."""
    failed: list[str] = []
    wide = "auto" if subject.family.dtype == torch.float64 else "fp32"
    tried = (("whole", wide), ("streamed", wide), ("streamed", "auto"))
    for strategy, precision in dict.fromkeys(tried):
        setting = Setting(f"{strategy} {precision}", strategy, precision)
        outcome = run_once(subject, setting, progress=progress, cancel=cancel, wide=True)
        if outcome.frames is not None:
            outcome.instead_of = "; ".join(failed)
            return outcome
        if outcome.kind == "cancelled" or (cancel is not None and cancel()):
            raise DecodeCancelled("cancelled before the exact frames were there")
        failed.append(f"{setting.name}: {outcome.error}")
    raise RuntimeError(f"no exact decode ends here: {'; '.join(failed)}")


class Listener:
    """Told how several decodes go; also decode()'s `progress`. This one shows nothing."""

    def begin(self, label: str) -> None:
        """Another decode begins."""

    def __call__(self, done: int, total: int, step: Step, /) -> None:
        """A step of it is done."""

    def say(self, text: str) -> None:
        """What came out, in a line."""


SILENT = Listener()


class ProgressLine(Listener):
    """For `command`: a line on a terminal's stderr, elsewhere only what came out."""

    def __init__(self, device: torch.device, command: str) -> None:
        self.device, self.command = device, command
        self.line = StatusLine(sys.stderr)
        self.begin("")

    def begin(self, label: str) -> None:
        self.label, self.peak_bytes, self._began = label, 0, time.monotonic()

    def __call__(self, done: int, total: int, step: Step, /) -> None:
        if not self.line.is_due():
            return
        held = held_bytes(self.device)
        self.peak_bytes = max(self.peak_bytes, held)
        of = f" of {total}" if total else ""
        self.line.show(
            f"{self.label}: {step.kind} {done}{of}, {time.monotonic() - self._began:.0f} s, "
            f"{size_text(held)} (most {size_text(self.peak_bytes)})"
        )

    def say(self, text: str) -> None:
        self.line.clear()
        sys.stderr.write(f"hy3d-rocm {self.command}: {text}\n")
        sys.stderr.flush()
