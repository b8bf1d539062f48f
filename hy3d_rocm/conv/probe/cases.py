"""What a probe is asked and what it answers. Imports neither torch nor anything of the router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

OK = "ok"
SLOW_FIND = "slow-find"
HANG = "hang"
ERROR = "error"
OOM = "oom"
NOT_RUN = "not-run"
# What may be kept about (tier, shape). "oom" says something about the child's moment only, and
# "not-run" nothing at all.
VERDICTS = frozenset({OK, SLOW_FIND, HANG, ERROR})


class Spec(Protocol):
    """What the parent needs of a hy3d_rocm.conv.call.ConvSpec."""

    @property
    def device(self) -> Any:
        """str() of it names the device in the child too: the environment is the same."""

    def to_json(self) -> Any:
        """Plain types, from which spec_from_json makes an equal spec in the child."""


@dataclass(frozen=True)
class Case:
    """One tier (a name of hy3d_rocm.conv.tiers.make_tier) for one shape.

    check: its first result is held against float64 sums, and a wrong one is an "error".
    """

    tier: str
    spec: Spec
    check: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    verdict: "ok"; "slow-find" (the first call took more than slow_s longer than later ones, or
    finished late and the second did not come back in time); "hang" (nothing came back in
    `limit_s`); "error" (an exception, or the child's end, with the text that says why); "oom" and
    "not-run", which are no verdicts.
    first_seconds: the first call, synchronised. seconds: median of later ones. peak_bytes: what
    the call allocated beyond input, weight, bias and output (torch.cuda.max_memory_allocated, so
    what a library allocates past PyTorch is not in it); None on the CPU. limit_s: how long the
    case could have taken at most.
    """

    case: Case
    verdict: str
    first_seconds: float | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    detail: str = ""
    limit_s: float | None = None

    @property
    def is_verdict(self) -> bool:
        """Whether this may be kept as knowledge about the shape."""
        return self.verdict in VERDICTS


@dataclass(frozen=True)
class Progress:
    """Told when a case begins, every half second while it runs, and when it has an outcome."""

    done: int
    total: int
    case: Case
    seconds: float
    outcome: Outcome | None = None


class Ready(NamedTuple):
    """Whether a probe can say anything here; if not, the sentence why."""

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        return self.ok
