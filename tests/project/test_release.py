"""What a release is made of: archives that depend on the commit alone, notices, a bill of
materials, workflows. tools/check_reproducible.py builds it all twice; here is its quick half."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import archives
import check_reproducible
import pytest
import sbom
from places import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
needs_workflows = pytest.mark.skipif(not WORKFLOWS, reason="an sdist has no workflows")
needs_wheel = pytest.mark.skipif(
    importlib.util.find_spec("scipy_openblas32") is None,
    reason="scipy-openblas32 is not installed: only a build has it",
)
PARTS = [("scipy-openblas32", "1.2", "BSD-2-Clause"), ("OpenBLAS", "1.1", "BSD-3-Clause"),
         ("GCC runtime library", "", "GPL-3.0-or-later WITH GCC-exception-3.1")]  # fmt: skip


def make_tree(folder: Path, mode: int, when: int) -> Path:
    for name in ("b/one.py", "b/two.py", "a/run.sh"):
        file = folder / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
        file.chmod(mode | (0o100 if name.endswith(".sh") else 0))
        os.utime(file, (when, when))
    return folder / "tree"


def test_a_tar_depends_on_names_and_contents_alone(tmp_path: Path) -> None:
    made = []
    for number, mode, when in ((1, 0o600, 1_000_000_000), (2, 0o664, 1_600_000_000)):
        folder = tmp_path / str(number)
        tree = make_tree(folder, mode, when)
        archives.write_tar_gz(folder / "x.tar.gz", tree, 1_700_000_000)
        made.append(folder / "x.tar.gz")
    assert made[0].read_bytes() == made[1].read_bytes()
    members = check_reproducible.members(made[0])
    assert {name: member.mode for name, member in members.items()} == {
        "tree": 0o755, "tree/a": 0o755, "tree/a/run.sh": 0o755,
        "tree/b": 0o755, "tree/b/one.py": 0o644, "tree/b/two.py": 0o644,
    }  # fmt: skip


def test_the_date_is_the_variables_then_the_sdists_then_the_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(archives.STAMP, raising=False)
    assert archives.source_date(tmp_path) == archives.FIRST_EPOCH
    if (ROOT / ".git").exists():
        commit = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        date = subprocess.run(commit, capture_output=True, text=True, check=True).stdout
        assert archives.source_date(ROOT) == int(date)
    (tmp_path / archives.STAMP).write_text("1600000000\n")
    assert archives.source_date(tmp_path) == 1_600_000_000
    monkeypatch.setenv(archives.STAMP, "1700000000")
    assert archives.source_date(tmp_path) == 1_700_000_000


def pack(file: Path, text: bytes, mode: int, year: int) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        info = zipfile.ZipInfo("x.txt", (year, 1, 1, 0, 0, 0))
        info.external_attr = mode << 16
        archive.writestr(info, text)
    return file


@pytest.mark.parametrize(
    ("text", "mode", "year", "words"),
    [
        (b"one\nTWO\n", 0o644, 2020, "+TWO"),
        (b"\xff\x00", 0o644, 2020, "different from byte 0"),
        (b"one\ntwo\n", 0o600, 2020, "mode 644 and 600"),
        (b"one\ntwo\n", 0o644, 2021, "time (2020, 1, 1, 0, 0, 0) and (2021"),
    ],
)
def test_a_difference_between_two_archives_is_told_in_words(
    text: bytes, mode: int, year: int, words: str, tmp_path: Path
) -> None:
    one = pack(tmp_path / "one.whl", b"one\ntwo\n", 0o644, 2020)
    two = pack(tmp_path / "two.whl", text, mode, year)
    assert not list(check_reproducible.explain(one, one))
    assert words in "\n".join(check_reproducible.explain(one, two))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an sdist has no commits")
def test_a_commit_gives_the_same_sdist_in_two_folders_umasks_and_time_zones() -> None:
    command = [sys.executable, str(ROOT / "tools" / "check_reproducible.py"), "--sdist-only"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 pairs built, 0 different" in result.stdout


def metadata_of_a_wheel(folder: Path) -> Path:
    """The .dist-info that a build prepares, from a copy of what it reads."""
    source = folder / "source"
    names = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "tools")
    for name in names:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name)
    (source / "hy3d_rocm").mkdir()
    shutil.copy(ROOT / "hy3d_rocm" / "__init__.py", source / "hy3d_rocm")
    hook = "import setuptools.build_meta as b, sys; b.prepare_metadata_for_build_wheel(sys.argv[1])"
    environment = {**os.environ, "HY3D_BLAS": "vendored", archives.STAMP: "1700000000"}
    out = folder / "out"
    out.mkdir()
    subprocess.run(
        [sys.executable, "-c", hook, str(out)],
        cwd=source, env=environment, check=True, capture_output=True,
    )  # fmt: skip
    (found,) = out.glob("*.dist-info")
    return found


@needs_wheel
def test_a_wheel_that_vendors_says_so_in_licence_notices_and_bill(tmp_path: Path) -> None:
    folder = metadata_of_a_wheel(tmp_path)
    text = (folder / "METADATA").read_text()
    expression = re.findall("^License-Expression: (.+)$", text, re.M)
    assert expression == [
        "Apache-2.0 AND BSD-2-Clause AND BSD-3-Clause AND BSD-3-Clause-Open-MPI"
        " AND GPL-3.0-or-later WITH GCC-exception-3.1"
    ]
    files = re.findall("^License-File: (.+)$", text, re.M)
    assert sorted(files) == sorted(f.name for f in (folder / "licenses").iterdir())
    notices = (folder / "licenses" / "OpenBLAS.txt").read_text()
    for name in ("OpenBLAS", "LAPACK", "GCC RUNTIME LIBRARY EXCEPTION", "MacPython"):
        assert name in notices, name
    bill = json.loads((folder / "sboms" / "hy3d-rocm.cdx.json").read_text())
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    listed = {part["name"]: part.get("version") for part in bill["components"]}
    assert listed["scipy-openblas32"] == listed["OpenBLAS"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", str(listed["GCC runtime library"]))
    licensing = pytest.importorskip("packaging.licenses")
    assert licensing.canonicalize_license_expression(expression[0]) == expression[0]


@needs_wheel
@pytest.mark.skipif(sys.platform != "linux", reason="the library's symbols have Linux names")
def test_the_bill_names_the_lapack_that_is_inside_and_no_quadmath_is() -> None:
    import vendored_blas

    library = vendored_blas.find()
    major, minor, patch = (ctypes.c_int() for _ in range(3))
    asked = ctypes.CDLL(str(library.path)).scipy_ilaver_
    asked(ctypes.byref(major), ctypes.byref(minor), ctypes.byref(patch))
    assert f"{major.value}.{minor.value}.{patch.value}" == vendored_blas.LAPACK_VERSION
    assert b"quadmath" not in library.path.read_bytes()  # LGPL: it would need a line of its own


def test_the_bill_of_materials_holds_against_the_published_schema() -> None:
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    pytest.importorskip("jsonschema")
    text = sbom.bill("hy3d-rocm", "1.0", "Apache-2.0", 1_700_000_000, PARTS)
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace("bomFormat", "bomShape")) is not None


def test_the_same_parts_give_the_same_bill_and_others_another() -> None:
    first = sbom.bill("hy3d-rocm", "1.0", "Apache-2.0", 1_700_000_000, PARTS)
    assert first == sbom.bill("hy3d-rocm", "1.0", "Apache-2.0", 1_700_000_000, PARTS)
    other = sbom.bill("hy3d-rocm", "1.1", "Apache-2.0", 1_700_000_000, PARTS)
    assert json.loads(first)["serialNumber"] != json.loads(other)["serialNumber"]


@pytest.mark.parametrize("without_gil", [False, True])
def test_the_stable_abi_is_asked_for_only_where_there_is_one(
    without_gil: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import setuptools

    asked: dict[str, Any] = {}
    told = sysconfig.get_config_var
    monkeypatch.setattr(setuptools, "setup", lambda **words: asked.update(words))
    monkeypatch.setattr(
        sysconfig, "get_config_var", lambda n: without_gil if n == "Py_GIL_DISABLED" else told(n)
    )
    monkeypatch.setenv(archives.STAMP, "1700000000")
    runpy.run_path(str(ROOT / "setup.py"))
    (module,) = asked["ext_modules"]
    limited = [name for name, _ in module.define_macros if name == "Py_LIMITED_API"]
    assert (bool(limited), module.py_limited_api) == (not without_gil, not without_gil)
    assert asked["options"].get("bdist_wheel") == (
        None if without_gil else {"py_limited_api": "cp311"}
    )


def test_releases_are_built_with_exact_tools_that_the_project_allows() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = (ROOT / "tools" / "build-requirements.txt").read_text().splitlines()
    exact = dict(line.split(";")[0].strip().split("==") for line in lines if line[0] != "#")
    wanted = [r.split(";")[0].strip() for r in settings["build-system"]["requires"]]
    assert {f"{n}=={exact[n]}" for n in exact if n != "setuptools"} == {
        r for r in wanted if "==" in r
    }
    least = next(int(r.split(">=")[1]) for r in wanted if r.startswith("setuptools>="))
    assert int(exact["setuptools"].split(".")[0]) >= least


@needs_workflows
def test_workflows_hold_against_githubs_schema() -> None:
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    result = subprocess.run(
        [*command, "vendor.github-workflows", *map(str, WORKFLOWS)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


@needs_workflows
@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_pins_its_actions_and_may_do_little(file: Path) -> None:
    text = file.read_text()
    for action in re.findall(r"uses: *(\S+.*)", text):
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    # ComfyUI's registry has nothing but tokens; one step sees it, in its environment.
    registry = ["          TOKEN: ${{ secrets.COMFY_REGISTRY_TOKEN }}"]
    secret = [line for line in text.splitlines() if "secrets." in line]
    assert secret == (registry if file.stem == "registry" else [])
    assert re.search(r"^permissions:\n  contents: read\n", text, re.M)
    writes = re.findall(r"^ +([a-z-]+): write$", text, re.M)
    assert writes == (["id-token"] if file.stem == "wheels" else [])
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    assert text.count("runs-on:") == text.count("timeout-minutes:")


@needs_workflows
def test_every_python_of_the_classifiers_is_tested_and_no_other_is_named() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(settings["project"]["classifiers"]))
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (tested,) = re.findall(r"python: (\[.+\])", text)
    assert json.loads(tested) == named
    built = " ".join(settings["tool"]["cibuildwheel"]["build"])
    assert [f"3.{n}" for n in re.findall(r"cp3(\d+)-", built)] == named
