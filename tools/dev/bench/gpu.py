"""`bench gpu`: the tiers beside the vendor library on the layers of real decodes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hy3d_rocm import memory
from hy3d_rocm.bench.decode_gpu import exact_float32, machine_facts
from hy3d_rocm.conv.tiers import Tier, make_tier
from hy3d_rocm.diagnose.env.shown import first_line
from hy3d_rocm.tune.measure import Watch
from tools.dev.bench.gpu_cells import DTYPES, Banned, Cell, measure_layer
from tools.dev.bench.gpu_layers import Layer
from tools.dev.bench.gpu_prove import unproven
from tools.dev.bench.gpu_sweep import sweep, sweep_text

# Tiers with a target come first, all layers and dtypes; the others get the time that is left.
TARGETED = ("triton", "gemm")
DEFAULT_TIERS = ("triton", "gemm", "conv2d", "native")
_SERIES_S = 0.25


@dataclass(frozen=True)
class GpuSettings:
    """What is measured. seconds: no layer is begun that would not be done by then."""

    layers: Sequence[Layer]
    device: torch.device
    dtypes: Sequence[str] = tuple(DTYPES)
    tiers: Sequence[str] = DEFAULT_TIERS
    seconds: float = 225.0
    sweep: bool = False
    say: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.perf_counter
    watch: Watch | None = None
    make: Callable[[str], Tier] = make_tier
    prove: Callable[..., Banned] = unproven
    is_rocm: bool = torch.version.hip is not None


@dataclass(frozen=True)
class Peak:
    """The fastest that one large product and one large copy got, by dtype: flops and bytes a
    second."""

    flops: Mapping[str, float]
    bytes: float

    def least_seconds(self, layer: Layer, dtype: str) -> float:
        """What neither arithmetic nor memory lets a convolution go below."""
        moved = layer.moved_bytes(DTYPES[dtype].itemsize)
        return max(layer.flops / self.flops[dtype], moved / self.bytes)


@dataclass
class GpuReport:
    """All cells by round of tiers; what time did not allow; whether Ctrl-C, or which fault of the
    device, ended it."""

    facts: list[str]
    peak: Peak
    cells: list[Cell] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    interrupted: bool = False
    fault: str = ""
    seconds: float = 0.0
    has_sweep: bool = False


@dataclass
class _Pace:
    """Seconds a floating-point operation took so far, to foretell a layer."""

    seconds: float = 0.0
    flops: float = 0.0

    def foretell(self, layer: Layer) -> float:
        return self.seconds * layer.flops / self.flops if self.flops else 0.0

    def learn(self, layer: Layer, seconds: float) -> None:
        self.seconds, self.flops = self.seconds + seconds, self.flops + layer.flops


def run_gpu(settings: GpuSettings) -> GpuReport:
    """Measures until all is done, the time is over or Ctrl-C comes; what there is, is kept."""
    started = settings.clock()
    watch = settings.watch or Watch(settings.device)
    with torch.no_grad(), exact_float32():
        report = GpuReport(
            machine_facts(settings.device), measure_peak(settings.dtypes, settings.device, watch)
        )
        report.has_sweep = settings.sweep
        try:
            for cell in _cells(settings, watch, started, report.left_out):
                report.cells.append(cell)
                settings.say(_progress(cell))
        except KeyboardInterrupt:
            report.interrupted = True
        except RuntimeError as error:  # a lost device: see gpu_timing.attempt
            report.fault = first_line(error)
    report.seconds = settings.clock() - started
    return report


def _cells(
    settings: GpuSettings, watch: Watch, started: float, left_out: list[str]
) -> Iterator[Cell]:
    banned: Banned = {}
    if settings.is_rocm:
        banned = settings.prove(
            settings.layers, settings.dtypes, settings.tiers, settings.device,
            settings.seconds / 2, settings.say,
        )  # fmt: skip
    first = [name for name in settings.tiers if name in TARGETED]
    second = [name for name in settings.tiers if name not in TARGETED]
    for names in filter(None, (first, second)):
        tiers = {name: settings.make(name) for name in names}
        also = _sweeper(settings, watch) if "triton" in names and settings.sweep else None
        for dtype in settings.dtypes:
            pace = _Pace()
            for layer in settings.layers:
                begun = settings.clock()
                if begun + pace.foretell(layer) - started > settings.seconds:
                    left_out.append(f"{layer.text}, {dtype}: {', '.join(names)}")
                    continue
                yield from measure_layer(
                    layer, dtype, tiers, settings.device, watch, _SERIES_S, also, banned
                )
                pace.learn(layer, settings.clock() - begun)


def _sweeper(settings: GpuSettings, watch: Watch) -> Callable[[Cell, Any], None]:
    return lambda cell, call: sweep(cell, call, watch, _SERIES_S / 4)


def _progress(cell: Cell) -> str:
    parts = []
    for name, figure in cell.figures.items():
        ratio = cell.ratio(name)
        if figure.seconds is None:
            parts.append(f"{name} -")
        elif ratio is None or name == "default":
            parts.append(f"{name} {figure.seconds * 1e3:.3g} ms")
        else:
            parts.append(f"{name} {figure.seconds * 1e3:.3g} ({ratio:.2f}x)")
    line = f"{cell.text}: {', '.join(parts)}"
    return f"{line}\n    {sweep_text(cell)}" if cell.sweep else line


def measure_peak(dtypes: Sequence[str], device: torch.device, watch: Watch) -> Peak:
    """One large product in each dtype (float32 without TF32), and one large copy."""
    is_gpu = device.type == "cuda"
    size = 8192 if is_gpu else 256
    flops = {}
    for name in dtypes:
        a, b = (torch.randn(size, size, device=device, dtype=DTYPES[name]) for _ in range(2))
        seconds = _best(watch, functools.partial(torch.mm, a, b))
        flops[name] = 2.0 * size**3 / seconds
        del a, b
    free = memory.free_bytes(device) or 2**30
    source = torch.empty(min(2**30 if is_gpu else 2**20, free // 8), dtype=torch.uint8,
                         device=device)  # fmt: skip
    target = torch.empty_like(source)
    seconds = _best(watch, functools.partial(target.copy_, source))
    return Peak(flops, 2.0 * source.numel() / seconds)


def _best(watch: Watch, function: Callable[[], Any]) -> float:
    for _ in range(2):
        function()
    return min(watch.seconds(function, 5) for _ in range(3))
