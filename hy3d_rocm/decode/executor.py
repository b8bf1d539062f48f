"""decode() and encode(): a latent to frames, or frames to a latent, within a memory budget.

See docs/decode.md.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm import _native
from hy3d_rocm.decode.black_box import is_opaque
from hy3d_rocm.decode.capture import around
from hy3d_rocm.decode.checks import (
    STRATEGIES,
    check_choice,
    check_latents,
    check_parameters,
    check_pixels,
    check_result,
)
from hy3d_rocm.decode.copies import tensors_of
from hy3d_rocm.decode.counter import Counter, Progress
from hy3d_rocm.decode.execution import Execution, make_report, name_of
from hy3d_rocm.decode.families import check_unchanged, family_or_unknown
from hy3d_rocm.decode.families.unknown import OwnCodeFamily
from hy3d_rocm.decode.memory import meter
from hy3d_rocm.decode.memory.budget import make_budget
from hy3d_rocm.decode.placing import Placing
from hy3d_rocm.decode.planning.backends import best_backend, runs_first, torch_backend
from hy3d_rocm.decode.planning.jobs import Job, WayOptions
from hy3d_rocm.decode.precision import PRECISIONS, Precision, choose_precision, only_stores
from hy3d_rocm.decode.report import DecodeOptions, DecodeReport
from hy3d_rocm.decode.stages import say_start
from hy3d_rocm.decode.weights import ModuleWeights
from hy3d_rocm.device import resolve_device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from hy3d_rocm.decode.frames.output import Sink
    from hy3d_rocm.decode.layers import Family
    from hy3d_rocm.decode.memory.budget import Budget

logger = logging.getLogger("hy3d_rocm")

Request = str | int | float | None


def decode(
    vae: Any,
    latents: Any,
    budget: Request = None,
    strategy: str = "auto",
    precision: str = "auto",
    progress: Progress | None = None,
    cancel: Any = None,
    out: Tensor | None = None,
) -> Tensor:
    """Frames (B, C, T, H, W) on the CPU: what `vae.decode(latents).sample` holds, unsplit.

    vae: diffusers' AutoencoderKLHunyuanVideo, -HunyuanVideo15, -Wan, -LTXVideo, AutoencoderKL, what
    is built alike, or a Family; nothing of it is changed. Anything else that has decode(latents):
    that is called, "whole", or "tiled" where it does not fit: then the error can't be known.
    latents: (B, C, T, H, W) as the VAE takes them (already divided by its scaling factor); an image
    VAE also takes (B, C, H, W), and gives (B, C, H, W).
    budget: None or "auto" for 0.8 of what is free now, bytes, "6GB", or "80%" of the device's
    memory. On a GPU that of the GPU; on the CPU, and where GPU and host share their memory,
    everything above what is in use at the call, the result included.
    strategy: "whole" (the VAE's own unsplit decode, bit for bit), "streamed" (the same layers on
    parts of the video, exact up to rounding), "tiled" (in space, too: an approximation where norms
    see the whole video), "cpu" (streamed on the host by the C convolution), or "auto": of what fits
    the fastest of "whole" and "streamed" ("streamed" alone where the fused kernels run: it is
    faster, too), else the largest tiles, else the host.
    precision: "auto" (the VAE's own type unless the card can't; of float8 weights the type that
    they are cast to, else bf16), "fp32", "bf16" or "fp16"; the result has the VAE's type. NaN out
    of finite latents: again in a wider type, said in the log.
    progress: called as progress(done, total, step) after each grain; total is 0 where unknown.
    cancel: a callable, an object with `.requested` or a threading.Event, looked at before each
    grain.
    out: a tensor of the result's shape on the CPU to be filled and returned. It must not lie in
    the memory of the latents or of the VAE's weights.

    Raises TypeError or ValueError (sentences) for input it can't decode, BudgetTooSmallError with
    the smallest budget that would do, DecodeCancelled.
    """
    return decode_with_report(
        vae, latents, budget, strategy, precision, progress, cancel, out=out
    )[0]  # fmt: skip


def decode_with_report(
    vae: Any,
    latents: Any,
    budget: Request = None,
    strategy: str = "auto",
    precision: str = "auto",
    progress: Progress | None = None,
    cancel: Any = None,
    options: DecodeOptions | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, DecodeReport]:
    """decode(), and how it went. `options`: see DecodeOptions."""
    asked = _Asked(budget, strategy, precision, progress, cancel, options or DecodeOptions(), out)
    return _carry_out(vae, latents, asked, encode=False)


def decode_into(
    sink: Sink,
    vae: Any,
    latents: Any,
    budget: Request = None,
    strategy: str = "auto",
    precision: str = "auto",
    progress: Progress | None = None,
    cancel: Any = None,
    options: DecodeOptions | None = None,
    making: Mapping[str, Any] | None = None,
) -> tuple[Any, DecodeReport]:
    """decode() into a sink of output.py, as frames are made: what sink.finish() gives, and how it
    went. making: what the sink was told at begin() by a decode that goes on here. On any exception
    the sink is aborted."""
    chosen = options or DecodeOptions()
    asked = _Asked(budget, strategy, precision, progress, cancel, chosen, None, sink, making)
    try:
        return _carry_out(vae, latents, asked, encode=False)
    except BaseException:
        try:
            sink.abort()
        except Exception as error:  # noqa: BLE001  what went wrong first is what the caller gets
            logger.warning("[VAE Decode] What was written can't be put in order: %s", error)
        raise


def encode(
    vae: Any,
    pixels: Any,
    budget: Request = None,
    strategy: str = "auto",
    precision: str = "auto",
    progress: Progress | None = None,
    cancel: Any = None,
    moments: bool = False,
) -> Tensor:
    """Latents (B, C, T, H, W) on the CPU: the mean that `vae.encode(pixels)` gives, unsplit.

    pixels: (B, 3, T, H, W) in -1..1, T = 4 n + 1 frames for a video VAE whose time factor is 4.
    moments: the mean and the logarithm of the variance, (B, 2 C, T, H, W). All else as decode().
    The latents are as the VAE makes them: multiply by its scaling factor for a model.
    """
    return encode_with_report(
        vae, pixels, budget, strategy, precision, progress, cancel, moments=moments
    )[0]  # fmt: skip


def encode_with_report(
    vae: Any,
    pixels: Any,
    budget: Request = None,
    strategy: str = "auto",
    precision: str = "auto",
    progress: Progress | None = None,
    cancel: Any = None,
    options: DecodeOptions | None = None,
    moments: bool = False,
) -> tuple[Tensor, DecodeReport]:
    """encode(), and how it went. `options`: see DecodeOptions; those of tiles have no effect."""
    asked = _Asked(budget, strategy, precision, progress, cancel, options or DecodeOptions(), None)
    found: Tensor
    found, report = _carry_out(vae, pixels, asked, encode=True)
    return found if moments else found[:, : found.shape[1] // 2].contiguous(), report


@dataclass(frozen=True)
class _Asked:
    budget: Request
    strategy: str
    precision: str
    progress: Progress | None
    cancel: Any
    options: DecodeOptions
    out: Tensor | None
    sink: Sink | None = None
    making: Mapping[str, Any] | None = None


def _carry_out(vae: Any, source: Any, asked: _Asked, encode: bool) -> tuple[Any, DecodeReport]:
    check_choice("strategy", asked.strategy, STRATEGIES)
    check_choice("precision", asked.precision, PRECISIONS)
    with torch.no_grad():
        known = hasattr(vae, "has_global_norms")
        family: Any = vae if known else family_or_unknown(vae, source, encode)
        if known:
            check_unchanged(family, encode)
        _bring_weights(family)
        check_parameters(family)
        if not _native.available and not is_opaque(family):
            why = f"the C core, which plans its layers, is missing ({_native.missing})"
            family = OwnCodeFamily(family, why)
        if isinstance(source, torch.Tensor) and only_stores(source.dtype):
            source = source.to(torch.float32)
        image = isinstance(source, torch.Tensor) and source.ndim == 4 and bool(family.is_image)
        out = asked.out
        if image:
            source = source.unsqueeze(2)
            if isinstance(asked.out, torch.Tensor) and asked.out.ndim == 4:
                asked = replace(asked, out=asked.out.unsqueeze(2))
        (check_pixels if encode else check_latents)(source, family)
        with around(family, source, asked, encode) as note:
            execution = _prepare(family, source, asked, encode)
            note.report = execution.report
            execution.run()
        result = execution.placing.finish()
        if out is not None:
            result = out  # the caller's own, not a view of it
        elif image and isinstance(result, torch.Tensor):
            result = result.squeeze(2)
        return result, execution.report


def _bring_weights(family: Family) -> None:
    """As diffusers' own decode() does where a pipeline offloads its models."""
    vae = getattr(family, "vae", None)
    offload = getattr(vae, "_hf_hook", None)
    if offload is not None and hasattr(offload, "pre_forward"):
        offload.pre_forward(vae)


def _prepare(family: Any, source: Tensor, asked: _Asked, encode: bool) -> Execution:
    options = asked.options
    device = _device_of(family)
    precision = _precision(asked, family, device)
    say_start(source, family.device, family.dtype, encode)
    budget = make_budget(
        asked.budget,
        meter.machine_of(device),
        memory_threshold=options.memory_threshold,
        memory_fraction=options.memory_fraction,
    )
    opaque = is_opaque(family)
    if asked.sink is not None:
        shape = family.moments_shape if encode else family.out_shape
        budget = _less(budget, asked.sink.host_bytes(shape(tuple(source.shape))))
    make_backend = (
        torch_backend if opaque else best_backend(device, precision.dtype, options.backend)
    )
    result_dtype = family.result_dtype if opaque else family.dtype
    job = Job(
        family, tuple(source.shape), device, precision.dtype, result_dtype, make_backend,
        encode=encode, is_fused=runs_first(make_backend),
        keeps_result=asked.sink is None,
    )  # fmt: skip
    weights = tensors_of(family) if hasattr(family, "vae") else []
    if asked.out is not None:
        check_result(asked.out, job.out_shape, latents=[source], weights=weights)
    report = make_report(job, source, budget)
    stored = next((name_of(t.dtype) for t in weights if only_stores(t.dtype)), None)
    report.precision_reason = precision.reason + (f", its weights are {stored}" if stored else "")
    return Execution(
        job, source.detach(), budget, asked.strategy, way_options(options), report,
        Counter(asked.progress, asked.cancel),
        Placing(job.out_shape, job.result_dtype, asked.out, asked.sink),
        asked.making, precision.fallback,
        cleanup_frequency=options.cleanup_frequency, synchronization=options.synchronization,
        make_weights=getattr(family, "make_weights", ModuleWeights),
    )  # fmt: skip


def _less(budget: Budget, host_bytes: int) -> Budget:
    """Without what a sink takes on the host."""
    host = max(budget.host_bytes - host_bytes, 0)
    device = max(budget.device_bytes - host_bytes, 0) if budget.is_unified else budget.device_bytes
    return replace(budget, host_bytes=host, device_bytes=device)


def _device_of(family: Any) -> torch.device:
    """Where the VAE's host computes, or what the VAE itself says."""
    host = getattr(family, "host", None)
    if host is not None:
        return torch.device(host.device)
    return resolve_device(getattr(family, "vae", None), default=family.device).device


def _precision(asked: _Asked, family: Any, device: torch.device) -> Precision:
    if asked.making is not None:  # what goes on is of the type that it was begun in
        return Precision(getattr(torch, str(asked.making["dtype"])), "as it was begun")
    architecture = ""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        architecture = str(getattr(properties, "gcnArchName", ""))
    return choose_precision(
        asked.precision, family.dtype, architecture, asked.options.fallback_precision
    )


def way_options(options: DecodeOptions) -> WayOptions:
    """What DecodeOptions say about ways."""
    return WayOptions(
        chunk_size=None if options.chunk_size == "auto" else options.chunk_size,
        slice_bytes=options.slice_bytes,
        cpu_offload=options.cpu_offload,
        halo_pixels=options.halo_pixels,
        overlap_pixels=options.overlap_pixels,
        min_tile_pixels=options.min_tile_pixels,
        statistic_passes=options.statistic_passes,
    )
