"""The published rules of ComfyUI's registry, as far as a file can break them.

https://docs.comfy.org/registry/standards and /specifications, read in 2026-11: eval and exec are
prohibited, installing packages at run time too; names, versions and classifiers have forms. What
only a maintainer can set is in tools/registry.py, and the last test says what of it is missing.
"""

from __future__ import annotations

import ast
import re
import struct
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import registry
from packaging.requirements import Requirement
from places import ROOT

import hy3d_rocm

PACK = sorted(
    [ROOT / "__init__.py", ROOT / "prestartup_script.py", *ROOT.glob("hy3d_rocm/**/*.py")]
)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def breaks(source: str) -> list[str]:
    """What a file does that the standards forbid."""
    found = []
    for call in calls(ast.parse(source)):
        if isinstance(call.func, ast.Name) and call.func.id in ("eval", "exec"):
            found.append(f"line {call.lineno}: {call.func.id}()")
        if not ast.unparse(call.func).startswith(
            ("subprocess.", "os.system", "os.exec", "os.spawn")
        ):
            continue
        words = [
            text.value
            for text in ast.walk(call)
            if isinstance(text, ast.Constant) and isinstance(text.value, str)
        ]
        if any(re.search(r"\b(pip|uv|conda)\b", word) for word in words):
            found.append(f"line {call.lineno}: installs a package")
    return found


def test_the_pack_neither_evaluates_text_nor_installs_packages() -> None:
    assert len(PACK) > 200
    broken = {str(path.relative_to(ROOT)): breaks(path.read_text()) for path in PACK}
    assert {name: why for name, why in broken.items() if why} == {}


@pytest.mark.parametrize(
    "source",
    ["eval('1')", "exec(text)", "subprocess.run([sys.executable, '-m', 'pip', 'install', 'x'])",
     "os.system('pip install x')"],
)  # fmt: skip
def test_what_the_rules_forbid_is_seen(source: str) -> None:
    assert breaks(source)


def test_name_version_licence_and_publisher_have_the_registrys_form(
    project: dict[str, Any],
) -> None:
    name, comfy = project["project"]["name"], project["tool"]["comfy"]
    assert re.fullmatch(r"[a-z](?:[a-z0-9]|[-_.](?=[a-z0-9]))*", name)
    assert len(name) < 100
    assert "comfyui" not in name
    version = re.search(
        r'^__version__ = "([^"]+)"$', (ROOT / comfy["version"]["path"]).read_text(), re.MULTILINE
    )
    assert version is not None
    assert re.fullmatch(r"\d+\.\d+\.\d+", version[1])
    assert comfy["PublisherId"]
    assert comfy["DisplayName"]
    assert re.fullmatch(r"(>=|==|<=)?\d+(\.\d+)*", comfy["requires-comfyui"])
    assert project["project"]["license"] == "Apache-2.0"
    assert (ROOT / "LICENSE").is_file()
    classifiers = project["project"]["classifiers"]
    assert "Environment :: GPU :: AMD ROCm" in classifiers
    assert any(line.startswith("Operating System ::") for line in classifiers)


def test_requirements_leave_the_users_torch_alone(project: dict[str, Any]) -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    wanted = [*project["project"]["dependencies"], *lines]
    assert not [line for line in wanted if re.match(r"torch\b|triton|comfyui-frontend", line)]


@pytest.mark.parametrize(
    ("system", "machine", "python", "fits"),
    [("linux", "x86_64", "3.11", True), ("win32", "AMD64", "3.14", True),
     ("linux", "aarch64", "3.12", False), ("darwin", "arm64", "3.12", False),
     ("win32", "ARM64", "3.12", False), ("linux", "x86_64", "3.10", False)],
)  # fmt: skip
def test_the_core_is_asked_for_where_it_has_a_wheel(
    system: str, machine: str, python: str, fits: bool
) -> None:
    """As ComfyUI-Manager reads the file: one `pip install` for each line, comments cut off."""
    line, _ = registry.core_requirement()
    assert "#" not in line
    wanted = Requirement(line)
    assert (wanted.name, str(wanted.specifier)) == ("hy3d-rocm", f"=={hy3d_rocm.__version__}")
    assert wanted.marker is not None
    where = {"sys_platform": system, "platform_machine": machine, "python_version": python}
    assert wanted.marker.evaluate(where) is fits


def png_size(path: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


def test_the_pictures_have_the_registrys_sizes() -> None:
    width, height = png_size(ROOT / registry.ICON)
    assert width <= 800
    assert height <= 400
    width, height = png_size(ROOT / registry.BANNER)
    assert width * 9 == height * 21


def test_the_registrys_archive_has_what_pip_and_comfyui_read_and_no_test(tmp_path: Path) -> None:
    """comfy-cli matches .comfyignore's lines as git does .gitignore's."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = ["git", "-C", str(ROOT), "ls-files", "--cached"]
    tracked = subprocess.check_output(listed, text=True).split()
    ignored = subprocess.check_output(
        [*listed, "--ignored", f"--exclude-from={ROOT / '.comfyignore'}"], text=True
    ).split()
    kept = set(tracked) - set(ignored)
    assert not [name for name in kept if name.startswith(("tests/", ".", "tools/dev/"))]
    for name in ("__init__.py", "prestartup_script.py", "hy3d_rocm/comfy/extension.py", "setup.py",
                 "web/settings.js", "locales/zh/main.json", "csrc/base/blas.c", "LICENSE",
                 "tools/vendored_blas.py", "tools/windows/python3.def", "requirements.txt",
                 "include/hy3d/conv3d.h", "examples/data/demo_vae.safetensors"):  # fmt: skip
        assert name in kept, name


def a_tree(at: Path, pyproject: str, requirements: str) -> Path:
    (at / "pyproject.toml").write_text(pyproject)
    (at / "requirements.txt").write_text(requirements)
    return at


def test_what_a_maintainer_has_to_set_is_named(tmp_path: Path) -> None:
    bare = (ROOT / "pyproject.toml").read_text()
    line, _ = registry.core_requirement()
    tree = a_tree(tmp_path, bare, f"numpy\n# {line}\n")
    if "[project.urls]" not in bare:
        assert [text.split(":")[0] for text in registry.missing(tree)] == [
            "pyproject.toml, [project.urls]", "pyproject.toml, [tool.comfy]",
            "pyproject.toml, [tool.comfy]", "requirements.txt",
        ]  # fmt: skip
    own = "https://example.org/someone/hy3d-rocm"
    whole = f"""
[project.urls]
Repository = "{own}"
[tool.comfy]
Icon = "{own}/raw/main/{registry.ICON}"
Banner = "{own}/raw/main/{registry.BANNER}"
"""
    assert registry.missing(a_tree(tmp_path, whole, f"numpy\n{line}\n")) == []


def test_the_registry_can_serve_this_pack(project: dict[str, Any]) -> None:
    """Skipped until a maintainer has begun to set what is his to set, and says what that is."""
    lacks = registry.missing()
    if "urls" not in project["project"]:
        pytest.skip("; ".join(lacks))
    assert not lacks
