"""What the ways of a job take: each is run on shapes (predict.py), as the decode will run it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.copies import copied_family, tensors_of
from hy3d_rocm.decode.engines.own_tiles import ENGINE as OWN_TILES
from hy3d_rocm.decode.engines.own_tiles import OwnTiles, plan_own_tiles
from hy3d_rocm.decode.engines.tiles import TiledRun, _Frozen, steps
from hy3d_rocm.decode.memory.live import (
    GrainCount,
    count_macs,
    given,
    macs_counted,
    modelled,
    on_host,
    several_shapes,
)
from hy3d_rocm.decode.memory.predict import MetaWeights, Prediction, Predictor
from hy3d_rocm.decode.memory.workspace import OperatorWorkspace
from hy3d_rocm.decode.native.memory import growth_bytes
from hy3d_rocm.decode.planning.planner import Need, Way
from hy3d_rocm.decode.planning.ways import (
    Job,
    Tools,
    collect,
    is_native,
    is_opaque,
    is_tiled,
    run,
    runs_own_code,
    tile_plan,
    tiled_run,
)
from hy3d_rocm.units import MB

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.engines.movers import Ticket
    from hy3d_rocm.decode.plan import Grain

__all__ = ["Prices", "ghost_run", "meta_family"]

# Chunks of a steady state: a longer video is priced by the line through two shorter ones.
_STEADY_CHUNKS = (4, 6)
# What tiles took on an NVIDIA H200 beyond their prediction, and as much again: HunyuanVideo, 33
# frames 640x608, in 64 tiles 28 MB (the other ways: within 5 MB). It had been 136 MB when moments
# were taken in blocks of 64 MB, each with a copy in float32 and its squares (moments.GPU_BLOCK).
_TILED_MARGIN_BYTES = 56 * MB


class Prices:
    """What the ways of a job take; called as price(way) by the planner."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, way: Way) -> Need:
        """Planned bytes, the result included. ValueError (a sentence) where they can't be told;
        of a VAE's own code that nothing could stand in for, the least that it can be."""
        on_cpu = self.job.device_of(way).type == "cpu"
        try:
            planned = self.predicted(way).planned(on_cpu)
        except ValueError as error:
            if not is_opaque(self.job.family):
                raise
            return self._least(way, str(error))
        kept = self._prepared_bytes(way, planned)
        if not on_cpu:
            margin = _TILED_MARGIN_BYTES if way.parameters.get("engine") == "tiles" else 0
            return Need(planned.device_bytes + margin, planned.host_bytes, planned.macs)
        if self.job.device.type == "cpu":
            return Need(planned.both_bytes, 0, planned.macs, prepared_bytes=kept)
        return Need(0, planned.both_bytes, planned.macs, prepared_bytes=kept)

    def _prepared_bytes(self, way: Way, planned: Prediction) -> int:
        """By how much the cache of prepared weights would grow if there were room.

        Layer by layer each weight serves one call or a few: preparing costs more than it saves
        (HunyuanVideo, 9 frames 160x160, one core, CPU time: 14.9 s with, 12.1 without, and 10.9
        against 10.6 in the next decode). What is there already is used.
        """
        if not is_native(self.job, way) or way.parameters.get("engine") == "layers":
            return 0
        return growth_bytes(self.job.family.decoder, planned.prepared)

    def grains(self, way: Way) -> int:
        """That one sample's decode counts; 0 where nobody knows."""
        frames = self.job.shape[2]
        engine = way.parameters.get("engine")
        if engine is None:
            return 1
        if engine == "chunks":
            return -(-frames // int(way.parameters["chunk"]))
        if engine == OWN_TILES:
            return len(plan_own_tiles(self.job.family, self.job.shape, way.parameters).grains)
        if engine == "tiles":
            return steps(tile_plan(self.job, way.parameters), frames)
        try:
            return self.predicted(way).grains
        except ValueError:
            return 0

    def _least(self, way: Way, why: str) -> Need:
        """What a way takes for its frames alone."""
        job = self.job
        result = math.prod(job.out_shape) * job.result_dtype.itemsize * job.keeps_result
        made = math.prod(job.out_shape[1:])
        if is_tiled(way):
            plan = plan_own_tiles(job.family, job.shape, way.parameters)
            sizes = [plan.decoded_size(axis) for axis in range(3)]
            space = plan.factors[1] * plan.factors[2]
            frames = job.family.facts.frames(sizes[0])
            made = job.out_shape[1] * frames * sizes[1] * sizes[2] * space
        made *= job.dtype.itemsize
        if job.device.type == "cpu":
            # A whole result is the frames themselves.
            both = result + made if is_tiled(way) or job.shape[0] > 1 else max(result, made)
            return Need(both, unknown=why)
        return Need(made, result, unknown=why)

    def predicted(self, way: Way) -> Prediction:
        """The peaks before any allowance."""
        job = self.job
        frames, chunk = job.shape[2], way.parameters.get("chunk")
        if chunk is None or frames <= chunk * _STEADY_CHUNKS[1]:
            return self._of(way, frames)
        short, long = (chunk * n for n in _STEADY_CHUNKS)
        a, b = self._of(way, short), self._of(way, long)
        return _line(a, b, (frames - short) / (long - short))

    def _of(self, way: Way, frames: int) -> Prediction:
        job = replace(self.job, shape=(*self.job.shape[:2], frames, *self.job.shape[3:]))
        predictor = Predictor(job.family.decoder, self._workspace(way))
        key = (
            type(job.family).__name__, job.encode, job.shape, str(job.dtype),
            str(job.result_dtype), job.keeps_result, way.strategy, way.resident_bytes,
            _places(job.family), getattr(job.make_backend, "__qualname__", ""),
            tuple(sorted((k, str(v)) for k, v in way.parameters.items())),
        )  # fmt: skip
        known: list[Tensor] = []
        if runs_own_code(job, way):
            _check_host(job.family, job.dtype)
            ghost = meta_family(job.family, job.dtype)
            known = tensors_of(ghost)
            job = replace(job, family=ghost)
        found = predictor.of(key, lambda: ghost_run(job, way), known)
        return _with(found, self._converted_bytes(way)) if runs_own_code(self.job, way) else found

    def _converted_bytes(self, way: Way) -> int:
        """Of the copy of the parameters that a whole decode in another type works on."""
        dtype = self.job.dtype
        return sum(
            p.numel() * dtype.itemsize
            for p in tensors_of(self.job.family)
            if p.is_floating_point() and p.dtype != dtype
        )

    def _workspace(self, way: Way) -> OperatorWorkspace:
        job, device = self.job, self.job.device_of(way)
        if way.strategy == "cpu":
            from hy3d_rocm.conv.tiers import make_tier

            return OperatorWorkspace(device, make_tier("cpu"))
        return OperatorWorkspace(device, job.tier)


def _places(family: Any) -> tuple[str, ...]:
    """Where the weights are, which decides what a decode has to make of them first."""
    return tuple(sorted({p.device.type for p in family.decoder.parameters()}))


def _check_host(family: Any, dtype: torch.dtype) -> None:
    """ValueError (a sentence) where the VAE's own code can't run as its host has it now."""
    host = getattr(family, "host", None)
    if host is None:
        return
    if dtype != host.dtype:
        raise ValueError("the VAE's own code computes in the type that its host casts weights to")
    if not host.runs_own_code:
        raise ValueError(f"the VAE's weights are not on {host.device}")


def _line(a: Prediction, b: Prediction, x: float) -> Prediction:
    """a at 0, b at 1, and on."""

    def at(p: int, q: int) -> int:
        return round(p + max(q - p, 0) * x)

    return Prediction(
        at(a.device_bytes, b.device_bytes),
        at(a.host_bytes, b.host_bytes),
        at(a.both_bytes, b.both_bytes),
        at(a.macs, b.macs),
        at(a.grains, b.grains),
        a.prepared | b.prepared,
    )


def _with(found: Prediction, more: int) -> Prediction:
    """With `more` bytes on the device throughout."""
    return replace(
        found, device_bytes=found.device_bytes + more, both_bytes=found.both_bytes + more
    )


def ghost_run(job: Job, way: Way) -> object:
    """The way on shapes, as the executor runs it: each piece of frames is copied into the result,
    which is on the host."""
    meta = torch.device("meta")
    weights = MetaWeights(job.dtype, job.device_of(way))
    z = given(torch.empty((1, *job.shape[1:]), dtype=job.dtype, device=meta))
    tools = Tools(job.make_backend(weights, meta), meta, GrainCount(), mover=_CountedMover())
    tiled = is_tiled(way)
    if not job.keeps_result and not tiled:
        for _, frames in run(job, way, z, tools):
            del frames
        return None
    out = None
    if tiled and not job.keeps_result:  # added up in a file
        out = given(torch.empty(job.out_shape, dtype=job.result_dtype, device=meta))
    elif tiled or job.shape[0] > 1 or way.strategy != "whole" or not tools.on_host:
        out = on_host(torch.empty(job.out_shape, dtype=job.result_dtype, device=meta))
    if tiled:
        assert out is not None
        ghost = tiled_run(job, way, tools, _GhostTiles)
        if isinstance(ghost, OwnTiles):
            ghost.price(z)
        else:
            ghost.run(z, out)
        return out
    return collect(job, way, z, tools, out)


class _GhostTiles(TiledRun):
    """A run in tiles for a prediction: each size that may decide once, nothing is placed."""

    def run(self, z: Tensor, out: Tensor) -> None:
        passes = self.plan.passes
        self.plan = replace(self.plan, passes=0)  # a pass takes what the tiles after it take
        self._prepare(z)
        gathering, before = self._gathering(), macs_counted()
        norms = _Frozen(self.backend, self._estimate(), gathering)
        count_macs((macs_counted() - before) * passes)
        on_cpu = modelled(torch.device("meta")).type == "cpu"
        tiles = self.plan.spatial.grains
        deciding = _deciding(tiles, on_cpu)
        several_shapes(len({_size(tile) for tile in tiles}) / len(deciding))
        before = macs_counted()
        for tile in deciding:
            for _, made in self._tile(tile, norms):
                on_host(made.to(self.store))
                del made
        spatial = self.plan.spatial
        seen = sum(math.prod(_size(tile)) for tile in deciding) * math.prod(spatial.factors)
        times = (1 + passes) * spatial.decoded_voxels / seen  # all tiles, in each pass
        count_macs(round((macs_counted() - before) * (times - 1)))


def _size(grain: Grain) -> tuple[int, int]:
    return grain.in_stop[1] - grain.in_start[1], grain.in_stop[2] - grain.in_start[2]


def _deciding(grains: Iterable[Grain], on_cpu: bool) -> list[Grain]:
    """The tiles of which one takes the most: those that no other contains. On the CPU the widest of
    each height: torch takes im2col where frames and rows are few, so a lower tile can take more."""
    found: dict[tuple[int, int], Grain] = {}
    for grain in grains:
        found.setdefault(_size(grain), grain)

    def covers(a: tuple[int, int], b: tuple[int, int]) -> bool:
        taller = a[0] == b[0] if on_cpu else a[0] >= b[0]
        return a != b and taller and a[1] >= b[1]

    return [grain for size, grain in found.items() if not any(covers(a, size) for a in found)]


class _CountedMover:
    """For slices that spill in a prediction: as StreamMover takes memory, which rounds up."""

    overlaps = True

    def send(self, tensor: Tensor) -> tuple[Any, Ticket]:
        from hy3d_rocm.decode.engines.movers import Done

        like = torch.empty_like(tensor)
        host = torch.empty(self.host_bytes(tensor.nbytes), dtype=torch.uint8, device="meta")
        return (on_host(host), like.size(), like.stride(), tensor.dtype), Done()

    def bring(self, parked: Any) -> tuple[Tensor, Ticket]:
        from hy3d_rocm.decode.engines.movers import Done

        _, size, stride, dtype = parked
        return torch.empty_strided(size, stride, dtype=dtype, device="meta"), Done()

    def free(self, parked: Any) -> None:
        """Its memory goes with it."""

    def host_bytes(self, nbytes: int) -> int:
        return 1 << max(nbytes - 1, 0).bit_length()


def meta_family(family: Any, dtype: torch.dtype | None = None) -> Any:
    """The family over a copy of its VAE with parameters on "meta" (of type `dtype` where given).

    ValueError (a sentence) where the VAE can't be copied.
    """

    def like(t: Tensor) -> Tensor:
        target = dtype if dtype is not None and t.is_floating_point() else t.dtype
        return torch.empty_strided(t.shape, t.stride(), dtype=target, device="meta")

    try:
        return copied_family(family, like)
    except ValueError as error:
        raise ValueError(f"what its own code takes can't be told beforehand ({error})") from error
