"""The real thing in the child: tensors of its own, a tier of hy3d_rocm, synchronised times."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from hy3d_rocm.conv import selfcheck
from hy3d_rocm.conv.call import ConvCall, ConvSpec
from hy3d_rocm.conv.tiers import Limits, make_tier
from hy3d_rocm.conv.tiers.current import run_current

# What the first convolution of a process may take more: the vendor library reads its kernels and
# data bases (cuDNN's alone are half a gigabyte). That is no find.
_LOADING_S = 2.0


class WrongResultError(Exception):
    """A tier's result is not what its inputs give (selfcheck.py)."""


class RefusedError(Exception):
    """The tier can't take the shape, and says so itself: nothing was tried."""


def _set_flags(flags: dict[str, bool]) -> None:
    for name, value in flags.items():
        try:
            getattr(torch._C, f"_set_{name}")(value)
        except (AttributeError, RuntimeError):
            continue


class Bench:
    """Runs tiers on the devices it was made for.

    Making it brings each device up (context, one elementwise kernel), so that this is neither
    counted as a find nor taken for a fault of the first shape. No convolution is run for that:
    the first one of a process may be what hangs.
    """

    def __init__(self, devices: list[str], flags: dict[str, bool]) -> None:
        self.loading_s = _LOADING_S if any(name != "cpu" for name in devices) else 0.0
        _set_flags(flags)
        for name in devices:
            device = torch.device(name)
            torch.zeros(1, device=device).add_(1)
            self._synchronise(device)

    def prepare(
        self, tier: str, spec: Any, check: bool
    ) -> tuple[Callable[[], None], Callable[[], int | None]]:
        """(one synchronised call, peak bytes of the calls so far). check: see Case."""
        conv = ConvSpec.from_json(spec)
        call = make_call(conv)
        chosen = make_tier(tier)
        refused = chosen.refusal(call, Limits())
        if refused is not None:
            raise RefusedError(refused)
        device, is_unchecked = conv.device, check
        self._synchronise(device)
        before = 0
        if device.type == "cuda":
            torch.cuda.set_device(device)  # Triton launches on the current one
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)

        def run() -> None:
            nonlocal is_unchecked
            with torch.inference_mode():
                result = chosen.run(call)
            self._synchronise(device)
            if is_unchecked:
                is_unchecked = False
                finding = selfcheck.check(tier, call, result)
                if finding.fault:
                    raise WrongResultError(finding.detail)

        def peak() -> int | None:
            if device.type != "cuda":
                return None
            most = int(torch.cuda.max_memory_allocated(device))
            return int(max(most - before - conv.out_bytes, 0))

        return run, peak

    @staticmethod
    def _synchronise(device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    @staticmethod
    def release() -> None:
        """The next shape finds the memory that this one found."""
        gc.collect()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()


def make_call(spec: ConvSpec) -> ConvCall:
    """A call of this spec on numbers in [-1, 1)."""
    x = _numbers(spec.x_size if spec.batched else spec.x_size[1:], spec)
    weight = _numbers(spec.weight_size, spec)
    bias = _numbers(spec.weight_size[:1], spec) if spec.has_bias else None
    if spec.channels_last and spec.batched:
        x = x.contiguous(memory_format=spec.memory_format)
    return ConvCall(spec, x, weight, bias, lambda: run_current(spec, x, weight, bias))


def _numbers(size: tuple[int, ...], spec: ConvSpec) -> torch.Tensor:
    return torch.empty(size, dtype=spec.dtype, device=spec.device).uniform_(-1, 1)
