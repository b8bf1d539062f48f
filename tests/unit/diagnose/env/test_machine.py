"""What is found out of a machine without torch: driver, wheels, version files, broken ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hy3d_rocm.diagnose.env import gpu, machine
from hy3d_rocm.diagnose.env.machine import Machine
from hy3d_rocm.diagnose.miopen import places  # noqa: F401  (detect() does; without sys.path)

ROCM_TORCH = """
from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.9.1+rocm7.1'
debug = False
cuda: Optional[str] = None
git_version = 'd38164a545b4a4e4e0cf73ce67173f70574890b6'
hip: Optional[str] = '7.1.25424-4179531dcd'
rocm: Optional[str] = None
"""
CPU_TORCH = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
CUDA_TORCH = '__version__ = "2.9.0+cu130"\ncuda: Optional[str] = "13.0"\nhip = None\n'
WHEEL_TORCH = "__version__ = '2.15.0a0+rocm10.1.0a20260908'\ncuda = None\nhip = '7.16.26080'\n"


def install(folder: Path, text: str) -> Path:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    (folder / "torch" / "version.py").write_text(text)
    return folder / "torch"


def write_gpu(topology: Path, node: int, target: int) -> None:
    (topology / str(node)).mkdir(parents=True)
    (topology / str(node) / "properties").write_text(f"gfx_target_version {target}\n")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """sys.path is one empty folder, and there is no WSL."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site), str(tmp_path / "missing"), ""])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(machine, "WSL_GPU", tmp_path / "dxg")
    monkeypatch.chdir(tmp_path)
    return site


@pytest.mark.parametrize(
    ("text", "torch", "is_rocm", "rocm"),
    [
        (ROCM_TORCH, (2, 9, 1), True, (7, 1)),
        (WHEEL_TORCH, (2, 15, 0), True, (10, 1, 0)),
        (CPU_TORCH, (2, 13, 0), False, ()),
        (CUDA_TORCH, (2, 9, 0), False, ()),
        ("", (), None, ()),
        ("\x00\x01 no Python", (), None, ()),
        ("__version__ = 'unknown'\nhip = '6.2'\n", (), True, (6, 2)),
    ],
)
def test_torch_is_read_and_not_imported(
    alone: Path, text: str, torch: tuple[int, ...], is_rocm: bool | None, rocm: tuple[int, ...]
) -> None:
    install(alone, text)
    found = machine.detect({}, topology=alone)
    assert (found.torch, found.torch_is_rocm, found.rocm) == (torch, is_rocm, rocm)
    assert "torch" not in sys.modules


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no driver lists GPUs")
def test_without_torch_and_driver_nothing_is_known(alone: Path) -> None:
    found = machine.detect({}, topology=alone / "nowhere")
    assert found == Machine(system=found.system)
    assert not found.has_rocm_libraries


def test_gpus_come_from_the_driver_and_the_system_rocm_serves_without_torch(alone: Path) -> None:
    topology = alone / "nodes"
    write_gpu(topology, 0, 0)
    write_gpu(topology, 1, 110501)
    (alone.parent / "rocm" / ".info").mkdir(parents=True)
    (alone.parent / "rocm" / ".info" / "version").write_text("6.4.1-83\n")
    found = machine.detect({}, topology=topology, system_rocm=alone.parent / "rocm")
    assert found.architectures == ("gfx1151",)
    assert found.rocm == (6, 4, 1)
    assert found.runs_on_amd


def test_broken_driver_files_are_no_error(alone: Path) -> None:
    topology = alone / "nodes"
    write_gpu(topology, 1, 110000)
    (topology / "2").mkdir()  # no properties
    (topology / "3").write_text("a file where a folder is due")
    (topology / "4").mkdir()
    (topology / "4" / "properties").write_bytes(b"\xff\xfe gfx_target_version\nx\n\n")
    (topology / "5" / "properties").mkdir(parents=True)
    (topology / "1" / "mem_banks").write_text("a file where a folder is due")
    assert gpu.amd_gpus(topology) == [{"name": "", "architecture": "gfx1100", "memory_bytes": 0}]
    assert gpu.amd_gpus(topology / "3") == []


def test_a_folder_that_may_not_be_read_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    monkeypatch.setattr(Path, "exists", refuse)
    monkeypatch.setattr(Path, "read_text", lambda self, *_, **__: refuse(self))
    found = machine.detect({})
    assert found.architectures == ()
    assert found.torch == ()


@pytest.mark.parametrize(
    ("folders", "architectures", "version"),
    [
        (["rocm_sdk_libraries_gfx1151-7.10.0a20251015.dist-info"], ("gfx1151",), (7, 10, 0)),
        (["rocm_sdk_libraries_gfx110X_dgpu-7.9.0rc1.dist-info"], ("gfx110X",), (7, 9, 0)),
        (["rocm_sdk_libraries_custom-7.2.0.dev0.dist-info", "rocm-7.2.0.dev0.dist-info"],
         (), (7, 2, 0)),
        (["amd_torch_device_gfx1151-2.12.0+rocm7.14.0.dist-info"], ("gfx1151",), ()),
        (["rocm_docs-1.0.dist-info", "torch-2.9.0.dist-info", "rocm"], (), ()),
    ],
)  # fmt: skip
def test_rocms_wheels_name_the_gpu_and_the_version(
    tmp_path: Path, folders: list[str], architectures: tuple[str, ...], version: tuple[int, ...]
) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
    assert machine.rocm_wheels([str(tmp_path), "/no/such/folder"]) == (architectures, version)


@pytest.mark.parametrize("where", ["windows", "wsl"])
def test_where_no_driver_can_be_asked_the_wheels_speak(
    alone: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    install(alone, ROCM_TORCH)
    (alone / "rocm_sdk_libraries_gfx1151-7.1.0.dist-info").mkdir()
    if where == "windows":
        monkeypatch.setattr(sys, "platform", "win32")
    else:
        (alone.parent / "dxg").touch()
    found = machine.detect({}, topology=alone / "nowhere")
    assert found.architectures == ("gfx1151",)
    assert not found.gpus_can_be_listed
    assert found.runs_on_amd


def test_zluda_is_told_by_its_variables(alone: Path) -> None:
    install(alone, CUDA_TORCH)
    assert machine.detect({"ZLUDA_COMGR_LOG_LEVEL": "1"}, topology=alone).zluda
    assert not machine.detect({}, topology=alone).zluda
    (alone / "torch" / "version.py").write_text(ROCM_TORCH)
    assert not machine.detect({"ZLUDA_COMGR_LOG_LEVEL": "1"}, topology=alone).zluda


@pytest.mark.parametrize(
    ("found", "runs", "libraries"),
    [
        (Machine(("gfx1100",), True, (2, 9), True), True, True),
        (Machine((), True, (2, 9), True), False, True),
        (Machine((), False, (2, 9), True), True, True),
        (Machine(("gfx1036",), True, (2, 9), False), False, False),
        (Machine((), True, (2, 9), False), False, False),
        (Machine(("gfx1100",), True), True, True),
        (Machine((), False), False, False),
        (Machine((), False, (2, 9), False, zluda=True), True, True),
    ],
)
def test_who_is_looked_after(found: Machine, runs: bool, libraries: bool) -> None:
    assert (found.runs_on_amd, found.has_rocm_libraries) == (runs, libraries)
    assert "torch" in found.describe()


@pytest.mark.parametrize(
    ("text", "version"),
    [("7.2.53211-fc0010", (7, 2, 53211)), ("2.13.0+cpu", (2, 13, 0)), ("", ()), ("x1", ())],
)
def test_versions_are_the_leading_numbers(text: str, version: tuple[int, ...]) -> None:
    assert machine.parse_version(text) == version
