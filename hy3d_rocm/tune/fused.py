"""The fused kernels of one decode on this GPU: their tiles measured, and all compiled ahead.

What is known of a card that nobody has measured is which tiles compile there without spilling. So
each kind of layer of a decode is computed with the tile that is guessed and with those that are
predicted to be next best. Their times are kept in the verdict store: from then on every decode()
on this machine goes by them, whatever its size (configs.Measured).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.conv import errors, releasing
from hy3d_rocm.conv.triton import ahead, configs, launch, work
from hy3d_rocm.conv.triton.configs import Config, Kind
from hy3d_rocm.conv.verdict_store.records import Record
from hy3d_rocm.conv.verdict_store.store import store
from hy3d_rocm.decoding.backends.triton import backend as fused
from hy3d_rocm.decoding.compile_ahead import compile_ahead, dry_run
from hy3d_rocm.decoding.layers import ModuleWeights
from hy3d_rocm.decoding.memory.dry_run import standing_for
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace
from hy3d_rocm.tune.measure import Timed, Watch, attempt, interleave

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decoding.planning.jobs import Job
    from hy3d_rocm.decoding.planning.planner import Plan

logger = logging.getLogger("hy3d_rocm")

#: tiles that are tried beside the guess: compiling one takes a second or two
MORE_TILES = 5
_SERIES_S = 0.2
# What is kept are seconds of so many positions, whatever the decode had that was measured: tiles of
# one kind of layer are compared, and were maybe measured at several sizes.
_POSITIONS = 1 << 20
_META = torch.device("meta")
_OUT, _ROWS, _PARTS, _MOMENTS = (
    fused.OPERANDS.index(name) for name in ("out", "rows", "parts", "moments")
)


@dataclass
class Layer:
    """A kind of layer of a decode. part, operands: the largest that is one, on shapes. runs: how
    often the decode has it, in units of that part. tiles: to be measured, the guess first."""

    part: fused.Part
    operands: Sequence[Tensor | None]
    runs: float
    tiles: tuple[Config, ...] = ()

    @property
    def work(self) -> work.Work:
        made: work.Work = self.part.work
        return made

    @property
    def kind(self) -> Kind:
        return self.work.kind

    @property
    def positions(self) -> int:
        """Of all its launches."""
        made = self.work
        return made.phases * sum(product.positions for product in made.products)

    @property
    def operations(self) -> float:
        """Of all its runs."""
        _, outputs, length, taps = self.kind
        return 2.0 * self.runs * self.positions * outputs * length * taps

    def line(self) -> str:
        """ "96 outputs of 9 x 288, bf16"."""
        dtype, outputs, length, taps = self.kind
        return f"{outputs} outputs of {taps} x {length}, {dtype}"

    def with_tile(self, tile: Config) -> fused.Part:
        """The part, launched with that tile."""
        mine = self.part.work
        made = work.work_of(mine.job, mine.target._replace(tile=tile), mine.out)
        return replace(self.part, work=made, small=())


@dataclass
class Outcome:
    """What measuring found. seconds: of the decode's layers with the guessed tiles, and with the
    best; left: kinds without a time; wrong: sentences."""

    layers: int = 0
    better: int = 0
    guessed_s: float = 0.0
    best_s: float = 0.0
    left: int = 0
    wrong: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        said = (
            f"{self.better} of {self.layers} kinds of layer of the fused decode have a better tile "
            f"than the guess: {self.guessed_s:.3g} s of layers become {self.best_s:.3g} s"
        )
        if self.left:
            said += f"; {self.left} kinds were left out, for time or memory"
        return "; ".join([said, *self.wrong])


def is_fused(job: Job, plan: Plan | None) -> bool:
    """Whether the decode is computed by fused kernels."""
    if plan is None or plan.compiled is None or job.make_backend.on_gpu == "torch":
        return False
    return job.device_of(plan.variant).type != "cpu"


def layers_of(job: Job, plan: Plan) -> list[Layer]:
    """The kinds of layer of a decode by fused kernels, the most work first."""
    compiled, found = plan.compiled, dict[Kind, Layer]()
    rules = OperatorWorkspace(job.device)
    with standing_for(rules):
        backend: Any = job.make_backend(ModuleWeights(job.dtype, "meta"), _META)

    def launched(alike: int, part: fused.Part, operands: Sequence[Tensor | None]) -> None:
        if not isinstance(part.work, work.Work):  # attention has one tile
            return
        new = Layer(part, operands, alike)
        known = found.setdefault(new.kind, new)
        if known is not new:
            largest, other = sorted((new, known), key=lambda one: -one.positions)
            largest.runs += other.runs * other.positions / largest.positions
            found[new.kind] = largest

    try:
        dry_run(compiled.graph, compiled.program, backend, job.dtype, rules, launched)
    except Exception as error:  # noqa: BLE001 - a VAE's own functions may want real values
        logger.debug("not all layers are foreseen: %s: %s", type(error).__name__, error)
    machine = backend.target()
    for layer in found.values():
        dtype, outputs, length, taps = layer.kind
        ranked = configs.ranked(
            configs.offered(machine.arch, dtype), layer.positions, outputs, length, machine.units,
            taps,
        )  # fmt: skip
        layer.tiles = tuple(ranked[: 1 + MORE_TILES])
    return sorted(found.values(), key=lambda one: -one.operations)


def measure_layers(
    layers: Sequence[Layer], device: torch.device, say: Callable[[str], None], *,
    limit_s: float, again: bool = False, watch: Watch | None = None,
    look: Callable[[], object] = lambda: None,
) -> Outcome:  # fmt: skip
    """Measures what is not known, and keeps it. Nothing is begun after limit_s. look: called before
    each tile; may raise, after a cancel: what was measured by then is kept."""
    outcome, until = Outcome(), time.monotonic() + limit_s
    for number, layer in enumerate(layers):
        seconds, tiles = ({}, layer.tiles) if again else _known(layer, device)
        if tiles and time.monotonic() < until:
            for tile in tiles:
                for kernel in fused.wanted(layer.with_tile(tile), layer.operands):
                    ahead.want(kernel, device.index or 0)
            watch = watch or Watch(device)
            seconds = _measured(layer, tiles, device, watch, look, outcome)
            releasing.release(device)
        guess = layer.tiles[0]
        if guess not in seconds:
            outcome.left += 1
            continue
        best = min(seconds, key=lambda tile: seconds[tile])
        outcome.layers += 1
        outcome.better += best != guess
        outcome.guessed_s += layer.runs * seconds[guess]
        outcome.best_s += layer.runs * seconds[best]
        guessed = "" if best == guess else f"; guessed {guess}, {seconds[guess] * 1e3:.3g} ms"
        say(
            f"[{number + 1}/{len(layers)}, fused] {layer.line()}: {best}, "
            f"{seconds[best] * 1e3:.3g} ms{guessed}"
        )
    return outcome


def tune_decode(
    job: Job, plan: Plan | None, say: Callable[[str], None], *, limit_s: float,
    again: bool = False, look: Callable[[], object] = lambda: None,
) -> str:  # fmt: skip
    """Measures the tiles of a decode's fused kernels; a sentence, "" where it has none."""
    if plan is None or not is_fused(job, plan):
        return ""
    try:
        layers = layers_of(job, plan)
        made = measure_layers(layers, job.device, say, limit_s=limit_s, again=again, look=look)
    except RuntimeError as error:
        return f"the kernels of its fused decode were not measured: {error}"
    return made.sentence() if layers else ""


def compile_decode(job: Job, plan: Plan | None, look: Callable[[], object] = lambda: None) -> str:
    """Has the fused kernels of a decode compiled now, by several processes; a sentence, "" where
    there are none. look: called all along; may raise, after a cancel."""
    if plan is None or not is_fused(job, plan):
        return ""
    began, whose = time.monotonic(), f"of the decode {plan.variant.name}"
    try:
        new = compile_ahead(job, plan.compiled)
        ahead.finish(look)
    except RuntimeError as error:
        return f"the kernels of its fused decode were not compiled: {error}"
    left = sum(map(ahead.is_new, new))
    done = len(new) - left
    if not new:
        return f"the GPU kernels {whose} are compiled already"
    took = f"compiled {done} GPU kernel{'s' * (done != 1)} {whose} in"
    said = f"{took} {time.monotonic() - began:.0f} s, for its first time"
    return said if not left else f"{said}; {left} are left to it (it takes other cores and memory)"


def _known(layer: Layer, device: torch.device) -> tuple[dict[Config, float], tuple[Config, ...]]:
    """Seconds by tile, and the tiles to be measured: none where each was, else all together but
    those that failed or were wrong."""
    records = store().records(launch.fused_key(layer.kind, device))
    found = {tile: records.get(str(tile)) for tile in layer.tiles}
    if all(found.values()):
        mine = layer.positions / _POSITIONS
        return {t: r.seconds * mine for t, r in found.items() if r is not None and r.seconds}, ()
    return {}, tuple(tile for tile, r in found.items() if r is None or r.verdict == "ok")


def _measured(
    layer: Layer, tiles: Sequence[Config], device: torch.device, watch: Watch,
    look: Callable[[], object], outcome: Outcome,
) -> dict[Config, float]:  # fmt: skip
    """Seconds by tile, which are kept; none where there is no memory for the layer."""
    timed, runs = {tile: Timed() for tile in tiles}, dict[str, Callable[[], Any]]()
    made = attempt(Timed(), lambda: [_like(t, device) for t in layer.operands], device)
    before = None if made is None else attempt(Timed(), made[_OUT].clone, device)
    if before is None:
        return {}
    wanted: list[Tensor] = []  # the first result, and its moments

    def tried(run: Callable[[], list[Tensor]]) -> tuple[list[Tensor], bool]:
        made[_OUT].copy_(before)
        results = run()
        like = wanted or [result.clone() for result in results]
        return like, _agrees(results, like, layer)

    for tile in tiles:
        look()
        run, one = partial(_run, layer.with_tile(tile), made, device), timed[tile]
        try:  # a process that ends within leaves a "hang", and the tile is not tried again
            with store().in_flight(launch.fused_key(layer.kind, device), str(tile)):
                found = attempt(one, partial(tried, run), device)
        except RuntimeError as error:  # the GPU is lost
            _keep(layer, tile, device, "error", detail=str(error))
            raise
        if found is None:
            if one.kind is not errors.Kind.OUT_OF_MEMORY:  # another time there may be enough
                _keep(layer, tile, device, "error", detail=one.reason or "")
            continue
        like, agrees = found
        if not agrees:
            first = next(iter(runs), None)  # the guess, unless it failed
            detail = (
                f"its values are not those of {first}" if first else "its values are no numbers"
            )
            outcome.wrong.append(f"tile {tile} of {layer.line()} is never taken: {detail}")
            _keep(layer, tile, device, "wrong", detail=detail)
            continue
        wanted, runs[str(tile)] = like, run
    interleave(runs, {str(tile): one for tile, one in timed.items()}, watch, device, _SERIES_S)
    seconds = dict[Config, float]()
    for tile, one in timed.items():
        if str(tile) in runs and one.seconds:
            seconds[tile] = one.seconds
            kept = one.seconds * _POSITIONS / layer.positions
            _keep(layer, tile, device, "ok", kept, f"seconds of {_POSITIONS} positions")
    return seconds


def _like(like: Tensor | None, device: torch.device) -> Tensor | None:
    """Small random numbers in a tensor that lies as one on shapes does."""
    if like is None:
        return None
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)
    return made.normal_(std=0.1)


def _run(
    part: fused.Part, tensors: Sequence[Tensor | None], device: torch.device
) -> list[Tensor]:  # fmt: skip
    """The part's result, and its moments. What it takes beside depends on the tile."""
    given = list(tensors)
    for number, size in ((_ROWS, part.work.rows_elems), (_PARTS, part.work.parts_elems)):
        like = given[number]
        given[number] = None if like is None else like.new_empty(size)
    fused.run_launches(part, given, device.index)
    return [made for made in (given[_OUT], given[_MOMENTS]) if made is not None]


def _agrees(results: Sequence[Tensor], likes: Sequence[Tensor], layer: Layer) -> bool:
    """Whether two tiles' results may be the same sums, added up in another order and rounded; and
    moments, mean and squared deviations of each channel, those of such results."""
    (result, *moments), (wanted, *others) = results, likes
    dtype, _, length, taps = layer.kind
    steps = length * taps if dtype == "f32" else 1  # sums are float32
    eps = torch.finfo({"f32": torch.float32, "f16": torch.float16}.get(dtype, torch.bfloat16)).eps
    most = float(wanted.abs().amax())
    limit = 2 * steps * eps * most
    for one, other in zip(moments, others, strict=True):
        apart, count = (one - other).abs(), wanted[0, 0].numel()
        if not bool((apart[0] <= limit).all() and (apart[1] <= 4 * limit * most * count).all()):
            return False
    frames = zip(result.unbind(2), wanted.unbind(2), strict=True)  # a copy in float32 of one each
    return all(bool(((a.float() - b.float()).abs() <= limit).all()) for a, b in frames)


def _keep(
    layer: Layer, tile: Config, device: torch.device, verdict: str, seconds: float | None = None,
    detail: str = "",
) -> None:  # fmt: skip
    record = Record(str(tile), verdict, seconds, detail=detail, measured_by="tune")
    store().put(launch.fused_key(layer.kind, device), record)
