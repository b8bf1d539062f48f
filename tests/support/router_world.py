"""A GPU of which only the decisions are real: scripted tiers, a setting, a knowledge in a list."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from router_doubles import ScriptedTier

from hy3d_rocm.conv import prepared
from hy3d_rocm.conv.call import ConvCall, ConvSpec
from hy3d_rocm.conv.choice import Setting
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.router import Guard

NAMES = ("current", "vendor", "triton", "native", "gemm", "conv2d", "cpu")


@dataclass(frozen=True)
class Row:
    """Stands for knowledge.Record."""

    verdict: str = "ok"
    seconds: float | None = None
    first_seconds: float | None = None
    peak_bytes: int | None = None
    detail: str = ""
    measured_by: str = "tune"


@dataclass
class ListedMemory:
    """Stands for the knowledge: what was put, and `log` with every event in order."""

    rows: dict[tuple[ConvSpec, str], Row] = field(default_factory=dict)
    usual: dict[str, Row] = field(default_factory=dict)  # for every shape
    log: list[str] = field(default_factory=list)

    def records(self, spec: ConvSpec) -> dict[str, Row]:
        own = {tier: row for (s, tier), row in self.rows.items() if s == spec}
        return {**self.usual, **own}

    def put(self, spec: ConvSpec, tier: str, verdict: str, **fields: Any) -> None:
        self.rows[spec, tier] = Row(verdict, **fields)
        self.log.append(f"put {tier} {verdict}")

    @contextlib.contextmanager
    def in_flight(self, spec: ConvSpec, tier: str) -> Iterator[None]:
        self.log.append(f"trying {tier}")
        try:
            yield
        finally:
            self.log.append(f"tried {tier}")

    def verdicts(self) -> dict[str, str]:
        return {tier: row.verdict for (_, tier), row in self.rows.items()}


class World:
    """Replaces the machine under protect(policy=...). Every tier computes as PyTorch does until
    its `act` is replaced."""

    def __init__(self, patch: pytest.MonkeyPatch, setting: Setting) -> None:
        self.setting = setting
        self.memory = ListedMemory()
        self.tiers = {name: ScriptedTier(name, self._computing(name)) for name in NAMES}
        self.proofs: list[str] = []
        self.verdict = "not-run"
        # What other tests left: a tier is tried again where memory was released.
        prepared.give_back()
        patch.setattr("hy3d_rocm.conv.policy.setting_of", lambda call: self.setting)
        patch.setattr("hy3d_rocm.conv.policy.memory_for", lambda device: self.memory)
        patch.setattr("hy3d_rocm.conv.policy.prove", self._prove)
        patch.setattr("hy3d_rocm.conv.policy._rates", {})
        patch.setattr("hy3d_rocm.conv.protection.all_tiers", lambda **o: tuple(self.tiers.values()))

    def _computing(self, name: str) -> Callable[[ConvCall], torch.Tensor]:
        def act(call: ConvCall) -> torch.Tensor:
            self.memory.log.append(f"run {name}")
            result: torch.Tensor = call.run_current()
            return result

        return act

    def _prove(self, spec: ConvSpec, tier: str, cancel: Callable[[], None]) -> str:
        cancel()
        self.proofs.append(tier)
        if self.verdict != "not-run":
            self.memory.put(spec, tier, self.verdict, seconds=1e-6, measured_by="probe")
        return self.verdict

    def protect(self, policy: str = "auto", **options: Any) -> Guard:
        return protect(policy=policy, **options)

    def calls(self) -> dict[str, int]:
        """Tier -> how often it ran, of those that did."""
        return {name: tier.calls for name, tier in self.tiers.items() if tier.calls}
