"""What a finding is, and how checks look at facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """The worst first. Advice and what is fine do not change the exit code."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"
    FINE = "fine"

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True)
class Finding:
    """One thing that the facts say. evidence: the values that say it; remedy: one thing to do.

    source: where it was read, as addresses; "" where the evidence says all.
    """

    id: str
    severity: Severity
    title: str
    evidence: str
    remedy: str = ""
    source: str = ""

    def as_dict(self) -> dict[str, str]:
        return {**asdict(self), "severity": str(self.severity)}


class Said:
    """What a check found out. sayings: which of the rule's `says` hold, the last one first, "" for
    none; words: what stands in braces in its texts."""

    def __init__(self, *sayings: str, **words: object) -> None:
        self.sayings, self.words = tuple(filter(None, sayings)), words


Check = Callable[["Facts"], Iterable[Said]]


class Facts:
    """Facts of which any part may be missing, because it could not be read."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.all = facts

    def get(self, path: str, default: Any = None) -> Any:
        """The value at "memory.host.total_bytes"; `default` where it is missing or None."""
        value: Any = self.all
        for name in path.split("."):
            if not isinstance(value, Mapping):
                return default
            value = value.get(name)
        return default if value is None else value

    def rows(self, path: str) -> list[Mapping[str, Any]]:
        """The tables in a list; [] where there is none."""
        value = self.get(path, [])
        return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []

    def number(self, path: str) -> int:
        """A number, 0 where it isn't known."""
        value = self.get(path, 0)
        return int(value) if isinstance(value, int | float) else 0

    @property
    def is_amd(self) -> bool:
        """An AMD GPU is, or may be, what torch computes on, or is there and can't be used."""
        return bool(self.get("machine.runs_on_amd")) or self.has_amd_card

    @property
    def computes_elsewhere(self) -> bool:
        """On a card of NVIDIA's: an AMD one beside it, mostly a processor's, is of no concern."""
        is_cuda = self.get("torch.cuda") and not self.get("torch.hip")
        return bool(is_cuda and self.rows("torch.gpus") and not self.get("machine.zluda"))

    @property
    def has_amd_card(self) -> bool:
        return bool(self.amd_cards or (self.rows("driver.gpus") and not self.computes_elsewhere))

    @property
    def is_without_amd(self) -> bool:
        """No AMD GPU is to be seen: not on the bus, not by the driver, not by torch."""
        through_torch = self.get("torch.hip") or self.get("machine.zluda")
        return not (self.is_amd or (through_torch and self.rows("torch.gpus")))

    @property
    def amd_cards(self) -> list[Mapping[str, Any]]:
        """The display adapters of AMD's on the bus, where they are what is computed on."""
        return [] if self.computes_elsewhere else self.rows("kernel.cards")

    @property
    def architectures(self) -> list[str]:
        """Of the AMD GPUs: "gfx1100"; as torch names them where the driver lists none."""
        if self.computes_elsewhere:
            return []
        listed = self.get("machine.architectures", [])
        return [a for a in listed if a.startswith("gfx")] or self.visible

    @property
    def visible(self) -> list[str]:
        """Architectures of the GPUs that torch lists, as HSA_OVERRIDE_GFX_VERSION has them."""
        named = [str(gpu.get("architecture", "")) for gpu in self.rows("torch.gpus")]
        return [a.partition(":")[0] for a in named if a.startswith("gfx")]

    @property
    def is_linux(self) -> bool:
        return bool(self.get("machine.system") == "linux")

    def version(self, path: str) -> tuple[int, ...]:
        """A version that facts hold as a list of numbers; () where it isn't known."""
        value = self.get(path, [])
        return tuple(value) if isinstance(value, list | tuple) else ()
