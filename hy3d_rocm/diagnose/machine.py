"""The system and the card that a log shows, and the commands that depend on them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

System = Literal["", "linux", "windows", "wsl"]
_WINDOWS = re.compile(
    r"\b[A-Za-z]:\\\\?\w|\bWinError\b|Windows fatal exception|\b0xC0000005\b|win_amd64|3221225477"
    r"|\bwin32\b|Platform: Windows|MSC v\.\d+|\bamdhip64\w*\.dll|\b(?:torch|c10)_hip\.dll"
    r"|\btorch_directml\b|\bDirectML\b|Press any key to continue|\bHIP SDK\b",
    re.IGNORECASE,
)
_LINUX = re.compile(
    r"(?:^|[\s\"'(=])/(?:home|usr|opt|root|mnt|workspace|var)/|\.so\b|\bamdgpu [\da-f]{4}:|/dev/kfd"
    r"|\bkernel: |core dumped|\[drm:",
)
_WINDOWS_PARTS = (":\\", "win", "0xc0000005", "3221225477", "msc v.", ".dll", "directml",
                  "press any key", "hip sdk")  # fmt: skip
_LINUX_PARTS = ("/home/", "/usr/", "/opt/", "/root/", "/mnt/", "/workspace/", "/var/", ".so",
                "amdgpu ", "/dev/kfd", "kernel: ", "core dumped", "[drm:")  # fmt: skip
_WSL = re.compile(
    r"WSL environment detected|microsoft-standard-WSL|/usr/lib/wsl/|/wsl/libhsakmt|/dev/dxg\b"
    r"|\blibrocdxg\b|\blibdxcore\b|\bmisc dxg: |No WDDM adapters",
    re.IGNORECASE,
)
_WSL_PARTS = ("wsl", "dxg", "dxcore", "wddm")
_CONTAINER = re.compile(
    r"--device[= ]/dev/(?:kfd|dri)|--group-add\b|\b(?:docker|podman)[ -](?:run|exec|compose)\b"
    r"|/\.dockerenv\b|\broot@[\da-f]{12}:",
    re.IGNORECASE,
)
_CONTAINER_PARTS = ("/dev/", "--group-add", "docker", "podman", "root@")
_INTEGRATED = {"gfx1035", "gfx1036", "gfx1103"}
_ARCHITECTURE = re.compile(r"\bgfx(\d{3,4}[a-f]?)\b", re.IGNORECASE)
_CLAIMED = "hsa_override_gfx_version"
_CARDS = (  # of one name: what ComfyUI's "Device:" line shows
    (r"RX 7900", "gfx1100"), (r"RX 7[78]00", "gfx1101"), (r"RX 7600", "gfx1102"),
    (r"RX 6[89][05]0", "gfx1030"), (r"RX 67[05]0", "gfx1031"), (r"RX 66[05]0", "gfx1032"),
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
    nvidia: bool = False  # an NVIDIA card is named
    container: bool = False  # it was run in one
    claimed: bool = False  # by HSA_OVERRIDE_GFX_VERSION, so the architecture may not be the card's

    def feed(self, text: str, low: str) -> None:
        """`low`: the text in lower case."""
        if (
            self.system in ("", "linux")
            and any(part in low for part in _WSL_PARTS)
            and _WSL.search(text)
        ):
            self.system = "wsl"
        elif not self.system:
            if any(part in low for part in _WINDOWS_PARTS) and _WINDOWS.search(text):
                self.system = "windows"
            elif any(part in low for part in _LINUX_PARTS) and _LINUX.search(text):
                self.system = "linux"
        if "gfx" in low:
            self.architectures.update(f"gfx{n.lower()}" for n in _ARCHITECTURE.findall(text))
        if "rx " in low or "radeon" in low:
            self.named.update(name for pattern, name in _NAMES if pattern.search(text))
        if "geforce" in low or "nvidia rtx" in low:
            self.nvidia = True
        if _CLAIMED in low:
            self.claimed = True
        if any(part in low for part in _CONTAINER_PARTS) and _CONTAINER.search(text):
            self.container = True

    @property
    def beside(self) -> bool:
        """Whether the log shows a GPU of a processor, and by its name a card beside it."""
        shown = self.architectures | self.named
        return bool(shown & _INTEGRATED and self.named - _INTEGRATED - _PROCESSORS)

    @property
    def architecture(self) -> str:
        """The one architecture that the log shows, or "" where it shows none or several."""
        for shown in (self.named, set() if self.claimed else self.architectures):
            if len(shown) == 1:
                return next(iter(shown))
        return ""

    def filled(self, text: str) -> str:
        """`text` with {wheels} and {override} in place."""
        if "{wheels}" in text:
            text = text.replace("{wheels}", self._wheels())
        if self.nvidia and not self.named:
            text = text.replace("the current Adrenalin driver", "the card's current driver")
        text = text.replace("{card}", self.architecture or "gfx1100 (your card's)")
        return text.replace("{override}", self._override()).strip()

    def _wheels(self) -> str:
        """ROCm/TheRock#5954: the multi-arch index took the place of one index a family in 2026."""
        if self.nvidia and not self.named:
            return (
                "the commands of https://pytorch.org/get-started for torch, torchvision, torchaudio"
            )
        device = f"device-{self.architecture or 'all'}"
        return (
            f"python -m pip install --force-reinstall --index-url {_INDEX}"
            f' "torch[{device}]" "torchvision[{device}]" torchaudio'
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
