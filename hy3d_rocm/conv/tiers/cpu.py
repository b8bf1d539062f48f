"""The last tier: our C convolution on the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from hy3d_rocm import _native
from hy3d_rocm._fallback import INSTALL
from hy3d_rocm.conv import functional
from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.tiers.base import shortage


class CpuTier:
    """Our C conv3d on the host. GPU tensors are copied there and the result back.

    `conv3d` replaces hy3d_rocm.conv.functional.conv3d (tests); the rest is passed on to it.
    """

    name = "cpu"

    def __init__(
        self,
        *,
        threads: int | None = None,
        workspace_limit: int | None = None,
        cancel: object = None,
        conv3d: Callable[..., Any] | None = None,
    ) -> None:
        self._options = {"threads": threads, "workspace_limit": workspace_limit, "cancel": cancel}
        self._conv3d = conv3d

    def label(self, call: ConvCall) -> str:
        return "hy3d_rocm on the CPU"

    def workspace_bytes(self, spec: ConvSpec) -> int:
        limit = self._options["workspace_limit"]
        return limit if isinstance(limit, int) and spec.device.type == "cpu" else 0

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        if self._conv3d is None:
            if not _native.available:
                return f"the C core is not there ({_native.missing}); {INSTALL}"
            blas = _native.blas_info()
            if not blas["available"]:
                return f"the C core has no BLAS library ({blas['error']})"
            self._conv3d = functional.conv3d
        # Asked first, since Linux grants what it does not have and later kills the process.
        spec = call.spec
        need = spec.out_bytes
        if spec.device.type != "cpu":
            need += math.prod(spec.x_size) * spec.dtype.itemsize
        host = Limits(None, limits.memory_threshold)
        return shortage(need, host, torch.device("cpu"), "input and output on the host")

    def run(self, call: ConvCall) -> torch.Tensor:
        assert self._conv3d is not None, "refusal() is asked first"
        spec = call.spec
        # A parameter that requires grad can't be exported, even with grad mode off.
        x, weight, bias = (None if t is None else t.detach().cpu() for t in call.operands())
        assert x is not None
        assert weight is not None
        out = torch.empty(spec.out_size, dtype=spec.dtype, memory_format=spec.memory_format)
        pads = tuple(zip(spec.pad_before, spec.pad_after, strict=True))
        stride, dilation, target = spec.stride, spec.dilation, out
        modes = spec.pad_modes
        if spec.ndim == 2:
            x, weight, target = x.unsqueeze(2), weight.unsqueeze(2), out.unsqueeze(2)
            stride, dilation, pads = (1, *stride), (1, *dilation), ((0, 0), *pads)
            modes = ("zeros", *modes)
        symmetric = all(a == b for a, b in pads)
        extra = {} if set(modes) == {"zeros"} else {"padding_mode": modes}
        self._conv3d(
            x, weight, bias, stride, tuple(a for a, _ in pads) if symmetric else pads, dilation,
            spec.groups, out=target, **extra, **self._options,
        )  # fmt: skip
        result = out.to(spec.device)
        return result if spec.batched else result.squeeze(0)
