"""The pack has the missing rasteriser served from its start on, and its switches are heeded."""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import ROOT

from hy3d_rocm.raster import finder


def test_prestartup_serves_it_and_imports_neither_torch_nor_numpy() -> None:
    script = (
        "import runpy, sys\n"
        "runpy.run_path('prestartup_script.py')\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
        "import hy3d_rocm.raster\n"
        "assert hy3d_rocm.raster.status().active\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=120)


@pytest.mark.parametrize("choice", ["", "auto", "on", "off", "auto,-raster", "auto,-render"])
def test_the_packs_variable_switches_it_off(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hy3d_rocm.comfy import import_hooks

    monkeypatch.delenv(finder.VARIABLE, raising=False)
    try:
        import_hooks.prepare_raster({"HY3D_ROCM_PATCH": choice})
        assert finder.status().active == (choice in ("", "auto", "on", "auto,-render"))
    finally:
        finder.uninstall()


def test_its_own_variable_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from hy3d_rocm.comfy import import_hooks

    monkeypatch.setenv(finder.VARIABLE, "off")
    try:
        import_hooks.prepare_raster({})
        assert not finder.status().active
    finally:
        finder.uninstall()


def test_the_settings_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from hy3d_rocm.comfy import import_hooks, settings

    monkeypatch.delenv(finder.VARIABLE, raising=False)
    monkeypatch.setattr(settings, "_file_values", lambda: {"hy3d_rocm.patch.raster": False})
    try:
        import_hooks.prepare_raster({})
        assert not finder.status().active
    finally:
        finder.uninstall()
