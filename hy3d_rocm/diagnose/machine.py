"""The system, the card and the programs that a log shows, and the commands that depend on them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from hy3d_rocm.diagnose.read import without_prefix
from hy3d_rocm.diagnose.signs import signs

System = Literal["", "linux", "windows", "wsl"]
_LOOKED_FOR = (
    "torch", "zluda", "zluda loaded", "comfy", "amd", "torch works", "by choice", "root",
    "devices given", "nvidia", "claimed", "container",
)  # fmt: skip
SHOWN = {*_LOOKED_FOR, "stranger", "memory unseen"}  # what `Machine.holds` can be asked
_DRIVER_VRAM = re.compile(
    r"amdgpu\b.{0,30}VRAM: (\d{3,7})M|Detected VRAM RAM=(\d{3,7})M"
    r"|amdgpu: (\d{3,7})M of VRAM memory ready"
)
_SEEN_VRAM = re.compile(
    r"total capac\w+ of (\d{1,4}\.\d+) GiB|\bTotal VRAM (\d{3,7}) MB"
    r"|^Size: (\d{7,10})\(0x[\da-f]+\) ?KB"
)
_SYSFS_VRAM = re.compile(r"^(\d{9,13})\b(?! ?[KMG]i?B)")
_NO_WHEELS = {"gfx1036"}  # the small GPU of a desktop processor: never the card that is meant
_INTEGRATED = {"gfx1035", "gfx1036", "gfx1103"}
_ARCHITECTURE = re.compile(r"\bgfx(\d{3,4}[a-f]?)\b", re.IGNORECASE)
_CARDS = (  # of one name: what ComfyUI's "Device:" line shows
    (r"RX 7900", "gfx1100"), (r"RX 7[78]00(?!S)", "gfx1101"),
    (r"RX 7(?:6[05]|4[05])0|RX 7700S", "gfx1102"),
    # Of the mobile ones the S and some of the M have a smaller chip than the card of that number.
    (r"RX 6[89][05]0(?![SM])", "gfx1030"), (r"RX 67[05]0(?!S)|RX 68[05]0M", "gfx1031"),
    (r"RX 66[05]0|RX 6[78]00S", "gfx1032"), (r"RX 6[345]00", "gfx1034"),
    (r"RX 5[67]00", "gfx1010"),
    (r"RX 9070", "gfx1201"), (r"RX 9060", "gfx1200"),
    (r"8060S|Strix Halo", "gfx1151"), (r"\b780M", "gfx1103"), (r"\b8[89]0M", "gfx1150"),
)  # fmt: skip
_PROCESSORS = {"gfx1150", "gfx1151"}
_NAMES = [(re.compile(pattern, re.IGNORECASE), name) for pattern, name in _CARDS]
_RELATIVES = (  # the override that AMD's own builds of one generation take
    (re.compile(r"gfx103[1-6]$"), "10.3.0"),
    (re.compile(r"gfx110[1-3]$"), "11.0.0"),
)
_INDEX = "https://rocm.nightlies.amd.com/whl-multi-arch/"


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

    def __post_init__(self) -> None:
        self._signs = signs()
        self._awaited = [self._signs[name] for name in _LOOKED_FOR]

    def feed(self, text: str, low: str) -> None:
        """`low`: the text in lower case."""
        found = {sign.name for sign in self._awaited if sign.shown(text, low)}
        if found:
            self.shown |= found
            self._awaited = [sign for sign in self._awaited if sign.name not in found]
        self._memory(text, low)
        self._look_for_system(text, low)
        if "gfx" in low:
            self.architectures.update(f"gfx{n.lower()}" for n in _ARCHITECTURE.findall(text))
        if "rx " in low or "radeon" in low:
            self.named.update(name for pattern, name in _NAMES if pattern.search(text))

    def _look_for_system(self, text: str, low: str) -> None:
        if self.system != "wsl" and self._signs["windows declared"].shown(text, low):
            self.system, self.declared = "windows", True
        if self.system in ("", "linux") or self.declared:
            if self._signs["wsl"].shown(text, low):
                self.system = "wsl"
            elif not self.system and self._signs["windows"].shown(text, low):
                self.system = "windows"
            elif not self.system and self._signs["linux"].shown(text, low):
                self.system = "linux"

    def _memory(self, text: str, low: str) -> None:
        if self.sysfs and (found := _SYSFS_VRAM.search(without_prefix(text))):
            self.driver_mib.append(int(found[1]) / 2**20)
        self.sysfs = "mem_info_vram_total" in low
        if "vram" in low and (found := _DRIVER_VRAM.search(text)):
            self.driver_mib.append(float(next(filter(None, found.groups()))))
        if ("total " in low or "size: " in low) and (
            found := _SEEN_VRAM.search(without_prefix(text))
        ):
            gib, mib, kib = (float(part or 0) for part in found.groups())
            self.seen_mib = max(self.seen_mib, gib * 1024, mib, kib / 1024)

    def holds(self, what: str) -> bool:
        """Whether the log shows that, or with "no " before it, that it does not.

        "amd": a word of AMD's cards or software; "torch", "comfy", "zluda", "zluda loaded";
        "stranger": neither amd nor torch; "torch works": it sees a card; "by choice": the program
        was told to use no card of ROCm; "nvidia": a card; "root", "container"; "devices given": to
        the container, with the numbers of groups; "claimed": the architecture, by
        HSA_OVERRIDE_GFX_VERSION, so it may not be the card's; "memory unseen": a program sees less
        than half of what the driver has on each card.
        """
        if what.startswith("no "):
            return not self.holds(what[3:])
        if what == "stranger":
            return not self.shown & {"amd", "torch"}
        if what == "memory unseen":
            return 1024 < self.seen_mib < min(self.driver_mib, default=0.0) / 2
        return what in self.shown

    @property
    def beside(self) -> bool:
        """Whether the log shows a GPU of a processor, and by its name a card beside it."""
        shown = self.architectures | self.named
        return bool(shown & _INTEGRATED and self.named - _INTEGRATED - _PROCESSORS)

    @property
    def architecture(self) -> str:
        """The one architecture that the log shows, or "" where it shows none or several."""
        for shown in (
            self.named,
            set() if "claimed" in self.shown else self.architectures - _NO_WHEELS,
        ):
            if len(shown) == 1:
                return next(iter(shown))
        return ""

    def filled(self, text: str) -> str:
        """`text` with {wheels}, {override}, {card} and {access} in place."""
        if "{access}" in text:
            text = text.replace("{access}", self._access())
        if "{wheels}" in text:
            text = text.replace("{wheels}", self._wheels())
        if "nvidia" in self.shown and not self.named:
            text = text.replace("the current Adrenalin driver", "the card's current driver")
        text = text.replace("{card}", self.architecture or "gfx1100 (your card's)")
        return text.replace("{override}", self._override()).strip()

    def _wheels(self) -> str:
        """ROCm/TheRock#5954: the multi-arch index took the place of one index a family in 2026."""
        if "nvidia" in self.shown and not self.named:
            return (
                "the commands of https://pytorch.org/get-started for torch, torchvision, torchaudio"
            )
        device = f"device-{self.architecture or 'all'}"
        return (
            f"python -m pip install --force-reinstall --index-url {_INDEX}"
            f' "torch[{device}]" "torchvision[{device}]" torchaudio'
        )

    def _access(self) -> str:
        """What lets this user or container use /dev/kfd. Groups do not hold root."""
        if "container" not in self.shown:
            if "root" in self.shown:
                return "dmesg | grep -i -e kfd -e amdgpu"
            return "sudo usermod -aG render,video $USER"
        if "devices given" in self.shown:
            return "On the host: sudo setfacl -m u:$USER:rw /dev/kfd /dev/dri/renderD128"
        return (
            'docker run --device /dev/kfd --device /dev/dri --group-add "$(stat -c %g /dev/kfd)"'
            ' --group-add "$(stat -c %g /dev/dri/renderD128)" IMAGE'
        )

    def _override(self) -> str:
        """Only within a generation, and "" where the card has no such relative."""
        card = self.architecture
        if not card:
            return (
                "Only on Linux and only within one generation, where no wheel knows the card:"
                " HSA_OVERRIDE_GFX_VERSION=10.3.0 for gfx1031 to gfx1036, 11.0.0 for gfx1101 to"
                " gfx1103; across generations it crashes or computes nonsense."
            )
        for pattern, version in _RELATIVES:
            if pattern.search(card):
                return (
                    f"On Linux, where no wheel knows {card}: HSA_OVERRIDE_GFX_VERSION={version}"
                    " (the same generation, so its code runs)."
                )
        return ""
