"""FramePack's memory module is importable where torch.cuda has no current device.

This machine is such a one: the modules below fail here without the hook. The folders are doubles
that ask the same question in the same place; docs/framepack.md says what was tried with upstream's.
"""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from places import ROOT

from hy3d_rocm.framepack import importing

MEMORY = """
import torch

gpu = torch.device(f'cuda:{torch.cuda.current_device()}')

def get_cuda_free_memory_gb(device=None):
    return torch.cuda.memory_stats(device)['active_bytes.all.current']
"""
CURRENT_DEVICE = torch.cuda.current_device


def make_pack(folder: Path, sibling: bool = True) -> None:
    (folder / "diffusers_helper" / "models").mkdir(parents=True)
    (folder / "diffusers_helper" / "memory.py").write_text(MEMORY)
    if sibling:
        (folder / "diffusers_helper" / "models" / "hunyuan_video_packed.py").write_text("")


@pytest.fixture(name="pack")
def pack_without_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if torch.cuda.is_available():
        pytest.skip("torch.cuda has a current device here")
    make_pack(tmp_path / "a_pack")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "a_pack"
    importing.uninstall()
    for name in [n for n in sys.modules if n.startswith(("a_pack", "diffusers_helper"))]:
        del sys.modules[name]


def load() -> ModuleType:
    return importlib.import_module("a_pack.diffusers_helper.memory")


def test_without_the_hook_it_cannot_be_imported(pack: Path) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        load()


def test_with_the_hook_it_computes_where_comfyui_does(
    pack: Path, caplog: pytest.LogCaptureFixture
) -> None:
    importing.install(device=lambda: "cpu")
    with caplog.at_level(logging.INFO, logger="hy3d_rocm"):
        module = load()
    assert module.gpu == torch.device("cpu")
    assert module.get_cuda_free_memory_gb() > 0
    assert module.get_cuda_free_memory_gb(torch.device("cpu")) > 0
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("hy3d_rocm: a_pack: torch.cuda has no current device here (")
    assert torch.cuda.current_device is CURRENT_DEVICE


def test_nobody_else_is_answered_meanwhile(pack: Path) -> None:
    asked = importing.answered("a_pack.diffusers_helper.memory")
    with asked, pytest.raises((AssertionError, RuntimeError)):
        torch.cuda.current_device()
    assert torch.cuda.current_device is CURRENT_DEVICE


def test_a_module_that_fails_on_its_own_fails_with_its_own_error(pack: Path) -> None:
    (pack / "diffusers_helper" / "memory.py").write_text(MEMORY + "\nraise KeyError('theirs')\n")
    importing.install()
    with pytest.raises(KeyError, match="theirs"):
        load()
    assert torch.cuda.current_device is CURRENT_DEVICE


def test_where_the_driver_answers_the_module_stays_as_it_is(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    importing.install()
    module = load()
    assert module.gpu == torch.device("cuda:3")
    assert module.get_cuda_free_memory_gb.__module__ == module.__name__
    assert importing._CHANGED not in vars(module)


def test_switched_off_it_is_not_answered(pack: Path) -> None:
    importing.install(allowed=lambda: False)
    with pytest.raises((AssertionError, RuntimeError)):
        load()


def test_the_same_question_in_another_package_is_not_answered(pack: Path, tmp_path: Path) -> None:
    make_pack(tmp_path / "a_pack_of_others", sibling=False)
    importing.install()
    with pytest.raises((AssertionError, RuntimeError)):
        importlib.import_module("a_pack_of_others.diffusers_helper.memory")


def test_there_is_one_hook_and_it_is_taken_away_with_what_it_put_in(pack: Path) -> None:
    before = list(sys.meta_path)
    first = importing.install()
    assert importing.install(device=lambda: "cpu") is first
    module = load()
    assert module.get_cuda_free_memory_gb.__module__ == importing.__name__
    importing.uninstall()
    assert sys.meta_path == before
    assert module.get_cuda_free_memory_gb.__module__ == module.__name__
    assert importing._CHANGED not in vars(module)


def test_prestartup_watches_imports_and_does_not_import_torch() -> None:
    script = (
        "import runpy, sys\n"
        "runpy.run_path('prestartup_script.py')\n"
        "assert 'torch' not in sys.modules\n"
        "print([type(f).__name__ for f in sys.meta_path].count('Hook'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "1"


@pytest.mark.parametrize("choice", ["", "auto", "on", "off", "auto,-framepack-import"])
def test_the_variable_switches_it_off(choice: str) -> None:
    from hy3d_rocm.comfy import import_hooks

    hook = import_hooks.prepare_framepack({"HY3D_ROCM_PATCH": choice})
    try:
        assert hook.allowed() == (choice in ("", "auto", "on"))
    finally:
        importing.uninstall()


def test_a_gpu_is_asked_for_by_its_own_number_and_the_host_where_there_is_none() -> None:
    asked: list[object] = []

    def upstreams(device: object = None) -> float:
        asked.append(device)
        return 7.5

    query = importing.free_memory_gb(upstreams, lambda: torch.device("cuda", 1))
    assert query() == query("cuda:0") == 7.5
    assert asked == [torch.device("cuda", 1), torch.device("cuda", 0)]
    assert query(torch.device("cpu")) > 0
    assert len(asked) == 2
