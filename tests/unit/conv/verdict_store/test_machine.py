"""What names a machine: architecture, driver, torch and the vendor's library."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from verdict_store_doubles import spec

from hy3d_rocm import __version__
from hy3d_rocm.conv.verdict_store import records as machine
from hy3d_rocm.conv.verdict_store.records import Machine, make_key, this_machine


def test_the_cpu_is_a_machine() -> None:
    assert this_machine("cpu") == Machine("cpu", "", torch.__version__, "", __version__)
    assert this_machine(torch.device("cpu")) is this_machine("cpu")


class _Properties:
    gcnArchName = "gfx90a:sramecc+:xnack-"  # noqa: N815  (torch's name)
    major, minor = 9, 0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch that says it runs on a started GPU."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: _Properties())
    forget()
    yield
    forget()


def forget() -> None:
    machine._gpu_machine.cache_clear()
    machine.started_architecture.cache_clear()


def test_a_rocm_gpu(gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4.43482-0f2d60242")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 3004001)
    found = this_machine("cuda:0")
    assert found.architecture == "gfx90a"
    assert found.vendor == "hip 6.4.43482-0f2d60242, miopen 3.4.1"
    assert found.driver


def test_an_nvidia_gpu(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    found = this_machine("cuda")
    assert (found.architecture, found.vendor) == ("sm_90", "cuda 12.8, cudnn 9.10.2")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the packages that bring Triton, by name, of a machine that was never looked at."""

    def set_packages(**packages: str) -> None:
        def version(name: str) -> str:
            if name not in packages:
                raise importlib.metadata.PackageNotFoundError(name)
            return packages[name]

        monkeypatch.setattr(importlib.metadata, "version", version)
        machine.triton_versions.cache_clear()
        machine._gpu_machine.cache_clear()

    yield set_packages
    machine.triton_versions.cache_clear()
    machine._gpu_machine.cache_clear()


def test_another_triton_starts_new_rows_of_a_gpu(gpu: None, installed: Any) -> None:
    keys = {}
    for text, packages in (
        ("", {}),
        (", triton 3.6.0", {"triton": "3.6.0"}),
        (", triton 3.5.1", {"triton-rocm": "3.5.1"}),
        (", triton 3.6.0, triton 3.3.1", {"triton": "3.6.0", "pytorch-triton-rocm": "3.3.1"}),
    ):
        installed(**packages)
        found = this_machine("cuda:0")
        assert found.torch == torch.__version__ + text
        keys[make_key(spec(), found)] = text
    assert len(keys) == 4


def test_triton_is_not_imported_for_its_version() -> None:
    code = (
        "import sys, types; from hy3d_rocm.conv.verdict_store import records as machine;"
        "sys.modules['triton'] = types.ModuleType('triton');"  # a stub, as some packages leave
        "print(machine.triton_versions(), len([m for m in sys.modules if m.startswith('triton')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "1", done.stdout


def test_a_gpu_that_is_not_started_is_read_from_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(index: int) -> None:
        raise AssertionError("the GPU was started")

    monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(machine.gpu, "amd_gpus", lambda: [{"architecture": "gfx1032"}] * 2)
    assert machine._architecture(0, True) == "gfx1032"
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "10.3.0")
    assert machine._architecture(0, True) == "gfx1030"


def test_versions_are_written_as_people_write_them() -> None:
    assert machine.library_version(91002, is_amd=False) == "9.10.2"
    assert machine.library_version(8907, is_amd=False) == "8.9.7"
    assert machine.library_version(2020000, is_amd=True) == "2.20.0"
    assert machine.library_version(None, is_amd=True) == "none"


@pytest.mark.skipif(os.name == "nt", reason="there the registry has them")
def test_drivers_are_read_from_their_files(tmp_path: Path) -> None:
    version = tmp_path / "version"
    for text, driver in (
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Rel", "575.57.08"),
    ):
        version.write_text(f"{text}\nGCC version:  gcc version 12.2.0 (Debian)\n")
        assert machine.nvidia_driver(version) == f"nvidia {driver}"
    version.write_text("6.10.5\n")
    assert machine.amd_driver(tmp_path) == "amdgpu 6.10.5"
    kernel = os.uname().release
    nowhere = tmp_path / "nowhere"
    # The driver of the kernel itself has no version of its own.
    version.unlink()
    assert machine.amd_driver(tmp_path, nowhere) == f"kernel {kernel}"
    assert machine.amd_driver(nowhere, tmp_path) == f"wsl {kernel}"


def test_windows_newest_driver_of_the_maker_counts() -> None:
    drivers = [
        {"ProviderName": "Microsoft", "DriverVersion": "99.0"},
        {"ProviderName": "Advanced Micro Devices, Inc.", "DriverVersion": "31.0.9.1"},
        {"ProviderName": "Advanced Micro Devices, Inc.", "DriverVersion": "32.0.11037.4004"},
    ]
    assert machine.windows_driver(drivers, "Advanced Micro Devices") == "windows 32.0.11037.4004"
    assert machine.windows_driver(drivers, "NVIDIA") == "windows"
