"""Recommendations as pure functions of figures. No figure in a text is anything but computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hy3d_rocm.bench.timing import Measured
from hy3d_rocm.offload.policy import HEADROOM_BYTES
from hy3d_rocm.units import GB, size_text

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
    price = _price(resident, offload)
    if resident.peak_bytes is None or offload.peak_bytes is None or free_bytes is None:
        lines = (price, "Memory was not measured: no advice on it.")
        return Advice(_faster(resident, offload), lines)
    saved = resident.peak_bytes - offload.peak_bytes
    lines = (price, f"Offload saves {gigabytes(saved)} of {gigabytes(resident.peak_bytes)}.")
    claim = claim_lines(resident, offload)
    if resident.peak_bytes + HEADROOM_BYTES <= free_bytes:
        if _told_apart(resident, offload) and resident.median < offload.median:
            last = f"{gigabytes(free_bytes)} are free, enough: keep the model resident."
            return Advice(resident.name, (*lines, last, *claim))
        last = "Offload costs no measurable time here: use it, the memory is free for other models."
        return Advice(offload.name, (*lines, last, *claim))
    short = (
        f"Resident takes {gigabytes(resident.peak_bytes)} and {gigabytes(HEADROOM_BYTES)} of "
        f"headroom, more than the {gigabytes(free_bytes)} that are free"
    )
    if offload.peak_bytes + HEADROOM_BYTES <= free_bytes:
        return Advice(offload.name, (*lines, f"{short}: use offload.", *claim))
    last = f"{short}, and so does offload: lower the resolution (bench resolution)."
    return Advice(None, (*lines, last, *claim))


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


def claim_lines(resident: Measured, offload: Measured) -> tuple[str, ...]:
    """The claim "offload pays below 12 GB and not from 16 GB on" against these figures.

    A card needs offload if the resident pipeline and the headroom exceed its memory. Both peaks
    must be known.
    """
    assert resident.peak_bytes is not None
    assert offload.peak_bytes is not None
    line = resident.peak_bytes + HEADROOM_BYTES
    least = offload.peak_bytes + HEADROOM_BYTES
    faster = _faster(resident, offload)
    pays = faster == offload.name or line >= CLAIM_PAYS_BELOW
    not_from = faster != offload.name and line <= CLAIM_NOT_FROM
    return (
        f"With this model and size a card of {gigabytes(line)} or more keeps it resident, one of "
        f"{gigabytes(least)} to {gigabytes(line)} needs offload.",
        f'"Offload pays below 12 GB": {_verdict(pays)}.',
        f'"Offload does not pay from 16 GB on": {_verdict(not_from)}.',
        "What other models in memory take must be added to these figures.",
    )


def _verdict(holds: bool) -> str:
    return "holds here" if holds else "does not hold here"


def break_even(eager: Measured, compiled: Measured) -> int | None:
    """Smallest number of pictures for which compiling has cost no more time; None if none does.

    Calls after the first take their median, so N pictures take first + (N - 1) * median.
    """
    if None in (eager.first_seconds, compiled.first_seconds, eager.median, compiled.median):
        return None
    assert eager.first_seconds is not None
    assert compiled.first_seconds is not None
    assert eager.median is not None
    assert compiled.median is not None
    extra = compiled.first_seconds - eager.first_seconds
    saved = eager.median - compiled.median
    if extra <= 0:
        return 1
    return 1 + math.ceil(extra / saved) if saved > 0 else None


def compile_advice(eager: Measured, compiled: Measured) -> Advice:
    if eager.median is None or compiled.median is None:
        if eager.median is None:
            return nothing_measured([eager, compiled])
        why = compiled.reason or "interrupted"
        return Advice(eager.name, (f"Compiled was not measured: {why}.", "Leave compiling off."))
    if not _told_apart(eager, compiled):
        last = "The two are not told apart by these repeats: leave compiling off."
        return Advice(eager.name, (_price(eager, compiled), last))
    pictures = break_even(eager, compiled)
    if pictures is None:
        last = "Compiling never pays its first call back: leave it off."
        return Advice(eager.name, (_price(eager, compiled), last))
    return Advice(
        compiled.name,
        (
            _price(eager, compiled),
            f"Compile if you make {pictures} pictures or more in one session at one size; below "
            "that leave it off. Each further size, and each restart, compiles again.",
        ),
    )


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
    usable = [
        row
        for row in rows
        if row.median is not None and not (row.name in closeness and closeness[row.name].nans)
    ]
    lines = [
        f"{row.name}: {closeness[row.name].nans} values of the picture are NaN. Not usable."
        for row in rows
        if row.name in closeness and closeness[row.name].nans
    ]
    lines += [f"{row.name} was not measured: {row.reason}." for row in rows if row.reason]
    if not usable:
        return Advice(None, (*lines, "No precision gave a picture."))
    fastest = min(usable, key=lambda row: row.median or 0.0)
    equal = [row for row in usable if row is fastest or not _told_apart(row, fastest)]
    chosen = max(equal, key=lambda row: _psnr(row.name, closeness))
    note = f"Use {chosen.name}: {chosen.median:.2f} s a picture"
    note += f", {gigabytes(chosen.peak_bytes)}" if chosen.peak_bytes is not None else ""
    lines.append(f"{note}.")
    near = closeness.get(chosen.name)
    if near is not None and not math.isinf(near.psnr_db):
        side = "more" if near.psnr_db < ROUNDING_PSNR else "less"
        lines.append(
            f"It differs from float32 by {near.psnr_db:.1f} dB, {side} than rounding a picture to "
            f"8 bits does ({ROUNDING_PSNR:.1f} dB)."
        )
    if random_weights and len(usable) > 1:
        lines.append("Differences are those of random weights; give --model for the model's own.")
    return Advice(chosen.name, tuple(lines))


def _psnr(name: str, closeness: dict[str, Closeness]) -> float:
    return closeness[name].psnr_db if name in closeness else -math.inf


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
    fitting = [row for _, row in pairs if _fits(row, free_bytes)]
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


def _fits(row: Measured, free_bytes: int | None) -> bool:
    if row.peak_bytes is None or free_bytes is None:
        return True
    return row.peak_bytes + HEADROOM_BYTES <= free_bytes


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


def _faster(first: Measured, second: Measured) -> str:
    """The name of the faster one; of the first where they are not told apart."""
    assert first.median is not None
    assert second.median is not None
    return (
        second.name if _told_apart(first, second) and second.median < first.median else first.name
    )


def _price(first: Measured, second: Measured) -> str:
    assert first.median is not None
    assert second.median is not None
    gap = second.median - first.median
    return (
        f"{second.name}: {second.median:.2f} s a picture, {first.name}: {first.median:.2f} s "
        f"({gap:+.2f} s, {gap / first.median:+.0%})."
    )
