"""Which tier computes a call: pure decisions, no torch, no clock, no file.

The router gathers what is known (Setting, one Candidate a tier) and asks `choose`. Tiers that call
the vendor's library (MIOpen on a ROCm build) can hang or reset the driver, which no code in the
process can stop: they are only in the order once something else has proven the shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hy3d_rocm.conv.verdict_store.records import Record

POLICIES = ("auto", "safe", "vendor-first", "pin:<tier>")

# These end in a call of the vendor's convolution library. conv2d asks it for 2D convolutions.
VENDOR_TIERS = frozenset({"vendor", "conv2d"})
# A verdict that keeps a tier away from a shape, and the words for it.
_BANS = {"hang": "it hung", "wrong": "its result was wrong", "error": "it failed"}
HEALTHY = frozenset({"ok", "slow-find"})
# An estimate has to promise this much more than a measurement to be believed.
_DOUBT = 1.5


@dataclass(frozen=True)
class Policy:
    """What protect(policy=...) asked for; `pinned` is a tier's name for "pin:<tier>"."""

    name: str
    pinned: str | None = None


def parse_policy(text: object, tiers: Sequence[str]) -> Policy:
    """The policy of that name; ValueError with a sentence for any other."""
    if isinstance(text, str):
        if text in POLICIES[:3]:
            return Policy(text)
        name, colon, pinned = text.partition(":")
        if name == "pin" and colon:
            if pinned in tiers:
                return Policy("pin", pinned)
            raise ValueError(
                f"protect: policy={text!r} pins no tier; after 'pin:' stands one of"
                f" {', '.join(tiers)}"
            )
    raise ValueError(f"protect: policy={text!r} is none of {', '.join(map(repr, POLICIES))}")


@dataclass(frozen=True)
class Setting:
    """What "current" means for this call, and whose library is below.

    on_gpu: the tensors lie on a CUDA or HIP device. is_rocm: this PyTorch is a ROCm build.
    current: what PyTorch would run as it is set up: "vendor", "native", or "other" (a kernel of
    PyTorch without im2col, such as depthwise; oneDNN on a CPU). vendor_on: the library has not
    been switched off for the process (torch.backends.cudnn.enabled).
    """

    on_gpu: bool
    is_rocm: bool = False
    current: str = "other"
    vendor_on: bool = True

    @property
    def trusts_vendor(self) -> bool:
        """cuDNN does not hang; a library that the user switched off is not called unasked."""
        return self.vendor_on and not self.is_rocm

    def calls_vendor(self, tier: str) -> bool:
        """Whether the tier ends in the vendor's library."""
        if not self.on_gpu:
            return False
        return tier in VENDOR_TIERS or (tier == "current" and self.current == "vendor")


@dataclass(frozen=True)
class Candidate:
    """One tier as far as it is known for one call.

    refused: why it can't take the call. failed: what it said in this process, if that holds for
    the process. fits: whether its predicted or measured bytes are free now.
    """

    tier: str
    refused: str | None = None
    record: Record | None = None
    estimate_seconds: float | None = None
    fits: bool = True
    failed: str | None = None

    @property
    def seconds(self) -> float | None:
        """The measured time, where a healthy call was measured."""
        healthy = self.record is not None and self.record.verdict in HEALTHY
        return self.record.seconds if self.record is not None and healthy else None

    @property
    def cost(self) -> float:
        """Seconds to compare by: measured, else estimated with doubt, else endless."""
        measured = self.seconds
        if measured is not None:
            return measured
        return math.inf if self.estimate_seconds is None else _DOUBT * self.estimate_seconds


@dataclass(frozen=True)
class Choice:
    """The order in which tiers are tried, why each other one is not in it.

    probe: a tier that may be proven in a child process now, and would then come first.
    """

    order: tuple[str, ...]
    reasons: dict[str, str] = field(default_factory=dict)
    probe: str | None = None
    cramped: bool = False  # something did not fit into the memory that is free now


def choose(policy: Policy, candidates: Sequence[Candidate], setting: Setting) -> Choice:
    """The order for one call.

    `candidates` come in the order that decides between equals. Measured time first, else the
    estimate; what does not fit stands behind what does; "cpu" stands last wherever another can.
    """
    reasons: dict[str, str] = {}
    healthy: list[Candidate] = []
    for candidate in candidates:
        reason = _left_out(policy, candidate, setting)
        if reason is None:
            healthy.append(candidate)
        else:
            reasons[candidate.tier] = reason
    _drop_twin(policy, healthy, reasons, setting)
    ranked = sorted(healthy, key=lambda c: _rank(policy, c, setting))
    order = tuple(c.tier for c in ranked)
    probe = _to_probe(policy, candidates, reasons, order, setting)
    return Choice(order, reasons, probe, cramped=not all(c.fits for c in healthy))


def _left_out(policy: Policy, candidate: Candidate, setting: Setting) -> str | None:
    """Why the tier is not in the order, or None."""
    record = candidate.record
    if candidate.refused is not None and candidate.fits:
        return candidate.refused  # where it only lacks memory it is asked again at each call
    if candidate.failed is not None:
        return candidate.failed
    if record is not None and record.verdict in _BANS:
        said = f": {record.detail}" if record.detail else ""
        return f"{_BANS[record.verdict]} before{said}"
    if policy.pinned == candidate.tier:
        return None
    return _unproven(policy, candidate, setting)


def _unproven(policy: Policy, candidate: Candidate, setting: Setting) -> str | None:
    """Why a tier of the vendor's library can't be called in this process yet, or None."""
    if not setting.calls_vendor(candidate.tier):
        return None
    if setting.trusts_vendor and policy.name != "safe":
        return None
    verdict = None if candidate.record is None else candidate.record.verdict
    if verdict == "ok" or (verdict == "slow-find" and policy.name == "vendor-first"):
        return None
    if verdict == "slow-find":
        return "the vendor library searches long at this shape's first call"
    return "the vendor library is not proven for this shape here (hy3d-rocm tune does that)"


def _drop_twin(
    policy: Policy, healthy: list[Candidate], reasons: dict[str, str], setting: Setting
) -> None:
    """Of "current" and the tier that it is, one goes."""
    if setting.current not in ("vendor", "native") or not setting.on_gpu:
        return
    names = {c.tier for c in healthy}
    if not {"current", setting.current} <= names:
        return
    # A trusted vendor library stays as the user has set it up (benchmark, determinism, TF32);
    # the native tier is PyTorch's own cut to fit, which "current" is not.
    keeps_current = setting.current == "vendor" and setting.trusts_vendor
    gone, kept = ("vendor", "current") if keeps_current else ("current", setting.current)
    if policy.pinned == gone:
        gone, kept = kept, gone
    reasons[gone] = f"it is what the tier {kept} calls"
    healthy[:] = [c for c in healthy if c.tier != gone]


def _rank(policy: Policy, candidate: Candidate, setting: Setting) -> tuple[int, bool, float]:
    """Sort key: class, whether it lacks memory, cost."""
    tier = candidate.tier
    if tier == policy.pinned:
        return (0, False, 0.0)
    is_vendor = tier == "vendor" or (tier == "current" and setting.current == "vendor")
    if not setting.on_gpu:
        # Nothing hangs and nobody measures here: as given, the GPU's ways last.
        return (2 if tier in ("gemm", "conv2d") else 1, not candidate.fits, 0.0)
    first = policy.name == "vendor-first" and is_vendor
    if tier == "current" and policy.name != "safe":
        trusted = setting.current == "other" or (is_vendor and setting.trusts_vendor)
        first = first or (trusted and not setting.is_rocm)
    if first and candidate.fits:
        return (1, False, 0.0)
    return (3 if tier == "cpu" else 2, not candidate.fits, candidate.cost)


def _to_probe(
    policy: Policy,
    candidates: Sequence[Candidate],
    reasons: dict[str, str],
    order: tuple[str, ...],
    setting: Setting,
) -> str | None:
    """The vendor tier, where a child process may try it now.

    Under "auto" that is where nothing else on the GPU is healthy and has the memory: waiting for a
    probe is then better than the CPU. Under "safe" never.
    """
    if policy.name not in ("auto", "vendor-first") or not setting.on_gpu:
        return None
    vendor = next((c for c in candidates if c.tier == "vendor"), None)
    if vendor is None or "vendor" not in reasons or vendor.refused or vendor.failed:
        return None
    if vendor.record is not None or _unproven(policy, vendor, setting) is None:
        return None  # a verdict is there already, or none is needed
    if not vendor.fits:
        return None
    fitting = {c.tier for c in candidates if c.fits and c.tier != "cpu"}
    if policy.name == "auto" and not fitting.isdisjoint(order):
        return None
    return "vendor"
