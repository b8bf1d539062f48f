"""`bench conv`: the CPU convolution beside torch's (oneDNN), layer by layer."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hy3d_rocm.conv import prepared
from hy3d_rocm.env.shown import first_line
from tools.dev.bench.cpu_errors import SIDE, exact_blocks, largest_error
from tools.dev.bench.cpu_layers import make_operands, our_call, torch_call
from tools.dev.bench.cpu_timing import CLOCKS, SAMPLE_S, PeakProbe, median_ratio, timed_rounds
from tools.dev.bench.cpu_watch import Told, listening
from tools.dev.bench.decode_cpu import cache_dict
from tools.dev.bench.gpu_layers import Layer

_LONG_S = 20.0
OURS, TORCH, COLD = "ours", "torch", "ours, cold"


@dataclass(frozen=True)
class ConvSettings:
    """accuracy: "fast" or "exact". cold: also time calls that prepare their weights. extra: what
    measures the memory of a layer in a child, (ours, torch's) bytes."""

    layers: Sequence[Layer]
    dtype: str = "float32"
    accuracy: str = "fast"
    threads: int = 1
    repeats: int = 5
    clock: str = "wall"
    cold: bool = False
    sample_s: float = SAMPLE_S
    side: int = SIDE
    extra: Callable[[Layer], tuple[int, int]] | None = None
    say: Callable[[str], None] = lambda _: None


@dataclass
class ConvRow:
    """One layer. seconds: of a call in each round, by OURS, TORCH and COLD; peaks: operations a
    second in each round; errors: against float64, relative to max |y|, by OURS and TORCH; samples:
    outputs that were compared; extra_bytes: beyond the result, by OURS and TORCH; reason: why a
    figure is missing."""

    layer: Layer
    told: Told | None = None
    seconds: dict[str, list[float]] = field(default_factory=dict)
    peaks: list[float] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    prepared_bytes: int | None = None
    extra_bytes: dict[str, int] = field(default_factory=dict)
    reason: str | None = None

    def median(self, name: str = OURS) -> float | None:
        """Seconds of a call."""
        found = self.seconds.get(name)
        return statistics.median(found) if found else None

    def ratio(self, name: str = OURS) -> float | None:
        """torch's time over `name`'s, median over the rounds."""
        return median_ratio(self.seconds.get(TORCH, ()), self.seconds.get(name, ()))

    def speed(self, name: str = OURS) -> float | None:
        """Operations of the direct sum a second, whatever the algorithm spared."""
        seconds = self.median(name)
        return None if not seconds else self.layer.flops / seconds

    def share(self, name: str = OURS) -> float | None:
        """speed() over the peak of the same round, median."""
        found = zip(self.seconds.get(name, ()), self.peaks, strict=False)
        shares = [self.layer.flops / (s * peak) for s, peak in found if s > 0 and peak > 0]
        return statistics.median(shares) if shares else None


@dataclass
class ConvReport:
    """rows: a layer each; cache: the weight cache's figures at the end."""

    settings: ConvSettings
    rows: list[ConvRow] = field(default_factory=list)
    cache: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def peak(self) -> float | None:
        """Operations a second, median of all rounds."""
        found = [peak for row in self.rows for peak in row.peaks]
        return statistics.median(found) if found else None

    @property
    def measured(self) -> bool:
        return any(row.ratio() is not None for row in self.rows)


def run_conv(settings: ConvSettings) -> ConvReport:
    """All layers; Ctrl-C ends it with what there is. torch's thread count is put back."""
    report = ConvReport(settings)
    started, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with torch.inference_mode():
            probe = PeakProbe(settings.threads, CLOCKS[settings.clock])
            peak = _half(probe) if settings.dtype == "float64" else probe
            for number, layer in enumerate(settings.layers, 1):
                row = ConvRow(layer)
                _measure(row, settings, peak)
                report.rows.append(row)
                settings.say(f"{number} of {len(settings.layers)}: {_progress(row)}")
    except KeyboardInterrupt:
        report.interrupted = True
    finally:
        torch.set_num_threads(threads)
    report.cache = cache_dict(prepared.cache().stats())
    report.seconds = time.perf_counter() - started
    return report


def _half(peak: Callable[[], float]) -> Callable[[], float]:
    """A register holds half as many float64."""
    return lambda: peak() / 2.0


def _measure(row: ConvRow, settings: ConvSettings, peak: Callable[[], float]) -> None:
    operands = make_operands(row.layer, settings.dtype)
    ours, theirs = our_call(operands, settings.accuracy), torch_call(operands)
    cache = prepared.cache()
    cache.clear()
    # One after the other, and whole outputs kept no longer than the comparison needs.
    blocks = exact_blocks(operands, settings.side)
    row.samples = sum(one.sums.numel() for one in blocks)
    functions = {OURS: ours}
    with listening() as told:
        result = ours()
    row.told = told[-1] if told else None
    errors = {OURS: largest_error(result, blocks)}
    reach = float(result.abs().max())
    del result
    row.prepared_bytes = cache.stats().bytes
    if settings.cold:
        functions = {COLD: _cold(ours, cache), OURS: ours}
    started = time.perf_counter()
    try:
        result = theirs()
    except RuntimeError as error:  # a type that this torch has no kernel for
        row.reason = f"torch: {first_line(error)}"
    else:
        errors[TORCH], reach = largest_error(result, blocks), float(result.abs().max())
        functions[TORCH] = theirs
        del result
    # Of a call that takes so long (float16 where oneDNN has no kernel) one round has to do.
    repeats = settings.repeats if time.perf_counter() - started < _LONG_S else 1
    row.errors = {name: _relative(error, reach) for name, error in errors.items()}
    row.seconds, row.peaks = timed_rounds(
        functions, repeats, CLOCKS[settings.clock], (COLD,), peak, settings.sample_s
    )
    if settings.extra is not None:
        row.extra_bytes = dict(zip((OURS, TORCH), settings.extra(row.layer), strict=True))


def _cold(ours: Callable[[], Any], cache: prepared.WeightCache) -> Callable[[], Any]:
    def call() -> Any:
        cache.clear()
        return ours()

    return call


def _relative(error: float, reach: float) -> float:
    return error / reach if reach > 0 else math.inf if error > 0 else 0.0


def _progress(row: ConvRow) -> str:
    ratio, ours = row.ratio(), row.median()
    if ratio is None or ours is None:
        return f"{row.layer.text}: {row.reason or 'not timed'}"
    return f"{row.layer.text}: {1e3 * ours:.1f} ms, {ratio:.2f} x torch"
