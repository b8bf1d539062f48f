"""Bars of GFLOP/s a layer, ours beside torch's, and the line of the peak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hy3d_rocm.bench.timing import BenchError
from tools.dev.bench.cpu_conv import OURS, TORCH, ConvReport, ConvRow
from tools.dev.bench.cpu_layers import GIGA
from tools.dev.bench.decode_cpu import cpu_model, machine

_OURS, _TORCH, _PEAK = "#2a6f97", "#c9ada7", "#9d0208"


def need_matplotlib() -> None:
    """BenchError with a sentence where it is missing: before minutes are spent on measuring."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BenchError(
            "--plot needs matplotlib: pip install matplotlib, or leave --plot out"
        ) from error


def plot_conv(report: ConvReport, path: Path) -> None:
    """Writes the picture in the format that the file's ending names; OSError and ValueError (an
    ending that matplotlib does not know) pass through."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in report.rows if row.speed() is not None]
    figure = Figure(figsize=(10, 1.8 + 0.36 * max(1, len(rows))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw(axes, report, rows)
    # Ours, torch, peak: matplotlib lists lines before bars.
    handles, labels = axes.get_legend_handles_labels()
    order = [*range(1, len(labels)), 0] if report.peak is not None else range(len(labels))
    figure.legend([handles[i] for i in order], [labels[i] for i in order], fontsize=8,
                  loc="outside lower center", ncols=3, frameon=False)  # fmt: skip
    figure.savefig(path, dpi=150)


def _draw(axes: Any, report: ConvReport, rows: list[ConvRow]) -> None:
    settings = report.settings
    for name, color, shift in ((OURS, _OURS, -0.2), (TORCH, _TORCH, 0.2)):
        speeds = [(row.speed(name) or 0.0) / GIGA for row in rows]
        label = f"hy3d_rocm, {settings.accuracy}" if name == OURS else "torch (oneDNN)"
        at = [index + shift for index in range(len(rows))]
        axes.barh(at, speeds, height=0.38, color=color, label=label)
    for index, row in enumerate(rows):
        ratio = row.ratio()
        if ratio is not None:
            end = max(row.speed(OURS) or 0.0, row.speed(TORCH) or 0.0) / GIGA
            axes.text(end, index, f"  {ratio:.2f} x", va="center", fontsize=8)
    if report.peak is not None:
        axes.axvline(report.peak / GIGA, color=_PEAK, linewidth=1.2, linestyle="--",
                     label=f"peak of multiply-adds, {report.peak / GIGA:.0f}")  # fmt: skip
    axes.set_yticks(range(len(rows)), [row.layer.text for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.1, y=0.02)
    axes.set_xlim(left=0)
    axes.set_xlabel("GFLOP/s of the direct sum")
    facts = machine(settings.threads)
    threads = "1 thread" if settings.threads == 1 else f"{settings.threads} threads"
    axes.set_title(
        f"conv3d, {settings.dtype}, {facts['level']}, {threads}, {cpu_model()}",
        fontsize=10,
    )
    axes.spines[["top", "right"]].set_visible(False)
