"""What of a machine decides how its convolutions behave: architecture, driver, torch, libraries.

Read from the kernel driver and from torch's version numbers; the GPU is asked only where nothing
else knows its architecture, and then it is the caller's tensors that live there.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hy3d_rocm import __version__
from hy3d_rocm.diagnose.env import gpu
from hy3d_rocm.diagnose.env.checks import override_architecture
from hy3d_rocm.diagnose.env.machine import WSL_GPU, parse_version

AMDGPU = Path("/sys/module/amdgpu")
NVIDIA = Path("/proc/driver/nvidia/version")
# The packages that bring the module triton, of which a PyTorch for ROCm requires one.
_TRITONS = ("triton", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton", "triton-windows")
# In Windows' registry; the subkeys 0000, 0001, ... are the installed drivers.
DISPLAY_DRIVERS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"


class Machine(NamedTuple):
    """architecture: "gfx1100", "sm_90", "cpu"; driver: "amdgpu 6.10.5", "nvidia 560.35.03", ""
    for the CPU; torch: its version and, for GPUs, that of Triton: "2.9.0, triton 3.5.0"; vendor:
    "hip 6.4.43482, miopen 3.4.0", "cuda 12.8, cudnn 9.10.2", ""; ours: the version of hy3d_rocm.
    A change of any of them starts new rows."""

    architecture: str
    driver: str
    torch: str
    vendor: str
    ours: str


def this_machine(device: Any = "cpu") -> Machine:
    """This machine as seen from `device` (a torch.device or its text). Cached.

    For a GPU that neither torch has started nor Linux' kernel driver lists, torch starts it.
    """
    kind, _, number = str(device).partition(":")
    if kind == "cuda":
        return _gpu_machine(int(number) if number else _current_gpu())
    return _other_machine(kind)


def machines_here() -> list[Machine]:
    """This machine as seen from each of its devices. ImportError without torch."""
    import torch

    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    return [this_machine(device) for device in devices]


@functools.cache
def _other_machine(kind: str) -> Machine:
    import torch

    return Machine(kind, "", str(torch.__version__), "", __version__)


@functools.cache
def _gpu_machine(index: int) -> Machine:
    import torch

    is_amd = bool(torch.version.hip)
    return Machine(
        architecture=_architecture(index, is_amd),
        driver=amd_driver() if is_amd else nvidia_driver(),
        torch=", ".join((str(torch.__version__), *triton_versions())),
        vendor=_vendor(torch),
        ours=__version__,
    )


@functools.cache
def triton_versions() -> tuple[str, ...]:
    """("triton 3.6.0",) by what is installed; () for none; all, where packages overlap.

    Nothing is imported. Times of the Triton tier's tiles, and its errors, are a version's own.
    """
    found: list[str] = []
    for name in _TRITONS:
        try:
            found.append(f"triton {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)


def _current_gpu() -> int:
    import torch

    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.current_device() if started else 0


def _architecture(index: int, is_amd: bool) -> str:
    import torch

    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if is_amd and not started:
        known = {facts["architecture"] for facts in gpu.amd_gpus()}
        # Of several kinds, which one is device 0 is for HIP to say.
        if len(known) == 1:
            override = os.environ.get("HSA_OVERRIDE_GFX_VERSION", "")
            return override_architecture(override) or known.pop()
    return started_architecture(index)


@functools.cache
def started_architecture(index: int) -> str:
    """ "gfx1100" or "sm_90" of a GPU, which torch starts if it has not yet."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        # "gfx90a:sramecc+:xnack-": the switches behind the name are the driver's.
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def amd_driver(module: Path = AMDGPU, dxg: Path = WSL_GPU) -> str:
    """The kernel driver. AMD's own packages have a version; the kernel's driver has the kernel's.
    Under WSL the driver is Windows', which can't be asked: the WSL kernel stands for it."""
    if sys.platform == "win32":
        return windows_driver(_display_drivers(), "Advanced Micro Devices")
    version = gpu.text(module / "version")
    if version:
        return f"amdgpu {version}"
    name = "wsl" if dxg.exists() and not module.exists() else "kernel"
    return f"{name} {platform.release()}"


def nvidia_driver(path: Path = NVIDIA) -> str:
    """NVIDIA's driver: its own file, else the highest CUDA version it can serve."""
    if sys.platform == "win32":
        return windows_driver(_display_drivers(), "NVIDIA")
    found = re.search(r"\s(\d+(?:\.\d+)+)\s", gpu.text(path))
    if found:
        return f"nvidia {found[1]}"
    import torch

    number = int(getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)())
    return f"nvidia for cuda {number // 1000}.{number % 1000 // 10}" if number else "nvidia"


def windows_driver(drivers: Iterable[Mapping[str, Any]], provider: str) -> str:
    """The newest driver of `provider` among the registry's entries; "windows" if none is there."""
    own = (d for d in drivers if provider in str(d.get("ProviderName")))
    found = [str(d["DriverVersion"]) for d in own if "DriverVersion" in d]
    return f"windows {max(found, key=parse_version)}" if found else "windows"


def _display_drivers() -> list[Mapping[str, Any]]:
    """What Windows' registry has of each display driver."""
    drivers = []
    for number in range(16):
        with suppress(OSError):
            drivers.append(registry_values(rf"{DISPLAY_DRIVERS}\{number:04}") or {})
    return drivers


def registry_values(key: str) -> Mapping[str, Any] | None:
    """Windows: all values of a key below HKEY_LOCAL_MACHINE, by name; OSError where there is no
    such key. None elsewhere."""
    if sys.platform == "win32":
        import winreg

        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
            count = winreg.QueryInfoKey(opened)[1]
            found = (winreg.EnumValue(opened, number) for number in range(count))
            return {name: value for name, value, _ in found}
    return None


def _vendor(torch: Any) -> str:
    """Toolkit and convolution library. torch.backends.cudnn speaks for MIOpen on ROCm."""
    try:
        library = torch.backends.cudnn.version()
    except RuntimeError:  # cuDNN older than the one torch was built for
        library = None
    number = library_version(library, is_amd=bool(torch.version.hip))
    if torch.version.hip:
        return f"hip {torch.version.hip}, miopen {number}"
    return f"cuda {torch.version.cuda}, cudnn {number}"


def library_version(number: int | None, *, is_amd: bool) -> str:
    """MIOpen's and cuDNN's number as people write it: 3004000 is 3.4.0, 91002 is 9.10.2.

    cuDNN before 9 counts in hundreds: 8907 is 8.9.7. "none" where there is no library.
    """
    if not number:
        return "none"
    if is_amd:
        return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"
    major = 10000 if number >= 90000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"
