"""A run of `bench decode --cases` as text, JSON and a plot; and its command."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

from hy3d_rocm.units import GB, aligned, size_text

_CPU_SCALE = 0.25  # of sides and channels where no GPU is: seconds instead of hours


def add_cases_options(decode: argparse.ArgumentParser) -> None:
    """To `bench decode`."""
    decode.add_argument("--cases", action="store_true",
                        help="the five cases and targets of the VAE plan instead: one picture, 5, "
                        "17 and 33 frames, the largest that fits; also on a CPU")  # fmt: skip
    decode.add_argument("--vae", default="wan", metavar="VAE",
                        help="with --cases: wan, hunyuan, demo, a diffusers folder or a file "
                        "beside its config.json (default wan, random weights)")  # fmt: skip
    decode.add_argument("--scale", type=float, metavar="SHARE",
                        help="with --cases: of sides and channels; times and peaks are then not "
                        "judged (default 1, on a CPU 0.25)")  # fmt: skip
    decode.add_argument("--budget", help="with --cases: such as 6GB")
    decode.add_argument("--no-stress", action="store_true",
                        help="with --cases: without the largest picture that fits")  # fmt: skip
    decode.add_argument("--out", type=Path, metavar="DIR",
                        help="with --cases: default test_data/benchmarks")  # fmt: skip


def run_cases_command(arguments: argparse.Namespace) -> int:
    """Exit code: 0; 1 where nothing was measured or a target was missed; 130 after Ctrl-C."""
    from hy3d_rocm import files
    from hy3d_rocm.bench.decode_cases import CaseSettings, checks, run_cases
    from hy3d_rocm.bench.models import BenchError
    from hy3d_rocm.meter import steady_malloc
    from hy3d_rocm.tools import loading
    from hy3d_rocm.tools.runs import ProgressLine

    steady_malloc()
    try:
        asked = None if arguments.device == "cuda" else arguments.device
        device = loading.pick_device(asked)
        scale = _scale(arguments.scale, device.type)
        vae, text, is_random = loading.make_vae(arguments.vae, device, None, scale)
    except (BenchError, loading.LoadingError) as error:
        _say(str(error))
        return 1
    line = ProgressLine(device, "bench decode")
    settings = CaseSettings(
        seconds=arguments.seconds, scale=scale, repeats=min(arguments.repeats, 3),
        budget=arguments.budget, stress=not arguments.no_stress, say=_say,
    )  # fmt: skip
    report = run_cases(vae, text, is_random, settings, line)
    path = files.stamped(arguments.out or files.BENCHMARKS, "decode_cases", ".json")
    data = {**cases_dict(report), "machine": files.machine_facts()}
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


def _scale(given: float | None, device: str) -> float:
    from hy3d_rocm.bench.models import BenchError

    if given is None:
        return 1.0 if device == "cuda" else _CPU_SCALE
    if not 0 < given <= 1:
        raise BenchError(f"--scale {given:g}: give a share above 0 and at most 1, such as 0.25")
    return given


def _say(text: str) -> None:
    sys.stderr.write(f"hy3d-rocm bench decode: {text}\n")
    sys.stderr.flush()


def cases_text(report: Any) -> str:
    """A table, the targets, what is missing."""
    from hy3d_rocm.bench.decode_cases import checks

    head = ("", "size", "time", "peak", "planned", "PSNR", "own PSNR", "how")
    lines = ["hy3d-rocm bench decode --cases", "", report.subject, report.device]
    if not report.is_full_size:
        lines += [
            f"Pictures and channels are {report.scale:g} of the real ones: the targets of time and "
            "memory are not judged.",
        ]
    lines += ["", *aligned([head, *map(_cells, report.rows)]), ""]
    lines += [f"{r.case.name}: {o.error}" for r in report.rows for o in r.outcomes if o.error]
    lines += [f"{r.case.name}: {r.note}" for r in report.rows if r.note]
    lines += ["Targets:", *(f"  {check.line()}" for check in checks(report)), ""]
    lines += [f"- {sentence}" for sentence in _advice(report.rows)]
    if report.left_out:
        lines.append(f"Left out for want of time (--seconds): {', '.join(report.left_out)}")
    if report.interrupted:
        lines.append("Interrupted: these are the figures so far.")
    lines.append(f"Took {report.seconds:.0f} s.")
    return "\n".join(lines) + "\n"


def _cells(row: Any) -> tuple[str, ...]:
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


def _advice(rows: Any) -> list[str]:
    """The decodes' own recommendations, each once."""
    ended = [o for row in rows for o in row.ended if o.report is not None]
    return list(dict.fromkeys(text for o in ended for text in o.report.recommendations))


def _decibels(value: float) -> str:
    if math.isnan(value):
        return "-"
    return "equal" if math.isinf(value) else f"{value:.1f} dB"


def cases_dict(report: Any) -> dict[str, Any]:
    """For JSON."""
    from hy3d_rocm.bench.decode_cases import checks

    return {
        "bench": "decode cases",
        "subject": report.subject,
        "device": report.device,
        "scale": report.scale,
        "rows": [
            {
                "case": r.case.name, "frames": r.size[0], "height": r.size[1], "width": r.size[2],
                "seconds": [o.seconds for o in r.ended],
                "planning_seconds": [o.planning_seconds for o in r.ended],
                "planned_bytes": [o.planned_bytes for o in r.ended],
                "peak_bytes": [o.peak_bytes for o in r.ended],
                "ways": [o.way for o in r.ended],
                "errors": [o.error for o in r.outcomes if o.error],
                "recommendations": _advice([r]),
                "psnr": r.psnr, "psnr_own": r.psnr_own, "note": r.note,
            }
            for r in report.rows
        ],
        "held_bytes": report.held,
        "targets": [{**dataclasses.asdict(c), "verdict": c.verdict} for c in checks(report)],
        "left_out": report.left_out,
        "interrupted": report.interrupted,
        "seconds": report.seconds,
    }  # fmt: skip


def plot(report: Any, path: Path) -> bool:
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
    peaks, planned = ([f(r) / GB for r in rows] for f in (_peak, _planned))
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


def _peak(row: Any) -> int:
    return int(row.peak_bytes)


def _planned(row: Any) -> int:
    return int(row.ended[-1].planned_bytes)
