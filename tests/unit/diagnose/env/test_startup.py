"""The start-up as a whole: what is left out, set, said; and what is left alone."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import how_much
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT

from hy3d_rocm.diagnose.env import choices, rules, startup
from hy3d_rocm.diagnose.env.machine import Machine, find_results

AMD = Machine(("gfx1151",), True, (2, 9, 1), True, (7, 1))
WINDOWS = Machine((), False, (2, 9, 1), True, (7, 1), system="windows")
BUILD_ONLY = Machine((), True, (2, 9, 1), True, (7, 1))
NVIDIA = Machine((), True, (2, 9), False)
IGPU_BESIDE_NVIDIA = Machine(("gfx1036",), True, (2, 9), False)
# What SPEC-like guides set in one go.
GUIDE = {
    "MIOPEN_FIND_MODE": "DYNAMIC",
    "MIOPEN_FIND_ENFORCE": "DB_ONLY",
    "MIOPEN_FIND_TIME_LIMIT": "30",
    "MIOPEN_DEBUG_AMD_ROCM_PRECOMPILED_BINARIES": "0",
    "MIOPEN_DEBUG_3D_CONV_IMPLICIT_GEMM_HIP_FWD_XDLOPS": "1",
    "MIOPEN_DEBUG_3D_CONV_IMPLICIT_GEMM_HIP_BWD_XDLOPS": "1",
    "PYTORCH_HIP_ALLOC_CONF": "garbage_collection_threshold:0.8,max_split_size_mb=512",
}


def test_what_throws_is_left_out_and_fast_is_set() -> None:
    environ = dict(GUIDE)
    lines = startup.run(environ, AMD)
    expected = dict(GUIDE, MIOPEN_FIND_MODE="FAST", PYTORCH_MIOPEN_SUGGEST_NHWC="0")
    del expected["MIOPEN_FIND_ENFORCE"]
    expected["PYTORCH_HIP_ALLOC_CONF"] = "garbage_collection_threshold:0.8"
    assert environ == expected
    beginnings = [line.split(":")[0] for line in lines]
    assert "MIOPEN_FIND_MODE=DYNAMIC is left out" in beginnings
    assert "MIOPEN_FIND_ENFORCE=DB_ONLY is left out" in beginnings
    assert "MIOPEN_FIND_TIME_LIMIT=30 does nothing" in beginnings
    assert "MIOPEN_FIND_MODE=FAST is set" in beginnings
    assert "PYTORCH_MIOPEN_SUGGEST_NHWC=0 is set" in beginnings
    assert any("is cut down to garbage_collection_threshold:0.8: " in line for line in lines)
    assert any("Unrecognized key 'max_split_size_mb=512'" in line for line in lines)
    trio = [line for line in lines if "_XDLOPS" in line]
    assert len(trio) == 1, "one rule, one line"


def test_only_the_setting_that_does_nothing_is_called_so() -> None:
    value = "max_split_size_mb:512,garbage_collection_threshold:0.8"
    [line] = [line for line in startup.run({"PYTORCH_HIP_ALLOC_CONF": value}, AMD) if "gar" in line]
    assert line.startswith(
        "garbage_collection_threshold:0.8 in PYTORCH_HIP_ALLOC_CONF does nothing: "
    )


@pytest.mark.parametrize(("mode", "told"), [(None, True), ("FAST", True), ("HYBRID", False)])
def test_a_filled_database_of_miopens_is_told_at_the_start(mode: str | None, told: bool) -> None:
    environ = {} if mode is None else {"MIOPEN_FIND_MODE": mode}
    lines = startup.run(environ, dataclasses.replace(AMD, find_results=64))
    found = [line for line in lines if "holds 64 find results" in line]
    assert len(found) is int(told)
    assert environ["MIOPEN_FIND_MODE"] == (mode or "FAST")
    assert not any("find results" in line for line in startup.run({}, AMD))


def test_find_results_are_counted_of_the_newest_miopen(tmp_path: Path) -> None:
    for version, entries in (("3_4_0", 60), ("3_5_0", 7)):
        folder = ".miopen/db" if os.name == "nt" else ".config/miopen"
        file = tmp_path / f"{folder}/gfx1100_48.HIP.{version}_abc.ufdb.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{n}=x\n" for n in range(entries)))
    where = "USERPROFILE" if os.name == "nt" else "HOME"
    assert find_results({where: str(tmp_path)}) == 7
    assert find_results({where: str(tmp_path / "none")}) == 0


def test_a_second_run_changes_nothing() -> None:
    environ = dict(GUIDE)
    startup.run(environ, AMD)
    once = dict(environ)
    again = startup.run(environ, AMD)
    assert environ == once
    assert not any(" is left out: " in line or " is set: " in line for line in again)


@pytest.mark.parametrize("machine", [NVIDIA, IGPU_BESIDE_NVIDIA, Machine()])
def test_without_rocm_nothing_is_done_or_said(machine: Machine) -> None:
    environ = dict(GUIDE)
    assert startup.run(environ, machine) == []
    assert environ == GUIDE


def test_a_rocm_build_without_an_amd_gpu_is_only_kept_from_throwing() -> None:
    environ = dict(GUIDE)
    lines = startup.run(environ, BUILD_ONLY)
    assert set(GUIDE) - set(environ) == {"MIOPEN_FIND_MODE", "MIOPEN_FIND_ENFORCE"}
    assert len(lines) == 3
    assert all("is left out" in line or "is cut down" in line for line in lines)
    assert startup.run({}, BUILD_ONLY) == []


def test_windows_is_looked_after_too() -> None:
    environ = {"MIOPEN_FIND_ENFORCE": "DB_ONLY", "SYSTEMROOT": "C:\\Windows", "PATH": "C:\\a;b"}
    startup.run(environ, WINDOWS)
    assert environ == {
        "MIOPEN_FIND_MODE": "FAST", "SYSTEMROOT": "C:\\Windows", "PATH": "C:\\a;b",
    }  # fmt: skip


@pytest.mark.parametrize("off", [{"HY3D_ROCM": "off"}, {"HY3D_ROCM_ENV": " OFF"}])
def test_off_is_one_line_and_nothing_else(off: dict[str, str]) -> None:
    environ = {**GUIDE, **off}
    lines = startup.run(environ, AMD)
    assert len(lines) == 1
    assert "off" in lines[0]
    assert environ == {**GUIDE, **off}


@pytest.mark.parametrize("value", ["on", "0", ""])
def test_only_off_switches_off(value: str) -> None:
    environ = {"HY3D_ROCM": value, "HY3D_ROCM_ENV": value}
    startup.run(environ, AMD)
    assert environ["MIOPEN_FIND_MODE"] == "FAST"


@pytest.mark.parametrize("name", ["HY3D_ROCM", "HY3D_ROCM_ENV"])
def test_a_misspelt_switch_is_one_line_with_what_is_known(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "_said", set())
    with caplog.at_level(logging.WARNING, "hy3d_rocm"):
        for _ in range(2):
            startup.run({name: "Offf"}, Machine())
    assert caplog.messages == [
        f"hy3d_rocm: {name} is 'Offf' and is passed over; give one of on, off"
    ]


@pytest.mark.parametrize("broken", ["detect", "judge", "proposing"])
def test_a_failure_costs_one_line(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def fail(*_: Any) -> Any:
        raise OSError("no such luck")

    monkeypatch.setattr(startup if broken == "detect" else rules, broken, fail)
    lines = startup.run({}, None if broken == "detect" else AMD)
    assert lines == ["the check of the variables failed: OSError: no such luck"]


def test_an_environment_that_refuses_to_change_costs_one_line() -> None:
    class Frozen(dict[str, str]):
        def __setitem__(self, name: str, value: str) -> None:
            raise PermissionError(name)

    lines = startup.run(Frozen(), AMD)
    assert lines == ["the check of the variables failed: PermissionError: MIOPEN_FIND_MODE"]


def test_any_bytes_can_be_logged(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"MIOPEN_FIND_MODE": "\udcff\udcfe\n\x1b[31m" + "x" * 500}
    with caplog.at_level(logging.INFO, "hy3d_rocm"):
        lines = startup.run(environ, AMD)
    assert environ == {"MIOPEN_FIND_MODE": "FAST", "PYTORCH_MIOPEN_SUGGEST_NHWC": "0"}
    for line in lines:
        line.encode("utf-8")
        assert "\n" not in line
        assert "\x1b" not in line
        assert len(line) < 600
    assert [record.getMessage() for record in caplog.records] == [
        f"hy3d_rocm: {line}" for line in lines
    ]


# Names and values of all kinds, with those of the table often.
NAMES = st.one_of(
    st.sampled_from(sorted({v.rstrip("*") for r in rules.table() for v in r.variables})),
    st.from_regex(r"(MIOPEN|HSA|PYTORCH|HIP)_[A-Z]{1,8}", fullmatch=True),
    st.sampled_from(["PATH", "HOME", "LD_LIBRARY_PATH"]),
)
VALUES = st.one_of(
    st.sampled_from([
        "0", "1", "2", "4", "9", "", "on", "off", "True", "FAST", "DYNAMIC", "DB_ONLY", "SEARCH",
        "11.0.0", "11.5.1", "gfx1100", "max_split_size_mb:512", "max_split_size_mb:1",
        "expandable_segments:True,no_such_key:1", "\udcff",
    ]),
    st.text(max_size=12),
)  # fmt: skip
MACHINES = st.sampled_from([AMD, WINDOWS, BUILD_ONLY, NVIDIA, IGPU_BESIDE_NVIDIA, Machine()])


@settings(max_examples=how_much.of(100, 300), deadline=None, print_blob=True)
def throws(finding: rules.Finding) -> bool:
    """Of our own variables the doctor speaks."""
    return finding.rule.verdict == "throws" and not finding.name.startswith("HY3D_")


@given(st.dictionaries(NAMES, VALUES, max_size=6), MACHINES)
def test_no_value_that_works_is_changed_and_only_the_stated_is_added(
    given_environ: dict[str, str], machine: Machine
) -> None:
    throwing = {f.name for f in rules.judge(given_environ, machine) if throws(f)}
    environ = dict(given_environ)
    lines = startup.run(environ, machine)
    assert not any("failed" in line for line in lines), lines
    for name, value in given_environ.items():
        if name not in throwing:
            assert environ[name] == value
    added = environ.keys() - given_environ.keys()
    assert added <= {"MIOPEN_FIND_MODE", "PYTORCH_MIOPEN_SUGGEST_NHWC"}
    if "PYTORCH_MIOPEN_SUGGEST_NHWC" in added:
        assert environ["PYTORCH_MIOPEN_SUGGEST_NHWC"] == "0"
        assert machine.rocm >= (7,)
        assert (2, 7) <= machine.torch < (2, 11)
    if environ.get("MIOPEN_FIND_MODE") != given_environ.get("MIOPEN_FIND_MODE"):
        assert environ.get("MIOPEN_FIND_MODE") in ("FAST", None)
        assert machine.has_rocm_libraries
    assert not added or machine.has_rocm_libraries
    left = rules.judge(environ, machine)
    off = startup.is_off(given_environ, "HY3D_ROCM") or startup.is_off(
        given_environ, "HY3D_ROCM_ENV"
    )
    if machine.has_rocm_libraries and not off:
        assert not list(filter(throws, left)), "nothing that throws is left"


def prestartup(
    folder: Path, environ: MutableMapping[str, str], *, script: Path = ROOT / "prestartup_script.py"
) -> Any:
    """prestartup_script.py as ComfyUI runs it, in a process whose torch is in `folder`."""
    code = (
        "import sys, os, json, importlib.util, logging\n"
        "logging.basicConfig(level=logging.INFO, format='%(message)s', stream=sys.stderr)\n"
        # These sources, whatever is installed here: of another one a line would be said.
        f"sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]; before = list(sys.path)\n"
        f"spec = importlib.util.spec_from_file_location('pre', {str(script)!r})\n"
        "spec.loader.exec_module(importlib.util.module_from_spec(spec))\n"
        "print(json.dumps({'environ': dict(os.environ), 'path': sys.path == before,\n"
        "  'heavy': sorted({'torch', 'numpy', 'comfy'} & set(sys.modules))}))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env=dict(environ), cwd=folder,
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return {**json.loads(run.stdout), "log": run.stderr.splitlines()}


@pytest.fixture
def rocm_torch(tmp_path: Path) -> Path:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "torch" / "version.py").write_text(
        "__version__ = '2.9.1+rocm7.1'\ncuda = None\nhip = '7.1.25424'\n"
    )
    return tmp_path


def test_the_script_works_before_torch_and_leaves_sys_path_alone(rocm_torch: Path) -> None:
    environ = {"PATH": os.environ["PATH"], **GUIDE}
    out = prestartup(rocm_torch, environ)
    assert out["heavy"] == []
    assert out["path"]
    assert "MIOPEN_FIND_ENFORCE" not in out["environ"]
    assert out["environ"]["MIOPEN_FIND_TIME_LIMIT"] == "30"
    assert any("MIOPEN_FIND_ENFORCE=DB_ONLY is left out" in line for line in out["log"])


@pytest.mark.parametrize(("switch", "lines"), [("HY3D_ROCM", 0), ("HY3D_ROCM_ENV", 1)])
def test_the_script_is_switched_off(rocm_torch: Path, switch: str, lines: int) -> None:
    # Of HY3D_ROCM=off the door speaks (comfy/test_entry_point.py): once for a start of ComfyUI.
    environ = {"PATH": os.environ["PATH"], **GUIDE, switch: "off"}
    out = prestartup(rocm_torch, environ)
    assert environ.items() <= out["environ"].items()
    assert len(out["log"]) == lines
    assert all(f"{switch}=off" in line for line in out["log"])


def test_a_broken_pack_costs_one_line(rocm_torch: Path) -> None:
    pack = rocm_torch / "pack"
    pack.mkdir()
    for name in ("prestartup_script.py", "__init__.py"):
        (pack / name).write_text((ROOT / name).read_text())
    for place in (pack, rocm_torch):  # an installed copy would be taken first: this comes before it
        (place / "hy3d_rocm").mkdir()
        (place / "hy3d_rocm" / "__init__.py").write_text("raise ValueError('half a checkout')\n")
    out = prestartup(rocm_torch, {"PATH": os.environ["PATH"]}, script=pack / "prestartup_script.py")
    assert out["log"] == [
        "hy3d_rocm: the environment variables are left as they are: ValueError: half a checkout"
    ]


def test_an_ordinary_machine_is_told_nothing(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.13.0+cpu'\nhip = None\n")
    out = prestartup(tmp_path, {"PATH": os.environ["PATH"], **GUIDE})
    assert out["log"] == []
    assert GUIDE.items() <= out["environ"].items()
