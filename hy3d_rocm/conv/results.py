"""What a tier returned, held against what was asked for."""

from __future__ import annotations

import torch

from hy3d_rocm.conv import selfcheck
from hy3d_rocm.conv.call import ConvCall, dtype_name, size_text
from hy3d_rocm.conv.errors import BadResultError
from hy3d_rocm.conv.selfcheck import Finding


def check_form(result: torch.Tensor, call: ConvCall, synchronize: bool) -> None:
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


def check_values(tier: str, result: torch.Tensor, call: ConvCall, *, is_first: bool) -> str:
    """BadResultError where the values are the tier's fault; else "" or, where the result's dtype
    can't hold the values, the sentence about that.

    The first result is compared with exact sums; a later one only looked through for NaN.
    """
    if is_first:
        found = selfcheck.check(tier, call, result)
    elif bool(torch.isfinite(result).all()):
        found = selfcheck.SOUND
    else:
        found = selfcheck.diagnose(call, result)
    return _judge(found)


def _judge(found: Finding) -> str:
    if found.fault == "tier":
        raise BadResultError(f"its result is wrong: {found.detail}")
    return found.detail if found.fault == "precision" else ""
