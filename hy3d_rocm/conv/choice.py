"""Which tier computes a call: records for the C core, which decides, and its reasons in words.

Pure: no torch, no clock, no file. The router gathers what is known (Setting, one Candidate a tier)
and asks `choose`. Rules and constants: include/hy3d/route.h and csrc/route.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hy3d_rocm import _native
from hy3d_rocm.conv.errors import is_fatal

if TYPE_CHECKING:
    from hy3d_rocm.conv.verdict_store.records import Record

POLICIES = ("auto", "safe", "vendor-first", "pin:<tier>")
# The order between equals, and the numbers of hy3d_tier. On a CPU it is the order itself.
TIERS = ("current", "vendor", "triton", "native", "gemm", "conv2d", "cpu")
# These end in a call of the vendor's convolution library. conv2d asks it for 2D convolutions.
VENDOR_TIERS = frozenset({"vendor", "conv2d"})
HEALTHY = frozenset({"ok", "slow-find"})

# hy3d_verdict; any other word of a record is the last one.
_VERDICTS = {"ok": 1, "slow-find": 2, "hang": 3, "wrong": 4, "error": 5}
_ERROR, _LOST, _OTHER = 5, 6, 7
# A verdict that keeps a tier away from a shape, and the words for it.
_BANS = {"hang": "it hung", "wrong": "its result was wrong", "error": "it failed"}
# hy3d_route_reason
_IN_ORDER, _REFUSED, _FAILED, _BANNED, _UNPROVEN, _SLOW_FIND, _TWIN = range(7)
_TEXTS = {
    _UNPROVEN: "the vendor library is not proven for this shape here (hy3d-rocm tune does that)",
    _SLOW_FIND: "the vendor library searches long at this shape's first call",
}
_DTYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 3}


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


class Work(NamedTuple):
    """The size of a convolution: hy3d_route_work, with the dtype's name ("bf16")."""

    dtype: str
    flops: float
    moved_bytes: float
    out_bytes: float
    column_bytes: float
    taps: int
    time_taps: int
    group_channels: int

    def numbers(self) -> tuple[float, ...]:
        """As the core takes them."""
        return (_DTYPES.get(self.dtype, 0), *self[1:])


@dataclass(frozen=True)
class Candidate:
    """One tier as far as it is known for one call.

    refused: why it can't take the call. failed: what it said in this process, if that holds for
    the process; may_recover: it is worth another try where nothing else is left. fits: whether its
    predicted or measured bytes are free now. workspace_bytes: predicted.
    """

    tier: str
    refused: str | None = None
    record: Record | None = None
    estimate_seconds: float | None = None
    fits: bool = True
    failed: str | None = None
    may_recover: bool = False
    workspace_bytes: float = 0.0

    @property
    def seconds(self) -> float | None:
        """The measured time, where a healthy call was measured."""
        healthy = self.record is not None and self.record.verdict in HEALTHY
        return self.record.seconds if self.record is not None and healthy else None

    def numbers(self) -> tuple[float, ...]:
        """hy3d_route_candidate."""
        verdict, seconds = 0, -1.0
        if self.record is not None:
            verdict = _VERDICTS.get(self.record.verdict, _OTHER)
            if verdict == _ERROR and is_fatal(self.record.detail):
                verdict = _LOST
            seconds = -1.0 if self.record.seconds is None else self.record.seconds
        failure = 0 if self.failed is None else 1 if self.may_recover else 2
        estimate = -1.0 if self.estimate_seconds is None else self.estimate_seconds
        return (
            TIERS.index(self.tier), verdict, failure, self.refused is not None, self.fits,
            seconds, estimate, self.workspace_bytes,
        )  # fmt: skip

    def reason(self, number: int, twin: str) -> str:
        """The words for a hy3d_route_reason; twin: which tier stands for it."""
        if number == _REFUSED:
            return self.refused or ""
        if number == _FAILED:
            return self.failed or ""
        if number == _TWIN:
            return f"it is what the tier {twin} calls"
        if number == _BANNED and self.record is not None:
            detail = f": {self.record.detail}" if self.record.detail else ""
            return f"{_BANS[self.record.verdict]} before{detail}"
        return _TEXTS[number]


@dataclass(frozen=True)
class Choice:
    """The order in which tiers are tried, why each other one is not in it.

    probe: a tier that may be proven in a child process now, and would then come first. cramped:
    something did not fit into the memory that is free now. preferred: what would be first, had
    nothing failed in this process; "" for none. unmeasured: tiers worth measuring in passing, the
    best guess first. spare: tiers for a call that would be given up otherwise.
    """

    order: tuple[str, ...]
    reasons: dict[str, str] = field(default_factory=dict)
    probe: str | None = None
    cramped: bool = False
    preferred: str = field(default="", compare=False)
    unmeasured: tuple[str, ...] = field(default=(), compare=False)
    spare: tuple[str, ...] = field(default=(), compare=False)


def choose(
    policy: Policy, candidates: Sequence[Candidate], setting: Setting, column_bytes: float = 0.0
) -> Choice:
    """The order for one call.

    `candidates` come in the order that decides between equals. column_bytes: of the call's im2col
    matrices.
    """
    words = ("auto", "safe", "vendor-first", "pin")
    current = 0 if setting.current == "other" else TIERS.index(setting.current)
    numbers = (
        words.index(policy.name), TIERS.index(policy.pinned or "current"), current,
        setting.on_gpu, setting.is_rocm, setting.vendor_on, column_bytes,
    )  # fmt: skip
    order, reasons, twin, preferred, probe, unmeasured, spare, cramped = _native.route(
        numbers, [candidate.numbers() for candidate in candidates]
    )
    names = [candidate.tier for candidate in candidates]

    def named(places: Iterable[int]) -> tuple[str, ...]:
        return tuple(names[place] for place in places)

    return Choice(
        named(order),
        {
            candidate.tier: candidate.reason(number, names[twin])
            for candidate, number in zip(candidates, reasons, strict=True)
            if number != _IN_ORDER
        },
        None if probe < 0 else names[probe],
        cramped,
        "" if preferred < 0 else names[preferred],
        named(unmeasured),
        named(spare),
    )
