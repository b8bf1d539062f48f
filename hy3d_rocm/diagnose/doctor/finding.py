"""What a finding is, the rules that make findings of facts, and how these look at facts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from hy3d_rocm.diagnose.cards import has_wheels
from hy3d_rocm.diagnose.env.machine import Version, dotted, parse_version
from hy3d_rocm.memory import is_apu
from hy3d_rocm.units import parse_size, size_text

_HIDING = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
           "GPU_DEVICE_ORDINAL")  # fmt: skip
_TEXTS = ("id", "severity", "title", "evidence", "remedy", "source")
# The back-ends of convolutions as people know them; {} is the vendor's library.
_TIERS = {
    "vendor": "{}", "native": "PyTorch without {}", "triton": "our Triton kernel",
    "gemm": "matrix products", "conv2d": "2D convolutions", "cpu": "our CPU kernels",
}  # fmt: skip
_PLACE = re.compile(r"\{([\w.]+):?([^{}]*)\}")


class Severity(StrEnum):
    """The worst first. Advice and what is fine do not change the exit code."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"
    FINE = "fine"


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


class Match:
    """What a check found out. variants: which of the rule's hold, "" for none; the last one counts
    most. words: what stands in braces in its texts beside the facts."""

    def __init__(self, *variants: str, **words: object) -> None:
        self.variants, self.words = tuple(filter(None, variants)), words


Check = Callable[["Facts"], Iterable[Match]]


class Facts:
    """Facts of which any part may be missing, because it could not be read.

    words: what is looked up before them: what a check found out, or a row of a list of facts.
    """

    def __init__(self, facts: Mapping[str, Any], words: Mapping[str, Any] | None = None) -> None:
        self.all, self.words = facts, words or {}

    def beside(self, words: Mapping[str, Any]) -> Facts:
        return Facts(self.all, {**self.words, **words})

    def each(self, name: str) -> list[Facts]:
        """These facts beside each row of a list: the fields of a table, a text as "row"."""
        rows = self.word(name)
        return [
            self.beside({"row": row, **(row if isinstance(row, Mapping) else {})})
            for row in (rows if isinstance(rows, list) else [])
            if isinstance(row, Mapping | str)
        ]

    def word(self, name: str) -> Any:
        """A word, what this class knows of the machine ("is_windows"), or a fact by its path."""
        if name in self.words:
            return self.words[name]
        return getattr(self, name) if name in _KNOWN else self.get(name)

    def filled(self, text: str) -> str:
        """`text` with what stands for {NAME}, {NAME:size} (bytes) or {NAME:time} in it: a list's
        items with commas, nothing for what is missing."""
        return _PLACE.sub(lambda place: _shown(self.word(place[1]), place[2]), text)

    def holds(self, condition: str) -> bool:
        """Whether "NAME" (it is there, and not 0, empty or false), "NAME is VALUE" (in upper or
        lower case), "NAME has TEXT", "NAME below SIZE" (or "10 % of NAME"), "NAME above
        SIZE" or "NAME in VERSION-VERSION ..." (the second without) is so; "no " before it turns it
        round. "CONDITION or CONDITION": one of them is."""
        if " or " in condition:
            return any(map(self.holds, condition.split(" or ")))
        name, _, rest = condition.removeprefix("no ").partition(" ")
        kind, _, wanted = self.filled(rest).partition(" ")
        value = self.word(name)
        if kind == "is":
            found = str(value).strip().lower() == wanted.lower()
        elif kind == "has":
            found = wanted in str(value)
        elif kind in ("below", "above"):
            share, _, whole = wanted.partition(" % of ")
            size = int(share) * self.number(whole) // 100 if whole else parse_size(wanted)
            found = isinstance(value, int) and (value < size if kind == "below" else value > size)
        elif kind == "in":
            spans = (map(parse_version, span.split("-")) for span in wanted.split())
            version = as_version(value)
            found = any(version and low <= version < high for low, high in spans)
        else:
            found = bool(value)
        return found is not condition.startswith("no ")

    def get(self, path: str, default: Any = None) -> Any:
        """The value at "memory.host.total_bytes" or "windows.bridges.0", the first of a list;
        `default` where it is missing or None."""
        value: Any = self.all
        for name in path.split("."):
            if isinstance(value, list) and name.isdigit():
                value = dict(enumerate(value)).get(int(name))
            elif isinstance(value, Mapping):
                value = value.get(name)
            else:
                return default
        return default if value is None else value

    def rows(self, path: str) -> list[Mapping[str, Any]]:
        """The tables in a list; [] where there is none."""
        value = self.get(path)
        return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []

    def number(self, name: str) -> int:
        """A number, 0 where it isn't known."""
        value = self.word(name)
        return int(value) if isinstance(value, int | float) else 0

    @property
    def is_amd(self) -> bool:
        """An AMD GPU is, or may be, what torch computes on, or is there and can't be used."""
        return bool(self.get("machine.runs_on_amd")) or self.has_amd_card

    @property
    def computes_elsewhere(self) -> bool:
        """On a card of NVIDIA's: an AMD one beside it, mostly a processor's, is of no concern. On
        Windows also where it is hidden or the build is for the CPU, if AMD's are processors'."""
        if self.get("torch.hip") or self.get("machine.zluda"):
            return False
        if self.get("torch.cuda") and self.rows("torch.gpus"):
            return True
        is_nvidias = self.get("windows.nvidia") and not self.get("machine.torch_is_rocm")
        cards = self.rows("windows.cards")
        return bool(is_nvidias and cards and all(map(_is_processors, cards)))

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
        if self.computes_elsewhere:
            return []
        return self.rows("kernel.cards") or self.rows("windows.cards")

    @property
    def architectures(self) -> list[str]:
        """Of the AMD GPUs: "gfx1100"; as torch names them where the driver lists none."""
        if self.computes_elsewhere:
            return []
        # Windows tells the cards; without that, the wheels' family stands for them there.
        told = [str(card.get("architecture") or "") for card in self.rows("windows.cards")]
        listed = list(filter(None, told)) or self.get("machine.architectures", [])
        return [a for a in listed if a.startswith("gfx")] or self.visible

    @property
    def visible(self) -> list[str]:
        """Architectures of the GPUs that torch lists, as HSA_OVERRIDE_GFX_VERSION has them; under
        ZLUDA, which tells none, by their names in Windows."""
        known = {c.get("name"): c.get("architecture") for c in self.rows("windows.cards")}
        named = [
            str(gpu.get("architecture") or known.get(str(gpu.get("name")).removesuffix(" [ZLUDA]")))
            for gpu in self.rows("torch.gpus")
        ]
        return [a.partition(":")[0] for a in named if a.startswith("gfx")]

    @property
    def discrete(self) -> list[str]:
        """Of the architectures those of cards, not of a processor's own GPU."""
        return [name for name in self.architectures if not is_apu(name)]

    @property
    def device_extra(self) -> str:
        """The part of AMD's wheels that has this GPU's kernels: "device-gfx1100"."""
        meant = sorted(set(self.discrete or self.architectures))
        is_told = len(meant) == 1 and not meant[0].lower().endswith("x")
        return f"device-{meant[0]}" if is_told else "device-all"

    @property
    def without_wheels(self) -> list[str]:
        """Windows: the names of AMD's GPUs, where ROCm has wheels for none of them; else []. A
        processor's GPU counts where it is alone; one that cards.toml does not know has none."""
        cards = self.amd_cards if self.is_windows else []
        meant = [card for card in cards if not _is_processors(card)] or cards
        known = [str(card.get("architecture")) for card in meant] + self.visible
        return [] if any(map(has_wheels, known)) else list(map(named, meant))

    @property
    def torch_replaced(self) -> bool:
        """Windows, WSL: ROCm's wheels are there, and a PyTorch that does not use them."""
        has_gpu = self.amd_cards or self.get("windows.device")
        is_other = self.get("machine.torch_is_rocm") is False and not self.get("torch.hip")
        return bool(
            has_gpu and is_other and self.get("windows.wheels.names") and not self.without_wheels
            and not self.get("machine.zluda") and not self.rows("torch.gpus")
        )  # fmt: skip

    @property
    def integrated_first(self) -> bool:
        """Windows: torch's first GPU is the processor's own, and a card comes after it."""
        apus = list(map(is_apu, self.visible))
        return self.is_windows and apus[:1] == [True] and not all(apus)

    @property
    def undriven(self) -> list[Mapping[str, Any]]:
        """Windows: the cards without a driver of AMD's; a processor's GPU among them only where no
        AMD GPU has one."""
        cards = self.amd_cards if self.is_windows else []
        is_none_driven = not any(card.get("driver") for card in cards)
        return [
            card for card in cards
            if not card.get("driver") and (is_none_driven or not _is_processors(card))
        ]  # fmt: skip

    @property
    def awaits_driver(self) -> bool:
        """Windows: the card has no driver, so torch lists none, or the processor's GPU alone."""
        driven = (card for card in self.amd_cards if card.get("driver"))
        return bool(self.undriven) and all(map(_is_processors, driven))

    @property
    def is_windows(self) -> bool:
        return bool(self.get("windows.host") == "windows")

    @property
    def rocm(self) -> str:
        return dotted(as_version(self.get("machine.rocm")))

    @property
    def nightly(self) -> str:
        """The day of a ROCm nightly: "20251201" of "2.10.0a0+rocm7.11.0a20251201"; else ""."""
        found = re.search(r"\+rocm[\d.]+a(\d{8})$", str(self.get("torch.version")))
        return found[1] if found else ""

    @property
    def hidden(self) -> list[str]:
        """["HIP_VISIBLE_DEVICES=1"]: what may hide a GPU from PyTorch."""
        values = {name: self.get(f"variables.{name}.value") for name in _HIDING}
        # In WSL a first device that is named is the one that is there.
        harmless = "0" if self.get("windows.host") == "wsl" else None
        return [f"{n}={v}" for n, v in values.items() if v is not None and v != harmless]

    @property
    def hiding(self) -> str:
        return self.hidden[0].partition("=")[0] if self.hidden else ""

    @property
    def bridge(self) -> str:
        """WSL: AMD's way to Windows' driver."""
        return str(self.get("windows.bridges.0", "hsa-runtime-rocr4wsl-amdgpu"))

    @property
    def listed(self) -> bool:
        """The driver has a GPU."""
        drivers = (card.get("driver") for card in self.rows("windows.cards"))
        return bool(self.rows("driver.gpus") or any(drivers))

    @property
    def closed(self) -> list[Facts]:
        """The devices that this process may not use."""
        devices = self.each("kernel.devices")
        return [d for d in devices if d.word("exists") and not d.word("usable")]

    @property
    def card_names(self) -> str:
        return ", ".join(self.architectures) or "an AMD card"

    @property
    def tested(self) -> list[dict[str, Any]]:
        """The self-test's results, with the back-end's name, and "wrong" for the verdict "error" of
        one that came back with numbers that are not the convolution's."""
        library = "MIOpen" if self.get("torch.hip") else "cuDNN"
        found = []
        for row in self.rows("self_test.results"):
            tier, verdict, detail = (str(row.get(name)) for name in ("tier", "verdict", "detail"))
            is_wrong = verdict == "error" and detail.startswith("WrongResultError")
            found.append({
                **row, "name": _TIERS.get(tier, tier).replace("{}", library),
                "is_gpu": str(row.get("device")).startswith("cuda"),
                "found": "wrong" if is_wrong else verdict, "told": row.get("detail") or verdict,
                "left_out": "" if tier == "cpu" else "; protect() does without it",
            })  # fmt: skip
        return found

    @property
    def target(self) -> str:
        """What a PyTorch has to be built for."""
        return ", ".join(sorted(set(self.architectures))) or "your card"


@dataclass(frozen=True)
class Variant:
    """What a rule says in one case; "": what it says otherwise. when: as a rule's."""

    id: str = ""
    severity: str = ""
    title: str = ""
    evidence: str = ""
    remedy: str = ""
    source: str = ""
    when: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule(Variant):
    """One rule of rules/*.toml: a finding for each thing that its check finds out, where all
    conditions (Facts.holds) of `when` are so; without a check, where they are.

    each: a list of facts, of which each row is looked at. cards: only where an architecture begins
    so; {cards} are those. variants: what differs in a case that the check names, or that its own
    `when` describes; of cases that hold the last one counts.
    """

    check: Check = lambda facts: [Match()]
    each: str = ""
    cards: tuple[str, ...] = ()
    variants: Mapping[str, Variant] = field(default_factory=dict)

    def findings(self, facts: Facts) -> Iterator[Finding]:
        if self.cards:
            cards = {a for a in facts.architectures if a.startswith(self.cards)}
            if not cards:
                return
            facts = facts.beside({"cards": sorted(cards)})
        for seen in facts.each(self.each) if self.each else [facts]:
            if all(map(seen.holds, self.when)):
                for match in self.check(seen):
                    yield self._finding(match, seen.beside(match.words))

    def _finding(self, match: Match, facts: Facts) -> Finding:
        parts: list[Variant] = [self, *(self.variants[name] for name in match.variants)]
        parts += (s for s in self.variants.values() if s.when and all(map(facts.holds, s.when)))
        texts = [next(filter(None, (getattr(p, n) for p in reversed(parts))), "") for n in _TEXTS]
        name, severity, *others = map(facts.filled, texts)
        return Finding(name, Severity(severity), *others)


_KNOWN = {name for name, value in vars(Facts).items() if isinstance(value, property)}


def named(card: Mapping[str, Any]) -> str:
    """A card of Windows': "AMD Radeon RX 7900 XTX (gfx1100)"."""
    own = card.get("architecture")
    return f"{card.get('name')} ({own})" if own else str(card.get("name"))


def _is_processors(card: Mapping[str, Any]) -> bool:
    return is_apu(str(card.get("architecture") or ""))


def as_version(value: Any) -> Version:
    """A version that facts hold as a list of numbers or a text; () where it isn't known."""
    return tuple(value) if isinstance(value, list | tuple) else parse_version(str(value))


def _shown(value: Any, form: str) -> str:
    if form == "size":
        return size_text(value)
    if form == "time":
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if value is None:
        return format(0, form) if form else ""
    return format(value, form)
