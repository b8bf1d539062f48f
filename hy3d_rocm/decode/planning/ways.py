"""The ways in which one VAE can decode (or encode) one latent, and running them.

run() and tiled_run() are the only places that know how a Way becomes engine and frames, so what is
priced is what will run: prices.py calls them on shapes, execution.py on tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hy3d_rocm.decode.engines.own_tiles import (
    ENGINE,
    OwnTiles,
    is_opaque,
    is_tiled,
    left_out,
    own_ways,
    plan_own_tiles,
)
from hy3d_rocm.decode.memory.live import modelled
from hy3d_rocm.decode.planning.backends import (
    best_backend,
    computes_natively,
    fused_backend,
    native_backend,
    runs_first,
    torch_backend,
)
from hy3d_rocm.decode.planning.jobs import Job, WayOptions
from hy3d_rocm.decode.planning.planner import Way
from hy3d_rocm.units import MB, size_text

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.engines.movers import Mover
    from hy3d_rocm.decode.engines.tiles import TiledRun, TilePlan
    from hy3d_rocm.decode.faults import Counting
    from hy3d_rocm.decode.layers import Backend

__all__ = [
    "Job", "Tools", "WayOptions", "best_backend", "collect", "fused_backend", "is_native",
    "is_opaque", "is_tiled", "left_out", "list_ways", "native_backend", "run", "runs_first",
    "runs_own_code", "tile_plan", "torch_backend",
]  # fmt: skip

# Latent positions of a chunk that keep a GPU busy: 1024 x 1024 pixels. (Wan 2.1 at 480x832, NVIDIA
# H200: 0.60 s in chunks of 2, 0.67 s in chunks of 1.)
_BUSY_POSITIONS = 16384
# For the C convolution. It makes output frames in pairs, each from four frames, and its weights'
# transforms serve all frames of a call: one core, HunyuanVideo, 9 frames 128x128: 6.8 s whole, 8.1
# in slices of 32 MB; Wan 2.1, 17 frames 64x64: 1.7 s in one chunk, 2.2 in chunks of 2 latents, 2.9
# in chunks of 1.
_NATIVE_SLICE_BYTES = 512 * MB
_NATIVE_LATENTS = (4, 2)
# A level of tiles is offered if its area is at most this share of the one before.
_SMALLER = 0.95
# Halo, overlap and smallest tile in pixels, where those that were asked for do not fit: a row each.
_LESS_HALO = ((24, 12, 24), (16, 8, 16))
# A tile with the wider halo is taken unless it decodes so many times what the smaller one would.
_MOST_WORK = 2.0


@dataclass
class Tools:
    """What a run is given beside the job. mover: see LayerEngine, needed where slices spill."""

    backend: Backend
    device: torch.device
    counter: Counting | None = None
    on_pressure: Callable[[], object] | None = None
    mover: Mover | None = None
    watch: Callable[..., object] | None = None

    @property
    def on_host(self) -> bool:
        """Whether frames come in host memory."""
        return modelled(self.device).type == "cpu"


def list_ways(job: Job, options: WayOptions | None = None) -> Iterator[Way]:
    """The ways of a job in the order of preference."""
    options = options or WayOptions()
    if is_opaque(job.family):
        yield from own_ways(job, options)
        return
    host = torch.device("cpu")
    first, second = [Way("whole")], _streamed("streamed", job, job.device, options)
    yield from itertools.chain(second, first) if job.is_fused else itertools.chain(first, second)
    if not job.encode:
        yield from _tiled("tiled", job, options)
    yield from _streamed("cpu", job, host, options)
    if not job.encode:
        yield from _tiled("cpu", job, options)


def runs_own_code(job: Job, way: Way) -> bool:
    """Whether the VAE's own code runs, with the VAE's own parameters."""
    return way.strategy == "whole" or is_opaque(job.family)


def is_native(job: Job, way: Way) -> bool:
    """Whether the C convolution computes the way's layers."""
    on_host = job.device_of(way).type == "cpu"
    return on_host and not runs_own_code(job, way) and computes_natively(job.make_backend)


def _streamed(strategy: str, job: Job, device: torch.device, options: WayOptions) -> Iterator[Way]:
    """Exact in less memory: layer by layer where norms see the whole video, else in chunks."""
    on_cpu = device.type == "cpu"
    native = on_cpu and computes_natively(job.make_backend)
    if job.family.has_global_norms:
        usual = options.slice_bytes or _slice_bytes(device)
        sizes = [_NATIVE_SLICE_BYTES] if native and options.slice_bytes is None else []
        spills = options.cpu_offload and not on_cpu
        for slice_bytes in [*sizes, usual]:
            parameters = {"engine": "layers", "slice_bytes": slice_bytes}
            what = "layer by layer"
            if sizes and slice_bytes == usual:
                what = f"layer by layer, {size_text(usual)} at a time"
            yield Way(strategy, what, parameters, spills=spills)
        return
    what = "pixel frame" if job.encode else "latent frame"
    for size in [options.chunk_size] if options.chunk_size else _chunks(job, on_cpu, native):
        parameters = {"engine": "chunks", "chunk": size}
        yield Way(strategy, f"in chunks of {size} {what}{'s' * (size > 1)}", parameters)


def _chunks(job: Job, on_cpu: bool, native: bool) -> list[int]:
    """Frames of a chunk: on a GPU as many as keep it busy, for the C convolution some, else, or
    where these don't fit, those of one latent frame. By shape alone."""
    time, space = job.family.factor if job.encode else (1, 1)
    positions = max(job.shape[3] // space, 1) * max(job.shape[4] // space, 1)
    tried = _NATIVE_LATENTS if native else (1 if on_cpu else max(1, _BUSY_POSITIONS // positions),)
    most = max(1, -(-job.shape[2] // time))
    return sorted({int(min(latents, most) * time) for latents in (*tried, 1)}, reverse=True)


def _tiled(strategy: str, job: Job, options: WayOptions) -> Iterator[Way]:
    """Tiles from large to small; then once more with less halo, in a row for each."""
    given: dict[str, Any] = {
        "engine": "tiles",
        "chunk": options.chunk_size or 1,
        "slice_bytes": options.slice_bytes,
        "halo_pixels": options.halo_pixels,
        "overlap_pixels": options.overlap_pixels,
        "min_tile_pixels": options.min_tile_pixels,
        "passes": options.statistic_passes if job.family.has_global_norms else 0,
    }
    rows = [given]
    for sizes in _LESS_HALO:
        names = ("halo_pixels", "overlap_pixels", "min_tile_pixels")
        less = {n: min(given[n] or size, size) for n, size in zip(names, sizes, strict=True)}
        rows.append(given | {"chunk": 1} | less)
    area = math.inf
    for number, level in _worthwhile([_levels(job, row) for row in rows]):
        if level.area <= _SMALLER * area or (level.is_last and level.area < area):
            area = level.area
            yield _tile_way(strategy, job, rows[number], level.number, again=number > 0)


class _Level(NamedTuple):
    """Level `number` of tiles: positions of its largest tile, positions that all tiles decode."""

    number: int
    area: int
    work: float
    is_last: bool


def _levels(job: Job, parameters: dict[str, Any]) -> list[_Level]:
    found: list[_Level] = []
    count = tile_plan(job, parameters | {"level": 0}).spatial.levels
    for number in range(count):
        spatial = tile_plan(job, parameters | {"level": number}).spatial
        area = spatial.decoded_size(1) * spatial.decoded_size(2)
        found.append(_Level(number, area, spatial.decoded_voxels, number == count - 1))
    return found


def _worthwhile(rows: list[list[_Level]]) -> Iterator[tuple[int, _Level]]:
    """(row, level) of what is offered, the widest halo first: of each row the levels up to the one
    that makes too much work, and of those after it what is smaller."""
    area = math.inf
    for number, row in enumerate(rows):
        for level in row:
            others = (
                other.work for less in rows[number + 1 :] for other in less
                if other.area <= level.area
            )  # fmt: skip
            if level.work > _MOST_WORK * min(others, default=math.inf):
                break
            if level.area < area:
                area = level.area
                yield number, level


def tile_plan(job: Job, parameters: Mapping[str, Any]) -> TilePlan:
    """The tiles of a way with these parameters."""
    from hy3d_rocm.decode.engines.tiles import plan_tiles

    named = {k: v for k, v in parameters.items() if k != "engine"}
    return plan_tiles(job.family, job.shape, **named)


def _tile_way(
    strategy: str, job: Job, parameters: Mapping[str, Any], level: int, again: bool = False
) -> Way:
    parameters = {**parameters, "level": level}
    plan = tile_plan(job, parameters)
    scale = job.family.factor[1] // plan.cut.scale
    rows, columns = (plan.spatial.decoded_size(axis) * scale for axis in (1, 2))
    count = len(plan.spatial.grains)
    what = f"in {count} tile{'s' * (count > 1)} of up to {columns} x {rows} pixels"
    halo = parameters["halo_pixels"]
    if again:
        what += f" with a halo of {halo}"
    return Way(strategy, what, parameters, again=again, row=f"tiles {halo}")


def collect(job: Job, way: Way, z: Tensor, tools: Tools, out: Tensor | None = None) -> Tensor:
    """The result of all samples of z (B, C, T, H, W), in host memory. out: where it goes."""
    single = z.shape[0] == 1
    if out is None and is_tiled(way):
        out = torch.empty(job.out_shape, dtype=job.result_dtype, device="cpu")
    for sample in range(z.shape[0]):
        one = z[sample : sample + 1]
        if is_tiled(way):
            assert out is not None
            tiled_run(job, way, tools).run(one, out[sample : sample + 1])
            continue
        for first, frames in run(job, way, one, tools, sample):
            if out is None and single and way.strategy == "whole" and tools.on_host:
                return frames.to(job.result_dtype)
            if out is None:
                out = torch.empty(job.out_shape, dtype=job.result_dtype, device="cpu")
            out[sample : sample + 1, :, first : first + frames.shape[2]].copy_(frames)
            del frames  # on the device, where the next sample needs the room
    assert out is not None
    return out


def run(
    job: Job, way: Way, z: Tensor, tools: Tools, sample: int = 0, wanted: int = 0
) -> Iterator[tuple[int, Tensor]]:
    """(first frame, frames (1, C, t, H, W)) of one sample z (1, C, T, H, W), in order, on
    tools.device. The frames are to be copied before the next are asked for. wanted: frames before
    it may be left out."""
    engine = way.parameters.get("engine")
    if engine is None:
        whole = job.family.whole_encode if job.encode else job.family.whole
        with torch.no_grad():
            yield 0, whole(z.to(tools.device, job.dtype))
    elif engine == "layers":
        function = job.family.encode if job.encode else job.family.decode
        yield from _by_layers(job, way, function, z, tools, sample)
    elif engine == "chunks":
        yield from _by_chunks(job, way, z, tools, wanted)
    elif engine == "tiles":
        tiles = tiled_run(job, way, tools)
        assert not isinstance(tiles, OwnTiles)
        yield from tiles.frames(z)
    else:
        raise ValueError(f"the engine {engine!r} is not known")


def tiled_run(
    job: Job, way: Way, tools: Tools, kind: type[TiledRun] | None = None, sample: int = 0
) -> TiledRun | OwnTiles:
    """One sample's run in tiles. kind: another TiledRun."""
    from hy3d_rocm.decode.engines.tiles import TiledRun

    if way.parameters["engine"] == ENGINE:
        plan = plan_own_tiles(job.family, job.shape, way.parameters)
        return OwnTiles(
            job.family, plan, tools.device, job.dtype, counter=tools.counter,
            on_pressure=tools.on_pressure, sample=sample,
        )  # fmt: skip
    kind = kind or TiledRun
    slice_bytes = way.parameters["slice_bytes"] or _slice_bytes(modelled(tools.device))
    return kind(
        Placed(job.family, tools.device, job.dtype),
        tools.backend,
        tile_plan(job, way.parameters),
        counter=tools.counter,
        on_pressure=tools.on_pressure,
        layerwise={"slice_bytes": slice_bytes},
    )


def _slice_bytes(device: torch.device) -> int:
    from hy3d_rocm.decode.engines.sliced import default_slice_bytes

    return default_slice_bytes(device)


class Placed:
    """A family that computes elsewhere or in another type than its VAE's weights are in."""

    def __init__(self, family: Any, device: torch.device, dtype: torch.dtype) -> None:
        self._family = family
        self.device = device
        self.dtype = dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)


def _by_layers(
    job: Job, way: Way, function: Any, z: Tensor, tools: Tools, sample: int
) -> Iterator[tuple[int, Tensor]]:
    from hy3d_rocm.decode.engines.layerwise import LayerEngine

    engine = LayerEngine(
        tools.backend,
        tools.device,
        slice_bytes=way.parameters["slice_bytes"],
        resident_bytes=way.resident_bytes,
        counter=tools.counter,
        on_pressure=tools.on_pressure,
        watch=tools.watch,
        moments=job.family.has_global_norms,
        mover=tools.mover,
        sample=sample,
    )
    with torch.no_grad():
        entered = engine.enter(z.to(tools.device, job.dtype))
        yield from engine.leave(function(engine, entered))


def _by_chunks(
    job: Job, way: Way, z: Tensor, tools: Tools, wanted: int
) -> Iterator[tuple[int, Tensor]]:
    from hy3d_rocm.decode.engines.chunkwise import ChunkEngine
    from hy3d_rocm.decode.engines.restart import chunks_from

    engine = ChunkEngine(tools.backend, tools.counter, on_pressure=tools.on_pressure)
    chunk, dtype = way.parameters["chunk"], job.dtype
    if wanted and not job.encode:
        yield from chunks_from(engine, job.family, z, chunk, wanted, tools.device, dtype)
    else:
        function = job.family.encode if job.encode else job.family.decode
        yield from engine.run(function, z, chunk, tools.device, dtype)
