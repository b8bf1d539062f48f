"""A source folder that hides the installed package says so in place of "install it"."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import subprocess
import sys
from pathlib import Path

from places import ROOT

from hy3d_rocm import _fallback

ENDING = importlib.machinery.EXTENSION_SUFFIXES[0]


def package(folder: Path, *, built: bool) -> Path:
    made = folder / "hy3d_rocm"
    made.mkdir(parents=True)
    if built:
        (made / f"_core{ENDING}").touch()
    return made


def test_only_another_package_with_the_core_counts(tmp_path: Path) -> None:
    own = package(tmp_path / "source", built=False)
    empty = package(tmp_path / "empty", built=False)
    built = package(tmp_path / "site", built=True)
    folders = [str(folder.parent) for folder in (own, empty)]
    assert _fallback.built_elsewhere(folders, own) is None
    assert _fallback.built_elsewhere([*folders, str(built.parent)], own) == built
    assert _fallback.built_elsewhere([str(built.parent)], built) is None, "it is this one"
    link = tmp_path / "link"
    link.symlink_to(built.parent)
    assert _fallback.built_elsewhere([str(link)], built) is None


def test_a_command_run_in_the_source_folder_names_the_installed_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    skipped = shutil.ignore_patterns("_core*.so", "_core*.pyd", "_vendor", "__pycache__")
    shutil.copytree(ROOT / "hy3d_rocm", source / "hy3d_rocm", ignore=skipped)
    built = package(tmp_path / "site", built=True)
    code = (  # an editable install would serve its own core to the source folder
        "import sys\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"
        "from hy3d_rocm import _native; print(_native.available, _native.blas_info()['error'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False,
        timeout=100, env={**os.environ, "PYTHONPATH": str(built.parent)},
    )  # fmt: skip
    assert done.stdout.startswith("False the C core is not built"), done.stdout + done.stderr
    assert f"is in {built}: start Python in another folder" in done.stdout
    assert "pip install" not in done.stdout
