"""One layer in one dtype and layout: the vendor library's default call and the tiers, in turn."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from hy3d_rocm.conv import releasing
from hy3d_rocm.conv.call import ConvCall, ConvSpec, make_spec
from hy3d_rocm.conv.tiers import Tier
from hy3d_rocm.tune.measure import Timed, Watch, attempt, interleave
from tools.dev.bench.gpu_errors import Reference, reference
from tools.dev.bench.gpu_layers import Layer

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
LAYOUTS = ("NCDHW", "channels-last")
# PyTorch's own function with the library as it is set up.
DEFAULT = "default"
# (tier, spec) -> why it is not to be called; the default call is the tier "vendor" there.
Banned = Mapping[tuple[str, ConvSpec], str]


@dataclass
class Figure:
    """What one candidate showed. extra_bytes: beyond the result, at the peak. rms, worst: error
    against float64 sums at 256 outputs. reason: why there are no figures."""

    seconds: float | None = None
    first_seconds: float | None = None
    samples: int = 0
    extra_bytes: int | None = None
    rms: float | None = None
    worst: float | None = None
    reason: str | None = None


@dataclass
class Cell:
    """A layer in one dtype and layout, its figures by candidate; sweep: seconds by tile."""

    layer: Layer
    dtype: str
    layout: str
    figures: dict[str, Figure] = field(default_factory=dict)
    chosen_tiles: tuple[str, ...] = ()
    sweep: dict[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"{self.layer.text}, {self.dtype}, {self.layout}"

    def ratio(self, name: str) -> float | None:
        """Time over that of the default call."""
        return _over(self._seconds(name), self._seconds(DEFAULT))

    def error_ratios(self, name: str) -> tuple[float | None, float | None]:
        """RMS and maximum of the error over those of the default call."""
        mine, base = self.figures.get(name), self.figures.get(DEFAULT)
        if mine is None or base is None:
            return None, None
        return _over(mine.rms, base.rms), _over(mine.worst, base.worst)

    def _seconds(self, name: str) -> float | None:
        figure = self.figures.get(name)
        return None if figure is None else figure.seconds


def _over(mine: float | None, base: float | None) -> float | None:
    if mine is None or base is None:
        return None
    if base == 0.0:  # both exact, or an error where the library has none
        return 1.0 if mine == 0.0 else math.inf
    return mine / base


def measure_layer(
    layer: Layer,
    dtype: str,
    tiers: Mapping[str, Tier],
    device: torch.device,
    watch: Watch,
    series_s: float,
    also: Callable[[Cell, ConvCall], None] | None = None,
    banned: Banned | None = None,
) -> Iterator[Cell]:
    """A cell for each layout. `also` adds to a cell what else its call is wanted for; what is
    `banned` is not called, for the reason given there."""
    generator = torch.Generator(device).manual_seed(1)

    def values(shape: tuple[int, ...], scale: float) -> torch.Tensor:
        data = torch.empty(shape, dtype=DTYPES[dtype], device=device)
        return data.normal_(0.0, scale, generator=generator)

    x = values(layer.input, 1.0)
    weight = values(layer.weight, math.prod(layer.weight[1:]) ** -0.5)
    bias = values(layer.weight[:1], 0.1)
    truth: Reference | None = None
    for layout in LAYOUTS:
        if layout == LAYOUTS[1]:
            last = torch.channels_last if layer.ndim == 2 else torch.channels_last_3d
            x, weight = (t.contiguous(memory_format=last) for t in (x, weight))
        options = (layer.stride, layer.padding, layer.dilation, layer.groups)
        spec = make_spec((x, weight, bias, *options), layer.ndim)
        assert spec is not None
        conv = F.conv2d if layer.ndim == 2 else F.conv3d
        call = ConvCall(spec, x, weight, bias, functools.partial(conv, x, weight, bias, *options))
        truth = truth or reference(call)
        cell = Cell(layer, dtype, layout)
        _measure(cell, call, _functions(cell, call, tiers, banned or {}), watch, truth, series_s)
        if also is not None:
            also(cell, call)
        yield cell
        del call
    del x, weight
    releasing.release(device)


def _functions(
    cell: Cell, call: ConvCall, tiers: Mapping[str, Tier], banned: Banned
) -> dict[str, Callable[[], torch.Tensor]]:
    """What is to be timed; the cell has why the others are not."""
    functions: dict[str, Callable[[], torch.Tensor]] = {DEFAULT: call.run_current}
    functions.update({n: functools.partial(tier.run, call) for n, tier in tiers.items()})
    for name in list(functions):
        why = banned.get(("vendor" if name == DEFAULT else name, call.spec))
        if why is None and name != DEFAULT:
            refusal = tiers[name].refusal(call, call.limits)
            why = refusal and f"refused: {refusal}"
        cell.figures[name] = Figure(reason=why)
        if why is not None:
            del functions[name]
    return functions


def _measure(
    cell: Cell, call: ConvCall, functions: Mapping[str, Callable[[], torch.Tensor]],
    watch: Watch, truth: Reference, series_s: float,
) -> None:  # fmt: skip
    device = call.spec.device
    timed = {name: Timed() for name in functions}
    for name, function in functions.items():
        figure = cell.figures[name]
        for is_first in (True, False):
            _look(figure, timed[name], function, watch, truth if is_first else None, device)
    running = {n: f for n, f in functions.items() if timed[n].reason is None}
    interleave(running, timed, watch, device, series_s)
    for name, one in timed.items():
        figure = cell.figures[name]
        figure.seconds, figure.samples, figure.reason = one.seconds, len(one.samples), one.reason


def _look(
    figure: Figure, timed: Timed, function: Callable[[], torch.Tensor], watch: Watch,
    truth: Reference | None, device: torch.device,
) -> None:  # fmt: skip
    """A call whose result is held against `truth`, or, without one, whose memory counts."""
    if timed.reason is not None:
        return
    start = time.perf_counter()
    seen = attempt(timed, lambda: watch.watched(function), device)
    if seen is None:
        return
    taken = time.perf_counter() - start
    if truth is None:
        timed.guess, figure.extra_bytes = taken, seen[1]
    else:
        figure.first_seconds = taken
        figure.rms, figure.worst = truth.error(seen[0])
