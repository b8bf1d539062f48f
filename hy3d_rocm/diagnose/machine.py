"""The system, the card and the programs that a log shows, and the commands that depend on them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from hy3d_rocm.diagnose.read import without_prefix

System = Literal["", "linux", "windows", "wsl"]
_WINDOWS = re.compile(
    r"\b[A-Za-z]:\\\\?\w|\bWinError\b|Windows fatal exception|\b0xC0000005\b|win_amd64|3221225477"
    r"|\bwin32\b|ZLUDA load: path='[^'/]{1,200}\\|Platform: Windows"
    r"|MSC v\.\d+|\bamdhip64\w*\.dll|\b(?:torch|c10)_hip\.dll"
    r"|\btorch_directml\b|\bDirectML\b|Press any key to continue|\bHIP SDK\b",
    re.IGNORECASE,
)
_LINUX = re.compile(
    r"(?:^|[\s\"'(=])/(?:home|usr|opt|root|mnt|workspace|var)/|\.so\b|\bamdgpu [\da-f]{4}:|/dev/kfd"
    r"|\bkernel: |core dumped|\[drm:",
)
_WINDOWS_PARTS = (":\\", "win", "0xc0000005", "3221225477", "msc v.", ".dll", "directml",
                  "press any key", "hip sdk", "zluda load")  # fmt: skip
_LINUX_PARTS = ("/home/", "/usr/", "/opt/", "/root/", "/mnt/", "/workspace/", "/var/", ".so",
                "amdgpu ", "/dev/kfd", "kernel: ", "core dumped", "[drm:")  # fmt: skip
# What a report says of itself counts for more than the paths in it.
_DECLARED = re.compile(
    r"^\W{0,8}(?:OS|Operating System|System|Platform)\b[^:]{0,30}: ?\W{0,4}(?:Microsoft )?Windows\b"
    r"|^\W{0,4}(?:Microsoft )?Windows (?:10|11|Server)\b[^:]{0,40}$",
    re.IGNORECASE,
)
_WSL = re.compile(
    r"WSL environment detected|microsoft-standard-WSL|usecase=\S{0,20}\bwsl\b|/usr/lib/wsl/"
    r"|/wsl/libhsakmt|/dev/dxg\b|\blibrocdxg\b|\blibdxcore\b|\bmisc dxg: |No WDDM adapters",
    re.IGNORECASE,
)
_WSL_PARTS = ("wsl", "dxg", "dxcore", "wddm")
_CONTAINER = re.compile(
    r"--device[= ]/dev/(?:kfd|dri)|--group-add\b|\b(?:docker|podman)[ -](?:run|exec|compose)\b"
    r"|\b(?:docker|podman) container\b|/\.dockerenv\b|\broot@[\da-f]{12}[: ]"
    r"|\bmember of nogroup\b|\bbuildah (?:from|run)\b",
    re.IGNORECASE,
)
_CONTAINER_PARTS = ("/dev/", "--group-add", "docker", "podman", "root@", "nogroup", "buildah")
_ROOT = re.compile(r"^\W{0,3}root(?:@[\w.-]{1,60})?:\S{0,80}[#$]|^\W{0,3}\[root@", re.IGNORECASE)
_AMD = re.compile(
    r"rocm|radeon|\bamd(?!64|[ -](?:ryzen|epyc|athlon))|zluda|\bgfx\d|miopen|(?:hip|roc)blas"
    r"|\bhip\b|\bHSA_|_hip\b|directml|\bRX ?[5-9]\d{3}|\bRDNA",
    re.IGNORECASE,
)
_AMD_PARTS = ("rocm", "radeon", "amd", "zluda", "gfx", "miopen", "hip", "rocblas", "hsa_",
              "directml", "rx", "rdna")  # fmt: skip
_COMFY_PARTS = ("comfy", "custom_nodes", "got prompt", "prompt executed", "requested to load",
                "exception during processing", "node type:", "nodes.py",
                "[vae decode]")  # fmt: skip
_TORCH_WORKS = re.compile(
    r"\b(?:GPU|CUDA|HIP|ROCm)[\w ()/]{0,20} ?available\W{1,4}(?:True|yes)\b"
    r"|is_available\(\)\W{1,6}True\b|\bDevice: cuda:\d|\btorch_geometric\b",
    re.IGNORECASE,
)
_TORCH_WORKS_PARTS = ("available", "device: cuda", "torch_geometric")
_BY_CHOICE = re.compile(r"--(?:cpu|use-cpu|no-gpu|directml)\b|\bdirectml\b", re.IGNORECASE)
_ZLUDA_LOADED = ("zluda load: ", "via zluda", "[zluda]")
_GIVEN = re.compile(
    r"--group-add[= ][\"']?\d.{0,300}--device[= ]/dev/kfd"
    r"|--device[= ]/dev/kfd.{0,300}--group-add[= ][\"']?\d"
)
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
SHOWN = {  # what `Machine.holds` can be asked
    "amd", "torch", "comfy", "zluda", "zluda loaded", "stranger", "torch works", "by choice",
    "nvidia", "root", "container", "devices given", "memory unseen",
}  # fmt: skip
_CLAIMED = "hsa_override_gfx_version"
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
    nvidia: bool = False  # an NVIDIA card is named
    container: bool = False  # it was run in one
    claimed: bool = False  # by HSA_OVERRIDE_GFX_VERSION, so the architecture may not be the card's
    declared: bool = False  # the report says itself that the system is Windows
    shown: set[str] = field(default_factory=set)  # "amd", "torch", "zluda", ...: see `holds`
    driver_mib: list[float] = field(default_factory=list)  # of each card, as its driver says
    seen_mib: float = 0.0  # the most that a program or ROCm says it sees
    sysfs: bool = False  # the line before asked the driver for the memory's size

    def feed(self, text: str, low: str) -> None:
        """`low`: the text in lower case."""
        self._programs(text, low)
        self._memory(text, low)
        if "windows" in low and self.system != "wsl" and _DECLARED.search(text):
            self.system, self.declared = "windows", True
        if (
            (self.system in ("", "linux") or self.declared)
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

    def _programs(self, text: str, low: str) -> None:
        show = self.shown.add
        if "torch" in low:
            show("torch")
        if "zluda" in low:
            show("zluda")
            if any(part in low for part in _ZLUDA_LOADED):
                show("zluda loaded")
        if "comfy" not in self.shown and any(part in low for part in _COMFY_PARTS):
            show("comfy")
        if (
            "amd" not in self.shown
            and any(part in low for part in _AMD_PARTS)
            and _AMD.search(without_prefix(text))
        ):
            show("amd")
        if any(part in low for part in _TORCH_WORKS_PARTS) and _TORCH_WORKS.search(text):
            show("torch works")
        if ("cpu" in low or "directml" in low or "--no-gpu" in low) and _BY_CHOICE.search(text):
            show("by choice")
        if "root" in low and _ROOT.search(text):
            show("root")
        if "/dev/kfd" in low and _GIVEN.search(text):
            show("devices given")

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
        the container, with the numbers of groups; "memory unseen": a program sees less than half
        of what the driver has on each card.
        """
        if what.startswith("no "):
            return not self.holds(what[3:])
        if what == "stranger":
            return not self.shown & {"amd", "torch"}
        if what == "memory unseen":
            return 1024 < self.seen_mib < min(self.driver_mib, default=0.0) / 2
        return {"container": self.container, "nvidia": self.nvidia}.get(what, what in self.shown)

    @property
    def beside(self) -> bool:
        """Whether the log shows a GPU of a processor, and by its name a card beside it."""
        shown = self.architectures | self.named
        return bool(shown & _INTEGRATED and self.named - _INTEGRATED - _PROCESSORS)

    @property
    def architecture(self) -> str:
        """The one architecture that the log shows, or "" where it shows none or several."""
        for shown in (self.named, set() if self.claimed else self.architectures - _NO_WHEELS):
            if len(shown) == 1:
                return next(iter(shown))
        return ""

    def filled(self, text: str) -> str:
        """`text` with {wheels}, {override}, {card} and {access} in place."""
        if "{access}" in text:
            text = text.replace("{access}", self._access())
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

    def _access(self) -> str:
        """What lets this user or container use /dev/kfd. Groups do not hold root."""
        if not self.container:
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
