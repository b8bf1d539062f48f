"""The four benches of the pipeline, and what each recommends; see docs/bench.md.

Each takes Settings and returns a Report. Recommendations are pure functions of figures: no
figure in a text is anything but computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hy3d_rocm.bench.session import SEED, Session, Settings, open_session
from hy3d_rocm.bench.timing import Measured, UnavailableError, Variant, interleave
from hy3d_rocm.decoding.precision import name_of as dtype_name
from hy3d_rocm.offload.memory import HEADROOM_BYTES
from hy3d_rocm.units import GB, aligned, size_text

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
        peaks = [row.peak_bytes for row in self.rows]
        shown = ["not measured" if peak is None else size_text(peak, 2) for peak in peaks]
        table = [HEADER]
        table += [(*row.cells(2), peak) for row, peak in zip(self.rows, shown, strict=True)]
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
        lambda rows: offload_advice(rows[0], rows[1], session.free_bytes),
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
    report = _report("compile", session, variants, lambda rows: compile_advice(*rows))
    use(plain)
    pictures = break_even(*report.rows)
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
        return precision_advice(rows, close, session.random_weights)

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
        lambda rows: resolution_advice(rows, sizes, session.free_bytes),
    )  # fmt: skip


BENCHES: dict[str, Callable[[Settings], Report]] = {
    "offload": run_offload,
    "compile": run_compile,
    "precision": run_precision,
    "resolution": run_resolution,
}


# What a guide claims: offload pays on cards below 12 GB and does not from 16 GB on.
CLAIM_PAYS_BELOW, CLAIM_NOT_FROM = 12 * GB, 16 * GB
# PSNR of a picture to its own rounding to 8 bits: 10 log10(12 * 255^2).
ROUNDING_PSNR = 10 * math.log10(12 * 255**2)


@dataclass(frozen=True)
class Advice:
    """choice: the recommended variant's name, None if the figures allow none; lines: why."""

    choice: str | None
    lines: tuple[str, ...]


def offload_advice(resident: Measured, offload: Measured, free_bytes: int | None) -> Advice:
    """Resident or offloaded, for `free_bytes` of free memory (None: not known, as on a CPU)."""
    if resident.median is None or offload.median is None:
        return _offload_of_one(resident, offload, free_bytes)
    price, high, low = _price(resident, offload), resident.peak_bytes, offload.peak_bytes
    if high is None or low is None or free_bytes is None:
        lines = (price, "Memory was not measured: no advice on it.")
        return Advice(_faster(resident, offload).name, lines)
    short = (
        f"Resident takes {gigabytes(high)} and {gigabytes(HEADROOM_BYTES)} of headroom, more than "
        f"the {gigabytes(free_bytes)} that are free"
    )
    choice: str | None = offload.name
    if high + HEADROOM_BYTES <= free_bytes:
        last = "Offload costs no measurable time here: use it, the memory is free for other models."
        if _faster(offload, resident) is resident:
            choice = resident.name
            last = f"{gigabytes(free_bytes)} are free, enough: keep the model resident."
    elif low + HEADROOM_BYTES <= free_bytes:
        last = f"{short}: use offload."
    else:
        choice = None
        last = f"{short}, and so does offload: lower the resolution (bench resolution)."
    saved = f"Offload saves {gigabytes(high - low)} of {gigabytes(high)}."
    claim = claim_lines(high, low, offload_is_faster=_faster(resident, offload) is offload)
    return Advice(choice, (price, saved, last, *claim))


def _offload_of_one(resident: Measured, offload: Measured, free_bytes: int | None) -> Advice:
    for one, other in ((resident, offload), (offload, resident)):
        if one.median is not None:
            missing = f"{other.name} was not measured: {other.reason or 'interrupted'}."
            if one is offload and other.reason and other.reason.startswith("out of memory"):
                return Advice(one.name, (missing, "Use offload."))
            fits = one.peak_bytes is not None and free_bytes is not None
            tail = f"{one.name} works" + (f", at {gigabytes(one.peak_bytes)}." if fits else ".")
            return Advice(one.name, (missing, tail))
    return nothing_measured([resident, offload])


def claim_lines(
    resident_bytes: int, offload_bytes: int, offload_is_faster: bool
) -> tuple[str, ...]:
    """The claim "offload pays below 12 GB and not from 16 GB on" against these peaks.

    A card needs offload if the resident pipeline and the headroom exceed its memory.
    """
    line, least = resident_bytes + HEADROOM_BYTES, offload_bytes + HEADROOM_BYTES
    pays = offload_is_faster or line >= CLAIM_PAYS_BELOW
    not_from = not offload_is_faster and line <= CLAIM_NOT_FROM
    verdict = {True: "holds here", False: "does not hold here"}
    return (
        f"With this model and size a card of {gigabytes(line)} or more keeps it resident, one of "
        f"{gigabytes(least)} to {gigabytes(line)} needs offload.",
        f'"Offload pays below 12 GB": {verdict[pays]}.',
        f'"Offload does not pay from 16 GB on": {verdict[not_from]}.',
        "What other models in memory take must be added to these figures.",
    )


def break_even(eager: Measured, compiled: Measured) -> int | None:
    """Smallest number of pictures for which compiling has cost no more time; None if none does.

    Calls after the first take their median, so N pictures take first + (N - 1) * median.
    """
    first, later = (eager.first_seconds, compiled.first_seconds), (eager.median, compiled.median)
    if first[0] is None or first[1] is None or later[0] is None or later[1] is None:
        return None
    extra, saved = first[1] - first[0], later[0] - later[1]
    if extra <= 0:
        return 1
    return 1 + math.ceil(extra / saved) if saved > 0 else None


def compile_advice(eager: Measured, compiled: Measured) -> Advice:
    if eager.median is None or compiled.median is None:
        if eager.median is None:
            return nothing_measured([eager, compiled])
        why = compiled.reason or "interrupted"
        return Advice(eager.name, (f"Compiled was not measured: {why}.", "Leave compiling off."))
    pictures, chosen = break_even(eager, compiled), eager
    if not _told_apart(eager, compiled):
        last = "The two are not told apart by these repeats: leave compiling off."
    elif pictures is None:
        last = "Compiling never pays its first call back: leave it off."
    else:
        chosen = compiled
        last = (
            f"Compile if you make {pictures} pictures or more in one session at one size; below "
            "that leave it off. Each further size, and each restart, compiles again."
        )
    return Advice(chosen.name, (_price(eager, compiled), last))


@dataclass(frozen=True)
class Closeness:
    """A picture against the float32 one of the same noise, both in 0..1."""

    psnr_db: float
    max_difference: float
    nans: int


def precision_advice(
    rows: Sequence[Measured], closeness: dict[str, Closeness], random_weights: bool
) -> Advice:
    """The fastest precision without NaN; of those not told apart in time, the closest to float32.

    closeness has an entry for each variant whose picture could be compared.
    """
    nans = {name: found.nans for name, found in closeness.items() if found.nans}
    usable = [row for row in rows if row.median is not None and row.name not in nans]
    lines = [
        f"{row.name}: {nans[row.name]} values of the picture are NaN. Not usable."
        for row in rows
        if row.name in nans
    ]
    lines += [f"{row.name} was not measured: {row.reason}." for row in rows if row.reason]
    if not usable:
        return Advice(None, (*lines, "No precision gave a picture."))
    fastest = min(usable, key=lambda row: row.median or 0.0)
    equal = [row for row in usable if row is fastest or not _told_apart(row, fastest)]
    known = {name: found.psnr_db for name, found in closeness.items()}
    chosen = max(equal, key=lambda row: known.get(row.name, -math.inf))
    note = f"Use {chosen.name}: {chosen.median:.2f} s a picture"
    note += f", {gigabytes(chosen.peak_bytes)}" if chosen.peak_bytes is not None else ""
    lines.append(f"{note}.")
    near = known.get(chosen.name, math.inf)
    if not math.isinf(near):
        side = "more" if near < ROUNDING_PSNR else "less"
        lines.append(
            f"It differs from float32 by {near:.1f} dB, {side} than rounding a picture to "
            f"8 bits does ({ROUNDING_PSNR:.1f} dB)."
        )
    if random_weights and len(usable) > 1:
        lines.append("Differences are those of random weights; give --model for the model's own.")
    return Advice(chosen.name, tuple(lines))


def resolution_advice(
    rows: Sequence[Measured], sizes: Sequence[int], free_bytes: int | None
) -> Advice:
    """The largest size that fits into free memory; what each smaller one would save.

    sizes: pixels a side of each row, descending.
    """
    pairs = [(size, row) for size, row in zip(sizes, rows, strict=True) if row.median is not None]
    if not pairs:
        return nothing_measured(rows)
    lines = [f"{row.name} was not measured: {row.reason}." for row in rows if row.reason]
    largest, top = pairs[0]
    for size, row in pairs[1:]:
        lines.append(_size_line(largest, top, size, row))
    room = math.inf if free_bytes is None else free_bytes - HEADROOM_BYTES
    fitting = [row for _, row in pairs if (row.peak_bytes or -math.inf) <= room]
    if not fitting:
        lines.append("None of these sizes fits beside the headroom: offload (bench offload).")
        return Advice(None, tuple(lines))
    chosen = fitting[0]
    reason = "the largest that fits" if chosen is not rows[0] else "memory asks for no less"
    lines.append(f"Use {chosen.name}: {reason}. Smaller is a choice of time against detail.")
    return Advice(chosen.name, tuple(lines))


def _size_line(largest: int, top: Measured, size: int, row: Measured) -> str:
    assert top.median is not None
    assert row.median is not None
    line = f"{row.name} takes {row.median / top.median:.0%} of the time of {top.name}"
    if top.peak_bytes is not None and row.peak_bytes is not None:
        line += f" and {gigabytes(top.peak_bytes - row.peak_bytes)} less memory"
    return f"{line}, with {(size / largest) ** 2:.0%} of the pixels."


def nothing_measured(rows: Sequence[Measured]) -> Advice:
    return Advice(
        None, tuple(f"{row.name} was not measured: {row.reason or 'interrupted'}." for row in rows)
    )


def gigabytes(count: int | None) -> str:
    return "?" if count is None else size_text(count, 2)


def _told_apart(first: Measured, second: Measured) -> bool:
    """Whether every call of one took longer than every call of the other."""
    if first.spread is None or second.spread is None:
        return False
    return first.spread[1] < second.spread[0] or second.spread[1] < first.spread[0]


def _faster(first: Measured, second: Measured) -> Measured:
    """The faster one; the first where they are not told apart."""
    is_second = _told_apart(first, second) and (second.median or 0) < (first.median or 0)
    return second if is_second else first


def _price(first: Measured, second: Measured) -> str:
    assert first.median is not None
    assert second.median is not None
    gap = second.median - first.median
    return (
        f"{second.name}: {second.median:.2f} s a picture, {first.name}: {first.median:.2f} s "
        f"({gap:+.2f} s, {gap / first.median:+.0%})."
    )


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
