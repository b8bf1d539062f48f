"""A VAE's own code as a black box: whole, or in tiles where nothing else of the VAE is known.

Tiles have a halo and are blended as those of a program (tiled_run.py). Time is cut only where small
latents showed that later latents do not change earlier frames (families/unknown.py); the latents
decoded before a chunk are its warm-up. What norms or attention see is a tile and no more, and
nobody can tell how far that is from the whole decode.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.decoding.copies import copied_family, tensors_of
from hy3d_rocm.decoding.faults import Failure, Recover, attempt
from hy3d_rocm.decoding.memory.budget import Budget
from hy3d_rocm.decoding.memory.dry_run import (
    CPU_ALLOWANCE_BYTES,
    Prediction,
    planned_bytes,
    predict,
)
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace
from hy3d_rocm.decoding.plan import DecodePlan, Tile, plan_decode
from hy3d_rocm.decoding.planning.jobs import Job
from hy3d_rocm.decoding.planning.jobs import is_opaque as is_opaque
from hy3d_rocm.decoding.planning.planner import Need, Plan, Variant
from hy3d_rocm.decoding.report import DecodeOptions, Step
from hy3d_rocm.decoding.stages import Counter
from hy3d_rocm.decoding.tiled_run import blend

ENGINE = "own tiles"
# A level of tiles is by one part in so many smaller than the one before (tiles.h): so close that a
# budget is filled, and that a little less of it does not cost several times the work.
SHRINK = 8
# Share of what was planned with that is planned with after an allocation failed for good.
_LESS = 0.7
# A level of tiles is offered if its latents are at most this share of those of the one before.
_SMALLER = 0.85

Size = tuple[int, int, int]


def no_tiles(family: Any, halo_pixels: int | None) -> str:
    """Why a VAE has no tiles, "" where it has."""
    if not family.facts.is_regular:
        return f"tiles need a rule for the size of the frames, and {family.facts.note}"
    if halo_pixels is None:
        return (
            "halo_pixels=None asks for the whole receptive field, which is not known of this VAE: "
            "give pixels"
        )
    return ""


def is_tiled(variant: Variant) -> bool:
    """Whether its frames are added up in one tensor."""
    return variant.parameters.get("engine") in ("tiles", ENGINE)


def own_code(job: Job) -> Callable[[Tensor], Tensor]:
    """The VAE's own decode, or encode, unsplit, of (1, C, T, H, W)."""
    return partial(job.family.whole, encode=job.encode)


def left_out(job: Job, options: DecodeOptions) -> Iterator[str]:
    """Sentences about what own_variants() does not offer."""
    yield f'"streamed" and "cpu" need a VAE whose layers are known: {job.family.why}'
    if job.encode:
        yield "an encode has no tiles"
    elif why := no_tiles(job.family, options.halo_pixels):
        yield why
    elif next(own_levels(job.family, job.shape, _own_parameters(options)), None) is None:
        yield f"with this halo and overlap a latent of {job.shape[3]} x {job.shape[4]} is one tile"


def _own_parameters(options: DecodeOptions) -> dict[str, Any]:
    names = ("chunk_size", "halo_pixels", "overlap_pixels", "min_tile_pixels")
    return {"engine": ENGINE, **{name: getattr(options, name) for name in names}}


def own_variants(job: Job, options: DecodeOptions) -> Iterator[Variant]:
    """Whole, then tiles from large to small, then once more with less halo."""
    yield Variant("whole")
    if job.encode or no_tiles(job.family, options.halo_pixels):
        return
    given, least = _own_parameters(options), math.inf
    smaller = {"halo_pixels": 16, "overlap_pixels": 8, "min_tile_pixels": 16}
    last = given | {name: min(given[name], size) for name, size in smaller.items()}
    for sizes, row, more in (
        (given, "tiles", ""),
        (last, "smaller tiles", f" with a halo of {last['halo_pixels']}"),
    ):
        for level, plan in own_levels(job.family, job.shape, sizes):
            if (extent := math.prod(plan.extent)) < least:
                what, found = tile_words(plan) + more, sizes | {"level": level}
                yield Variant("tiled", what, found, again=bool(more), row=row)
                least = extent


def plan_own_tiles(
    family: Any, shape: tuple[int, ...], parameters: Mapping[str, Any]
) -> DecodePlan:
    """The tiles of parameters["level"] for latents (B, C, T, H, W). parameters: as own_variants()
    makes them: halo_pixels, overlap_pixels, min_tile_pixels, chunk_size (latent frames or None)."""
    facts = family.facts
    frames, space = shape[2], facts.space
    halo, overlap, smallest = (
        -(-parameters[name] // space)
        for name in ("halo_pixels", "overlap_pixels", "min_tile_pixels")
    )
    smallest = max(smallest, overlap, 1)
    warm_up, shared, chunk = 0, 0, frames
    if frames > 1 and family.warm_up.latents is not None:
        warm_up, shared = family.warm_up.latents, 0 if family.warm_up.is_enough else 1
        chunk = min(frames, parameters["chunk_size"] or 1)
    return plan_decode(
        shape[2:],
        factors=(facts.time, space, space),
        causal=facts.first != facts.time,
        overlap=(min(shared, chunk), overlap, overlap),
        halo=(warm_up, halo, halo),
        min_tile=(chunk, smallest, smallest),
        level=parameters["level"],
        shrink=SHRINK,
    )


def tiles(job: Job, variant: Variant) -> int:
    """Pieces that one sample's decode counts."""
    if not is_tiled(variant):
        return 1
    return len(plan_own_tiles(job.family, job.shape, variant.parameters).tiles)


def own_levels(
    family: Any, shape: tuple[int, ...], parameters: Mapping[str, Any]
) -> Iterator[tuple[int, DecodePlan]]:
    """The levels of more than one tile whose largest is smaller than the one before by a good
    part, and the last."""
    levels = plan_own_tiles(family, shape, {**parameters, "level": 0}).levels
    volume = float(math.prod(shape[2:]))
    for level in range(1, levels):
        plan = plan_own_tiles(family, shape, {**parameters, "level": level})
        now = math.prod(plan.extent)
        if now <= _SMALLER * volume or level == levels - 1:
            volume = now
            yield level, plan


def tile_words(plan: DecodePlan) -> str:
    """ "in 6 tiles of up to 96 x 64 pixels, 7 latent frames at a time"."""
    count = len(plan.tiles)
    (frames, rows, columns), (_, up, across) = plan.extent, plan.factors
    text = f"in {count} tile{'s' * (count > 1)} of up to {columns * across} x {rows * up} pixels"
    several = f", {frames} latent frame{'s' * (frames > 1)} at a time"
    return text + (several if plan.count[0] > 1 else "")


def own_code_words(job: Job, variant: Variant) -> str:
    """What to tell of a VAE whose layers are not known."""
    sentence = f"Its own code runs, since {job.family.why}."
    if variant.strategy != "tiled":
        return sentence
    return (
        f"{sentence} Tiles of it are an approximation whose error can't be known: norms and "
        'attention see one tile at a time. strategy="whole" with a larger budget gives its own '
        "decode."
    )


def key_of(variant: Variant) -> tuple[Any, ...]:
    """What a variant is, however much of it is resident."""
    return (
        variant.strategy,
        variant.again,
        *sorted((k, str(v)) for k, v in variant.parameters.items()),
    )


def lowered(budget: Budget, failed: Plan, failure: Failure, on_cpu: bool) -> Budget:
    """Less of the memory that was short than what was planned with."""
    if failure.on_host and not on_cpu and not budget.is_unified:
        room = min(budget.host_bytes, failed.need.host_bytes)
        return replace(budget, host_bytes=int(room * _LESS))
    allowance = CPU_ALLOWANCE_BYTES if on_cpu else 0
    room = min(budget.device_bytes, failed.need.device_bytes)
    return replace(budget, device_bytes=max(int((room - allowance) * _LESS) + allowance, 0))


def in_own_tiles(
    job: Job, variant: Variant, z: Tensor, out: Tensor, recover: Recover, counter: Counter,
    sample: int = 0,
) -> None:  # fmt: skip
    """One sample's decode: z (1, C, T, H, W) -> out (1, C', T', H', W') on the CPU, of any float
    type."""
    plan = plan_own_tiles(job.family, job.shape, variant.parameters)
    if len(plan.tiles) > 1:
        out.zero_()
    for tile in plan.tiles:
        kept = attempt(
            _own_tile, job.family, z, tile, job.device, job.dtype, recover=recover,
            check=counter.check,
        )  # fmt: skip
        blend(kept, out[(..., *tile.out_slices)], tile.windows())
        places = zip(tile.out_start, tile.out_stop, strict=True)
        counter.tick(Step("frames", sample, tile.index, tile.index, *places))


def _own_tile(
    family: Any, z: Tensor, tile: Tile, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """What is kept of a tile, on the CPU."""
    latents = z[(..., *tile.in_slices)].to(device, dtype)
    made: Tensor = family.whole(latents)
    size = (
        family.facts.frames(latents.shape[2]),
        *(n * family.facts.space for n in latents.shape[3:]),
    )
    if tuple(made.shape[2:]) != size:
        raise ValueError(
            f"{family.name} decodes latents of {tuple(latents.shape[2:])} to frames of "
            f'{tuple(made.shape[2:])}, not {size} as small ones: give strategy="whole"'
        )
    return made[(..., *tile.keep_slices)].to("cpu")


def _contained(size: Size, sizes: Iterable[Size], on_cpu: bool) -> bool:
    """Whether another tile contains it and so takes more. On the CPU only of the same frames and
    rows: torch takes im2col where those are few, so that fewer can take more."""
    if on_cpu:
        return any(other[:2] == size[:2] and other[2] > size[2] for other in sizes)
    return any(o != size and all(map(operator.ge, o, size)) for o in sizes)


# What it takes

# Predictions already made, by VAE: the next decode of the same shape plans in no time.
_MADE: weakref.WeakKeyDictionary[Any, dict[Any, Prediction]] = weakref.WeakKeyDictionary()


def planned(job: Job, variant: Variant) -> Need:
    """Planned bytes, the result included. ValueError (a sentence) where they can't be told; of a
    VAE of which nothing else is known the least that it can be."""
    _check_host(job)
    try:
        found = predicted(job, variant)
    except ValueError as error:
        if not is_opaque(job.family):
            raise
        return _least(job, variant, str(error))
    if job.device_of(variant).type == "cpu":
        return Need(planned_bytes(found.both_bytes, True), 0, found.macs)
    host = found.host_bytes + job.host_bytes - job.result_bytes
    return Need(planned_bytes(found.device_bytes, False), host, found.macs)


def _least(job: Job, variant: Variant, why: str) -> Need:
    """What a variant takes for its frames alone."""
    result = job.result_bytes
    made = math.prod(job.out_shape[1:])
    if is_tiled(variant):
        plan = plan_own_tiles(job.family, job.shape, variant.parameters)
        made = job.out_shape[1] * _pixels(job.family, plan.extent)
    made *= job.dtype.itemsize
    if job.device.type == "cpu":
        # A whole result is the frames themselves.
        both = result + made if is_tiled(variant) or job.shape[0] > 1 else max(result, made)
        return Need(both, unknown=why)
    return Need(made, result, unknown=why)


def _check_host(job: Job) -> None:
    """ValueError (a sentence) where a host's weights are not as the VAE's own code needs them."""
    host = getattr(job.family, "host", None)
    if host is not None and job.dtype != host.dtype:
        raise ValueError("the VAE's own code computes in the type that its host casts weights to")
    if host is not None and not host.runs_own_code:
        raise ValueError(f"the VAE's weights are not on {host.device}")


def predicted(job: Job, variant: Variant) -> Prediction:
    """The peaks before any allowance. ValueError (a sentence) where they can't be told."""
    rules = OperatorWorkspace(job.device)
    key = (
        rules.key, type(job.family).__name__, job.encode, job.shape, str(job.dtype),
        str(job.result_dtype), job.keeps_result, key_of(variant),
    )  # fmt: skip
    _check_host(job)
    made = _MADE.setdefault(job.family.decoder, {})
    if key not in made:
        made[key] = _on_shapes(job, variant, rules)
    # The copy of the parameters that a decode in another type works on is there throughout.
    more = sum(
        p.numel() * job.dtype.itemsize
        for p in tensors_of(job.family)
        if p.is_floating_point() and p.dtype != job.dtype
    )
    found = made[key]
    return replace(
        found, device_bytes=found.device_bytes + more, both_bytes=found.both_bytes + more
    )


def _on_shapes(job: Job, variant: Variant, rules: OperatorWorkspace) -> Prediction:
    """Of a dry run of the decode: its frames are copied into the result, which is on the host; of
    one sample on the CPU they are the result."""
    family = meta_family(job.family, job.dtype)
    z = torch.empty((1, *job.shape[1:]), dtype=job.dtype, device="meta")
    known, own = [z, *tensors_of(family)], own_code(replace(job, family=family))
    result = partial(torch.empty, job.out_shape, dtype=job.result_dtype, device="cpu")
    on_cpu = job.device.type == "cpu"

    def whole() -> Tensor:
        if not job.keeps_result:
            return own(z)
        if on_cpu and job.shape[0] == 1:
            return own(z).to(job.result_dtype)
        out = result()
        for sample in range(job.shape[0]):
            out[sample : sample + 1].copy_(own(z))
        return out

    if not is_tiled(variant):
        return predict(whole, known=known, workspace=rules)
    plan = plan_own_tiles(family, job.shape, variant.parameters)
    sizes = {tuple(map(operator.sub, g.in_stop, g.in_start)): g for g in plan.tiles}
    deciding = {size: g for size, g in sizes.items() if not _contained(size, sizes, on_cpu)}
    rules.code_scale = len(sizes) / len(deciding)

    def tiled() -> Tensor | None:
        """Each size of tile that may decide once; nothing is placed."""
        out = result() if job.keeps_result else None  # else it is added up in a file
        for tile in deciding.values():
            _own_tile(family, z, tile, z.device, job.dtype)
        return out

    found = predict(tiled, known=known, workspace=rules)
    seen = sum(_pixels(family, size) for size in deciding)
    return replace(found, macs=round(found.macs * (plan.decoded_voxels / seen)))


def meta_family(family: Any, dtype: torch.dtype) -> Any:
    """The family over a copy of its VAE with parameters on "meta", of type `dtype`; the family
    itself where it is so.

    ValueError (a sentence) where the VAE can't be copied.
    """

    def like(t: Tensor) -> Tensor:
        target = dtype if t.is_floating_point() else t.dtype
        return torch.empty_strided(t.shape, t.stride(), dtype=target, device="meta")

    parts = tensors_of(family)
    if all(t.is_meta and (t.dtype == dtype or not t.is_floating_point()) for t in parts):
        return family
    try:
        return copied_family(family, like)
    except ValueError as error:
        raise ValueError(f"what its own code takes can't be told beforehand ({error})") from error


def _pixels(family: Any, size: Size) -> int:
    """Of all frames of a latent of that size."""
    frames, rows, columns = size
    return int(family.facts.frames(frames) * rows * columns * family.facts.space**2)
