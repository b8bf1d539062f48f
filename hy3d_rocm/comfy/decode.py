"""What the decode and encode nodes do: a LATENT and a VAE to images, images and a VAE to a LATENT,
with a report and a timeline.

A decode goes one of three ways, in this order: the VAE's layers in parts (decode()), the VAE's own
module in tiles where its layers are not known, ComfyUI's own decode; an encode the first or the
last. Pixels are prepared as comfy.sd.VAE.encode does it, by the VAE object's own methods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import comfy.model_management as management
import torch

from hy3d_rocm.comfy import devices, memory, picture, reports, vaes
from hy3d_rocm.comfy.reports import report_text
from hy3d_rocm.comfy.running import (
    ON_CPU,
    POLICY,
    Asked,
    Made,
    Run,
    caught,
    current_device,
    own_code,
    running,
    said,
)
from hy3d_rocm.conv.errors import is_out_of_memory
from hy3d_rocm.conv.router import Guard
from hy3d_rocm.decoding.executor import decode_with_report, encode_with_report
from hy3d_rocm.decoding.group import Group
from hy3d_rocm.decoding.memory.budget import parse_budget
from hy3d_rocm.decoding.plan import BudgetTooSmallError
from hy3d_rocm.decoding.precision import name_of
from hy3d_rocm.decoding.report import DecodeReport
from hy3d_rocm.decoding.stages import shapes_of, stage_of

logger = logging.getLogger("hy3d_rocm")

Own = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Done:
    """made: as the VAE's own method gives it, images (B, H, W, C) or (B, T, H, W, C), or latents.
    run: what was recorded."""

    made: torch.Tensor
    report: DecodeReport
    run: Run
    seconds: float

    def text(self, given: torch.Tensor, encode: bool = False) -> str:
        """The report, which the status node shows too."""
        table = self.run.guard.stats.table()
        text = report_text(self.report, given, self.made, encode, self.seconds, table)
        reports.remember(text)
        return text


def decode_latent(vae: Any, samples: Any, asked: Asked) -> tuple[torch.Tensor, str, torch.Tensor]:
    """Images (frames of all videos in one batch, H, W, C) in 0..1, a report, a timeline.

    Interrupts go through. ValueError, in a sentence, for a LATENT that is none or of another model,
    and a given budget that is too small.
    """
    latents = latents_of(samples)
    done = _done(vae, latents, asked, vae.decode)
    if done.made.ndim == 5:
        done = replace(done, made=done.made.flatten(0, 1))
    text = done.text(latents)
    waits = asked.options.synchronization
    return done.made, text, picture.of_decode(done.report, done.run, done.seconds, waits)


def encode_pixels(vae: Any, pixels: Any, asked: Asked) -> tuple[dict[str, torch.Tensor], str]:
    """A LATENT of pixels (frames, H, W, C) in 0..1, and a report. Errors as decode_latent()."""
    check_images(pixels)
    done = _done(vae, pixels, asked, vae.encode, encode=True)
    return {"samples": done.made}, done.text(pixels, encode=True)


def run_vae(
    vae: Any, given: torch.Tensor, *, own: Own, encode: bool = False,
    budget: str | int | float | None = None, strategy: str = "auto", precision: str = "auto",
    who: str = "VAE.decode",
) -> Made:  # fmt: skip
    """What VAE.decode gives of latents, (B, H, W, C) or (B, T, H, W, C), or VAE.encode of images,
    and how it came about.

    own: what is called with `given` where nothing else can be done (report.strategy is then "own"):
    a patch of the VAE's own method gives what was there before. who: for the log. Errors as
    decode_latent() and encode_pixels() have them.
    """
    if encode:
        check_images(given)
    asked = Asked(parse_budget(budget), strategy, precision, who=who)
    done = _done(vae, given, asked, own, encode)
    return done.made, done.report


def latents_of(samples: Any) -> torch.Tensor:
    """The tensor of a LATENT, (B, C, H, W) or (B, C, T, H, W)."""
    if not isinstance(samples, dict) or "samples" not in samples:
        raise ValueError(
            f"samples is {type(samples).__name__}, not a LATENT; connect an output of that type"
        )
    latents = samples["samples"]
    if getattr(latents, "is_nested", False):  # several streams, as video with sound: the first
        latents = latents.unbind()[0]
    return latents  # type: ignore[no-any-return]


def check_images(pixels: Any) -> None:
    """ValueError (a sentence) for what is no IMAGE."""
    if not isinstance(pixels, torch.Tensor) or pixels.ndim not in (4, 5) or 0 in pixels.shape:
        got = tuple(pixels.shape) if isinstance(pixels, torch.Tensor) else type(pixels).__name__
        raise ValueError(
            f"pixels is {got}, not an IMAGE (images, height, width, channels): connect an output "
            "of that type"
        )


def as_images(vae: Any, video: torch.Tensor) -> torch.Tensor:
    """(B, C, T, H, W) as the VAE's module gives it to what VAE.decode gives: (B, T, H, W, C).

    By the VAE's own process_output where it has one, else from -1..1 to 0..1. Works in place where
    it can: `video` is given up.
    """
    frames = _as_output(vae, video)
    process = getattr(vae, "process_output", None)
    if process is None:
        frames = frames.add_(1.0).div_(2.0).clamp_(0.0, 1.0)
    else:
        processed = process(frames)
        frames = frames if processed is None else processed
    return frames.movedim(1, -1)


def _as_output(vae: Any, made: torch.Tensor) -> torch.Tensor:
    """Where and in which type the VAE's own methods give what they make."""
    dtype = vae.vae_output_dtype() if hasattr(vae, "vae_output_dtype") else torch.float32
    return made.to(getattr(vae, "output_device", made.device), dtype)


def prepared(vae: Any, pixels: torch.Tensor, time_step: int) -> torch.Tensor:
    """(B, C, T, H, W) or, for an image VAE, (B, C, H, W) as VAE.encode makes it of an IMAGE: sides
    cropped to what the VAE encodes, frames of one video in order, at most 1 + k * time_step of them
    (the rest is left out, as the VAEs' own encode() does), in the VAE's range and type.
    """
    x = vae.vae_encode_crop_pixels(pixels).movedim(-1, 1)
    if vae.latent_dim == 3 and x.ndim < 5:
        x = x.unsqueeze(2) if getattr(vae, "not_video", False) else x.movedim(1, 0).unsqueeze(0)
    if x.ndim == 5:
        x = x[:, :, : 1 + (x.shape[2] - 1) // time_step * time_step]
    scaled: torch.Tensor = vae.process_input(x).to(vae.vae_dtype)
    return scaled


def _done(vae: Any, given: torch.Tensor, asked: Asked, own: Own, encode: bool = False) -> Done:
    started = time.perf_counter()
    with memory.stage_lines("VAE Load", stage_of(encode)), running() as run:
        made = _in_parts(vae, given, asked, run, encode)
        if isinstance(made, str):
            made = _as_a_whole(vae, given, made, run, own, asked.who, encode)
    return Done(*made, run, time.perf_counter() - started)


def _in_parts(vae: Any, given: torch.Tensor, asked: Asked, run: Run, encode: bool) -> Made | str:
    """What is made in parts and a report, or why ComfyUI's own code has to make it.

    What ends the node goes on: an interrupt, a cancel, a given budget that is too small, latents of
    another model.
    """
    try:
        return (_encoded if encode else _decoded)(vae, given, asked, run)
    except (management.InterruptProcessingException, vaes.OtherModelError):
        raise
    except BudgetTooSmallError as error:
        if asked.budget is not None:
            raise
        return said(error)
    except Exception as error:
        if run.watcher.requested:
            raise
        what = "encode" if encode else "decode"
        logger.debug("hy3d_rocm: the %s in parts", what, exc_info=True)
        return said(error)


def _decoded(vae: Any, latents: torch.Tensor, asked: Asked, run: Run) -> Made | str:
    try:
        family = vaes.family_of(vae)
    except TypeError as error:
        return _unknown(vae, latents, asked, run, said(error))
    video = vaes.as_video(latents, family)
    place = vaes.place_of(family)
    with current_device(place), torch.no_grad():
        if vaes.is_managed(vae):
            vaes.load(vae, family, tuple(video.shape), asked, run.watcher)
        why = _doubt(family)
        if why:
            given = video[:, :, 0] if family.is_image else latents
            return _unknown(vae, given, asked, run, why)
        if family.view is not family.vae:  # under its authors' names
            video = family.noised(video.to(place, family.dtype))
        images, report = _carried_out(vae, family, video, asked, run, place, False)
    return images[:, 0] if latents.ndim == 4 or family.is_image else images, report


def _doubt(family: Any) -> str:
    """Why the VAE's layers are not run, or ""."""
    try:
        if vaes.is_proven(family):
            return ""
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return f"memory was short when this {family.name} VAE was asked what it does"
    return f"this {family.name} VAE decodes otherwise than its layers say"


def _unknown(vae: Any, latents: torch.Tensor, asked: Asked, run: Run, why: str) -> Made | str:
    """By the VAE's own module, whole or in tiles of ours; or why it can't be that."""
    try:
        family = vaes.unknown_family_of(vae, latents, why)
    except TypeError as error:
        return said(error)
    place = torch.device(vae.device)
    with current_device(place), torch.no_grad():
        vaes.load_for_own_code(vae, tuple(latents.shape), asked)
        image = latents.ndim == 4 or vae.latent_dim == 2
        if latents.ndim == 5 and vae.latent_dim == 2:
            latents = latents[:, :, 0]
        video = latents.unsqueeze(2) if latents.ndim == 4 else latents
        images, report = _carried_out(vae, family, video, asked, run, place, False)
    return images[:, 0] if image else images, report


def _encoded(vae: Any, pixels: torch.Tensor, asked: Asked, run: Run) -> Made | str:
    if not vaes.is_managed(vae) or not hasattr(vae, "vae_encode_crop_pixels"):
        return "it is no VAE of ComfyUI's own"
    family = vaes.family_of(vae, encode=True)
    if family.processing.no_encode:
        return family.processing.no_encode
    x = prepared(vae, pixels, family.pixel_steps[0])
    video = x.unsqueeze(2) if x.ndim == 4 else x
    place = vaes.place_of(family)
    with current_device(place), torch.no_grad():
        vaes.load(vae, family, tuple(video.shape), asked, run.watcher, encode=True)
        if not vaes.is_proven(family, encode=True):
            return f"this {family.name} VAE encodes otherwise than its layers say"
        latents, report = _carried_out(vae, family, video, asked, run, place, True)
    if x.ndim == 4:
        latents = latents[:, :, 0]
    latents = _as_output(vae, latents)
    shaped = getattr(vae, "format_encoded", None)
    return latents if shaped is None else shaped(latents), report


def _carried_out(
    vae: Any, family: Any, video: torch.Tensor, asked: Asked, run: Run, place: torch.device,
    encode: bool,
) -> Made:  # fmt: skip
    work = encode_with_report if encode else decode_with_report
    budget = asked.budget
    if budget is None:
        budget = vaes.automatic(place, asked.options.memory_threshold)

    def together(group: Group | None) -> Made:
        return work(
            family, video, budget, asked.strategy, asked.precision, run.steps, run.watcher,
            options=asked.options, group=group,
        )  # fmt: skip

    is_alone = POLICY.get() == ON_CPU or (asked.strategy == "cpu" != place.type)
    names = "one" if is_alone else asked.devices
    wishes = {
        "budget": asked.budget, "strategy": asked.strategy, "precision": asked.precision,
        "options": asked.options,
    }  # fmt: skip
    with run.metered(place), memory.own_care(vae):
        made, report = devices.shared(
            family, video, names, wishes, place, together, run.watcher, encode
        )
        return made if encode else as_images(vae, made), report


def run_own_code(
    what: str, vae: Any, work: Callable[[], Any], given: Any, encode: bool,
    tell: Callable[[Guard], None] = lambda guard: None,
) -> Any:  # fmt: skip
    """`work()`, a method of a VAE, with failing convolutions caught; the status hears of it.
    tell: is called with what was recorded, also where it failed."""
    began = time.perf_counter()
    with running() as run:
        try:
            made = own_code(vae, work, given, encode)
        finally:
            tell(run.guard)
    seconds, stats = time.perf_counter() - began, run.guard.stats
    table = f"\n{stats.table()}" if stats.recovered else ""
    reports.remember(
        f"{what} by its own code, {caught()}: {shapes_of(given)} -> {shapes_of(made)} in "
        f"{seconds:.2f} s; {stats.recovered} of {stats.calls} convolutions went another way than "
        f"the first{table}"
    )
    return made


def _as_a_whole(
    vae: Any, given: torch.Tensor, why: str, run: Run, own: Own, who: str, encode: bool
) -> Made:
    """By ComfyUI's own code, because of `why`."""
    inner = getattr(vae, "first_stage_model", vae)
    cannot = "is not encoded in parts" if encode else "cannot be cut into parts here"
    logger.info(
        "%s: %s %s (%s): ComfyUI's own %s runs, %s; budget, strategy and precision have no effect",
        who, type(inner).__name__, cannot, why, "encode" if encode else "decode", caught(),
    )  # fmt: skip
    began = time.perf_counter()
    place = torch.device(getattr(vae, "device", None) or management.get_torch_device())
    with run.metered(place):
        made = own_code(vae, lambda: own(given), given, encode)
    report = DecodeReport(
        type(inner).__name__, tuple(given.shape), tuple(made.shape),
        str(getattr(vae, "device", "its device")),
        name_of(getattr(vae, "vae_dtype", "its type")), 0, "none",
        strategy="own", reason=why, plan={"how": caught()}, seconds=time.perf_counter() - began,
        measured_peak_bytes=run.meters[0].peak_bytes,
    )  # fmt: skip
    return made, report
