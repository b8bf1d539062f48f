"""A machine whose convolutions fail, lie, or hang, for the prompts that ask for one.

Three ways in: `HarnessFaults` sets HY3D_FAULTS in the running server, as a user would at its start;
`HarnessBroken` makes PyTorch's own convolutions raise MIOpen's text, with or without our pack;
`HarnessHang` makes the router believe in a ROCm card whose MIOpen never comes back.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .probes import ANY, Probe
from .shelf import HarnessFresh

NO_ALGORITHM = "MIOpen Error: No suitable algorithm was found to execute the required convolution"
HANGING_TIER = Path(__file__).resolve().with_name("hanging_tier.py")
PROBE_SECONDS = 2.0


class HarnessFaults(HarnessFresh):
    """Passes `value` on with HY3D_FAULTS set to `faults`, or unset for ""."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": (ANY,), "faults": ("STRING", {"default": ""})}}

    def give(self, value: Any, faults: str) -> tuple[Any]:
        no_faults()
        os.environ["HY3D_FAULTS"] = faults
        refuse(0)
        torch_computes(bool(faults))
        forget()
        return (value,)


class HarnessFired(Probe):
    """How often the faults of HY3D_FAULTS have fired; unsets it. `value`: what came before."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": (ANY,)}}

    @classmethod
    def IS_CHANGED(cls, value: Any = None) -> float:
        return float("nan")

    def look(self, value: Any) -> dict[str, Any]:
        refuse(0)
        torch_computes(False)
        found = sys.modules.get("hy3d_rocm.conv.faults")
        sources = [] if found is None else [one for one in found.SOURCES if one.is_environment]
        fired = sum(fault.fired for source in sources for fault in source.faults)
        no_faults()
        forget()
        return {"ui": {"fired": [fired]}}


class _Refusing(TorchFunctionMode):
    """PyTorch's 2D and 3D convolutions raise, each in its turn."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.seen = every, 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.conv2d, torch.conv3d):
            self.seen += 1
            if self.seen % self.every == 0:
                raise RuntimeError(NO_ALGORITHM)
        return function(*args, **(kwargs or {}))


_refusing: _Refusing | None = None
_natively: Callable[[torch.device, torch.dtype], str | None] | None = None


class HarnessBroken(HarnessFresh):
    """From here on each `every`th convolution of PyTorch's raises on this thread; 0: none does."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": (ANY,), "every": ("INT", {"default": 1, "min": 0})}}

    def give(self, value: Any, every: int) -> tuple[Any]:
        refuse(every)
        torch_computes(every > 0)
        forget()
        return (value,)


def torch_computes(on: bool) -> None:
    """On the CPU a decode runs on the C convolution, which meets no fault of a GPU's tiers: while
    `on`, PyTorch's convolutions compute it, as they do on a GPU."""
    global _natively
    if "hy3d_rocm" not in sys.modules:
        return
    backend = importlib.import_module("hy3d_rocm.decoding.backends.native")
    if _natively is None:
        _natively = backend.refusal
    backend.refusal = _not_now if on else _natively


def _not_now(device: torch.device, dtype: torch.dtype) -> str:
    return "the harness injects faults into PyTorch's convolutions"


def refuse(every: int) -> None:
    global _refusing
    if _refusing is not None:
        _refusing.__exit__(None, None, None)
        _refusing = None
    if every:
        _refusing = _Refusing(every)
        _refusing.__enter__()


class _Hanging:
    """MIOpen that never comes back; a call in this process would end the harness's patience."""

    name = "vendor"

    def label(self, call: Any) -> str:
        return "MIOpen"

    def workspace_bytes(self, spec: Any) -> int:
        return 0

    def refusal(self, call: Any, limits: Any) -> str | None:
        return None

    def run(self, call: Any) -> torch.Tensor:
        while True:
            time.sleep(3600)


class _Known:
    """The knowledge of a process, in a dictionary: a GPU's store has no place for a CPU."""

    def __init__(self) -> None:
        self.rows: dict[Any, dict[str, Any]] = {}

    def records(self, spec: Any) -> dict[str, Any]:
        return self.rows.get(spec, {})

    def put(self, spec: Any, tier: str, verdict: str, **fields: Any) -> None:
        from hy3d_rocm.conv.verdict_store.records import Record

        self.rows.setdefault(spec, {})[tier] = Record(tier, verdict, **fields)

    def in_flight(self, spec: Any, tier: str) -> Any:
        import contextlib

        return contextlib.nullcontext()


_before: dict[str, Any] = {}


class HarnessHang(HarnessFresh):
    """on: convolutions are MIOpen's as the router sees them, all GPU tiers lack memory, and MIOpen
    hangs, in the child that tries it as well. What was tried is shown by HarnessHangSeen."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": (ANY,), "on": ("BOOLEAN", {"default": True})}}

    def give(self, value: Any, on: bool) -> tuple[Any]:
        refuse(0)
        (hang if on else unhang)()
        return (value,)


class HarnessHangSeen(Probe):
    """How many shapes the knowledge has as hanging; the router is as before afterwards."""

    @classmethod
    def IS_CHANGED(cls, value: Any = None) -> float:
        return float("nan")

    def look(self, value: Any) -> dict[str, Any]:
        known = _before.get("known")
        rows = (
            []
            if known is None
            else [row for found in known.rows.values() for row in found.values()]
        )
        unhang()
        return {"ui": {"verdicts": [[row.verdict for row in rows]]}}


def hang() -> None:
    """Puts the pretended card in place."""
    from hy3d_rocm.conv import policy, protection
    from hy3d_rocm.conv.choice import Setting

    unhang()
    setting = Setting(on_gpu=True, is_rocm=True, current="vendor", vendor_on=True)
    known = _Known()
    tiers = policy.all_tiers

    def with_hanging(**options: Any) -> tuple[Any, ...]:
        return tuple(_in_need(tier) for tier in tiers(**options))

    _before.update(
        setting_of=policy.setting_of, memory_for=policy.memory_for, seconds=policy.PROBE_SECONDS,
        tiers=protection.all_tiers, known=known,
    )  # fmt: skip
    policy.setting_of = lambda call: setting
    policy.memory_for = lambda device: known
    policy.PROBE_SECONDS = PROBE_SECONDS
    protection.all_tiers = with_hanging
    os.environ["HY3D_ROCM_PROBE_TIER_MODULE"] = str(HANGING_TIER)
    forget()


def unhang() -> None:
    if not _before:
        return
    from hy3d_rocm.conv import policy, protection

    policy.setting_of, policy.memory_for = _before["setting_of"], _before["memory_for"]
    policy.PROBE_SECONDS, protection.all_tiers = _before["seconds"], _before["tiers"]
    os.environ.pop("HY3D_ROCM_PROBE_TIER_MODULE", None)
    _before.clear()
    forget()


def _in_need(tier: Any) -> Any:
    """The real tier, or its like on that card: MIOpen hangs, and GPU tiers have no room."""
    if tier.name == "vendor":
        return _Hanging()
    if tier.name in ("triton", "native", "gemm", "conv2d"):
        tier.refusal = lambda call, limits: "its workspace needs 1 TiB"
    return tier


def no_faults() -> None:
    """Unsets HY3D_FAULTS, and their counters go: the next ones are those of the next prompt."""
    os.environ.pop("HY3D_FAULTS", None)
    found = sys.modules.get("hy3d_rocm.conv.faults")
    if found is not None:
        found.load_environment()


def forget() -> None:
    """What the router remembers of failures, so that each prompt meets its own."""
    found = sys.modules.get("hy3d_rocm.conv")
    if found is not None:
        found.forget()
