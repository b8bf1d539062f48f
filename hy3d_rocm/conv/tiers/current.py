"""The tier that does what untouched code would do, and calls on one tier with what PyTorch's own
functions can't say: padding that differs by side."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits, make_spec
from hy3d_rocm.conv.tiers import windows

_Pads = tuple[tuple[int, ...], tuple[int, ...]]
_Padding = int | str | Sequence[int | Sequence[int]]


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


def make_call(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: _Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    limits: Limits | None = None,
) -> ConvCall:
    """The call that a tier takes; conv2d or conv3d by the weight's dimensions.

    Arguments as torch.nn.functional.conv3d's, and padding may be pairs (before, after), as in
    ((2, 0), (1, 1), (1, 1)) for causal in time. Raises ValueError where they are no convolution.
    """
    ndim = weight.dim() - 2
    pads = None if isinstance(padding, str) else _pads(padding, ndim)
    values = (x, weight, bias, stride, padding if pads is None else 0, dilation, groups)
    spec = make_spec(values, ndim, pads=pads) if ndim in (2, 3) else None
    if spec is None:
        raise ValueError(
            f"x {tuple(x.shape)} {x.dtype} on {x.device} and weight {tuple(weight.shape)}"
            f" {weight.dtype} on {weight.device} with stride={stride}, padding={padding},"
            f" dilation={dilation}, groups={groups} make no convolution: look at shapes, dtypes"
            " and devices"
        )
    current = functools.partial(run_current, spec, x, weight, bias)
    return ConvCall(spec, x, weight, bias, current, limits or Limits())


def _pads(padding: int | Sequence[int | Sequence[int]], ndim: int) -> _Pads:
    items = (padding,) * ndim if isinstance(padding, int) else tuple(padding)
    items = items * ndim if len(items) == 1 else items
    pairs = [(item, item) if isinstance(item, int) else tuple(item) for item in items]
    if len(pairs) != ndim or any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        raise ValueError(
            f"padding is {padding!r}: give a number, one a dimension, or a pair (before, after) a"
            " dimension, none below zero"
        )
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def run_current(
    spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """What PyTorch as it is set up would be asked for."""
    x = x if spec.batched else x.unsqueeze(0)
    shape = windows.geometry(spec)
    padding = spec.pad_before
    if not spec.is_padded_plainly:
        x, padding = windows.window(windows.lifted(x), shape, shape.box), (0,) * spec.ndim
        x = x.squeeze(2) if spec.ndim == 2 else x
    conv = F.conv2d if spec.ndim == 2 else F.conv3d
    out = conv(x, weight, bias, spec.stride, padding, spec.dilation, spec.groups)
    return out if spec.batched else out.squeeze(0)
