"""What the rules need to know of this machine, found out without torch and without its GPU.

torch/version.py is read as text, installed wheels by the names of their folders, the GPUs from
the kernel driver: a few milliseconds, and nothing is initialised.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hy3d_rocm.diagnose.env import gpu

Version = tuple[int, ...]  # () where it isn't known
_ZLUDA = ("zluda/zluda.exe", "zluda/nvcuda.dll", ".zluda/nvcuda.dll")
# patientx/ComfyUI-Zluda, install-n.bat: NVIDIA's own, where ZLUDA's has taken its name.
_ZLUDAS_COPY = "nvrtc_cuda.dll"
WSL_GPU = Path("/dev/dxg")  # ROCm under WSL has no kernel driver of its own to ask
# rocm_sdk_libraries_gfx110X_dgpu-7.10.0a20251015.dist-info, rocm-7.2.0.dev0.dist-info, ...
_WHEEL = re.compile(
    r"(rocm|rocm_sdk_(?:core|devel|libraries\w*|device_\w+)|amd_torch_device_\w+)-([^-]+)\.dist-info"
)
# Of wheels for several GPUs ("gfx110X"), and of those that have one GPU's kernels each.
TARGET = re.compile(r"(?:rocm_sdk|amd_torch)_(libraries|device)_(gfx[0-9a-zA-Z]+)")


@dataclass(frozen=True)
class Machine:
    """architectures: LLVM's names, or a wheel's family ("gfx110X") where no driver can be asked."""

    architectures: tuple[str, ...] = ()
    gpus_can_be_listed: bool = True
    torch: Version = ()
    torch_is_rocm: bool | None = None  # None: no torch, or one that can't be read
    rocm: Version = ()
    zluda: bool = False
    system: str = "linux"
    find_results: int = 0  # in MIOpen's own database, of its newest version there

    @property
    def runs_on_amd(self) -> bool:
        """An AMD GPU is, or may be, what torch computes on."""
        if self.zluda:
            return True
        if self.torch_is_rocm is None:
            return bool(self.architectures)
        return self.torch_is_rocm and (bool(self.architectures) or not self.gpus_can_be_listed)

    @property
    def has_rocm_libraries(self) -> bool:
        """MIOpen and a ROCm allocator read the variables here, whatever GPU there is."""
        return self.runs_on_amd or self.torch_is_rocm is True

    def describe(self) -> str:
        """One line for people."""
        kind = {True: "a ROCm build", False: "no ROCm build", None: "not found"}[self.torch_is_rocm]
        parts = [
            ", ".join(self.architectures) or "no AMD GPU known",
            f"ROCm {dotted(self.rocm)}" if self.rocm else "",
            f"torch {dotted(self.torch)} ({kind})" if self.torch else f"torch {kind}",
            "ZLUDA" if self.zluda else "",
        ]
        return "; ".join(filter(None, parts))


def dotted(version: Version) -> str:
    return ".".join(map(str, version))


def parse_version(text: str) -> Version:
    """The leading numbers: "7.2.53211-fc0010cf6a" is (7, 2, 53211), "unknown" is ()."""
    found = re.match(r"\d+(\.\d+)*", text.strip())
    return tuple(map(int, found[0].split("."))) if found else ()


def detect(
    environ: Mapping[str, str], *, topology: Path = gpu.TOPOLOGY, system_rocm: Path = gpu.ROCM
) -> Machine:
    """This machine. Never raises for what is missing or unreadable."""
    folder = torch_folder()
    build = torch_build(folder)
    architectures, wheel_version = rocm_wheels(sys.path)
    listed = tuple(facts["architecture"] for facts in gpu.amd_gpus(topology))
    can_be_listed = sys.platform == "linux" and (bool(listed) or not os.path.exists(WSL_GPU))
    found = Machine(
        architectures=listed or (() if can_be_listed else architectures),
        gpus_can_be_listed=can_be_listed,
        torch=parse_version(build.get("__version__", "")),
        torch_is_rocm=is_rocm(build) if build else None,
        rocm=rocm_of(build) or wheel_version or parse_version(gpu.rocm_version(system_rocm)),
        zluda=uses_zluda(environ, build, folder),
        system={"win32": "windows"}.get(sys.platform, sys.platform),
    )
    return replace(found, find_results=find_results(environ)) if found.runs_on_amd else found


def find_results(environ: Mapping[str, str]) -> int:
    """How many convolutions MIOpen has found a solver for, 0 where that can't be read.

    Of the newest version that has left a database, since others' are not read.
    """
    from hy3d_rocm.diagnose.miopen import places

    by_version: dict[Version, int] = {}
    # Compiled kernels, of which there may be thousands, are elsewhere: this runs at each start.
    for place in (p for p in places.places(environ) if p.kind == places.DATABASES):
        with contextlib.suppress(OSError):
            for path in places.files_of(place):
                if places.kind_of(path.name) == places.FIND:
                    version = parse_version(places.version_of(path.name))
                    entries = places.entries_in(path) or 0
                    by_version[version] = by_version.get(version, 0) + entries
    return by_version[max(by_version)] if by_version else 0


def torch_folder() -> Path | None:
    """Where torch is installed; torch is not imported for that."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError, AttributeError):
        return None
    folders = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(folders))) if folders else None


def torch_build(folder: Path | None) -> dict[str, str]:
    """The names and texts in torch/version.py; a None there is "". {} if it can't be read."""
    try:
        text = (folder / "version.py").read_text("utf-8", "replace") if folder else ""
    except OSError:
        return {}
    lines = re.findall(r"^(\w+)[^=\n]*=\s*(?:None|['\"]([^'\"\n]*)['\"])\s*$", text, re.M)
    found = dict(lines)
    return found if "__version__" in found else {}


def is_rocm(build: Mapping[str, str]) -> bool:
    return bool(build.get("hip")) or "+rocm" in build.get("__version__", "")


def rocm_of(build: Mapping[str, str]) -> Version:
    """The ROCm that a torch build brings along.

    HIP's number is ROCm's only up to ROCm 7: "2.15.0a0+rocm10.1.0a" has HIP 7.16.
    """
    local = re.search(r"\+rocm([\d.]+)", build.get("__version__", ""))
    texts = (build.get("rocm", ""), local[1] if local else "", build.get("hip", ""))
    return next(filter(None, map(parse_version, texts)), ())


def rocm_wheels(folders: Iterable[str]) -> tuple[tuple[str, ...], Version]:
    """Architectures and version that ROCm's own wheels name."""
    packages = rocm_packages(folders)
    targets = [found[2] for found in map(TARGET.match, (name for name, _ in packages)) if found]
    versions = (parse_version(version) for name, version in packages if name.startswith("rocm"))
    return tuple(dict.fromkeys(targets)), next(filter(None, versions), ())


def rocm_packages(folders: Iterable[str]) -> dict[tuple[str, str], Path]:
    """Name and version of ROCm's own wheels -> their .dist-info folder, sorted."""
    paths = {path.name: path for folder in folders for path in gpu.entries(Path(folder or "."))}
    found = ((_WHEEL.fullmatch(name), paths[name]) for name in sorted(paths))
    return {(wheel[1], wheel[2]): path for wheel, path in found if wheel}


def uses_zluda(
    environ: Mapping[str, str], build: Mapping[str, str], folder: Path | None = None
) -> bool:
    """A CUDA build of torch on an AMD GPU: told by ZLUDA's variables, its folder beside the program
    or the environment, or the library that its installers leave in torch's folder."""
    if not build.get("cuda"):
        return False
    if any(name.startswith("ZLUDA_") for name in environ):
        return True
    beside = [place / name for place in (Path(), Path(sys.prefix).parent) for name in _ZLUDA]
    own = [folder / "lib" / _ZLUDAS_COPY] if folder is not None else []
    return sys.platform == "win32" and any(map(os.path.exists, (*beside, *own)))
