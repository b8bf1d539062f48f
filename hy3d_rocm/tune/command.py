"""`hy3d-rocm tune`: arguments, progress on stderr, the table on stdout."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from hy3d_rocm.arguments import CommandError, check_names, deliver, say
from hy3d_rocm.conv.tiers import TIER_NAMES
from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.tools import loading
from hy3d_rocm.tune import fused, session, shapes
from hy3d_rocm.tune.session import tune_dict, tune_text

FUSED = "fused"  # among the tiers: the kernels of decode()
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
_say = partial(say, "tune")
_NONE = (
    "PyTorch sees no GPU here (torch.cuda.is_available() is False), and this measures GPU"
    " back-ends; on a ROCm machine use the Python that runs ComfyUI"
)


class NoGpuError(CommandError):
    """There is no such GPU; the text says what to do."""

    code = 2


def find_gpu(text: str) -> torch.device:
    """The torch.device, with its index; it is made the current one, on which events are recorded
    and Triton launches. NoGpuError with a sentence where there is none."""
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise NoGpuError(f'--device {text!r} is no device; write "cuda" or "cuda:1"') from error
    if device.type != "cuda" or not torch.cuda.is_available():
        raise NoGpuError(_NONE)
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise NoGpuError(f"there is no {text}: PyTorch sees {torch.cuda.device_count()} GPUs")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def run_tune_command(arguments: argparse.Namespace) -> int:
    """Exit code: see the epilog."""
    try:
        device = find_gpu(arguments.device)
        report, default, compiled = _run(arguments, device)
    except (ValueError, TypeError) as error:  # sentences: of a VAE, a size, tiers that are none
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say("interrupted before any convolution was measured")
        return 130
    code = deliver(
        tune_text(report, default), tune_dict(report, default), arguments.json, _say,
        measured=not report.fault, interrupted=report.interrupted,
    )  # fmt: skip
    if code:
        return code
    try:
        line = compiled()
    except KeyboardInterrupt:
        return 130
    if line:
        _say(line)
    return 0


def _run(arguments: argparse.Namespace, device: torch.device) -> tuple[Any, str, Callable[[], str]]:
    """The report, the tier that computes these shapes today, and what compiles the fused decode's
    kernels and says so."""
    tiers, began = tuple(dict.fromkeys(arguments.tiers)), time.monotonic()
    check_names("--tiers", tiers, [*(name for name in TIER_NAMES if name != "current"), FUSED])
    dtype = getattr(torch, _DTYPES[arguments.dtype])
    vae = shapes.load_vae(arguments.vae, dtype)
    width, height = arguments.size
    latent = loading.latent_shape(family_for(vae), arguments.frames, height, width)
    decode = session.plan_decode(vae, latent, dtype, device)
    if FUSED in tiers:
        try:
            said = fused.tune_decode(*decode, _say, limit_s=arguments.limit, again=arguments.again)
            _say(said or "this decode is not computed by fused kernels")
        except KeyboardInterrupt:
            _say("interrupted; the tiles that were measured by then are kept")
            raise
    if shapes.is_as_diffusers(vae):
        found = shapes.collect(vae, latent, dtype, str(device))
    else:
        found = shapes.collect_decode(*decode)[0]
    left = max(arguments.limit - (time.monotonic() - began), 0.0)
    _say(f"{len(found)} shapes of {latent} latents, {left:.0f} s at most")
    tiers = tuple(name for name in tiers if name != FUSED)
    wishes = session.Wishes(tiers, arguments.again, arguments.retry_hung, arguments.probe, left)
    report, default = session.tune_shapes(found, device, wishes, _say)
    return report, default, lambda: fused.compile_decode(*decode)
