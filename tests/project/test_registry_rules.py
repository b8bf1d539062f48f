"""The published rules of ComfyUI's registry, as far as a file can break them.

https://docs.comfy.org/registry/standards and /specifications, read in 2026-11: eval and exec are
prohibited, installing packages at run time too; names, versions and classifiers have forms.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from places import ROOT

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
