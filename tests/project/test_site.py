"""The documentation site: it builds without a warning, and what is made from code is in it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="mkdocs-material is not installed"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "--site-dir", folder]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


def test_site_builds_without_a_warning_and_names_every_cause_and_command(site: Path) -> None:
    from hy3d_rocm.cli import build_parser
    from hy3d_rocm.diagnose.log.rules import by_id

    causes = (site / "causes.html").read_text(encoding="utf-8")
    assert [name for name in by_id() if f'id="{name}"' not in causes] == []
    commands = (site / "commands.html").read_text(encoding="utf-8")
    names = re.findall(r"[a-z]+", build_parser().format_usage().split("{")[1].split("}")[0])
    assert len(names) > 10
    assert [name for name in names if f"hy3d-rocm {name}<" not in commands] == []


def test_site_api_pages_hold_every_public_name_and_header(site: Path) -> None:
    import hy3d_rocm

    page = (site / "api_python.html").read_text(encoding="utf-8")
    names = set(hy3d_rocm.__all__) - {"__version__"}
    assert {name for name in names if f".{name}" not in page} == set()
    headers = (site / "c_api.html").read_text(encoding="utf-8")
    files = [path.name for path in (ROOT / "include" / "hy3d").glob("*.h")]
    assert len(files) > 5
    assert [name for name in files if f"hy3d/{name}" not in headers] == []


def test_site_fetches_nothing_from_another_host(site: Path) -> None:
    loaded = re.compile(
        r"""<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(https?:[^"]+)"""
    )
    found = {
        (page.name, url)
        for page in site.glob("*.html")
        for url in loaded.findall(page.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_pictures_of_the_architecture_are_those_that_their_script_draws(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "tools/site/pictures.py")
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    pictures.IMAGES = tmp_path
    pictures.layers()
    pictures.one_decode()
    for drawn in tmp_path.iterdir():
        assert drawn.read_text() == (ROOT / "docs" / "images" / drawn.name).read_text(), drawn.name
