"""Questions to a tier, whose code may be what is broken: an answer comes in any case.

Only a cancel and a lost device pass through: after that nobody can answer anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from hy3d_rocm import memory
from hy3d_rocm.conv import errors
from hy3d_rocm.conv.call import ConvCall, ConvSpec
from hy3d_rocm.conv.cancels import is_cancel
from hy3d_rocm.conv.choice import Setting
from hy3d_rocm.conv.errors import DeviceLostError, Kind
from hy3d_rocm.conv.tiers import Limits, Tier

_T = TypeVar("_T")


def is_lost(error: BaseException) -> bool:
    """Whether the device is gone."""
    found = errors.classify(error)
    return isinstance(error, DeviceLostError) or (
        found is not None and found.kind is Kind.DEVICE_LOST
    )


def words(error: BaseException) -> str:
    """'ValueError: its text', in one line."""
    return f"{type(error).__name__}: {errors.first_line(error)}"


def _answer(ask: Callable[[], _T], otherwise: Callable[[Exception], _T]) -> _T:
    try:
        return ask()
    except Exception as error:
        if is_cancel(error) or is_lost(error):
            raise
        return otherwise(error)


def refusal(tier: Tier, call: ConvCall, limits: Limits) -> str | None:
    """Why the tier can't take the call, or None; a tier that can't even say so can't."""

    def ask() -> str | None:
        reason = tier.refusal(call, limits)
        if reason is None:
            tier.workspace_bytes(call.spec)
        return reason

    return _answer(ask, lambda error: f"asking it failed ({words(error)})")


def workspace(tier: Tier, spec: ConvSpec) -> int:
    """The bytes that it predicts, 0 where it can't (refusal() says so)."""
    return _answer(lambda: tier.workspace_bytes(spec), lambda error: 0)


def label(tier: Tier, call: ConvCall) -> str:
    """What a user reads, its name where it can't say."""
    return _answer(lambda: tier.label(call), lambda error: tier.name)


def compiles(tier: Tier, spec: ConvSpec, setting: Setting) -> bool:
    """Whether the tier's call would compile a kernel, on ROCm (elsewhere it is not asked)."""
    ask = getattr(tier, "compiles", None)
    if ask is None or not setting.is_rocm:
        return False
    return _answer(lambda: bool(ask(spec)), lambda error: False)


def free_bytes(device: torch.device) -> int | None:
    """As memory.free_bytes; None too where the device can't say."""
    return _answer(lambda: memory.free_bytes(device), lambda error: None)
