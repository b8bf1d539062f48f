"""Keys: equal exactly where the same work is done; and what names a machine."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hy3d_rocm import __version__
from hy3d_rocm.conv.call import ConvSpec, make_spec
from hy3d_rocm.conv.knowledge import machine, process
from hy3d_rocm.conv.knowledge.keys import Key, make_key, shape_text
from hy3d_rocm.conv.knowledge.machine import Machine, this_machine

HERE = Machine("gfx1100", "amdgpu 6.10.5", "2.9.0", "hip 6.4, miopen 3.4.0", "0.1.0")


def spec(**changes: Any) -> ConvSpec:
    x, weight = torch.zeros(1, 4, 3, 6, 5), torch.zeros(8, 2, 3, 3, 3)
    made = make_spec((x, weight, torch.zeros(8), (1, 2, 2), (0, 1, 1), 1, 2), 3)
    assert made is not None
    return dataclasses.replace(made, **changes)


def with_modes(base: ConvSpec, *modes: str) -> Any:
    """The spec with padding modes, whether or not ConvSpec has that field."""
    values = {f.name: getattr(base, f.name) for f in dataclasses.fields(base)}
    return types.SimpleNamespace(**{**values, "op": base.op, "pad_modes": modes})


def test_the_shape_reads_well() -> None:
    assert shape_text(spec()) == "1x4x3x6x5 w8x2x3x3x3 s1x2x2 p0x1x1 g2 bias"
    causal = spec(pad_before=(2, 1, 1), pad_after=(0, 1, 1), has_bias=False, dilation=(1, 2, 2))
    modes = with_modes(causal, "replicate", "zeros", "zeros")
    text = "1x4x3x6x5 w8x2x3x3x3 s1x2x2 p2+0x1x1 replicate/zeros/zeros d1x2x2 g2"
    assert shape_text(modes) == text


def test_a_padding_mode_without_padding_makes_no_key() -> None:
    assert shape_text(with_modes(spec(), "replicate", "zeros", "zeros")) == shape_text(spec())
    assert shape_text(with_modes(spec(), "zeros", "replicate", "zeros")) != shape_text(spec())


def test_an_unbatched_call_is_the_same_work() -> None:
    assert make_key(spec(batched=False), HERE) == make_key(spec(), HERE)


def test_dtype_layout_and_machine_are_in_the_key() -> None:
    plain = make_key(spec(), HERE)
    assert plain == Key("conv3d", plain.shape, "f32", "contiguous", *dataclasses.astuple(HERE))
    assert make_key(spec(dtype=torch.bfloat16), HERE).dtype == "bf16"
    assert make_key(spec(channels_last=True), HERE).layout == "channels_last"
    assert plain.name != make_key(spec(channels_last=True), HERE).name
    assert len(plain.name) == 8


_SMALL = st.integers(0, 12)
_TRIPLE = st.tuples(_SMALL, _SMALL, _SMALL)


@st.composite
def _specs(draw: st.DrawFn) -> Any:
    base = spec(
        x_size=draw(st.tuples(*[_SMALL] * 5)), weight_size=draw(st.tuples(*[_SMALL] * 5)),
        stride=draw(_TRIPLE), pad_before=draw(_TRIPLE), pad_after=draw(_TRIPLE),
        dilation=draw(_TRIPLE), groups=draw(_SMALL), has_bias=draw(st.booleans()),
    )  # fmt: skip
    modes = draw(st.tuples(*[st.sampled_from(["zeros", "replicate"])] * 3))
    return with_modes(base, *modes)


def _work(one: Any) -> tuple[Any, ...]:
    pads = zip(one.pad_before, one.pad_after, one.pad_modes, strict=True)
    return (
        one.x_size, one.weight_size, one.stride, one.dilation, one.groups, one.has_bias,
        [(a, b, mode if a or b else "any") for a, b, mode in pads],
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(_specs(), _specs())
def test_texts_are_equal_exactly_where_the_work_is(one: Any, other: Any) -> None:
    assert (shape_text(one) == shape_text(other)) == (_work(one) == _work(other))


@settings(max_examples=150, deadline=None)
@given(_specs(), st.data())
def test_one_change_changes_the_text(one: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["stride", "pad_before", "pad_after", "dilation", "x_size"]))
    values = list(getattr(one, name))
    place = data.draw(st.integers(0, len(values) - 1))
    values[place] += 1
    other = types.SimpleNamespace(**{**vars(one), name: tuple(values)})
    assert shape_text(one) != shape_text(other)


# The machine.


def test_the_cpu_is_a_machine() -> None:
    assert this_machine("cpu") == Machine("cpu", "", torch.__version__, "", __version__)
    assert this_machine(torch.device("cpu")) is this_machine("cpu")


class _Properties:
    gcnArchName = "gfx90a:sramecc+:xnack-"  # noqa: N815  (torch's name)
    major, minor = 9, 0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that says it runs on a started GPU."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: _Properties())
    machine._gpu_machine.cache_clear()


def test_a_rocm_gpu(gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4.43482-0f2d60242")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 3004001)
    found = this_machine("cuda:0")
    machine._gpu_machine.cache_clear()
    assert found.architecture == "gfx90a"
    assert found.vendor == "hip 6.4.43482-0f2d60242, miopen 3.4.1"
    assert found.driver


def test_an_nvidia_gpu(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    found = this_machine("cuda")
    machine._gpu_machine.cache_clear()
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
        "import sys, types; from hy3d_rocm.conv.knowledge import machine;"
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


# Processes.


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_is_known_by_number_and_start_time(tmp_path: Path) -> None:
    me = process.myself()
    assert me.pid == os.getpid()
    assert all(me)
    assert process.is_gone(me) is False
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert process.start_time(pid) is None, "a zombie is no process"
    os.waitpid(pid, 0)
    assert process.start_time(pid) is None


def test_a_process_with_brackets_in_its_name(tmp_path: Path) -> None:
    for pid in ("self", "12"):
        (tmp_path / pid).mkdir()
        fields = " ".join(map(str, range(4, 30)))
        (tmp_path / pid / "stat").write_text(f"12 (a) (b c)) S {fields}\n")
    assert process.start_time(12, tmp_path) == "22"
    assert process.start_time(13, tmp_path) is None
