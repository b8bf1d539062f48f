"""The four benches of the pipeline. Each takes Settings and returns a Report; see docs/bench.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hy3d_rocm.bench import advice
from hy3d_rocm.bench.advice import Advice, Closeness
from hy3d_rocm.bench.session import SEED, Session, Settings, open_session
from hy3d_rocm.bench.timing import Measured, UnavailableError, Variant, interleave
from hy3d_rocm.decoding.precision import name_of as dtype_name
from hy3d_rocm.units import aligned, size_text

HEADER = ("variant", "first call", "median", "fastest..slowest", "peak memory")


@dataclass
class Report:
    """facts: lines on what was measured where; notes: by variant, what else its row says."""

    bench: str
    facts: list[str]
    rows: list[Measured]
    advice: Advice
    interrupted: bool = False
    notes: dict[str, str] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether any variant has a figure."""
        return any(row.first_seconds is not None for row in self.rows)

    def as_text(self) -> str:
        table = [HEADER, *(_cells(row) for row in self.rows)]
        lines = [f"hy3d-rocm bench {self.bench}", "", *self.facts, ""]
        lines += [
            f"{text}  {self.notes.get(name, '')}".rstrip()
            for text, (name, *_) in zip(aligned(table), table, strict=True)
        ]
        lines += ["", *(f"{row.name}: {row.reason}" for row in self.rows if row.reason)]
        if self.interrupted:
            lines.append("Interrupted: these are the figures so far.")
        choice = self.advice.choice
        lines += ["", f"Recommendation: {choice}" if choice else "No recommendation"]
        lines += [f"  {line}" for line in self.advice.lines]
        return "\n".join(lines) + "\n"

    def as_dict(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "facts": self.facts,
            "variants": [row.as_dict() for row in self.rows],
            "interrupted": self.interrupted,
            "recommendation": self.advice.choice,
            "reasons": list(self.advice.lines),
            **self.data,
        }


def _cells(row: Measured) -> tuple[str, ...]:
    peak = "not measured" if row.peak_bytes is None else size_text(row.peak_bytes, 2)
    return (*row.cells(2), peak)


def _report(
    bench: str, session: Session, variants: list[Variant],
    advise: Callable[[list[Measured]], Advice],
) -> Report:  # fmt: skip
    """The variants measured in turn, and what is advised on them."""
    facts, settings = session.facts(), session.settings
    rows, interrupted = interleave(variants, settings.repeats, session.device, settings.say)
    return Report(bench, facts, rows, advise(rows), interrupted)


def run_offload(settings: Settings) -> Report:
    """All weights resident against enable_model_cpu_offload()."""
    session = open_session(settings)

    def offload() -> None:
        if session.device.type == "cpu":
            raise UnavailableError("no accelerator: there is nothing to offload from")
        session.pipeline.enable_model_cpu_offload(device=session.device)

    variants = [
        Variant("resident", session.make_resident, session.picture),
        Variant("offload", offload, session.picture),
    ]
    return _report(
        "offload", session, variants,
        lambda rows: advice.offload_advice(rows[0], rows[1], session.free_bytes),
    )  # fmt: skip


def run_compile(settings: Settings) -> Report:
    """The UNet and the VAE as they are against torch.compile, as upstream's loader does it."""
    session = open_session(settings)
    plain = {name: getattr(session.pipeline, name) for name in ("unet", "vae")}
    compiled: dict[str, Any] = {}

    def use(modules: dict[str, Any]) -> None:
        for name, module in modules.items():
            setattr(session.pipeline, name, module)

    def use_compiled() -> None:
        for name in plain.keys() - compiled.keys():
            compiled[name] = torch.compile(plain[name], backend=settings.backend)
        use(compiled)

    session.make_resident()
    variants = [
        Variant("eager", lambda: use(plain), session.picture),
        Variant("compiled", use_compiled, session.picture),
    ]
    report = _report("compile", session, variants, lambda rows: advice.compile_advice(*rows))
    use(plain)
    pictures = advice.break_even(*report.rows)
    report.data = {"break_even_pictures": pictures, "backend": settings.backend}
    return report


def run_precision(settings: Settings) -> Report:
    """float32, float16 and bfloat16 of the same weights and the same noise.

    Euler's scheduler takes the place of the ancestral one, which draws in each precision anew.
    """
    from diffusers import EulerDiscreteScheduler

    session = open_session(settings, torch.float32)
    session.pipeline.scheduler = EulerDiscreteScheduler.from_config(
        session.pipeline.scheduler.config
    )
    master = [tensor.detach().cpu().clone() for tensor in _floats(session.pipeline)]
    side = session.size // int(session.pipeline.vae_scale_factor)
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(1, 4, side, side, generator=generator, device="cpu")
    pictures: dict[str, torch.Tensor] = {}
    close: dict[str, Closeness] = {}

    def variant(dtype: torch.dtype) -> Variant:
        name = dtype_name(dtype)

        def keep(made: torch.Tensor) -> None:
            pictures[name] = made.detach().float().cpu()

        def call() -> torch.Tensor:
            return session.picture(latents=noise.to(session.device, dtype))

        def recast() -> None:
            """Weights from `master` to the device, one at a time: never two sets there."""
            for tensor, original in zip(_floats(session.pipeline), master, strict=True):
                tensor.data = original.to(session.device, dtype)
            session.make_resident()  # what is no floating-point number

        return Variant(name, recast, call, keep)

    def advise(rows: list[Measured]) -> Advice:
        for name, made in pictures.items():
            close[name] = closeness(made, pictures.get("float32", made))
        return advice.precision_advice(rows, close, session.random_weights)

    variants = [variant(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]
    report = _report("precision", session, variants, advise)
    report.notes = {
        "variant": "to float32",
        **{name: _in_words(value, name, "float32" in pictures) for name, value in close.items()},
    }
    report.data = {"closeness": {name: vars(value) for name, value in close.items()}}
    return report


def run_resolution(settings: Settings) -> Report:
    """The size, three quarters and half of it (512, 384, 256)."""
    session = open_session(settings)
    sizes = smaller_sizes(session.size, session.unit)
    session.make_resident()
    variants = [
        Variant(f"{size}x{size}", lambda: None, partial(session.picture, size)) for size in sizes
    ]
    return _report(
        "resolution", session, variants,
        lambda rows: advice.resolution_advice(rows, sizes, session.free_bytes),
    )  # fmt: skip


BENCHES: dict[str, Callable[[Settings], Report]] = {
    "offload": run_offload,
    "compile": run_compile,
    "precision": run_precision,
    "resolution": run_resolution,
}


def smaller_sizes(size: int, unit: int) -> list[int]:
    """`size`, and 3/4 and 1/2 of it rounded to multiples of `unit`; descending, each once."""
    rounded = [max(unit, round(size * part / unit) * unit) for part in (0.75, 0.5)]
    return sorted({size, *(value for value in rounded if value < size)}, reverse=True)


def closeness(made: torch.Tensor, reference: torch.Tensor) -> Closeness:
    """How far `made` is from `reference`, both float in 0..1 of one shape; NaN are counted."""
    nans = int(torch.isnan(made).sum().item())
    gap = (made.double() - reference.double()).abs()
    error = gap.square().mean().item()
    psnr = float("inf") if error == 0 else -10 * math.log10(error)
    return Closeness(psnr_db=psnr, max_difference=gap.max().item(), nans=nans)


def _in_words(value: Closeness, name: str, has_reference: bool) -> str:
    if value.nans:
        return f"{value.nans} NaN"
    if name == "float32":
        return "-"
    if not has_reference:
        return "no float32 picture to compare with"
    return f"{value.psnr_db:.1f} dB, at most {value.max_difference:.4f}"


def _floats(pipeline: Any) -> Iterator[torch.Tensor]:
    """Every floating-point parameter and buffer of the pipeline, in a fixed order."""
    for module in pipeline.components.values():
        if isinstance(module, torch.nn.Module):
            for tensor in [*module.parameters(), *module.buffers()]:
                if tensor.is_floating_point():
                    yield tensor
