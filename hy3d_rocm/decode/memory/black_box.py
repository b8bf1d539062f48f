"""What a VAE's own code takes at its peak: it is run on shapes (predict.py)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.black_box import (
    OwnTiles,
    is_opaque,
    is_tiled,
    own_code,
    plan_own_tiles,
)
from hy3d_rocm.decode.copies import copied_family, tensors_of
from hy3d_rocm.decode.memory.live import given, modelled, on_host
from hy3d_rocm.decode.memory.predict import Prediction, Predictor
from hy3d_rocm.decode.memory.workspace import OperatorWorkspace
from hy3d_rocm.decode.planning.planner import Need, Way

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.planning.jobs import Job

__all__ = ["grains", "meta_family", "planned", "predicted"]


def planned(job: Job, way: Way) -> Need:
    """Planned bytes, the result included. ValueError (a sentence) where they can't be told; of a
    VAE of which nothing else is known the least that it can be."""
    on_cpu = job.device_of(way).type == "cpu"
    try:
        found = predicted(job, way).planned(on_cpu)
    except ValueError as error:
        if not is_opaque(job.family):
            raise
        return _least(job, way, str(error))
    if on_cpu:
        return Need(found.both_bytes, 0, found.macs)
    return Need(found.device_bytes, found.host_bytes, found.macs)


def grains(job: Job, way: Way) -> int:
    """That one sample's decode counts."""
    if not is_tiled(way):
        return 1
    return len(plan_own_tiles(job.family, job.shape, way.parameters).grains)


def _least(job: Job, way: Way, why: str) -> Need:
    """What a way takes for its frames alone."""
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


def predicted(job: Job, way: Way) -> Prediction:
    """The peaks before any allowance. ValueError (a sentence) where they can't be told."""
    predictor = Predictor(job.family.decoder, OperatorWorkspace(job.device, job.tier))
    key = (
        type(job.family).__name__, job.encode, job.shape, str(job.dtype), str(job.result_dtype),
        job.keeps_result, way.strategy,
        tuple(sorted((k, str(v)) for k, v in way.parameters.items())),
    )  # fmt: skip
    _check_host(job.family, job.dtype)
    ghost = meta_family(job.family, job.dtype)
    ghosts = replace(job, family=ghost)
    found = predictor.of(key, lambda: _on_shapes(ghosts, way), tensors_of(ghost))
    more = _converted_bytes(job)
    return replace(
        found, device_bytes=found.device_bytes + more, both_bytes=found.both_bytes + more
    )


def _converted_bytes(job: Job) -> int:
    """Of the copy of the parameters that a decode in another type works on, which is there
    throughout."""
    return sum(
        p.numel() * job.dtype.itemsize
        for p in tensors_of(job.family)
        if p.is_floating_point() and p.dtype != job.dtype
    )


def _check_host(family: Any, dtype: torch.dtype) -> None:
    """ValueError (a sentence) where the VAE's own code can't run as its host has it now."""
    host = getattr(family, "host", None)
    if host is None:
        return
    if dtype != host.dtype:
        raise ValueError("the VAE's own code computes in the type that its host casts weights to")
    if not host.runs_own_code:
        raise ValueError(f"the VAE's weights are not on {host.device}")


def _on_shapes(job: Job, way: Way) -> object:
    """The decode on shapes, as it will run: its frames are copied into the result, which is on the
    host; of one sample on the CPU they are the result."""
    meta = torch.device("meta")
    z = given(torch.empty((1, *job.shape[1:]), dtype=job.dtype, device=meta))
    if is_tiled(way):
        out = torch.empty(job.out_shape, dtype=job.result_dtype, device=meta)
        out = on_host(out) if job.keeps_result else given(out)  # else it is added up in a file
        tiles = plan_own_tiles(job.family, job.shape, way.parameters)
        OwnTiles(job.family, tiles, meta, job.dtype).price(z)
        return out
    run = own_code(job)
    if not job.keeps_result:
        return run(z)
    if job.shape[0] == 1 and modelled(meta).type == "cpu":
        return run(z).to(job.result_dtype)
    out = on_host(torch.empty(job.out_shape, dtype=job.result_dtype, device=meta))
    for sample in range(job.shape[0]):
        out[sample : sample + 1].copy_(run(z))
    return out


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
