"""`hy3d-rocm compare A.json B.json`: what two results of bench, validate or optimize differ in.

A is before, B after. What is worse than chance explains is a regression (docs/bench.md).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hy3d_rocm.arguments import say
from hy3d_rocm.diagnose.env.shown import printable as _cut
from hy3d_rocm.units import MB, aligned, brief, size_text

# Of the time: at least, and where a call was timed once.
LEAST_TIME, ONCE_TIME = 0.03, 0.25
MEMORY_SHARE, MEMORY_BYTES = 0.05, 16 * MB
PSNR_DROP, PSNR_EQUAL = 0.5, 96.0  # beyond it, a step of 16 bits, all is equal
SSIM_DROP = 0.005
ERROR_GROWTH, ERROR_FLOOR = 0.5, 1e-4
_LARGEST_FILE_BYTES = 64 << 20
_FIGURE = re.compile(r"(?<!\w)[+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan)")


class CompareError(ValueError):
    """A file is no result that can be compared; the text says why."""


@dataclass
class Row:
    """One measured thing, as a file has it: numbers, lists of them, or None. error: why it has no
    figures."""

    seconds: Any = None
    peak: Any = None
    psnr: Any = None
    ssim: Any = None
    largest: Any = None
    error: Any = ""

    def __post_init__(self) -> None:
        """seconds: those above 0, None for none. The others: the largest number, None for none."""
        self.seconds = [n for n in _numbers(self.seconds) if 0 < n < math.inf] or None
        self.peak = max((n for n in _numbers(self.peak) if n < math.inf), default=None) or None
        for name in ("psnr", "ssim", "largest"):
            setattr(self, name, next(iter(_numbers(getattr(self, name))), None))
        self.error = str(self.error or "")


@dataclass
class Result:
    """One file. kind: such as "bench conv"; about: what was asked for and where, by name."""

    path: Path
    kind: str
    rows: dict[str, Row]
    about: dict[str, str]
    promises: dict[str, bool]


@dataclass(frozen=True)
class Judged:
    """One figure of one row. worse_by: positive where it is worse, negative where it is better, by
    as much as counts."""

    row: str
    figure: str
    before: str
    after: str
    worse_by: float
    change: str = ""
    limit: str = ""

    def cells(self) -> tuple[str, ...]:
        word = "worse" if self.worse_by > 0 else "better" if self.worse_by < 0 else ""
        figures = (self.figure, self.before, self.after, self.change, self.limit, word)
        return (_cut(self.row, 48), *figures)


def read_result(path: Path) -> Result:
    """CompareError for what is no result of these commands."""
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise CompareError(f"{path} is too large for a result of hy3d-rocm")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CompareError(f"{path} can't be read: {error.strerror or error}") from error
    except CompareError:
        raise
    except (ValueError, RecursionError) as error:
        raise CompareError(f"{brief(str(path))} is no JSON file: {error}") from error
    kind = _kind(data)
    if kind not in _ROWS:
        raise CompareError(
            f"{path} is no result of hy3d-rocm bench, validate or optimize: name the file that "
            "--json, or the last line of such a command, names"
        )
    try:
        rows, about = dict(_ROWS[kind](data)), dict(_about(data))
        # validate's verdicts, without the figures, which differ from run to run.
        promises = {
            _FIGURE.sub("#", str(row["text"])): bool(row["holds"])
            for row in data.get("verdicts") or ()
        }
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CompareError(f"{path} is damaged, or of another version: {error!r}") from error
    if not rows:
        raise CompareError(f"{path} holds no figures: nothing was measured")
    return Result(path, kind, rows, about, promises)


def compare(before: Result, after: Result) -> tuple[list[Judged], list[str]]:
    """Every figure that is in both, and what differs in the circumstances. CompareError where the
    files are of two commands, or of nothing in common."""
    if before.kind != after.kind:
        raise CompareError(
            f"{before.path} is of {before.kind}, {after.path} of {after.kind}: give two of one kind"
        )
    common = [name for name in before.rows if name in after.rows]
    if not common:
        raise CompareError(f"{before.path} and {after.path} measured nothing that is in both")
    notes = []
    for name in sorted({*before.about, *after.about}):
        then, now = before.about.get(name, "not told"), after.about.get(name, "not told")
        if then != now:
            what = "machines" if name.startswith("machine") else "commands"
            notes.append(f"different {what}, {name}: {_cut(then, 100)} then, {_cut(now, 100)} now")
    for one, other in ((before, after), (after, before)):
        alone = [name for name in one.rows if name not in other.rows]
        if alone:
            notes.append(f"only in {one.path}: {_cut(', '.join(alone), 100)}")
    judged = [one for name in common for one in _judge(name, before.rows[name], after.rows[name])]
    held = {True: "holds", False: "fails"}
    for text, good in before.promises.items():
        still = after.promises.get(text, good)
        if text in after.promises:
            judged.append(Judged(text, "promise", held[good], held[still], good - still))
    return judged, notes


def comparison_text(judged: list[Judged], notes: list[str], before: Result, after: Result) -> str:
    """The table, what differs in the circumstances, and the verdict."""
    head = ("", "figure", "A", "B", "change", "limit", "")
    lines = [f"{before.kind}: A is {before.path}, B is {after.path}", ""]
    lines += [line.rstrip() for line in aligned([head, *(one.cells() for one in judged)])]
    lines += ["", *notes] if notes else []
    worse = [f"{_cut(one.row, 48)} ({one.figure})" for one in judged if one.worse_by > 0]
    count = "1 regression" if len(worse) == 1 else f"{len(worse)} regressions"
    lines += ["", f"{count}: {', '.join(worse)}" if worse else "No regression."]
    return "".join(f"{_cut(line)}\n" for line in lines)


def _judge(name: str, before: Row, after: Row) -> Iterator[Judged]:
    if before.error or after.error:
        then, now = (_cut(row.error, 40) or "none" for row in (before, after))
        worse_by: float = bool(after.error) - bool(before.error)
        yield Judged(name, "error", then, now, worse_by)
        return
    for key, (figure, show, difference) in _FIGURES.items():
        then, now = getattr(before, key), getattr(after, key)
        if then is not None and now is not None:
            worse_by, limit, change, allowed = difference(then, now)
            counted = worse_by if abs(worse_by) > limit else 0.0
            yield Judged(name, figure, show(then), show(now), counted, change, allowed)


_Difference = tuple[float, float, str, str]  # worse by, what counts, and both as texts


def _time(before: list[float], after: list[float]) -> _Difference:
    first, second = statistics.median(before), statistics.median(after)
    limit = ONCE_TIME
    if min(len(before), len(after)) > 1:
        ranges = [(max(s) - min(s)) / statistics.median(s) for s in (before, after)]
        limit = max(LEAST_TIME, *ranges)
    # Faster by a share of the new time is as much as slower by it of the old.
    change = second / first - 1
    worse_by = change if change > 0 else 1 - first / second
    return worse_by, limit, f"{100 * change:+.1f} %", f"+{100 * limit:.1f} %"


def _memory(low: float, high: float) -> _Difference:
    limit = max(MEMORY_SHARE * min(low, high), MEMORY_BYTES)
    shown = 100 * max(MEMORY_SHARE, MEMORY_BYTES / low)
    return high - low, limit, f"{100 * (high / low - 1):+.1f} %", f"+{shown:.0f} %"


def _psnr(before: float, after: float) -> _Difference:
    drop = min(before, PSNR_EQUAL) - min(after, PSNR_EQUAL)
    return drop, PSNR_DROP, f"{-drop:+.2f} dB", f"-{PSNR_DROP:g} dB"


def _ssim(before: float, after: float) -> _Difference:
    drop = before - after
    return drop, SSIM_DROP, f"{-drop:+.4f}", f"-{SSIM_DROP:g}"


def _error(before: float, after: float) -> _Difference:
    growth = max(after, ERROR_FLOOR) / max(before, ERROR_FLOOR) - 1
    return growth, ERROR_GROWTH, f"{100 * growth:+.0f} %", f"+{100 * ERROR_GROWTH:.0f} %"


def _seconds(values: list[float]) -> str:
    value = statistics.median(values)
    return f"{value:.3f} s" if value >= 0.1 else f"{1e3 * value:.3f} ms"


# By Row's fields: what it is called, how it is shown, how much worse it is.
_FIGURES: dict[str, tuple[str, Callable[[Any], str], Callable[[Any, Any], _Difference]]] = {
    "seconds": ("time", _seconds, _time),
    "peak": ("peak memory", lambda n: size_text(round(n), 2), _memory),
    "psnr": ("PSNR", lambda n: "equal" if math.isinf(n) else f"{n:.2f} dB", _psnr),
    "ssim": ("SSIM", "{:.4f}".format, _ssim),
    "largest": ("largest error", "{:.2e}".format, _error),
}


# --- what is in the files: kind -> rows -----------------------------------------------------------

_Rows = Iterator[tuple[str, Row]]


def _kind(data: Any) -> str:
    if not isinstance(data, Mapping):
        return ""
    if "tool" in data:
        return str(data["tool"])
    kind = f"bench {data.get('bench', '')}"
    return f"{kind} --device cpu" if kind == "bench decode" and "sides" in data else kind


def _tool_rows(data: Any) -> _Rows:
    for row in data["rows"]:
        quality = row.get("psnr"), row.get("ssim"), row.get("largest")
        yield str(row["name"]), Row(row["seconds"], row["peak_bytes"], *quality, row.get("error"))


def _variant_rows(data: Any) -> _Rows:
    """Of bench offload, compile, precision, resolution, and decode on a GPU."""
    psnr = data.get("psnr") or {}
    for row in data["variants"] if "variants" in data else data["rows"]:
        name = str(row["variant"])
        yield name, Row(row["seconds"], row["peak_bytes"], psnr.get(name), error=row["reason"])


def _case_rows(data: Any) -> _Rows:
    for row in data["rows"]:
        error = row["errors"][0] if row["errors"] and not row["seconds"] else ""
        yield str(row["case"]), Row(row["seconds"], row["peak_bytes"], row["psnr"], error=error)


def _side_rows(data: Any) -> _Rows:
    for name, side in data["sides"].items():
        yield str(name), Row(side["seconds"], side["peaks"])
    if (frames := Row(psnr=data["psnr"])).psnr is not None:
        yield "frames", frames


def _layer_rows(data: Any) -> _Rows:
    for row in data["layers"]:
        for name, seconds in row["seconds"].items():
            peak, largest = row["extra_bytes"].get(name), row["errors"].get(name)
            row_of = Row(seconds, peak, largest=largest, error=row["reason"])
            yield f"{row['text']}, {name}", row_of


def _cell_rows(data: Any) -> _Rows:
    for cell in data["cells"]:
        layer = " ".join(str(value) for value in cell["layer"].values())
        for name, row in cell["figures"].items():
            yield (
                f"{layer}, {cell['dtype']}, {cell['layout']}, {name}",
                Row(row["seconds"], row["extra_bytes"], largest=row["worst"], error=row["reason"]),
            )


def _raster_rows(data: Any) -> _Rows:
    for part in data["parts"]:
        for row in part["rows"]:
            turns = [sum(_numbers(list(turn.values()))) for turn in row["seconds"]]
            name = f"{part['scene']}, {part['faces']} faces, {row['kind']}, {row['name']}"
            yield name, Row(turns, error=row["reason"])


_ROWS = {
    "validate": _tool_rows,
    "optimize": _tool_rows,
    **{f"bench {n}": _variant_rows for n in ("offload", "compile", "precision", "resolution")},
    "bench decode": _variant_rows,
    "bench decode --device cpu": _side_rows,
    "bench decode cases": _case_rows,
    "bench conv": _layer_rows,
    "bench gpu": _cell_rows,
    "bench raster": _raster_rows,
}


def _about(data: Any) -> Iterator[tuple[str, str]]:
    """What was asked for, and the machine as far as it decides figures."""
    for name in ("subject", "shape", "dtype", "scale", "device", "settings", "latent", "reference"):
        if data.get(name) is not None:
            yield name, json.dumps(data[name], sort_keys=True).strip('"')
    for line in data.get("facts") or ():
        yield f"machine or settings, {str(line).split(':')[0]}", str(line)
    machine = data.get("machine")
    if isinstance(machine, Mapping):
        for name, value in machine.items():
            if name not in ("variables", "when", "rules"):
                yield f"machine, {name}", json.dumps(value, sort_keys=True)


def _numbers(values: Any) -> list[float]:
    """Of one number or a list of them, also "inf" as text; None and NaN are left out."""
    listed = values if isinstance(values, list) else [values]
    found = (float(value) for value in listed if value is not None and not isinstance(value, bool))
    return [number for number in found if not math.isnan(number)]


def run_compare_command(arguments: argparse.Namespace) -> int:
    """Exit code: see the epilog."""
    try:
        before, after = read_result(arguments.before), read_result(arguments.after)
        judged, notes = compare(before, after)
    except CompareError as error:
        say("compare", _cut(str(error)))
        return 2
    sys.stdout.write(comparison_text(judged, notes, before, after))
    return int(any(one.worse_by > 0 for one in judged))
