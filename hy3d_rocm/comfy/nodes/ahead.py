"""The nodes that look ahead of a decode. Memory Plan says how it would go: the ways to decode a
size, what each takes, and which would be taken, as text and as a picture. Tune VAE measures ahead,
as `hy3d-rocm tune`, the shapes of the way that decode() would take for this size."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import comfy.utils
import torch
from comfy_api.v0_0_2 import io, ui

from hy3d_rocm import meter
from hy3d_rocm.comfy import memory, picture, vaes
from hy3d_rocm.comfy.nodes import common
from hy3d_rocm.comfy.picture import BRIGHT, DIM, MARGIN, WARM, WIDTH, cut
from hy3d_rocm.comfy.running import Asked, TimeBar, Watcher, current_device, said
from hy3d_rocm.conv import probe as probing
from hy3d_rocm.conv.policy import Memory
from hy3d_rocm.decoding.checks import STRATEGIES, check_choice
from hy3d_rocm.decoding.memory.budget import Budget, Request, make_budget, parse_budget
from hy3d_rocm.decoding.planning.compiled import plan_job
from hy3d_rocm.decoding.planning.jobs import Job
from hy3d_rocm.decoding.planning.planner import Candidate, Need, Plan
from hy3d_rocm.decoding.precision import PRECISIONS, choose_precision
from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.tools.planning import Explained, explain, seconds_text
from hy3d_rocm.tune.fused import compile_decode, tune_decode
from hy3d_rocm.tune.measure import Lab
from hy3d_rocm.tune.session import Wishes, tune_shapes, tune_text
from hy3d_rocm.tune.shapes import Shape, collect_decode
from hy3d_rocm.units import size_text

_ROW, _BAR, _TOP, _FOOT = 64, 20, 116, 100
# The node has inputs above its picture: it is wider than tall, so that it can be read there.
TALLEST = WIDTH * 4 // 5
_MOST_ROWS = (TALLEST - _TOP - _FOOT) // _ROW
_FITS, _TOO_MUCH, _HOST = (126, 211, 133), (120, 84, 84), (80, 92, 110)
_COLOURS = {
    "taken": picture.ACCENT, "fits": _FITS, "does not fit": _TOO_MUCH, "on the host": _HOST,
    "budget": WARM,
}  # fmt: skip
_TEXT_WIDTH = 300  # right of the bars
# Where something fits, bars of more than so many budgets are cut, and look so: their size is told.
_BUDGETS = 2.5
# A budget of more than so many times the largest need would press the bars flat: it is told.
_FLAT = 4


class Hy3DRocmMemoryPlan(common.Node):
    """Which ways there are to decode a size, what each takes, and which would be taken."""

    @classmethod
    def fingerprint_inputs(cls, budget: str = "auto", **inputs: Any) -> float | str:
        """Where the budget is a size, the plan is the same at any time."""
        try:
            is_size = isinstance(parse_budget(budget.strip() or None), int)
        except (ValueError, AttributeError):
            is_size = False
        return "" if is_size and not inputs.get("memory_fraction") else common.never_the_same()

    @classmethod
    def execute(
        cls, vae: Any, width: int, height: int, frames: int, samples: Any = None, **inputs: Any
    ) -> io.NodeOutput:
        text, image, bytes_text = plan(vae, common.Wanted(width, height, frames, samples), inputs)
        return io.NodeOutput(text, image, bytes_text, ui=common.text_and_picture(text, image))


def plan(vae: Any, wanted: common.Wanted, inputs: dict[str, Any]) -> tuple[str, torch.Tensor, str]:
    """Text, picture (1, H, W, 3) and the budget as bytes. Nothing is decoded or loaded.

    ValueError (a sentence) for a size, budget, strategy or option that is none.
    """
    what = common.asked(inputs)
    check_choice("strategy", what.strategy, STRATEGIES)
    check_choice("precision", what.precision, PRECISIONS)
    try:
        family = vaes.family_of(vae)
    except TypeError as error:
        return _of_unknown(said(error), what.budget, inputs["budget"])
    shape = common.latent_shape(family, wanted)
    place = vaes.place_of(family)
    with Watcher() as watcher, current_device(place), torch.no_grad():
        fallback = what.options.fallback_precision
        dtype = choose_precision(what.precision, family.dtype, place, fallback).dtype
        job = vaes.job_of(family, shape, dtype, device=place)
        room = _budget(vae, job.device, what)
        bar = comfy.utils.ProgressBar(1)
        report = bar.update_absolute
        found = explain(job, room, what.strategy, what.options, watcher.throw, report)
    return "\n".join(found.lines()), draw(found), str(room.device_bytes)


def _budget(vae: Any, device: torch.device, what: Asked) -> Budget:
    """As the decode would have it: ComfyUI gives the room that a plan needs to a VAE of its own."""
    if vaes.is_managed(vae) and device.type != "cpu":
        return vaes.largest(vae, device, what.budget, what.options)
    return make_budget(
        what.budget,
        meter.machine_of(device),
        memory_threshold=what.options.memory_threshold,
        memory_fraction=what.options.memory_fraction,
    )


def _of_unknown(why: str, request: Request, budget: str) -> tuple[str, torch.Tensor, str]:
    """A VAE whose layers are not known: only a decode can tell."""
    text = (
        f"{why}\nWhat its decode takes can't be told beforehand. VAE Decode (ROCm) tries it whole "
        "and, where memory runs out, in tiles; failing convolutions are caught."
    )
    given = str(request) if isinstance(request, int) else budget.strip() or "auto"
    shown = picture.draw("Memory plan", [picture.Section("Memory plan", text.splitlines())])
    return text, shown, given


def draw(found: Explained) -> torch.Tensor:
    """(1, H, WIDTH, 3) float32 in 0..1, H <= TALLEST."""
    rows, budget = _shown(found), found.budget.device_bytes
    shape = "x".join(str(n) for n in found.job.out_shape)
    right, top = WIDTH - MARGIN - _TEXT_WIDTH, _edge(found, rows)
    about = f"on {found.job.device}, beyond the weights; budget {size_text(budget, 2)}"
    about += ", above this picture" if budget > top else ""
    about += "; times are estimates" if any(c.need and c.need.seconds for c in rows) else ""
    image, pen, small = picture.new_page(
        _TOP + _ROW * len(rows) + _FOOT, f"Memory plan: {found.job.family.name}, {shape}", about
    )
    for number, candidate in enumerate(rows):
        place = _TOP + number * _ROW, right, top
        _row(pen, small, candidate, place, found.is_taken(candidate))
        if budget <= top:
            x, low = _x(budget, right, top), place[0] + 28
            pen.line((x, low - 5, x, low + _BAR + 5), fill=WARM, width=2)
    y = _TOP + _ROW * len(rows)
    pen.text((MARGIN, y + 14), cut(_last_line(found, len(rows)), small), BRIGHT, small)
    x = MARGIN
    for name, colour in _COLOURS.items():
        pen.rectangle((x, y + 58, x + 12, y + 70), fill=colour)
        pen.text((x + 20, y + 52), name, DIM, small)
        x += 48 + int(small.getlength(name))
    return picture.as_image(image)


def _last_line(found: Explained, rows: int) -> str:
    if found.plan is not None:
        line = f"taken: {found.plan.variant.name}"
    elif any(c.fits for c in found.candidates):
        line = "what was asked for does not fit"
    else:
        least = _least(found)
        line = "nothing fits"
        line += f"; the least is {_bytes(least.need)}" if least and least.need else ""
    left_out = len(found.candidates) - rows
    return line + (f"; {left_out} more are in the text" if left_out else "")


def _shown(found: Explained) -> list[Candidate]:
    """The first that there is room for, and in any case what is taken, or, where nothing is, what
    needs least."""
    rows = list(found.candidates)
    kept, others = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    wanted = [c for c in others if found.is_taken(c)]
    if found.plan is None:
        wanted = [c for c in others if c is _least(found)]
    return [*kept[:-1], *(wanted[:1] or kept[-1:])]


def _least(found: Explained) -> Candidate | None:
    """What the least budget would do for; nothing that is on the host alone."""
    known = [
        (c.need.device_bytes + (c.need.host_bytes if found.budget.is_unified else 0), c)
        for c in found.candidates
        if c.need is not None and c.need.device_bytes
    ]
    return min(known, key=lambda entry: entry[0])[1] if known else None


def _edge(found: Explained, rows: list[Candidate]) -> float:
    """Bytes at the bars' right end."""
    most = max((_all_of(c.need) for c in rows if c.need), default=1)
    budget = max(found.budget.device_bytes, 1)
    if found.plan is not None:
        most = min(most, round(_BUDGETS * budget))
    return (most if budget > _FLAT * most else max(most, budget)) * 1.05


def _row(
    pen: Any, font: Any, candidate: Candidate, place: tuple[int, int, float], taken: bool
) -> None:
    y, right, top = place
    bright = BRIGHT if taken else DIM
    pen.text((MARGIN, y), cut(candidate.variant.name, font, right - MARGIN), bright, font)
    low = y + 28
    pen.rectangle((MARGIN, low, right, low + _BAR), fill=picture.CARD)
    if candidate.need is None:
        pen.text((right + 12, low - 4), "can't be told", DIM, font)
        return
    need = candidate.need
    colour = picture.ACCENT if taken else _FITS if candidate.fits else _TOO_MUCH
    first, last = _x(need.device_bytes, right, top), _x(_all_of(need), right, top)
    if need.device_bytes:
        pen.rectangle((MARGIN, low, first, low + _BAR), fill=colour)
    if last > first:
        pen.rectangle((first, low, last, low + _BAR), fill=_HOST)
    if _all_of(need) > top:
        for x in (right - 20, right - 12):
            pen.line((x, low + _BAR, x + 8, low), fill=picture.BACKGROUND, width=3)
    pen.text((right + 12, y), _time(need), bright, font)
    pen.text((right + 12, low - 4), _bytes(need), bright, font)


def _all_of(need: Need) -> int:
    return need.device_bytes + need.host_bytes


def _bytes(need: Need) -> str:
    """ "3.78 GB + host 5.82 GB"."""
    sizes = [size_text(need.device_bytes, 2)] if need.device_bytes or not need.host_bytes else []
    sizes += [f"host {size_text(need.host_bytes, 2)}"] if need.host_bytes else []
    return ("at least " if need.unknown else "") + " + ".join(sizes)


def _time(need: Need) -> str:
    """ "~1.4 s, copies 32.7 GB", "" where nobody estimated anything."""
    said = [f"~{seconds_text(need.seconds)}"] if need.seconds else []
    moved = need.stored_bytes + need.loaded_bytes
    said += [f"copies {size_text(moved)}"] if moved else []
    return ", ".join(said)


def _x(count: int, right: int, top: float) -> int:
    return MARGIN + round(min(count / top, 1.0) * (right - MARGIN))


logger = logging.getLogger("hy3d_rocm")


class Hy3DRocmTuneVAE(common.EachTime):
    """`hy3d-rocm tune` for the VAE and size of a workflow."""

    @classmethod
    def execute(
        cls, vae: Any, width: int, height: int, frames: int, seconds: int, samples: Any = None,
        again: bool = False, retry_hung: bool = False,
    ) -> io.NodeOutput:  # fmt: skip
        wishes = Wishes(again=again, retry_hung=retry_hung, limit_s=float(seconds))
        report = tune(vae, common.Wanted(width, height, frames, samples), wishes)
        return io.NodeOutput(report, ui=ui.PreviewText(report))


def tune(vae: Any, wanted: common.Wanted, wishes: Wishes) -> str:
    """A report in lines. Cancel goes through; what was measured by then is kept.

    ValueError (a sentence) for a size that is none, and for a VAE whose layers are not known.
    """
    job, plan = _decode_of(vae, wanted)
    if job.device.type == "cpu":
        return (
            "Nothing was measured: ComfyUI computes this VAE on the CPU, where PyTorch's own "
            "convolution is left as it is until it fails. Tuning is for GPUs."
        )
    freed = memory.free_everything().splitlines()[-1]
    began, say = time.monotonic(), functools.partial(logger.info, "[Tune VAE] %s")
    with Watcher() as watcher, torch.inference_mode(False), current_device(job.device):
        tiles = tune_decode(
            job, plan, say, limit_s=wishes.limit_s, again=wishes.again, look=watcher.throw
        )
    left = max(wishes.limit_s - (time.monotonic() - began), 0.0)
    shapes, whose = collect_decode(job, plan)
    report = measure(shapes, job.device, replace(wishes, limit_s=left))
    with Watcher() as watcher, current_device(job.device):
        compiled = compile_decode(job, plan, watcher.throw)
    lines = "\n".join(filter(None, (report, tiles, compiled)))
    return f"{len(shapes)} convolutions {whose}\n{freed}\n\n{lines}".rstrip()


def measure(
    shapes: Sequence[Shape], device: torch.device, wishes: Wishes, *, lab: Lab | None = None,
    known: Memory | None = None,
) -> str:  # fmt: skip
    """The table of `hy3d-rocm tune`. lab, known: others than the device's own (tests)."""
    # Tensors that inference mode makes are none that every operator takes.
    with Watcher() as watcher, torch.inference_mode(False), current_device(device):
        bar = TimeBar(wishes.limit_s, watcher)

        def heard(line: str) -> None:
            logger.info("[Tune VAE] %s", line)
            bar.look()

        report, default = tune_shapes(
            shapes, device, wishes, heard, lab=lab,
            probe=functools.partial(probing.probe, cancel=bar.look), memory=known,
        )  # fmt: skip
        bar.end()
    return tune_text(report, default)


def _decode_of(vae: Any, wanted: common.Wanted) -> tuple[Job, Plan | None]:
    """What would be decoded, and how it would be, with all of the device's memory."""
    try:
        family = vaes.family_of(vae)
    except TypeError as error:
        raise ValueError(
            f"{said(error)}. Its convolutions can't be listed without a decode, so there is "
            "nothing to measure ahead; what they take is noted while it decodes"
        ) from error
    options = DecodeOptions()
    place = vaes.place_of(family)
    with current_device(place), torch.no_grad():
        shape = common.latent_shape(family, wanted)
        job = vaes.job_of(family, shape, family.dtype, device=place)
        if job.device.type == "cpu":
            return job, None
        try:
            budget = vaes.largest(vae, job.device, None, options)
            return job, plan_job(job, budget)
        except ValueError:
            return job, None
