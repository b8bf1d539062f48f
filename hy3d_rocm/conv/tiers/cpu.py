"""The last tier: our C convolution on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hy3d_rocm import _native
from hy3d_rocm.conv import functional
from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.problem import Range, Triple
from hy3d_rocm.conv.tiers import windows
from hy3d_rocm.conv.tiers.base import allowance, empty_result, shortage
from hy3d_rocm.units import size_text

_HOST = torch.device("cpu")
# Below this, pieces would be too many; a device that is so short fails anyway.
_LEAST_DEVICE_BYTES = 16 << 20
# Of a piece on the host at most; larger ones are no faster.
_PIECE_BYTES = 512 << 20


class CpuTier:
    """Our C conv3d on the host. GPU tensors are copied there in pieces, and the results back: that
    takes some hundredths of the time that computing does.

    options: threads, workspace_limit, cancel and accuracy for it. conv3d: stands for it (tests).
    """

    name = "cpu"

    def __init__(self, *, conv3d: Callable[..., Any] | None = None, **options: Any) -> None:
        self._options = {"accuracy": "fast", **options}
        self._conv3d = conv3d

    def label(self, call: ConvCall) -> str:
        return "hy3d_rocm on the CPU"

    def workspace_bytes(self, spec: ConvSpec) -> int:
        if spec.device.type != "cpu":
            steps = _steps_within(spec, _PIECE_BYTES)
            return 0 if steps is None else device_bytes(spec, steps)
        limit = self._options.get("workspace_limit")
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
        row = piece_bytes(spec, (1, 1, 1))
        if row > _PIECE_BYTES:
            return f"one output position of it reads more than {size_text(_PIECE_BYTES)}"
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
            shape = spec.problem
            pads = tuple(zip(shape.pad_before, shape.pad_after, strict=True))
            self._compute(spec, filters, addend, source, pads, whole)
        elif out.numel():
            steps = _steps(spec, call.limits) or (1, 1, 1)
            self._compute_pieces(spec, filters, addend, source, whole, steps)
        return windows.lowered(out, spec)

    def _compute_pieces(
        self, spec: ConvSpec, weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor,
        out: torch.Tensor, steps: Triple,
    ) -> None:  # fmt: skip
        """Of tensors anywhere: each piece by way of the host."""
        windows.in_pieces(
            spec, x, out, steps, lambda piece: self._compute(spec, weight, bias, piece.to(_HOST))
        )

    def _compute(
        self, spec: ConvSpec, weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor,
        pads: int | tuple[Range, ...] = 0, out: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """One call of the C conv3d on host tensors (N, C, T, H, W)."""
        assert self._conv3d is not None
        shape = spec.problem
        made: torch.Tensor = self._conv3d(
            x, weight, bias, shape.stride, pads, shape.dilation, shape.groups, out=out,
            **self._options,
        )  # fmt: skip
        return made


def _steps(spec: ConvSpec, limits: Limits) -> Triple | None:
    """The boxes that the host has room for, smaller ones where the device, too, is short: this tier
    comes last, often after an out of memory."""
    only_free = Limits(None, limits.memory_threshold)
    host, device = allowance(only_free, _HOST), allowance(only_free, spec.device)
    most = _PIECE_BYTES if host is None else min(_PIECE_BYTES, host)
    if device is not None:
        device = max(device - spec.out_bytes, _LEAST_DEVICE_BYTES)
    return _steps_within(spec, most, device) or _steps_within(spec, most)


def piece_bytes(spec: ConvSpec, steps: Triple) -> int:
    """Host bytes of the input and the result of a box."""
    return sum(spec.problem.box_elems(steps)) * spec.dtype.itemsize


def device_bytes(spec: ConvSpec, steps: Triple) -> int:
    """What is copied is made dense on the device, and a padded window is one more."""
    read, made = spec.problem.box_elems(steps)
    padded = read if spec.problem.is_padded else 0
    return (read + made + padded) * spec.dtype.itemsize


def _steps_within(spec: ConvSpec, host: int, device: int | None = None) -> Triple | None:
    """The largest boxes that take at most `host` bytes there and `device` bytes on the device, or
    None."""

    def excess(steps: Triple) -> int:
        over = piece_bytes(spec, steps) - host
        return over if device is None else max(over, device_bytes(spec, steps) - device)

    return windows.steps_that_fit(spec.problem.out, excess, 0, cut_width=True)
