"""Doubles for the tests of the router's planning: a call on a GPU, tiers, a planner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from router_doubles import ScriptedTier, integers

from hy3d_rocm.conv import policy
from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits, make_spec
from hy3d_rocm.conv.choice import Policy, Setting
from hy3d_rocm.conv.errors import Kind
from hy3d_rocm.conv.verdicts import VERDICTS, Verdict

CUDA = torch.device("cuda:0")
ROCM = Setting(on_gpu=True, is_rocm=True, current="vendor")
NVIDIA = Setting(on_gpu=True, current="vendor")
X, W = integers(1, 2, 4, 6, 6), integers(3, 2, 3, 3, 3)
MB = 1 << 20
NAMES = ("current", "vendor", "triton", "gemm", "cpu")


def planner(name: str = "auto", **limits: Any) -> policy.Planner:
    return policy.Planner(Policy(name), [tier(n) for n in NAMES], Limits(**limits))


def spec_of(device: torch.device = CUDA, **changes: Any) -> ConvSpec:
    spec = make_spec((X, W, None, 1, 0, 1, 1), 3)
    assert spec is not None
    return replace(spec, device=device, **changes)


def call_of(spec: ConvSpec) -> ConvCall:
    return ConvCall(spec, X, W, None, lambda: X)


def tier(name: str, workspace: int = 0) -> Any:
    made = ScriptedTier(name, lambda call: X)
    made.workspace_bytes = lambda spec: workspace  # type: ignore[method-assign]
    return made


def fail(name: str, kind: Kind) -> None:
    VERDICTS.record(name, "config", Verdict(kind, "said"))
