"""`hy3d-rocm tune`: arguments, progress on stderr, the table on stdout."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hy3d_rocm.arguments import deliver, say

FUSED = "fused"  # among the tiers: the kernels of decode()
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


_say = partial(say, "tune")
_NONE = (
    "PyTorch sees no GPU here (torch.cuda.is_available() is False), and this measures GPU"
    " back-ends; on a ROCm machine use the Python that runs ComfyUI"
)


class NoGpuError(Exception):
    """There is no such GPU; the text says what to do."""


def find_gpu(text: str) -> Any:
    """The torch.device, with its index; it is made the current one, on which events are recorded
    and Triton launches. NoGpuError with a sentence where there is none."""
    import torch

    try:
        device: Any = torch.device(text)
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
    except NoGpuError as error:
        _say(str(error))
        return 2
    except (ValueError, TypeError) as error:  # sentences: of a VAE, a size, tiers that are none
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say("interrupted before any convolution was measured")
        return 130
    from hy3d_rocm.tune.report import tune_dict, tune_text

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
    except RuntimeError as error:
        line = f"the kernels of its fused decode were not compiled: {error}"
    if line:
        _say(line)
    return 0


def _run(arguments: argparse.Namespace, device: Any) -> tuple[Any, str, Callable[[], str]]:
    """The report, the tier that computes these shapes today, and what compiles the fused decode's
    kernels and says so."""
    import torch

    from hy3d_rocm.tune import shapes
    from hy3d_rocm.tune.fused import compile_decode, tune_decode
    from hy3d_rocm.tune.session import Wishes, plan_decode, tune_shapes

    tiers, began = _known_tiers(arguments.tiers), time.monotonic()
    dtype = getattr(torch, _DTYPES[arguments.dtype])
    vae = shapes.load_vae(arguments.vae, dtype)
    latent = shapes.latent_size(vae, arguments.size, arguments.frames)
    decode = plan_decode(vae, latent, dtype, device)
    if FUSED in tiers:
        try:
            said = tune_decode(*decode, _say, limit_s=arguments.limit, again=arguments.again)
            _say(said or "this decode is not computed by fused kernels")
        except RuntimeError as error:
            _say(f"the kernels of its fused decode were not measured: {error}")
        except KeyboardInterrupt:
            _say("interrupted; the tiles that were measured by then are kept")
            raise
    found = shapes.collect(vae, latent, dtype, str(device))
    left = max(arguments.limit - (time.monotonic() - began), 0.0)
    _say(f"{len(found)} shapes of {latent} latents, {left:.0f} s at most")
    tiers = tuple(name for name in tiers if name != FUSED)
    wishes = Wishes(tiers, arguments.again, arguments.retry_hung, arguments.probe, left)
    report, default = tune_shapes(found, device, wishes, _say)
    return report, default, lambda: compile_decode(*decode)


def _known_tiers(names: tuple[str, ...]) -> tuple[str, ...]:
    from hy3d_rocm.conv.tiers import TIER_NAMES
    from hy3d_rocm.tune.shapes import TuneError

    known = [*(name for name in TIER_NAMES if name != "current"), FUSED]
    for name in names:
        if name not in known:
            raise TuneError(f"--tiers: {name!r} is none of {', '.join(known)}")
    return tuple(dict.fromkeys(names))
