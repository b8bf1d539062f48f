"""The last tier: our C convolution on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hy3d_rocm import _native
from hy3d_rocm.conv import functional
from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.tiers import staging, windows
from hy3d_rocm.conv.tiers.base import allowance, empty_result, shortage
from hy3d_rocm.conv.tiers.windows import Sizes
from hy3d_rocm.units import size_text

_HOST = torch.device("cpu")
# Below this, pieces would be too many; a device that is so short fails anyway.
_LEAST_DEVICE_BYTES = 16 << 20
# Staging buffers on the host at most; larger ones are no faster.
_STAGING_BYTES = 512 << 20


class CpuTier:
    """Our C conv3d on the host. GPU tensors are copied there in pieces, and the results back, while
    other pieces are computed (`staging`).

    `conv3d` replaces hy3d_rocm.conv.functional.conv3d (tests); the rest is passed on to it.
    """

    name = "cpu"

    def __init__(
        self,
        *,
        threads: int | None = None,
        workspace_limit: int | None = None,
        cancel: object = None,
        accuracy: str = "fast",
        conv3d: Callable[..., Any] | None = None,
    ) -> None:
        self._options = {
            "threads": threads, "workspace_limit": workspace_limit, "cancel": cancel,
            "accuracy": accuracy,
        }  # fmt: skip
        self._conv3d = conv3d

    def label(self, call: ConvCall) -> str:
        return "hy3d_rocm on the CPU"

    def workspace_bytes(self, spec: ConvSpec) -> int:
        if spec.device.type != "cpu":
            steps = staging.steps_within(spec, _STAGING_BYTES)
            return 0 if steps is None else staging.device_bytes(spec, steps)
        limit = self._options["workspace_limit"]
        return limit if isinstance(limit, int) else 0

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        if self._conv3d is None:
            if not _native.available:
                from hy3d_rocm._fallback import INSTALL  # looks through sys.path

                return f"the C core is not there ({_native.missing}); {INSTALL}"
            blas = _native.blas_info()
            if not blas["available"]:
                return f"the C core has no BLAS library ({blas['error']})"
            self._conv3d = functional.conv3d
        # Asked first, since Linux grants what it does not have and later kills the process.
        spec, host = call.spec, Limits(None, limits.memory_threshold)
        if spec.device.type == "cpu":
            return shortage(spec.out_bytes, host, _HOST, "input and output on the host")
        if min(spec.out_size) == 0 or _steps(spec, limits) is not None:
            return None
        row = staging.buffer_bytes(spec, (1, 1, 1))
        if row > _STAGING_BYTES:
            return f"one output position of it reads more than {size_text(_STAGING_BYTES)}"
        return shortage(row, host, _HOST, "staging buffers on the host")

    def run(self, call: ConvCall) -> torch.Tensor:
        assert self._conv3d is not None, "refusal() is asked first"
        spec = call.spec
        # A parameter that requires grad can't be exported, even with grad mode off.
        x, weight, bias = call.values()
        out = empty_result(spec)
        whole, source = windows.lifted(out), windows.lifted(x)
        filters = windows.lifted(weight.cpu())
        addend = None if bias is None else bias.cpu()
        if spec.device.type == "cpu":
            self._compute(spec, filters, addend, source, whole, padded=True)
        elif out.numel():
            steps = _steps(spec, call.limits) or (1, 1, 1)

            def compute(window: torch.Tensor, result: torch.Tensor) -> None:
                self._compute(spec, filters, addend, window, result, padded=False)

            staging.run(spec, source, whole, steps, staging.lanes_for(spec.device), compute)
        return windows.lowered(out, spec)

    def _compute(
        self, spec: ConvSpec, weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor,
        out: torch.Tensor, *, padded: bool,
    ) -> None:  # fmt: skip
        """One call of the C conv3d on host tensors (N, C, T, H, W)."""
        assert self._conv3d is not None
        shape = windows.geometry(spec)
        pads: Any = 0
        if padded:
            pairs = tuple(zip(shape.before, shape.after, strict=True))
            pads = shape.before if shape.before == shape.after else pairs
        self._conv3d(
            x, weight, bias, shape.stride, pads, shape.dilation, shape.groups, out=out,
            **self._options,
        )  # fmt: skip


def _steps(spec: ConvSpec, limits: Limits) -> Sizes | None:
    """The boxes that the host has room for, smaller ones where the device, too, is short: this tier
    comes last, often after an out of memory."""
    only_free = Limits(None, limits.memory_threshold)
    host, device = allowance(only_free, _HOST), allowance(only_free, spec.device)
    most = _STAGING_BYTES if host is None else min(_STAGING_BYTES, host)
    if device is not None:
        device = max(device - spec.out_bytes, _LEAST_DEVICE_BYTES)
    return staging.steps_within(spec, most, device) or staging.steps_within(spec, most)
