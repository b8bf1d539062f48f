"""What a log shows beside its faults: the system, the card and the programs; and the commands that
depend on them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from hy3d_rocm.diagnose.cards import cards
from hy3d_rocm.diagnose.tables import read

System = Literal["", "linux", "windows", "wsl"]
_DRIVER_VRAM = re.compile(
    r"amdgpu\b.{0,30}VRAM: (\d{3,7})M|Detected VRAM RAM=(\d{3,7})M"
    r"|amdgpu: (\d{3,7})M of VRAM memory ready"
)
_SEEN_VRAM = re.compile(
    r"total capac\w+ of (\d{1,4}\.\d+) GiB|\bTotal VRAM (\d{3,7}) MB"
    r"|^Size: (\d{7,10})\(0x[\da-f]+\) ?KB"
)
_SYSFS_VRAM = re.compile(r"^(\d{9,13})\b(?! ?[KMG]i?B)")
_COMMAND = re.compile(r"\{(access|wheels|override)\}")
_ARCHITECTURE = re.compile(r"\bgfx(\d{3,4}[a-f]?)\b", re.IGNORECASE)


@dataclass(frozen=True)
class _Command:
    """See the head of commands.toml."""

    name: str
    text: str
    when: tuple[str, ...] = ()


@cache
def _commands() -> tuple[_Command, ...]:
    return read(Path(__file__).with_name("commands.toml"), _Command)[1]


@dataclass
class Machine:
    """Feed it every line."""

    system: System = ""
    architectures: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    declared: bool = False  # the report says itself that the system is Windows
    shown: set[str] = field(default_factory=set)  # names of signs, see `holds`
    driver_mib: list[float] = field(default_factory=list)  # of each card, as its driver says
    seen_mib: float = 0.0  # the most that a program or ROCm says it sees
    sysfs: bool = False  # the line before asked the driver for the memory's size

    def feed(self, text: str, bare: str, low: str, shown: set[str]) -> None:
        """`bare`: the text without what loggers put before it; `low`: it in lower case; `shown`:
        the signs that it shows, of some (`once`) those that no line before it did."""
        self.shown |= shown
        self._memory(text, bare, low)
        self._look_for_system(shown)
        if "gfx" in low:
            self.architectures.update(f"gfx{n.lower()}" for n in _ARCHITECTURE.findall(text))
        if "rx " in low or "radeon" in low:
            self.named.update(n for n, card in cards().items() if card.pattern.search(text))

    def _look_for_system(self, shown: set[str]) -> None:
        if self.system != "wsl" and "windows declared" in shown:
            self.system, self.declared = "windows", True
        if "wsl" in shown and (self.system in ("", "linux") or self.declared):
            self.system = "wsl"
        elif not self.system:
            self.system = "windows" if "windows" in shown else "linux" if "linux" in shown else ""

    def _memory(self, text: str, bare: str, low: str) -> None:
        if self.sysfs and (found := _SYSFS_VRAM.search(bare)):
            self.driver_mib.append(int(found[1]) / 2**20)
        self.sysfs = "mem_info_vram_total" in low
        if "vram" in low and (found := _DRIVER_VRAM.search(text)):
            self.driver_mib.append(float(next(filter(None, found.groups()))))
        if ("total " in low or "size: " in low) and (found := _SEEN_VRAM.search(bare)):
            gib, mib, kib = (float(part or 0) for part in found.groups())
            self.seen_mib = max(self.seen_mib, gib * 1024, mib, kib / 1024)

    def holds(self, what: str) -> bool:
        """Whether the log shows that, or with "no " before it, that it does not.

        "amd": a word of AMD's cards or software; "torch", "comfy", "zluda", "zluda loaded";
        "stranger": neither amd nor torch; "ggml": llama.cpp and its kin; "torch works": it sees a
        card; "by choice": the program was told to use no card of ROCm; "nvidia": a card; "root",
        "container"; "devices given": to the container, with the numbers of groups; "claimed": the
        architecture, by HSA_OVERRIDE_GFX_VERSION, so it may not be the card's; "memory unseen": a
        program sees less than half of what the driver has on each card; "windows", "wsl"; "beside":
        the processor's GPU beside a card; "gfx1151": that card, not in WSL.
        """
        if what.startswith("no "):
            return not self.holds(what[3:])
        if what == "stranger":
            return not self.shown & {"amd", "torch"}
        if what == "memory unseen":
            return 1024 < self.seen_mib < min(self.driver_mib, default=0.0) / 2
        known = {
            "card": self.architecture, "relative": self.override, "amd card": self.named,
            "windows": self.system == "windows", "wsl": self.system == "wsl",
            "beside": self.beside,
            "gfx1151": self.architecture == "gfx1151" and self.system != "wsl",
        }  # fmt: skip
        return bool(known[what]) if what in known else what in self.shown

    @property
    def beside(self) -> bool:
        """Whether the log shows a GPU of a processor, and by its name a card beside it."""
        kinds = {name: card.kind for name, card in cards().items() if card.kind}
        shown = (kinds.get(name) for name in self.architectures | self.named)
        return "beside" in shown and bool(self.named - kinds.keys())

    @property
    def architecture(self) -> str:
        """The one architecture that the log shows, or "" where it shows none or several."""
        meant = {n for n in self.architectures if n not in cards() or not cards()[n].never_meant}
        for shown in (self.named, set() if "claimed" in self.shown else meant):
            if len(shown) == 1:
                return next(iter(shown))
        return ""

    def filled(self, text: str) -> str:
        """`text` with {wheels}, {override}, {card} and {access} in place."""
        text = _COMMAND.sub(lambda name: self._command(name[1]), text)
        if "nvidia" in self.shown and not self.named:
            text = text.replace("the current Adrenalin driver", "the card's current driver")
        return text.replace("{card}", self.architecture or "gfx1100 (your card's)").strip()

    @property
    def override(self) -> str:
        """What HSA_OVERRIDE_GFX_VERSION makes the card's relative of it, or ""."""
        card = cards().get(self.architecture)
        return card.override if card else ""

    def _command(self, name: str) -> str:
        fitting = (c for c in _commands() if c.name == name and all(map(self.holds, c.when)))
        card = self.architecture
        words = {"card": card, "device": f"device-{card or 'all'}", "version": self.override}
        return next((command.text.format_map(words) for command in fitting), "")
