"""What the ranks of a group agree on before they decode, and how they share it: by rows, or by
samples."""

from __future__ import annotations

import platform
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch

import hy3d_rocm
from hy3d_rocm.decoding.copies import tensors_of
from hy3d_rocm.decoding.graph import FRAME, OPAQUE
from hy3d_rocm.decoding.planning.compiled import plan_job
from hy3d_rocm.decoding.planning.jobs import is_opaque
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decoding.group import Group
    from hy3d_rocm.decoding.memory.budget import Budget
    from hy3d_rocm.decoding.placing import Placing
    from hy3d_rocm.decoding.planning.jobs import Job
    from hy3d_rocm.decoding.planning.planner import Plan

# Of each parameter so many numbers tell whether the ranks have the same weights.
_NUMBERS = 8


def agree(
    group: Group, job: Job, budget: Budget, is_given: bool, terms: dict[str, Any]
) -> tuple[Job, Budget]:
    """The job of this rank, and the budget, the same on all: the smallest, and each one's. Ranks
    that share a memory share what is free of it; a budget that is_given in bytes is a rank's own.
    terms: what has to be the same on all. ValueError (a sentence) on all ranks where it is not."""
    host, place = platform.node(), f"{platform.node()} {_name_of(job.device)}"
    if budget.is_unified:
        place = host
    rooms = [budget.device_bytes, budget.host_bytes, budget.is_unified, job.keeps_result, is_given]
    told = group.meet("the beginning of a decode", values=[terms, rooms, host, place])
    for rank, (theirs, *_) in enumerate(told):
        for name, value in told[0][0].items():
            if theirs.get(name) != value:
                raise ValueError(
                    f"the ranks of the group were not given the same: {name} is {value} on rank 0 "
                    f"and {theirs.get(name)} on rank {rank}"
                )
    hosts, places = [one[2] for one in told], [one[3] for one in told]
    device = [room[0] if room[4] else room[0] // places.count(where) for _, room, _, where in told]
    kept = [room[1] // hosts.count(where) for _, room, where, _ in told]
    rule = budget.rule
    if places.count(place) > 1 and not is_given:
        rule += f", shared by {places.count(place)} ranks"
    if len(set(device)) > 1:
        rule += f"; the ranks may take {', '.join(size_text(room, 2) for room in device)}"
    budget = replace(
        budget, device_bytes=min(device), host_bytes=min(kept), rule=rule,
        is_unified=any(room[2] for _, room, *_ in told),
        of_ranks=tuple(max(room, 1) for room in device),
    )  # fmt: skip
    keeps_result = told[0][1][3]
    return replace(job, rank=group.rank, ranks=group.size, keeps_result=keeps_result), budget


def _name_of(device: torch.device) -> str:
    """Of a GPU, by which two ranks know that they have the same."""
    if device.type != "cuda":
        return device.type
    found = torch.cuda.get_device_properties(device)
    return str(getattr(found, "uuid", "") or device)


def terms_of(group: Group, job: Job, source: Tensor, options: Any) -> dict[str, Any]:
    """What is decoded, in a few numbers: sizes and sums of the latents, of some of each weight, and
    the options."""
    weights = tensors_of(job.family) if hasattr(job.family, "vae") else []
    state = tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in weights)
    if group.weights is None or group.weights[0] != state:
        some = [t.detach().reshape(-1)[:_NUMBERS].double().to(job.device) for t in weights]
        told = torch.cat(some).cpu() if some else torch.empty(0)
        group.weights = state, zlib.crc32(told.numpy().data)
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = source.detach().contiguous().reshape(-1).view(whole[source.element_size()])
    sums = torch.stack([bits[::step].sum(dtype=torch.int64) for step in (1, 3, 7)])
    return {
        "the VAE": job.family.name, "weights": [len(weights), group.weights[1]],
        "the shape of the latents": list(source.shape), "sums of the latents": sums.tolist(),
        "encode": job.encode, "the type": str(job.dtype), "the device's kind": job.device.type,
        "kernels": [job.make_backend.on_gpu, job.make_backend.on_host],
        "options": {one.name: str(getattr(options, one.name)) for one in fields(options)},
        "hy3d-rocm": hy3d_rocm.__version__, "torch": torch.__version__.split("+")[0],
    }  # fmt: skip


def why_not_rows(job: Job) -> str:
    """Why a job's rows can't be shared, "" where they can."""
    if is_opaque(job.family):
        return "of this VAE nothing but its own code is known"
    nodes = job.graph.nodes
    if any(node.op == OPAQUE for node in nodes):
        return "of a part of this VAE nothing but its own code is known"
    return "its norms see whole frames" if any(node.norm == FRAME for node in nodes) else ""


def check_plan(group: Group, plan: Plan) -> None:
    """GroupLostError where the ranks have planned other programs."""
    candidate = plan.compiled.program.candidate
    group.meet(f"a plan of {[candidate[name] for name in _DECIDES]}")


def shares_samples(group: Group, job: Job, budget: Budget, why: str) -> bool:
    """Whether each sample goes to one rank: where rows can't be shared (why), or where each rank
    gets as many and has room for them, since nothing is exchanged then."""
    count, over = divmod(job.shape[0], group.size)
    if why or over or not count:
        return bool(why)
    mine = replace(job, shape=(count, *job.shape[1:]), rank=0, ranks=1)
    try:
        plan = plan_job(mine, budget)
        fits = plan.strategy in ("whole", "streamed") and not plan.need.stored_bytes
    except ValueError:
        fits = False
    return all(group.meet("the samples", values=fits))


def one_by_one(made: Tensor) -> list[Tensor]:
    """The samples of a batch, each (1, C, T, H, W)."""
    return [made[n : n + 1] for n in range(made.shape[0])]


def by_samples(
    group: Group, placing: Placing, decode: Callable[[Sequence[int]], Tensor]
) -> None:  # fmt: skip
    """All samples into rank 0's `placing`. decode: of some samples, on this device; what a rank
    can't decode rank 0 does."""
    samples = range(placing.shape[0])
    if group.rank:
        if own := samples[group.rank :: group.size]:
            made, error = None, None
            try:
                made = decode(own)
            except Exception as failed:  # noqa: BLE001 - raised when rank 0 knows
                error = failed
            done = torch.tensor([made is not None], dtype=torch.uint8)
            group.post([(0, done)], ()).wait()
            if made is None:
                raise error or RuntimeError("nothing was decoded")
            group.post([(0, part.contiguous()) for part in one_by_one(made)], ()).wait()
        return
    own = samples[:: group.size]
    found = dict(zip(own, one_by_one(decode(own)), strict=True))
    for rank in range(1, group.size):
        theirs = samples[rank :: group.size]
        done = torch.zeros(1, dtype=torch.uint8)
        if theirs:
            group.post((), [(rank, done)]).wait()
        if not done:
            found |= zip(theirs, one_by_one(decode(theirs)), strict=True) if theirs else ()
            continue
        parts = [(rank, torch.empty((1, *placing.shape[1:]), dtype=placing.dtype)) for _ in theirs]
        group.post((), parts).wait()
        found |= zip(theirs, (part for _, part in parts), strict=True)
    for sample in samples:
        placing.put(sample, 0, found.pop(sample))


_DECIDES = ("order", "chunk", "slice_bytes", "resident_bytes", "is_early", "steps")
