"""decode() and encode(): a latent to frames, or frames to a latent, within a memory budget.

See docs/decode.md.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from hy3d_rocm import _native, meter
from hy3d_rocm.capture import around
from hy3d_rocm.decoding import black_box, checks, precision, stages, together
from hy3d_rocm.decoding.copies import tensors_of
from hy3d_rocm.decoding.execution import DecodeRequest, Execution, Request
from hy3d_rocm.decoding.families import check_unchanged, family_or_unknown
from hy3d_rocm.decoding.families.unknown import UnknownFamily
from hy3d_rocm.decoding.group import GroupLostError, group_of, settling
from hy3d_rocm.decoding.memory.budget import make_budget, parse_budget
from hy3d_rocm.decoding.planning.jobs import Job, best_backend, resume_key_of, torch_backend
from hy3d_rocm.decoding.report import DecodeOptions, DecodeReport, Progress
from hy3d_rocm.decoding.shared_run import sent_samples
from hy3d_rocm.device import resolve_device
from hy3d_rocm.frames.output import Sink

logger = logging.getLogger("hy3d_rocm")


def decode(
    vae: Any, latents: Any, budget: Request = None, strategy: str = "auto",
    precision: str = "auto", progress: Progress | None = None, cancel: Any = None,
    out: Tensor | None = None, group: Any = None,
) -> Tensor:  # fmt: skip
    """Decodes within a memory budget: the frames of `vae.decode(latents).sample`, unsplit.

    vae: diffusers' AutoencoderKLHunyuanVideo, -HunyuanVideo15, -Wan, -LTXVideo, AutoencoderKL, a
    VAE that is built alike, or a family. It is not changed. Any other VAE's own decode(latents) is
    called, "whole", or "tiled" where that does not fit; the error of tiles is then not known.
    latents: (B, C, T, H, W) as the VAE takes them (already divided by its scaling factor); an image
    VAE also takes (B, C, H, W), and then gives (B, C, H, W).
    budget: memory that the decode may take. None or "auto": 0.8 of what is free now; else bytes,
    "6GB", or "80%" of the device's memory. It is the GPU's memory; on the CPU, and where GPU and
    host share memory, everything above what is in use at the call, the result included.
    strategy: "whole" (the VAE's own unsplit decode, bit for bit), "streamed" (the same layers on
    parts of the video, exact up to rounding), "tiled" (also cut in space: an approximation where
    norms see the whole video), "cpu" (streamed on the host by the C convolution), or "auto": of
    those that fit the fastest of "whole" and "streamed" ("streamed" alone where the fused kernels
    run, since it is faster, too), else the largest tiles, else the host.
    precision: "auto" (the VAE's own type unless the card lacks it; for float8 weights the type that
    they are cast to, else bf16), "fp32", "bf16" or "fp16". The result has the VAE's type. If finite
    latents give NaN the decode is repeated in a wider type, with a log line.
    progress: called as progress(done, total, step) after each step or tile; total is 0 if unknown.
    cancel: a callable, an object with `.requested` or a threading.Event; asked before each step or
    tile.
    out: a tensor of the result's shape on the CPU, to be filled and returned. It must not overlap
    the latents or the VAE's weights.
    group: of ranks that decode together, each on a device of its own, all called with the same: a
    process group of torch.distributed (torch.distributed.group.WORLD) or a hy3d_rocm.Group. They
    share the rows of every layer, so each holds a part of what one device would, or else the
    samples. Rank 0 gets the frames, the others None. Where a rank is lost rank 0 decodes alone, and
    the others raise GroupLostError. Ranks other than 0 may give latents on "meta", their shape and
    type alone: rank 0 sends them the rows (or samples) that they need. See docs/scale.md.

    Returns frames (B, C, T, H, W) on the CPU. Raises TypeError or ValueError (sentences) for input
    that it can't decode, BudgetTooSmallError with the smallest budget that would do,
    DecodeCancelled.
    """
    asked = DecodeRequest(budget, strategy, precision, progress, cancel, out=out, group=group)
    return cast("Tensor", _execute(vae, latents, asked)[0])


def decode_with_report(
    vae: Any, latents: Any, budget: Request = None, strategy: str = "auto",
    precision: str = "auto", progress: Progress | None = None, cancel: Any = None,
    options: DecodeOptions | None = None, out: Tensor | None = None, group: Any = None,
) -> tuple[Tensor, DecodeReport]:  # fmt: skip
    """As decode(), and returns (frames, DecodeReport). `options`: see DecodeOptions."""
    chosen = options or DecodeOptions()
    asked = DecodeRequest(budget, strategy, precision, progress, cancel, chosen, out, group=group)
    return _execute(vae, latents, asked)


def decode_into(
    sink: Sink, vae: Any, latents: Any, budget: Request = None, strategy: str = "auto",
    precision: str = "auto", progress: Progress | None = None, cancel: Any = None,
    options: DecodeOptions | None = None, resume_key: Mapping[str, Any] | None = None,
    group: Any = None,
) -> tuple[Any, DecodeReport]:  # fmt: skip
    """Decodes into a sink (frames/output.py), frame by frame: returns what sink.finish() gives, and
    the report. resume_key: what an interrupted decode, which is continued here, passed to the
    sink's begin(). On any exception the sink is aborted."""
    chosen = options or DecodeOptions()
    asked = DecodeRequest(
        budget, strategy, precision, progress, cancel, chosen, None, sink, resume_key, group=group
    )  # fmt: skip
    try:
        return _execute(vae, latents, asked)
    except BaseException:
        try:
            sink.abort()
        except Exception as error:  # noqa: BLE001  what went wrong first is what the caller gets
            logger.warning("[VAE Decode] What was written can't be put in order: %s", error)
        raise


def encode(
    vae: Any, pixels: Any, budget: Request = None, strategy: str = "auto",
    precision: str = "auto", progress: Progress | None = None, cancel: Any = None,
    moments: bool = False, group: Any = None,
) -> Tensor:  # fmt: skip
    """Encodes within a memory budget: latents (B, C, T, H, W) on the CPU, the mean that
    `vae.encode(pixels)` gives, unsplit.

    pixels: (B, 3, T, H, W) in -1..1, T = 4 n + 1 frames for a video VAE whose time factor is 4.
    moments: True returns the mean and the logarithm of the variance, (B, 2 C, T, H, W). All else is
    as in decode(). The latents are as the VAE makes them: a model wants them multiplied by the
    VAE's scaling factor.
    """
    return encode_with_report(
        vae, pixels, budget, strategy, precision, progress, cancel, moments=moments, group=group
    )[0]  # fmt: skip


def encode_with_report(
    vae: Any, pixels: Any, budget: Request = None, strategy: str = "auto",
    precision: str = "auto", progress: Progress | None = None, cancel: Any = None,
    options: DecodeOptions | None = None, moments: bool = False, group: Any = None,
) -> tuple[Tensor, DecodeReport]:  # fmt: skip
    """As encode(), and returns (latents, DecodeReport). Of DecodeOptions, those about tiles have
    no effect."""
    chosen = options or DecodeOptions()
    asked = DecodeRequest(
        budget, strategy, precision, progress, cancel, chosen, encode=True, group=group
    )
    found, report = _execute(vae, pixels, asked)
    if found is None or moments:
        return found, report
    return found[:, : found.shape[1] // 2].contiguous(), report


def _execute(vae: Any, source: Any, asked: DecodeRequest) -> tuple[Any, DecodeReport]:
    out, group, result = asked.out, group_of(asked.group), None
    with torch.no_grad(), together.leaving(group):
        with together.beginning(group):
            checks.check_choice("strategy", asked.strategy, checks.STRATEGIES)
            checks.check_choice("precision", asked.precision, precision.PRECISIONS)
            family = _family_of(vae, source, asked.encode)
            if isinstance(source, torch.Tensor) and precision.only_stores(source.dtype):
                source = source.to(torch.float32)
            image = isinstance(source, torch.Tensor) and source.ndim == 4 and bool(family.is_image)
            if image:
                source = source.unsqueeze(2)
                if isinstance(out, torch.Tensor) and out.ndim == 4:
                    asked = replace(asked, out=out.unsqueeze(2))
            (checks.check_pixels if asked.encode else checks.check_latents)(source, family)
            device = _device_of(family)
            group = group_of(asked.group, device)
            checks.check_is_there(source, group is None or group.rank == 0, asked.encode)
        with around(family, source, asked) as reports:
            is_alone = group is None
            if group is not None:
                asked = replace(asked, group=group)
                try:
                    result = _shared(family, source, device, asked, reports)
                except GroupLostError as error:
                    if group.rank:
                        raise
                    is_alone, lost = True, str(error)
                if is_alone:  # nothing holds what the ranks had made any more
                    stages.warn_alone(lost, asked.encode)
            if is_alone:
                execution = _prepare(family, source, device, replace(asked, group=None))
                reports.append(execution.report)
                execution.run()
                result = execution.placing.finish()
        if out is not None and result is not None:
            result = out  # the caller's own, not a view of it
        elif image and isinstance(result, torch.Tensor):
            result = result.squeeze(2)
        return result, reports[-1]


def _shared(
    family: Any, source: Tensor, device: torch.device, asked: DecodeRequest,
    reports: list[DecodeReport],
) -> Any:  # fmt: skip
    """The result of all ranks on rank 0, None on the others."""
    group = asked.group
    with together.beginning(group):  # what goes on is of the type and plan that it was begun with
        if group.rank:
            asked = replace(asked, resume_key=None)  # rank 0's counts
        try:
            execution = _prepare(family, source, device, asked)
        except together.OtherResumeKeyError as other:
            asked = replace(asked, resume_key=other.resume_key)
            execution = _prepare(family, source, device, asked)
    reports.append(execution.report)
    why = together.why_not_rows(execution.job)
    if not why and source.shape[0] > 1:  # of one sample the plan says that it can't be
        why = together.why_not_by(asked.strategy)
    budget = together.beside_samples(group, execution.job, source, execution.budget)
    if not together.shares_samples(group, execution.job, budget, why):
        execution.run()
    else:
        execution.budget = budget
        _share_samples(execution, family, source, asked, why, reports)
    with settling():
        return None if group.rank else execution.placing.finish()


def _share_samples(
    execution: Execution, family: Any, source: Tensor, asked: DecodeRequest, why: str,
    reports: list[DecodeReport],
) -> None:  # fmt: skip
    """Each sample on one rank, into rank 0's placing."""
    group, placing = asked.group, execution.placing
    alone = replace(asked, group=None, out=None, sink=None, resume_key=None)
    logger.info(
        "[%s] %s%s", stages.stage_of(asked.encode),
        f"{source.shape[0]} samples are shared by {group.size} ranks"
        if source.shape[0] > 1 else f"Rank 0 {'encodes' if asked.encode else 'decodes'} alone",
        why and f": rows can't be shared, since {why}",
    )  # fmt: skip

    own = source
    if execution.job.sends_source and source.shape[0] > 1:
        own = sent_samples(group, source, execution.counter.check_cancel)

    def decode(samples: Sequence[int]) -> Tensor:
        has_all = own.shape[0] == source.shape[0]
        mine = own[list(samples)] if has_all else own
        part = _prepare(family, mine, execution.job.device, alone)
        part.budget = execution.budget
        reports.append(part.report)
        part.run()
        if group.rank == 0 and samples[0] == 0:
            placing.begin(resume_key_of(part.job, part.plan.variant))
        return cast("Tensor", part.placing.finish())

    together.by_samples(group, placing, decode, asked.encode)


def _family_of(vae: Any, source: Any, encode: bool) -> Any:
    known = hasattr(vae, "has_global_norms")
    family: Any = vae if known else family_or_unknown(vae, source, encode)
    if known:
        check_unchanged(family, encode)
    if isinstance(family, UnknownFamily) and family.encoding is not encode:
        family = UnknownFamily(family.vae, source, family.why, encode)
    offload: Any = getattr(getattr(family, "vae", None), "_hf_hook", None)
    if hasattr(offload, "pre_forward"):  # as diffusers' own decode() does under offload
        offload.pre_forward(family.vae)
    checks.check_parameters(family)
    if not _native.available and not black_box.is_opaque(family):
        family = copy.copy(family)
        family.why = f"the C core, which plans its layers, is missing {_native.why_missing()}"
    return family


def _device_of(family: Any) -> torch.device:
    """Where the family's weights are; where these are offloaded, the device they are brought to."""
    device = torch.device(family.device)
    if device.type == "cpu" and getattr(family, "host", None) is None:
        device = resolve_device(getattr(family, "vae", None), default=device).device
    return device


def _prepare(
    family: Any, source: Tensor, device: torch.device, asked: DecodeRequest
) -> Execution:  # fmt: skip
    options, sink = asked.options, asked.sink
    if asked.resume_key is not None:  # what goes on is of the type that it was begun in
        dtype = getattr(torch, str(asked.resume_key["dtype"]))
        chosen = precision.Precision(dtype, "as it was begun")
    else:
        chosen = precision.choose_precision(
            asked.precision, family.dtype, device, options.fallback_precision
        )
    stages.say_start(source, family.device, family.dtype, asked.encode)
    budget = make_budget(
        asked.budget, meter.machine_of(device), memory_threshold=options.memory_threshold,
        memory_fraction=options.memory_fraction,
    )  # fmt: skip
    opaque = black_box.is_opaque(family)
    make_backend = torch_backend if opaque else best_backend(device, chosen.dtype, options.backend)
    job = Job(
        family, tuple(source.shape), device, chosen.dtype,
        family.result_dtype if opaque else family.dtype, make_backend, encode=asked.encode,
        keeps_result=sink is None, without_library="without" in (asked.resume_key or ()),
    )  # fmt: skip
    if sink is not None:
        budget = budget.without(sink.host_bytes(job.out_shape))
    weights = tensors_of(family) if hasattr(family, "vae") else []
    if asked.out is not None:
        checks.check_result(asked.out, job.out_shape, latents=[source], weights=weights)
    stored = next((t.dtype for t in weights if precision.only_stores(t.dtype)), None)
    if stored is not None:
        why = f"{chosen.reason}, its weights are {precision.name_of(stored)}"
        chosen = replace(chosen, reason=why)
    if asked.group is not None:
        is_given = isinstance(parse_budget(asked.budget), int)
        terms = together.terms_of(asked.group, job, source, options)
        job, budget = together.agree(
            asked.group, job, budget, is_given, terms, asked.resume_key
        )  # fmt: skip
    return Execution(job, source.detach(), budget, asked, chosen)
