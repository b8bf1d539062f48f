"""How much memory can still be had: the one reader of it, for router, planner, nodes and doctor.

The host: what the kernel calls available, and no more than any control group of this process
leaves, its own and those above it (version 1 and 2: limit - usage + file cache that can be
dropped). A GPU: what the driver has, and what PyTorch's allocator holds unused (it gives that back
by itself before it reports out of memory). Then sentences about it, and the cap that a user asks
for: pure, no torch, no device.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hy3d_rocm.diagnose.env import gpu
from hy3d_rocm.diagnose.env.shown import printable
from hy3d_rocm.files import mounts
from hy3d_rocm.units import GB, short_text, size_text

if TYPE_CHECKING:
    import torch

ROOT = Path("/")

# Limit, usage and the name in memory.stat of file cache that can be dropped, for versions 2 and 1.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
# Where a kernel tells no mounts: the usual ones. Folder of the mount, what of the tree it shows.
_USUAL = {_V2: ("/sys/fs/cgroup", "/"), _V1: ("/sys/fs/cgroup/memory", "/")}
_NO_LIMIT = 1 << 60  # version 1 has a number near 2^63 for none
_KEPT_SECONDS = 1.0

Names = tuple[str, str, str]

# AMD's GPUs that share the host's memory, where torch doesn't say so itself: Raven and Picasso,
# Renoir and Cezanne, Van Gogh, Rembrandt, Raphael, Phoenix and Hawk Point, Strix Point, Strix Halo,
# Krackan. (MI300A has the name of MI300X, gfx942, and is told by torch alone.)
_APUS = frozenset(
    "gfx902 gfx909 gfx90c gfx1033 gfx1035 gfx1036 gfx1103 gfx1150 gfx1151 gfx1152 gfx1153".split()
)


@dataclass(frozen=True)
class Machine:
    """The memory of one device and of the host as they are now, in bytes.

    device: "cpu", "cuda:0", ... For "cpu" the device's figures are the host's.
    device_free: what an allocation could still get there, torch's idle blocks included.
    device_held: what this process has there already (memory_fraction counts it).
    host_free: what the kernel calls available, within the control group's limit.
    is_unified: device and host are the same memory. device_carved: what of device_free the host
    can never get (an APU's free carve-out).
    """

    device: str
    device_free: int
    device_total: int
    host_free: int
    host_total: int
    device_held: int = 0
    is_unified: bool = False
    device_carved: int = 0

    @property
    def on_cpu(self) -> bool:
        """The decode computes on the host."""
        return self.device.partition(":")[0] == "cpu"


def is_apu(architecture: str) -> bool:
    """Whether an AMD GPU of this name ("gfx1151:sramecc-:xnack-") shares the host's memory."""
    return architecture.partition(":")[0] in _APUS


def gpu_in_use() -> bool:
    """Whether this process has started CUDA or HIP; never starts it."""
    import torch

    # torch leaves is_initialized unannotated.
    return torch.cuda.is_available() and bool(
        torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    )


def free_bytes(device: torch.device) -> int | None:
    """Bytes that an allocation on `device` could still get, or None where nobody can tell: on
    another device, and on a GPU that this process has not started (which is never done here)."""
    if device.type == "cuda":
        return gpu_bytes(device)[0] if gpu_in_use() else None
    return host_free_bytes() if device.type == "cpu" else None


def gpu_bytes(device: torch.device | int) -> tuple[int, int]:
    """(free, total) bytes of a CUDA or HIP device, which is started where it was not."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    idle = reserved - torch.cuda.memory_allocated(device)
    # On APUs the driver has reported 2^34 GiB (a negative number) as free:
    # https://github.com/Comfy-Org/ComfyUI/issues/2431
    free, share = free if free <= total else 0, _share(device)
    if share < 1:
        free = min(free, max(int(total * share) - reserved, 0))
    return int(free) + int(idle), int(total)


def _share(device: torch.device | int) -> float:
    """Of a GPU's memory, what torch lets this process have."""
    import torch

    ask = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # torch 2.9
    try:
        return 1.0 if ask is None else float(ask(device))
    except (AssertionError, RuntimeError):  # torch was built without GPUs
        return 1.0


def host_free_bytes(root: Path = ROOT) -> int | None:
    """What this process could still get of the host's memory; None where the system does not say.
    root: where proc and sys are (tests)."""
    free = _host("MemAvailable", "available", root)
    for limit, folder, (_, usage_name, cache_name) in _limits_now(root):
        used = gpu.number(folder / usage_name)
        # The statistics are slow to read, and a group with more room than `free` changes nothing.
        if used is not None and (free is None or limit - used < free):
            cache = gpu.field(folder / "memory.stat", f"{cache_name} ") or 0
            room = max(limit - used + cache, 0)
            free = room if free is None else min(free, room)
    return free


def host_total_bytes(root: Path = ROOT) -> int | None:
    """All of the host's memory, or a control group's limit where that is less."""
    total = _host("MemTotal", "total", root)
    bounds = [limit for limit, _, _ in _limits_now(root)]
    return min(bounds if total is None else [total, *bounds], default=None)


def _host(field: str, attribute: str, root: Path) -> int | None:
    """A field of /proc/meminfo; where there is no such file, what psutil says of this machine."""
    if (kilobytes := gpu.field(root / "proc/meminfo", f"{field}:")) is not None:
        return kilobytes * 1024
    if root != ROOT:
        return None
    with suppress(ImportError, OSError, RuntimeError):
        psutil: Any = importlib.import_module("psutil")
        return int(getattr(psutil.virtual_memory(), attribute))
    return None


def _limits_now(root: Path) -> tuple[tuple[int, Path, Names], ...]:
    return _limits(root, time.monotonic() // _KEPT_SECONDS)


@functools.lru_cache(maxsize=2)
def _limits(root: Path, _moment: float) -> tuple[tuple[int, Path, Names], ...]:
    """The limits that bind this process, each with the folder of its group. Read once a second,
    since a router asks at every call, and most groups have none."""
    found = []
    for folder, names in _groups(root):
        limit = gpu.number(folder / names[0])  # None for "max", which is no limit (version 2)
        if limit is not None and limit < _NO_LIMIT:
            found.append((limit, folder, names))
    return tuple(found)


def _groups(root: Path) -> list[tuple[Path, Names]]:
    """Folders of this process's control groups and of those above, with their files' names."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[tuple[Path, Names]] = []
    mounted = _mounts(root)
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            names = _V2
        elif "memory" in controllers.split(","):
            names = _V1
        else:
            continue
        place, shown = mounted.get(names, _USUAL[names])
        top = root / place.lstrip("/")
        # In a container a mount may show a part of the tree only, and the kernel may tell a path
        # that lies in none of it (or above: "/.."): then the mount's own top is our group.
        inside = path == shown or path.startswith(shown.rstrip("/") + "/")
        below = path[len(shown.rstrip("/")) :] if inside else path
        folder = top / below.lstrip("/")
        while folder != top:
            found.append((folder, names))
            folder = folder.parent
        found.append((top, names))
    return found


def _mounts(root: Path) -> dict[Names, tuple[str, str]]:
    """For each version that is mounted with a memory controller: the folder of the mount, and
    which part of the tree it shows."""
    found: dict[Names, tuple[str, str]] = {}
    with suppress(OSError):
        for place, shown, kind, options in mounts((root / "proc/self/mountinfo").read_text()):
            if kind == "cgroup2":
                found.setdefault(_V2, (place, shown))
            elif kind == "cgroup" and "memory" in options.split(","):
                found.setdefault(_V1, (place, shown))
    return found


CAP_GB = "HY3D_ROCM_MAX_VRAM_GB"
CAP_SHARE = "HY3D_ROCM_MAX_VRAM_SHARE"
MIN_CAP_BYTES = GB // 2  # below it not even the GPU's libraries can work

# What `limit` is: a cap on this process, all of the card's memory, all of the host's.
Kind = Literal["limit", "card", "host"]
_OF = {"limit": "{} limit", "card": "the card's {}", "host": "the host's {}"}


def stage_line(
    stage: str, free: int, allocated: int, limit: int | None, kind: Kind = "limit"
) -> str:
    """`[Before VAE Load] Free: 18.2 GB | Allocated: 1.8 GB (9.0% of 20GB limit)`.

    free, allocated, limit: bytes; kind: what the limit is. A limit of None or 0 (nobody knows the
    total) leaves the parenthesis out. A negative `free`, of a process above its cap, is shown as 0.
    """
    head = f"[{' '.join(stage.split())}] Free: {max(free, 0) / GB:.1f} GB"
    body = f"Allocated: {allocated / GB:.1f} GB"
    if not limit:
        return f"{head} | {body}"
    share = 100 * allocated / limit
    return f"{head} | {body} ({share:.1f}% of {_OF[kind].format(short_text(limit))})"


def wanted_cap(environ: Mapping[str, str], total: int) -> tuple[int | None, list[str]]:
    """The cap in bytes that the two variables ask for on a card of `total` bytes, and sentences.

    None: nothing is asked for, or nothing that makes sense; each senseless value is a sentence.
    With both variables set the smaller cap counts. A cap as large as the card is no cap.
    """
    caps: list[int] = []
    said: list[str] = []
    for name, parse in ((CAP_GB, _bytes_of_gb), (CAP_SHARE, _bytes_of_share)):
        text = environ.get(name, "").strip()
        if not text:
            continue
        cap = parse(text, total)
        if isinstance(cap, str):
            said.append(f"{name}={printable(text, 60)} is passed over: {cap}")
        else:
            caps.append(cap)
    if len(caps) == 2 and caps[0] != caps[1]:
        said.append(f"{CAP_GB} and {CAP_SHARE} are both set: the smaller cap counts")
    cap = min(caps, default=total)
    return (cap if cap < total else None), said


def _bytes_of_gb(text: str, total: int) -> int | str:
    match = re.fullmatch(r"([0-9.]+)\s*(?:g|gb|gib)?", text.lower())
    number = _number(match[1]) if match else None
    if number is None:
        return 'give a number of GB (2**30 bytes) such as "20" or "19.5"'
    if number * GB > total:
        return f"the card has only {short_text(total)}"
    return _checked(round(number * GB))


def _bytes_of_share(text: str, total: int) -> int | str:
    percent = text.endswith("%")
    number = _number(text.rstrip("% "))
    if number is None or not 0 < (share := number / 100 if percent else number) <= 1:
        return 'give a share of the card such as "0.85" or "85%"'
    return _checked(round(share * total))


def _checked(cap: int) -> int | str:
    if cap < MIN_CAP_BYTES:
        return f"that is {size_text(cap)}, and nothing works below {size_text(MIN_CAP_BYTES)}"
    return cap


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
