"""Questions to a tier, whose code may be what is broken: an answer comes in any case.

Only a cancel and a lost device pass through: after that nobody can answer anything.
"""

from __future__ import annotations

import torch

from hy3d_rocm import memory
from hy3d_rocm.conv import errors
from hy3d_rocm.conv.call import ConvCall, ConvSpec
from hy3d_rocm.conv.cancels import is_cancel
from hy3d_rocm.conv.choice import Setting
from hy3d_rocm.conv.errors import DeviceLostError, Kind
from hy3d_rocm.conv.tiers import Limits, Tier


def is_lost(error: BaseException) -> bool:
    """Whether the device is gone."""
    found = errors.classify(error)
    return isinstance(error, DeviceLostError) or (
        found is not None and found.kind is Kind.DEVICE_LOST
    )


def _passes(error: Exception) -> bool:
    return is_cancel(error) or is_lost(error)


def words(error: BaseException) -> str:
    """'ValueError: its text', in one line."""
    return f"{type(error).__name__}: {errors.first_line(error)}"


def refusal(tier: Tier, call: ConvCall, limits: Limits) -> str | None:
    """Why the tier can't take the call, or None; a tier that can't even say so can't."""
    try:
        reason = tier.refusal(call, limits)
        if reason is None:
            tier.workspace_bytes(call.spec)
    except Exception as error:
        if _passes(error):
            raise
        return f"asking it failed ({words(error)})"
    return reason


def workspace(tier: Tier, spec: ConvSpec) -> int:
    """The bytes that it predicts, 0 where it can't (refusal() says so)."""
    try:
        return tier.workspace_bytes(spec)
    except Exception as error:
        if _passes(error):
            raise
        return 0


def label(tier: Tier, call: ConvCall) -> str:
    """What a user reads, its name where it can't say."""
    try:
        return tier.label(call)
    except Exception as error:
        if _passes(error):
            raise
        return tier.name


def compiles(tier: Tier, spec: ConvSpec, setting: Setting) -> bool:
    """Whether the tier's call would compile a kernel, on ROCm (elsewhere it is not asked)."""
    ask = getattr(tier, "compiles", None)
    if ask is None or not setting.is_rocm:
        return False
    try:
        return bool(ask(spec))
    except Exception as error:
        if _passes(error):
            raise
        return False


def free_bytes(device: torch.device) -> int | None:
    """As memory.free_bytes; None too where the device can't say."""
    try:
        return memory.free_bytes(device)
    except Exception as error:
        if _passes(error):
            raise
        return None
