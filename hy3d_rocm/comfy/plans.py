"""What the plan node does: the ways to decode a size, what each takes, which would be taken."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import comfy.utils
import torch

from hy3d_rocm.comfy import plan_picture, vae_memory, vaes
from hy3d_rocm.comfy.option_values import decode_options
from hy3d_rocm.comfy.planned import Planned
from hy3d_rocm.comfy.running import current_device, said
from hy3d_rocm.comfy.sizes import Wanted, latent_shape
from hy3d_rocm.comfy.watching import Watcher
from hy3d_rocm.decode.checks import STRATEGIES, check_choice
from hy3d_rocm.decode.executor import way_options
from hy3d_rocm.decode.memory import meter
from hy3d_rocm.decode.memory.budget import Budget, make_budget, parse_budget
from hy3d_rocm.decode.planning.compiled import plan_job
from hy3d_rocm.decode.planning.jobs import unused_sizes
from hy3d_rocm.decode.planning.planner import Candidate, Plan, smallest_budget
from hy3d_rocm.decode.planning.prices import Prices
from hy3d_rocm.decode.planning.ways import Job, WayOptions, list_ways
from hy3d_rocm.decode.precision import PRECISIONS
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from hy3d_rocm.decode.planning.planner import Way

__all__ = ["Planned", "Wanted", "is_steady", "plan"]

# From here on a way's work is told against the least.
_MORE_WORK = 1.05

logger = logging.getLogger("hy3d_rocm")


def is_steady(budget: str, options: dict[str, Any]) -> bool:
    """Whether the budget is a size, and so the plan the same at any time."""
    try:
        request = parse_budget(budget.strip() or None)
    except (ValueError, AttributeError):
        return False
    return isinstance(request, int) and not options.get("memory_fraction")


def plan(
    vae: Any,
    wanted: Wanted,
    budget: str,
    strategy: str,
    precision: str,
    options: dict[str, Any],
) -> tuple[str, torch.Tensor, str]:
    """Text, picture (1, H, W, 3) and the budget as bytes. Nothing is decoded or loaded.

    ValueError (a sentence) for a size, budget, strategy or option that is none.
    """
    check_choice("strategy", strategy, STRATEGIES)
    check_choice("precision", precision, PRECISIONS)
    request, chosen = parse_budget(budget.strip() or None), decode_options(options)
    try:
        family = vaes.family_of(vae)
    except TypeError as error:
        return _of_unknown(vae, said(error), budget)
    shape = latent_shape(family, wanted)
    place = vaes.place_of(family)
    with Watcher() as watcher, current_device(place), torch.no_grad():
        dtype = vae_memory.precision_of(family, precision, chosen, place).dtype
        job = vae_memory.job_of(family, shape, dtype, device=place)
        room = _budget(vae, job.device, request, chosen)
        ways = way_options(chosen)
        found = _planned(job, room, strategy, ways, watcher)
    text = _text(found)
    if found.plan is not None:
        text = "\n".join([text, *unused_sizes(job, found.plan.way, ways)])
    return text, plan_picture.draw(found), str(room.device_bytes)


def _budget(vae: Any, device: torch.device, request: Any, options: Any) -> Budget:
    """As the decode would have it: ComfyUI gives the room that a plan needs to a VAE of its own."""
    if vaes.is_managed(vae) and device.type != "cpu":
        return vae_memory.largest(vae, device, request, options)
    return make_budget(
        request,
        meter.machine_of(device),
        memory_threshold=options.memory_threshold,
        memory_fraction=options.memory_fraction,
    )


def _planned(
    job: Job, budget: Budget, strategy: str, options: WayOptions, watcher: Watcher
) -> Planned:
    def go_on(way: Way) -> bool:
        watcher.throw()
        return True

    try:
        taken: Plan | None = plan_job(job, budget, strategy, options, go_on)
        why = ""
    except ValueError as error:
        taken, why = None, said(error)
    looked = {c.way.name: c for c in taken.candidates} if taken is not None else {}
    if taken is not None:  # with the weights that are going to be prepared
        looked[taken.way.name] = replace(looked[taken.way.name], need=taken.peak)
    bar, price = comfy.utils.ProgressBar(1), Prices(job)
    ways = list(_shown(job, options))
    found = []
    for number, way in enumerate(ways, 1):
        watcher.throw()
        # Of a way that spills the one with less resident was looked at.
        known = [c for name, c in looked.items() if f"{name},".startswith(f"{way.name},")]
        found += known or [_priced(way, budget, price)]
        bar.update_absolute(number, len(ways))
    names = {c.way.name for c in found}
    found += [c for name, c in looked.items() if name not in names]
    return Planned(job, budget, _in_order(found, job, options), taken, why)


def _in_order(found: list[Candidate], job: Job, options: WayOptions) -> list[Candidate]:
    """As they are preferred."""
    places = {way.name: place for place, way in enumerate(list_ways(job, options))}

    def place(candidate: Candidate) -> int:
        name = f"{candidate.way.name},"
        return max((n for base, n in places.items() if name.startswith(f"{base},")), default=0)

    return sorted(found, key=place)


def _shown(job: Job, options: WayOptions) -> Iterator[Way]:
    """The ways, but of each row of tiles only the largest, one between and the smallest, and of
    those with less halo the smallest."""
    for _, found in groupby(list_ways(job, options), key=lambda way: (way.strategy, way.row)):
        row = list(found)
        if not row[0].row:
            yield from row
            continue
        places = {len(row) - 1} if row[0].again else {0, len(row) // 2, len(row) - 1}
        yield from (row[place] for place in sorted(places))


def _priced(way: Way, budget: Budget, price: Prices) -> Candidate:
    try:
        need = price(way)
        if way.spills and not budget.fits(need.device_bytes, need.host_bytes):
            way = replace(way, what=f"{way.what}, with nothing resident", resident_bytes=0)
            need = price(way)
    except ValueError as error:
        return Candidate(way, None, False, said(error))
    return Candidate(way, need, budget.fits(need.device_bytes, need.host_bytes))


def _text(found: Planned) -> str:
    job = found.job
    size = "x".join(str(n) for n in job.out_shape)
    latent = "x".join(str(n) for n in job.shape)
    dtype = str(job.dtype).removeprefix("torch.")
    counts = [c.need.macs for c in found.candidates if c.need is not None and c.need.macs]
    least = min(counts, default=0)
    lines = [
        f"{job.family.name}: latents {latent} -> {size} on {job.device} in {dtype}",
        f"budget: {found.budget.rule}",
        *(_line(c, found, least) for c in found.candidates),
    ]
    if found.plan is not None:
        lines.append(f"taken: {found.plan.way.name}. {found.plan.more}".strip())
    else:
        lines.append(f"nothing is taken: {found.why}")
    return "\n".join(lines)


def _line(candidate: Candidate, found: Planned, least_macs: int) -> str:
    name = candidate.way.name
    if candidate.need is None:
        return f"  {name}: can't be told ({candidate.note})"
    taken = found.plan is not None and found.plan.way.name == name
    word = "taken" if taken else "fits" if candidate.fits else "does not fit"
    note = f" ({candidate.note})" if candidate.note else ""
    if not candidate.fits:
        least = smallest_budget(candidate.need, found.budget)
        note += f", from a budget of {size_text(least, 2)}"
    need = candidate.need
    work = need.macs / least_macs if least_macs else 0.0
    said = f", {work:.1f}x the work" if work >= _MORE_WORK else ""
    if need.prepared_bytes and not taken:
        said += f", and {size_text(need.prepared_bytes, 2)} of prepared weights if there is room"
    return f"  {name}: planned peak {need.text()}{said}, {word}{note}"


def _of_unknown(vae: Any, why: str, budget: str) -> tuple[str, torch.Tensor, str]:
    """A VAE whose layers are not known: only a decode can tell."""
    text = (
        f"{why}\nWhat its decode takes can't be told beforehand. VAE Decode (ROCm) tries it whole "
        "and, where memory runs out, in tiles; failing convolutions are caught."
    )
    request = parse_budget(budget.strip() or None)
    given = str(request) if isinstance(request, int) else budget.strip() or "auto"
    return text, plan_picture.words("Memory plan", text), given
