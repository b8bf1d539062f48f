"""`hy3d-rocm validate`: each strategy held against the exact frames, in figures and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from hy3d_rocm.decoding.black_box import ENGINE as OWN_TILES
from hy3d_rocm.decoding.black_box import plan_own_tiles
from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.decoding.tiled_run import tile_places
from hy3d_rocm.tools import metrics, runs
from hy3d_rocm.tools.pictures import Panel, draw_heat_map
from hy3d_rocm.units import aligned, size_text

# What the specification's "no degradation" comes to for the one strategy that approximates.
LEAST_PSNR_DB, MOST_SEAM = 45.0, 0.05
EXACT_ERROR = 1e-4  # of the range, for strategies that are exact, in float32 or float64


@dataclass(frozen=True)
class Borders:
    """A border r lies between r - 1 and r."""

    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    frames: tuple[int, ...] = ()


@dataclass
class Row:
    """One strategy. seam, flicker: see metrics; *_whole: of the exact frames at the same places."""

    outcome: runs.Outcome
    psnr: float = math.nan
    ssim: float = math.nan
    largest: float = math.nan
    seam: float = math.nan
    seam_whole: float = math.nan
    flicker: float = math.nan
    flicker_whole: float = math.nan
    borders: Borders = field(default_factory=Borders)
    map: Tensor | None = None

    @property
    def seam_change(self) -> float:
        """How much stronger borders show than in the exact frames: 0.05 is 5 %."""
        return self.seam / self.seam_whole - 1

    @property
    def flicker_change(self) -> float:
        """The same for cuts in time."""
        return self.flicker / self.flicker_whole - 1

    def as_dict(self) -> dict[str, Any]:
        """JSON-able but for infinities."""
        o, b = self.outcome, self.borders
        names = ("psnr", "ssim", "largest", "seam", "seam_whole", "seam_change", "flicker",
                 "flicker_whole", "flicker_change")  # fmt: skip
        return {
            "name": o.setting.name, "call": o.setting.call(),
            **o.figures("way", "error", "seconds", "planned_bytes", "peak_bytes"),
            **{name: getattr(self, name) for name in names},
            "rows": b.rows, "columns": b.columns, "cuts": b.frames,
            "report": None if o.report is None else o.report.as_dict(),
        }  # fmt: skip


@dataclass
class Validation:
    """exact: the reference's outcome. verdicts: (holds, sentence)."""

    subject: str
    shape: tuple[int, ...]
    exact: runs.Outcome
    rows: list[Row] = field(default_factory=list)
    interrupted: bool = False
    is_random: bool = False

    @property
    def verdicts(self) -> list[tuple[bool, str]]:
        """What is promised of each strategy, and whether it held."""
        return [verdict for row in self.rows for verdict in _judged(row, self.exact)]

    @property
    def holds(self) -> bool:
        """Whether all promises held, and there was something to judge."""
        ended = any(row.outcome.error is None for row in self.rows)
        return ended and all(good for good, _ in self.verdicts)


def validate(
    subject: runs.Subject,
    strategies: Sequence[str],
    *,
    share: float = 0.25,
    budget: int | str | None = None,
    options: DecodeOptions | None = None,
    listener: runs.Listener = runs.SILENT,
    cancel: Callable[[], bool] | None = None,
) -> Validation:
    """share: of whole's planned memory, which `tiled` gets unless `budget` is given. Ctrl-C and
    `cancel` end it with the rows so far. A share that is too small for tiles is raised to what they
    need at least. RuntimeError where not even the reference can be decoded,
    DecodeCancelled where it was cancelled before that."""
    strategies = runs.strategies_for(subject, strategies)
    listener.begin("exact")
    exact = runs.exact_frames(subject, listener, cancel)
    listener.say(f"exact: {exact.told}")
    assert exact.frames is not None
    found = Validation(subject.text, tuple(exact.frames.shape), exact, is_random=subject.is_random)
    quarter = budget if budget is not None else int(exact.planned_bytes * share)
    try:
        for name in strategies:
            room = quarter if name == "tiled" else budget
            setting = runs.Setting(name, name, "auto", room, options or DecodeOptions())
            listener.begin(name)
            outcome = runs.run_once(subject, setting, progress=listener, cancel=cancel)
            least = outcome.smallest_bytes
            if name == "tiled" and budget is None and least:  # the share is ours, not the user's
                setting = replace(setting, budget=least)
                outcome = runs.run_once(subject, setting, progress=listener, cancel=cancel)
            row = Row(outcome)
            if outcome.kind == "cancelled" or (cancel is not None and cancel()):
                found.interrupted = True
                break
            _measure(row, subject, exact.frames)
            found.rows.append(row)
            said = outcome.error or f"{row.psnr:.1f} dB, {outcome.seconds:.1f} s"
            listener.say(f"{name}: {said}")
    except KeyboardInterrupt:
        found.interrupted = True
    _complete(found, exact.frames)
    return found


def _measure(row: Row, subject: runs.Subject, exact: Tensor) -> None:
    outcome = row.outcome
    if outcome.frames is None or outcome.report is None:
        return
    frames = outcome.frames
    row.psnr, row.ssim = metrics.psnr(frames, exact), metrics.ssim(frames, exact)
    row.largest = metrics.largest_error(frames, exact)
    row.map = metrics.error_map(frames, exact)
    shape = tuple(subject.latents.shape)
    row.borders = borders_of(subject.family, shape, outcome.report.plan)


def _complete(found: Validation, exact: Tensor) -> None:
    """Seams and flicker; whole and streamed, which have no borders, at the tiles'."""
    cut = [row.borders for row in found.rows if row.borders.rows or row.borders.columns]
    timed = [row.borders.frames for row in found.rows if row.borders.frames]
    for row in found.rows:
        own = row.borders
        has_tiles = bool(own.rows or own.columns)
        places = own if has_tiles or not cut else cut[0]
        cuts = own.frames or (timed[0] if timed else ())
        row.seam_whole = metrics.seams(exact, places.rows, places.columns)
        row.flicker_whole = metrics.flicker(exact, cuts)
        if row.outcome.frames is not None:
            row.seam = metrics.seams(row.outcome.frames, places.rows, places.columns)
            row.flicker = metrics.flicker(row.outcome.frames, cuts)
            row.outcome.frames = None


def borders_of(family: Any, shape: tuple[int, ...], plan: Mapping[str, Any]) -> Borders:
    """Of a plan as DecodeReport.plan has it, for a latent (B, C, T, H, W).

    A tile's blend with its neighbour begins at one's start and ends at the other's stop; those two
    and the middle between them are where a seam can show.
    """
    parameters = plan.get("parameters") or {}
    if parameters.get("engine") == OWN_TILES:
        own = list(plan_own_tiles(family, shape, parameters).tiles)
        return Borders(_places(own, 1), _places(own, 2), _places(own, 0))
    # The first frame of each chunk but the first: T latents make (T - 1) * factor + 1 frames.
    time, chunk = int(family.factor[0]), int(parameters.get("chunk") or 0)
    frames = tuple((t - 1) * time + 1 for t in range(chunk, shape[2], chunk)) if chunk else ()
    if parameters.get("engine") != "tiles":
        return Borders(frames=frames)
    tiles = list(tile_places(plan["tiles"]))
    rows, columns = (_places(tiles, axis) for axis in (1, 2))
    return Borders(rows, columns, frames)


def _places(tiles: list[Any], axis: int) -> tuple[int, ...]:
    starts = sorted({g.out_start[axis] for g in tiles})[1:]
    stops = sorted({g.out_stop[axis] for g in tiles})[:-1]
    middles = [(a + b) // 2 for a, b in zip(starts, stops, strict=False)]
    return tuple(sorted({*starts, *stops, *middles}))


def _is_reference(row: Row, exact: runs.Outcome) -> bool:
    """Whether the row is the exact decode once more: that it equals itself shows nothing."""
    same = (row.outcome.way, row.outcome.dtype) == (exact.way, exact.dtype)
    return row.outcome.error is None and same and row.largest == 0


def _judged(row: Row, exact: runs.Outcome) -> list[tuple[bool, str]]:
    name, outcome = row.outcome.setting.name, row.outcome
    if _is_reference(row, exact):
        return []
    if outcome.kind == "refused":
        return []  # nothing was decoded: the budget, or a VAE whose own code can't be priced
    if outcome.error is not None:
        return [(False, f"{name} did not end: {outcome.error}")]
    engine = (outcome.report.plan.get("parameters") or {}).get("engine") if outcome.report else ""
    if engine not in ("tiles", OWN_TILES):
        if outcome.dtype not in ("float32", "float64"):
            return []  # what the type itself costs is no fault of the strategy
        text = f"{name}: largest error {row.largest:.1e} of the range, at most {EXACT_ERROR:g}"
        return [(row.largest <= EXACT_ERROR, text)]
    said = [(row.psnr >= LEAST_PSNR_DB, f"{name}: {row.psnr:.1f} dB, at least {LEAST_PSNR_DB:g}")]
    if not math.isnan(row.seam_change):
        text = f"{name}: seams {row.seam_change:+.2%} against the exact, within {MOST_SEAM:.0%}"
        said.append((abs(row.seam_change) <= MOST_SEAM, text))
    return said


def validation_text(found: Validation) -> str:
    """A table and verdicts."""
    head = ("", "time", "peak", "planned", "PSNR", "SSIM", "largest", "seams", "flicker")
    frames, height, width = found.shape[2:]
    lines = ["hy3d-rocm validate", "", found.subject]
    lines.append(
        f"{frames} frames of {width}x{height}; exact: {found.exact.told}, planned "
        f"{size_text(found.exact.planned_bytes)}"
    )
    lines += [f"(not {found.exact.instead_of})", ""] if found.exact.instead_of else [""]
    lines += aligned([head, *map(_cells, found.rows)])
    lines += [
        "",
        "PSNR and largest error: of the exact frames' range. seams, flicker: how much stronger",
        "borders of tiles and cuts of chunks show than in the exact frames at the same places.",
    ]
    if found.is_random:
        lines.append("Weights are random: PSNR and SSIM say little about the real model.")
    lines += ["", *(f"{'pass' if good else 'FAIL'}  {text}" for good, text in found.verdicts)]
    for row in found.rows:
        if row.outcome.report is not None:
            same = ", the exact decode itself" if _is_reference(row, found.exact) else ""
            lines += [f"{row.outcome.setting.name}: {row.outcome.way}{same}"]
        elif row.outcome.kind == "refused":
            lines += [f"{row.outcome.setting.name} was not run: {row.outcome.error}"]
    if found.interrupted:
        lines.append("Interrupted: these are the figures so far.")
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    o = row.outcome
    if o.error is not None:
        return (o.setting.name, o.kind, *["-"] * 7)
    return (
        o.setting.name, f"{o.seconds:.1f} s", size_text(o.peak_bytes), size_text(o.planned_bytes),
        f"{row.psnr:.1f} dB", f"{row.ssim:.5f}", f"{row.largest:.1e}", _change(row.seam_change),
        _change(row.flicker_change),
    )  # fmt: skip


def _change(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.2%}"


def validation_dict(found: Validation) -> dict[str, Any]:
    """For JSON."""
    return {
        "tool": "validate",
        "subject": found.subject,
        "random_weights": found.is_random,
        "shape": found.shape,
        "exact": found.exact.figures("way", "dtype", "seconds", "planned_bytes", "peak_bytes"),
        "rows": [row.as_dict() for row in found.rows],
        "verdicts": [{"holds": good, "text": text} for good, text in found.verdicts],
        "interrupted": found.interrupted,
    }  # fmt: skip


def draw(found: Validation, path: Path | IO[bytes]) -> bool:
    """The heat map of all rows that ended; False where there is nothing to draw."""
    panels = [
        Panel(
            row.outcome.setting.name,
            "bit-identical" if row.largest == 0 else f"{row.psnr:.1f} dB, most {row.largest:.1e}",
            row.map.numpy(),
            row.borders.rows,
            row.borders.columns,
        )
        for row in found.rows
        if row.map is not None
    ]
    if not panels:
        return False
    frames, height, width = found.shape[2:]
    heading = f"Error against the exact decode, mean over {frames} frames of {width}x{height}"
    draw_heat_map(path, panels, heading)
    return True
