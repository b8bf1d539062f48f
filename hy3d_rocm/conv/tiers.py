"""The rungs of the ladder: the current back-end, PyTorch's native operators, our C conv3d."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from hy3d_rocm import _native
from hy3d_rocm._fallback import INSTALL
from hy3d_rocm.conv import functional, memory
from hy3d_rocm.conv.call import ConvCall, ConvSpec

# Reading the free memory takes 0.2 ms on Linux: not worth it for a buffer that always fits.
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What a tier may use: `budget` bytes of workspace, and a share of what is free."""

    budget: int | None = None
    memory_threshold: float = 0.8


class Tier(Protocol):
    """One way to compute a convolution. Stateless between calls, may be shared by threads."""

    @property
    def name(self) -> str:
        """Short and fixed: the name in statistics, faults and protect(tiers=...)."""

    def label(self, call: ConvCall) -> str:
        """What a user reads in "from now on: ..."."""

    def workspace_bytes(self, spec: ConvSpec) -> int:
        """Predicted bytes beside input, weight and output on `spec.device`; 0 if unknown."""

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        """Why this tier can't take the call (a few words), or None."""

    def run(self, call: ConvCall) -> torch.Tensor:
        """The result, batched or not as the input was, of dtype and device of the call."""


class CurrentTier:
    """PyTorch as it is set up: MIOpen, cuDNN, oneDNN, or its native code where those are off."""

    name = "current"

    def label(self, call: ConvCall) -> str:
        return backend_label(call)

    def workspace_bytes(self, spec: ConvSpec) -> int:
        return 0

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        return None

    def run(self, call: ConvCall) -> torch.Tensor:
        return call.run_current()


def select_backend(call: ConvCall) -> str:
    """The name of the back-end that PyTorch itself would choose ("Miopen", "Slow3d", ...)."""
    spec = call.spec
    if spec.pad_before != spec.pad_after:
        return "unknown"
    x, weight, bias = call.operands()
    flat = (spec.stride, spec.pad_before, spec.dilation, False, (0,) * spec.ndim, spec.groups)
    try:
        chosen = torch._C._select_conv_backend(x, weight, bias, *flat)
    except RuntimeError:
        return "unknown"
    return str(chosen.name)


def backend_label(call: ConvCall) -> str:
    chosen = select_backend(call)
    for part, label in (
        ("Miopen", "MIOpen"),
        ("Cudnn", "cuDNN"),
        ("Mkldnn", "oneDNN"),
        ("Slow", "PyTorch native"),
    ):
        if part in chosen:
            return label
    return "the current back-end"


class NativeTier:
    """PyTorch's own im2col operators, called by name: no MIOpen, no cuDNN, no oneDNN.

    No flag is flipped. The operators exist for CPU and CUDA/HIP. The im2col buffer of one sample
    and one group is prod(kernel) times the input (27x for 3x3x3), and is predicted first. On the
    CPU PyTorch would build it for the whole batch at once, so samples go one at a time here.
    """

    name = "native"

    def label(self, call: ConvCall) -> str:
        return "PyTorch native"

    def workspace_bytes(self, spec: ConvSpec) -> int:
        if self._is_depthwise(spec):
            return 0
        columns = 0 if spec.is_view else spec.column_elems()
        # One sample's padded copy for "same" with an even kernel; groups are sliced, not copied.
        padded = 0
        if spec.pad_before != spec.pad_after:
            padded = spec.x_size[1]
            for n, a, b in zip(spec.x_size[2:], spec.pad_before, spec.pad_after, strict=True):
                padded *= n + b - a
        # Results of single samples or groups are copied to their place.
        part = spec.out_bytes if self._is_split(spec) else 0
        return (columns + padded) * spec.dtype.itemsize + part

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        spec = call.spec
        if spec.device.type not in ("cpu", "cuda"):
            return f"PyTorch has no native convolution for {spec.device.type}"
        need = self.workspace_bytes(spec) + spec.out_bytes
        if limits.budget is not None and need > limits.budget:
            return (
                f"its im2col buffer and output need {memory.text(need)} of a budget of"
                f" {memory.text(limits.budget)}"
            )
        if need <= _SMALL_BYTES:
            return None
        free = memory.free_bytes(spec.device)
        if free is not None and need > free * limits.memory_threshold:
            return (
                f"its im2col buffer and output need {memory.text(need)}, and"
                f" {limits.memory_threshold:.0%} of the {memory.text(free)} that are free is less"
            )
        return None

    def run(self, call: ConvCall) -> torch.Tensor:
        spec = call.spec
        x, weight, bias = call.operands()
        if self._is_depthwise(spec) or not self._is_split(spec):
            out = self._one(spec, x, weight, bias)
            out = out.contiguous(memory_format=spec.memory_format)
        else:
            out = self._split(spec, x, weight, bias)
        return out if spec.batched else out.squeeze(0)

    @staticmethod
    def _is_depthwise(spec: ConvSpec) -> bool:
        return spec.device.type == "cuda" and spec.groups == spec.x_size[1] > 1

    @staticmethod
    def _is_split(spec: ConvSpec) -> bool:
        return spec.groups > 1 or spec.x_size[0] != 1

    def _split(
        self, spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        out = torch.empty(
            spec.out_size, dtype=spec.dtype, device=spec.device, memory_format=spec.memory_format
        )
        cin, cout = spec.weight_size[1], spec.weight_size[0] // spec.groups
        for n in range(spec.x_size[0]):
            for g in range(spec.groups):
                rows = slice(g * cout, (g + 1) * cout)
                part = x[n : n + 1, g * cin : (g + 1) * cin]
                part_bias = None if bias is None else bias[rows]
                out[n : n + 1, rows] = self._one(spec, part, weight[rows], part_bias)
        return out

    def _one(
        self, spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """One operator call: one group (or all of a depthwise one), symmetric padding."""
        if spec.pad_before != spec.pad_after:
            sides = reversed(list(zip(spec.pad_before, spec.pad_after, strict=True)))
            x = F.pad(x, [n for before, after in sides for n in (0, after - before)])
        aten = torch.ops.aten
        # self, weight, kernel_size, bias, stride, padding: the order that all of them share.
        head = (x, weight, spec.kernel, bias, spec.stride, spec.pad_before)
        operator: Callable[..., Any]
        if self._is_depthwise(spec):
            operator = aten.conv_depthwise3d if spec.ndim == 3 else aten._conv_depthwise2d
            return self._tensor(operator(*head, spec.dilation))
        dilated = any(d != 1 for d in spec.dilation)
        if spec.ndim == 2 and not dilated:
            return self._tensor(aten._slow_conv2d_forward(*head))
        if spec.ndim == 3 and not dilated and spec.device.type == "cpu":
            return self._tensor(aten.slow_conv3d(*head))  # exists for the CPU only
        operator = aten.slow_conv_dilated3d if spec.ndim == 3 else aten.slow_conv_dilated2d
        return self._tensor(operator(*head, spec.dilation))

    @staticmethod
    def _tensor(value: Any) -> torch.Tensor:
        assert isinstance(value, torch.Tensor)
        return value


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
        return self._short_of_host_memory(call, limits)

    @staticmethod
    def _short_of_host_memory(call: ConvCall, limits: Limits) -> str | None:
        """Asked first, since Linux grants what it does not have and later kills the process."""
        spec = call.spec
        need = spec.out_bytes
        if spec.device.type != "cpu":
            need += math.prod(spec.x_size) * spec.dtype.itemsize
        if need <= _SMALL_BYTES:
            return None
        free = memory.free_bytes(torch.device("cpu"))
        if free is None or need <= free * limits.memory_threshold:
            return None
        return (
            f"it needs {memory.text(need)} on the host, and {limits.memory_threshold:.0%} of the"
            f" {memory.text(free)} that are free is less"
        )

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
        if spec.ndim == 2:
            x, weight, target = x.unsqueeze(2), weight.unsqueeze(2), out.unsqueeze(2)
            stride, dilation, pads = (1, *stride), (1, *dilation), ((0, 0), *pads)
        symmetric = all(a == b for a, b in pads)
        self._conv3d(
            x, weight, bias, stride, tuple(a for a, _ in pads) if symmetric else pads, dilation,
            spec.groups, out=target, **self._options,
        )  # fmt: skip
        result = out.to(spec.device)
        return result if spec.batched else result.squeeze(0)


def make_tier(name: str, **cpu_options: Any) -> Tier:
    """The tier of that name; a sentence for any other."""
    if name == "current":
        return CurrentTier()
    if name == "native":
        return NativeTier()
    if name == "cpu":
        return CpuTier(**cpu_options)
    raise ValueError(f"tiers: {name!r} is no tier; use 'current', 'native' or 'cpu'")
