"""Results of common operators on "meta" tensors, made directly.

Torch's own rules for shapes are Python and take 0.1 to 1 ms a call; a prediction makes ten thousand
calls. What is not covered here goes to torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_aten = torch.ops.aten
_IN_PLACE = frozenset(
    {
        _aten.add_.Tensor, _aten.add_.Scalar, _aten.sub_.Tensor, _aten.mul_.Tensor,
        _aten.mul_.Scalar, _aten.div_.Tensor, _aten.copy_.default, _aten.zero_.default,
        _aten.fill_.Scalar, _aten.silu_.default, _aten.square_.default, _aten.sqrt_.default,
        _aten.rsqrt_.default, _aten.clamp_min_.default,
    }
)  # fmt: skip
_POINTWISE = frozenset(
    {
        _aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor,
        _aten.maximum.default, _aten.minimum.default, _aten.rsqrt.default, _aten.sqrt.default,
        _aten.square.default, _aten.abs.default, _aten.neg.default, _aten.silu.default,
        _aten.clamp_min.default, _aten.addcmul.default, _aten.reciprocal.default,
    }
)  # fmt: skip


def quick(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of `func`, or None where it is not covered (nothing here results in None)."""
    if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_meta:
        return None
    if func in _IN_PLACE:
        return args[0]
    if func in _POINTWISE and not kwargs:
        return _pointwise(args)
    if func is _aten.var_mean.correction and args[0].is_floating_point():
        shape = _reduced(args[0], args[1] if len(args) > 1 else None, kwargs.get("keepdim", False))
        return tuple(torch.empty(shape, dtype=args[0].dtype, device="meta") for _ in range(2))
    if func in (_aten.mean.dim, _aten.sum.dim_IntList) and not kwargs:
        if not args[0].is_floating_point():
            return None
        shape = _reduced(args[0], args[1], len(args) > 2 and args[2])
        return torch.empty(shape, dtype=args[0].dtype, device="meta")
    return None


def _pointwise(args: Sequence[Any]) -> Any:
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    first = tensors[0]
    if not first.is_floating_point():
        return None
    for other in tensors[1:]:
        if other.dtype is not first.dtype or not other.is_meta:
            return None
    shapes = {tuple(t.shape) for t in tensors}
    if len(shapes) == 1:
        return torch.empty_like(first)
    shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return torch.empty(shape, dtype=first.dtype, device="meta")


def _reduced(x: torch.Tensor, dims: Sequence[int] | None, keepdim: bool) -> list[int]:
    gone = {d % x.dim() for d in dims} if dims else set(range(x.dim()))
    if keepdim:
        return [1 if i in gone else n for i, n in enumerate(x.shape)]
    return [n for i, n in enumerate(x.shape) if i not in gone]
