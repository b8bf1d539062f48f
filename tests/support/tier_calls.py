"""Calls for one tier, also with padding that PyTorch has no words for: it may differ by side."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import torch

from hy3d_rocm.conv.call import ConvCall, Limits, make_spec
from hy3d_rocm.conv.tiers.current import run_current

_Pads = tuple[tuple[int, ...], tuple[int, ...]]


def make_call(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int | Sequence[int]] = 0,
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
    before, after = (padding, None) if isinstance(padding, str) else _pads(padding, ndim)
    # As much on both sides as fits anything; the sizes are those of the true padding then.
    most = before if after is None else tuple(map(max, before, after))
    values = (x, weight, bias, stride, most, dilation, groups)
    spec = make_spec(values, ndim) if ndim in (2, 3) else None
    if spec is not None and after is not None:
        out = [
            (n + a + b - d * (k - 1) - 1) // s + 1
            for n, a, b, d, k, s in zip(
                spec.x_size[2:], before, after, spec.dilation, spec.kernel, spec.stride, strict=True
            )
        ]
        if min(out) < 1:
            spec = None
        else:
            sizes = (*spec.out_size[:2], *out)
            spec = dataclasses.replace(spec, pad_before=before, pad_after=after, out_size=sizes)
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
