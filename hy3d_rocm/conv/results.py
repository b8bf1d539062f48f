"""What a tier returned, held against what was asked for."""

from __future__ import annotations

import torch

from hy3d_rocm.conv.call import ConvCall, dtype_name, size_text
from hy3d_rocm.conv.errors import BadResultError


def check_result(
    result: torch.Tensor, call: ConvCall, synchronize: bool, check_finite: bool
) -> None:
    """A tier that lies is a tier that failed: BadResultError."""
    spec = call.spec
    if not isinstance(result, torch.Tensor):
        raise BadResultError(f"it returned {type(result).__name__} instead of a tensor")
    got = (tuple(result.shape), result.dtype, result.device)
    if got != (spec.result_size, spec.dtype, spec.device):
        raise BadResultError(
            f"it returned {size_text(got[0])} {dtype_name(got[1])} on {got[2]} instead of"
            f" {size_text(spec.result_size)} {dtype_name(spec.dtype)} on {spec.device}"
        )
    if synchronize and spec.device.type == "cuda":
        torch.cuda.synchronize(spec.device)
    if check_finite and not _is_finite(result) and _inputs_are_finite(call):
        raise BadResultError("it returned NaN or infinity for finite input")


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _inputs_are_finite(call: ConvCall) -> bool:
    tensors = (call.x, call.weight, call.bias)
    return all(_is_finite(t) for t in tensors if t is not None)
