"""What the ranks of a group agree on before they decode, and how they share it: by rows, or by
samples."""

from __future__ import annotations

import logging
import platform
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import hy3d_rocm
from hy3d_rocm.conv.triton import launch
from hy3d_rocm.decoding import stages
from hy3d_rocm.decoding.copies import tensors_of
from hy3d_rocm.decoding.graph import FRAME, OPAQUE
from hy3d_rocm.decoding.group import Group, GroupLostError, is_settled, settled, settling
from hy3d_rocm.decoding.memory.budget import Budget
from hy3d_rocm.decoding.placing import Placing
from hy3d_rocm.decoding.planning.compiled import plan_job
from hy3d_rocm.decoding.planning.jobs import Job, is_opaque
from hy3d_rocm.decoding.planning.planner import Plan
from hy3d_rocm.decoding.report import DecodeCancelled
from hy3d_rocm.units import size_text

logger = logging.getLogger("hy3d_rocm")

BEGINNING = "the beginning of a decode"
_SUMS = "sums of the latents"
# Of each parameter so many numbers tell whether the ranks have the same weights.
_NUMBERS = 8
# Words of 8 bytes in a row of those whose sums tell contents apart.
_COLUMNS = 4096


@contextmanager
def leaving(group: Group | None) -> Iterator[None]:
    """Around a decode: where this rank alone ends it, the group is lost."""
    try:
        yield
    except BaseException as error:
        if group is not None:
            group.leave(error)
        raise


@contextmanager
def beginning(group: Group | None) -> Iterator[None]:
    """What fails in here, up to agree(), all ranks of the group raise."""
    try:
        yield
    except BaseException as error:
        if group is not None and not group.lost and not is_settled(error):
            with suppress(GroupLostError):  # an interrupt in a meeting: the others went on
                group.meet(BEGINNING, error)
        raise


class OtherResumeKeyError(Exception):
    """Rank 0 goes on with another decode than some rank was given, the one of `resume_key`."""

    def __init__(self, resume_key: Any) -> None:
        super().__init__("the ranks were given different resume keys")
        self.resume_key = resume_key


def agree(
    group: Group, job: Job, budget: Budget, is_given: bool, terms: dict[str, Any],
    resume_key: Any,
) -> tuple[Job, Budget]:  # fmt: skip
    """The job of this rank, and the budget, the same on all: the smallest, and each one's. Ranks
    that share a memory share what is free of it; a budget that is_given in bytes is a rank's own.
    terms: what has to be the same on all. ValueError (a sentence) on all ranks where it is not.
    OtherResumeKeyError on all ranks where one has not rank 0's: what each prepares depends on it.
    Where a rank has no latents but their shape rank 0 sends the others what they need."""
    host, place = platform.node(), f"{platform.node()} {_name_of(job.device)}"
    if budget.is_unified:
        place = host
    rooms = [budget.device_bytes, budget.host_bytes, budget.is_unified, job.keeps_result, is_given]
    told = group.meet(BEGINNING, values=[terms, rooms, host, place, _tiles(job), resume_key])
    if any(one[5] != told[0][5] for one in told):
        raise OtherResumeKeyError(told[0][5])
    for rank, (theirs, *_) in enumerate(told):
        for name, value in told[0][0].items():
            if name == _SUMS and theirs.get(name) == []:
                continue
            if theirs.get(name) != value:
                raise ValueError(
                    f"the ranks of the group were not given the same: {name} is {value} on rank 0 "
                    f"and {theirs.get(name)} on rank {rank}"
                )
    hosts, places = [one[2] for one in told], [one[3] for one in told]
    device = [
        room[0] if room[4] else room[0] // places.count(where)
        for (_, room, *_), where in zip(told, places, strict=True)
    ]
    kept = [room[1] // hosts.count(where) for _, room, where, *_ in told]
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
    make_backend = job.make_backend
    if len({one[4] for one in told}) > 1:  # what a step takes depends on its tile
        make_backend = replace(make_backend, is_tuned=False)
    job = job.but(
        rank=group.rank, ranks=group.size, keeps_result=told[0][1][3],
        sends_source=any(theirs.get(_SUMS) == [] for theirs, *_ in told), make_backend=make_backend,
    )  # fmt: skip
    return job, budget


def _tiles(job: Job) -> int:
    """A number of the tiles that were measured for the rank's GPU, 0 for none."""
    if job.make_backend.on_gpu != "fused":
        return 0
    found = launch.measured(job.device)
    return 0 if found is None else zlib.crc32(repr(sorted(found.tiles.items())).encode())


def _name_of(device: torch.device) -> str:
    """Of a GPU, by which two ranks know that they have the same."""
    if device.type != "cuda":
        return device.type
    found = torch.cuda.get_device_properties(device)
    return str(getattr(found, "uuid", "") or device)


def terms_of(group: Group, job: Job, source: Tensor, options: Any) -> dict[str, Any]:
    """What is decoded, in a few numbers: sizes and sums of the latents (none of those that are on
    "meta"), of some of each weight, and the options."""
    weights = tensors_of(job.family) if hasattr(job.family, "vae") else []
    if group.weights is None or not group.weights[0].is_as(weights):
        some = [t.detach().reshape(-1)[:_NUMBERS].double().to(job.device) for t in weights]
        told = torch.cat(some).cpu() if some else torch.empty(0, device="cpu")
        group.weights = _State(weights), zlib.crc32(told.numpy().data)
    kind = job.device.type  # kernels, and what these take, are the architecture's
    return {
        "the VAE": job.family.name, "weights": [len(weights), group.weights[1]],
        "why rows can't be shared": why_not_rows(job),
        "the shape of the latents": list(source.shape), _SUMS: sums_of(source),
        "encode": job.encode, "the type": str(job.dtype),
        "the device's kind": launch.architecture(job.device) if kind == "cuda" else kind,
        "kernels": [job.make_backend.on_gpu, job.make_backend.on_host],
        "options": {one.name: str(getattr(options, one.name)) for one in fields(options)},
        "hy3d-rocm": hy3d_rocm.__version__, "torch": torch.__version__.split("+")[0],
    }  # fmt: skip


def sums_of(tensor: Tensor) -> list[int]:
    """By which other contents are known: sums of a tensor's bytes, in words of 64 bits: of all, and
    weighted by row and by column. [] of a shape alone, and where nothing is in it."""
    if tensor.is_meta or not tensor.numel():
        return []
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = F.pad(flat, (0, -flat.numel() % (8 * _COLUMNS))).view(torch.int64).view(-1, _COLUMNS)
    rows, columns = words.sum(1), words.sum(0)
    numbers = torch.arange(1, max(len(rows), _COLUMNS) + 1, device=flat.device)
    sums = rows.sum(), (rows * numbers[: len(rows)]).sum(), (columns * numbers[:_COLUMNS]).sum()
    found: list[int] = torch.stack(sums).tolist()
    return found


class _State:
    """By which weights are known to be the same, and unchanged, in the next decode."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._tensors = [weakref.ref(t) for t in weights]  # another may get the address of one
        self._places = [_place_of(t) for t in weights]

    def is_as(self, weights: Sequence[Tensor]) -> bool:
        places = [_place_of(t) for t in weights]
        same = zip(self._tensors, weights, strict=False)
        return places == self._places and all(known() is t for known, t in same)


def _place_of(t: Tensor) -> tuple[int, int]:
    return t.data_ptr(), 0 if t.is_inference() else t._version


def why_not_rows(job: Job) -> str:
    """Why a job's rows can't be shared, "" where they can."""
    if is_opaque(job.family):
        return "of this VAE nothing but its own code is known"
    nodes = job.graph.nodes
    if any(node.op == OPAQUE for node in nodes):
        return "of a part of this VAE nothing but its own code is known"
    return "its norms see whole frames" if any(node.norm == FRAME for node in nodes) else ""


def why_not_by(strategy: str) -> str:
    """Why a strategy that was asked for can't share rows, "" where it can."""
    return f'the strategy "{strategy}" is not shared' if strategy in ("whole", "tiled") else ""


def what_decides(plan: Plan) -> list[Any] | None:
    """By which ranks know that they have planned the same program."""
    if plan.compiled is None:
        return None
    candidate = plan.compiled.program.candidate
    names = ("order", "chunk", "slice_bytes", "resident_bytes", "is_early", "repacks", "steps")
    return [candidate[name] for name in names]


def shares_samples(group: Group, job: Job, budget: Budget, why: str) -> bool:
    """Whether each sample goes to one rank: where rows can't be shared (why), or where each rank
    gets as many and has room for them, since nothing is exchanged then."""
    count, over = divmod(job.shape[0], group.size)
    if why or over or not count:
        return bool(why)
    mine = job.but(shape=(count, *job.shape[1:]), rank=0, ranks=1)
    fits, error = False, None
    try:
        plan = plan_job(mine, budget)
        fits = plan.strategy in ("whole", "streamed") and not plan.need.stored_bytes
    except ValueError:
        pass
    except BaseException as failed:  # noqa: BLE001
        error = failed
    return all(group.meet("the samples", error, values=fits))


def beside_samples(group: Group, job: Job, source: Tensor, budget: Budget) -> Budget:
    """What remains of it for a rank's samples beside the latents that rank 0 has sent it."""
    comes = source[group.rank :: group.size].nbytes if job.sends_source and group.rank else 0
    return budget.without(comes, "for what rank 0 sends") if comes else budget


def by_samples(
    group: Group, placing: Placing, decode: Callable[[Sequence[int]], Tensor], encode: bool
) -> None:  # fmt: skip
    """All samples into rank 0's `placing`. decode: of some samples, on this device; what a rank
    can't decode rank 0 does. One sample is rank 0's, and nobody waits for it.
    """
    samples = range(placing.shape[0])
    if len(samples) == 1:
        with settling():
            if not group.rank:
                placing.put(0, 0, decode(samples))
        return
    shares = [samples[rank :: group.size] for rank in range(group.size)]
    own, made, error = shares[group.rank], None, None
    try:
        made = decode(own) if own else None
    except BaseException as failed:  # noqa: BLE001
        error = failed
    ends_all = group.rank == 0 or isinstance(error, DecodeCancelled)
    ends_all = ends_all or not isinstance(error, Exception)
    # One rank may have a sample more than another, and each sample has as long as an answer.
    try:
        told = group.meet(
            "the samples", error if ends_all else None, made is not None, 1 + len(shares[0])
        )
    except GroupLostError:  # what is done is done
        if group.rank or made is None:
            raise
        told = []
    if not group.rank:
        assert made is not None, "a batch has a first sample"
        found = dict(zip(own, made.chunk(len(own)), strict=True))
        _collect(group, placing, shares, told, found, decode, encode)
        return
    if made is not None:
        group.post([(0, part.contiguous()) for part in made.chunk(len(made))], ()).wait()
    if error is not None:
        raise settled(error)


def _collect(
    group: Group, placing: Placing, shares: Sequence[Sequence[int]], told: Sequence[bool],
    found: dict[int, Tensor], decode: Callable[[Sequence[int]], Tensor], encode: bool,
) -> None:  # fmt: skip
    """All samples in order: rank 0's, in `found`; of other ranks that have told that they have
    theirs; and of a rank that was lost or has none decoded here."""
    size = (1, *placing.shape[1:])
    for rank, there in enumerate(told):
        if rank and there:
            parts = [torch.empty(size, dtype=placing.dtype, device="cpu") for _ in shares[rank]]
            with suppress(GroupLostError):
                group.post((), [(rank, part) for part in parts]).wait()
                found |= zip(shares[rank], parts, strict=True)
    with settling():
        if group.lost:
            stages.warn_alone(group.lost, encode)
        for share in shares:
            if share and share[0] not in found:
                found |= zip(share, decode(share).chunk(len(share)), strict=True)
        for sample in sorted(found):
            placing.put(sample, 0, found.pop(sample))
