"""What is built and shipped: size, symbols, versions, notices, the cost of the import."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

import hy3d_rocm
from hy3d_rocm import _core

CORE = Path(_core.__file__)
VENDOR = CORE.parent / "_vendor"
needs_vendor = pytest.mark.skipif(
    not VENDOR.is_dir(), reason="built with HY3D_BLAS=system: nothing is vendored"
)


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def read_elf(*options: str, file: Path) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not there")
    result = subprocess.run(
        ["readelf", "--wide", *options, str(file)], capture_output=True, text=True, check=True
    )
    return result.stdout


def import_times(repeat: int) -> list[tuple[float, str]]:
    """(milliseconds of `import hy3d_rocm` by -X importtime, all that was imported)."""
    times = []
    for _ in range(repeat):
        result = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", "import hy3d_rocm"],
            capture_output=True,
            text=True,
            check=True,
        )
        line = next(x for x in result.stderr.splitlines() if x.endswith("| hy3d_rocm"))
        times.append((int(line.split("|")[1]) / 1000, result.stderr))
    return times


def test_the_import_costs_less_than_50_ms_and_brings_neither_torch_nor_numpy() -> None:
    times = import_times(6)[1:]  # the first is cold; the least of five is not another's load
    assert min(ms for ms, _ in times) < 50, times[0][0]
    names = {line.rsplit("|", 1)[1].strip() for line in times[0][1].splitlines() if "|" in line}
    assert not names & {"torch", "numpy", "hy3d_rocm._core"}


def test_the_core_is_below_500_kb_and_stripped() -> None:
    assert CORE.stat().st_size < 500_000
    sections = read_elf("-S", file=CORE)
    assert ".symtab" not in sections
    assert ".debug_info" not in sections


def test_the_core_uses_the_limited_api_and_no_blas_at_link_time() -> None:
    assert CORE.name == "_core.abi3.so"
    needed = re.findall(r"NEEDED.*\[(.+)\]", read_elf("-d", file=CORE))
    assert all(re.match(r"lib(c|m|dl|pthread|gcc_s)\.|ld-linux", name) for name in needed), needed


def test_only_the_init_function_and_the_public_c_api_are_exported() -> None:
    symbols = read_elf("--dyn-syms", file=CORE).splitlines()
    exported = [line.split()[-1] for line in symbols if re.search(r"GLOBAL DEFAULT +\d+ ", line)]
    assert "PyInit__core" in exported
    strays = [n for n in exported if not re.match(r"PyInit__core$|hy3d_(?!_)", n)]
    assert not strays
    assert not [n for n in exported if n.startswith("hy3d_py_")]


@needs_vendor
def test_the_vendored_blas_has_a_name_of_its_own_and_its_notices() -> None:
    library = VENDOR / "libhy3d_openblas.so"
    assert "[libhy3d_openblas.so]" in read_elf("-d", file=library)
    notices = (VENDOR / "LICENSE.txt").read_text()
    for name in ("OpenBLAS", "LAPACK", "libgfortran", "GCC RUNTIME LIBRARY EXCEPTION"):
        assert name in notices, name
    assert str(library) in _core.blas_info()["text"]


@needs_vendor
def test_the_vendored_blas_is_the_pinned_one() -> None:
    pins = [r for r in project()["build-system"]["requires"] if "openblas" in r]
    version = re.match(r"scipy-openblas32==([0-9.]+);", pins[0])
    assert version is not None
    assert (VENDOR / "VERSION").read_text() == f"scipy-openblas32 {version[1]}\n"


def test_the_version_has_one_source() -> None:
    settings = project()
    assert "version" not in settings["project"]
    assert settings["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "hy3d_rocm.__version__"}
    assert settings["tool"]["comfy"]["version"]["path"] == "hy3d_rocm/__init__.py"
    source = (ROOT / "hy3d_rocm" / "__init__.py").read_text()
    assert re.findall(r'^__version__ = "(.+)"$', source, re.M) == [hy3d_rocm.__version__]


def test_torch_is_never_pulled_in_by_an_installation() -> None:
    settings = project()["project"]
    everything = [*settings["dependencies"]]
    for extra in settings["optional-dependencies"].values():
        everything += extra
    names = {re.split(r"[<>=!~ \[;]", item)[0].lower() for item in everything}
    assert not names & {"torch", "torchvision", "torchaudio", "triton", "scipy-openblas32"}


def test_the_metadata_says_what_registries_ask_for() -> None:
    settings = project()["project"]
    assert settings["license"] == "Apache-2.0"
    assert "Environment :: GPU :: AMD ROCm" in settings["classifiers"]
    assert settings["requires-python"] == ">=3.11"


def test_every_public_name_is_listed_and_unknown_ones_are_refused() -> None:
    assert set(hy3d_rocm.__all__) <= set(dir(hy3d_rocm))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = hy3d_rocm.no_such_name


def test_the_stub_names_exactly_what_the_core_has() -> None:
    import ast

    tree = ast.parse((ROOT / "hy3d_rocm" / "_core.pyi").read_text())
    stub = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    assert stub == {name for name in dir(_core) if not name.startswith("__")}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [("nope", "HY3D_BLAS='nope': it must be 'vendored' or 'system'.")],
)
def test_a_wrong_blas_choice_stops_the_build_with_a_sentence(value: str, sentence: str) -> None:
    import os

    result = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HY3D_BLAS": value},
    )
    assert result.returncode != 0
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_eight_threads_on_the_same_objects_get_the_right_results() -> None:
    # Quick, and with the GIL where Python has one; without it the check is what CI runs on cp314t.
    check = ROOT / "tests" / "long" / "check_free_threaded.py"
    result = subprocess.run(
        [sys.executable, str(check), "--rounds", "50"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 wrong, 0 allocations left" in result.stdout
