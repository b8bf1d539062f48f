"""The first facts: without torch, without the core."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from typing import Any

import pytest

from hy3d_rocm.diagnose.doctor.basic import collect
from hy3d_rocm.diagnose.doctor.examination import columns, sections
from hy3d_rocm.diagnose.env import rules
from hy3d_rocm.diagnose.env.machine import Machine


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MIOPEN_FIND_MODE", "DYNAMIC", "throws: MIOpen knows no such mode"),
        ("MIOPEN_FIND_MODE", "FAST", "helpful: "),
        ("MIOPEN_FIND_MODE", "HYBRID", ""),
        ("MIOPEN_FIND_MODE", "4", "harmful: 4 is accepted"),
        ("MIOPEN_FIND_ENFORCE", "DB_ONLY", "throws: MIOpen knows no such choice"),
        ("MIOPEN_FIND_ENFORCE", "SEARCH", "forces the find mode NORMAL"),
        ("MIOPEN_FIND_ENFORCE", "none", ""),
        ("MIOPEN_FIND_TIME_LIMIT", "60", "does nothing: "),
        ("PYTORCH_HIP_ALLOC_CONF", "garbage_collection_threshold:0.8", "limits its share"),
        ("PYTORCH_HIP_ALLOC_CONF", "max_split_size_mb:512", ""),
        ("COMFYUI_ENABLE_MIOPEN", "1", "leaves MIOpen switched on"),
        ("COMFYUI_ENABLE_MIOPEN", "0", "only 1 has an effect"),
        ("HY3D_CPU", "sse", "no such level"),
        ("HSA_OVERRIDE_GFX_VERSION", "11.0.0", ""),
    ],
)
def test_the_doctor_says_what_the_rules_say(name: str, value: str, words: str) -> None:
    entry = rules.relevant({name: value, "PATH": "/bin"}, Machine())
    assert list(entry) == [name]
    assert (words in entry[name]["note"]) if words else entry[name]["note"] == ""


def test_facts_are_json_and_text() -> None:
    facts = collect({"MIOPEN_FIND_MODE": "DYNAMIC"})
    assert json.loads(json.dumps(facts)) == facts
    text = columns(sections(facts, whole=False))
    for expected in (
        "Python 3.",
        "MIOPEN_FIND_MODE=DYNAMIC  (throws: MIOpen knows no such mode",
        "torch",
    ):
        assert expected in text


def test_a_broken_torch_is_a_fact_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch":
            raise OSError("libamdhip64.so.6: cannot open shared object file")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    facts = collect({})
    assert facts["torch"] == {"error": "OSError: libamdhip64.so.6: cannot open shared object file"}
    assert "libamdhip64" in columns(sections(facts, whole=False))
    assert "none of those that matter is set" in columns(sections(facts, whole=False))


def test_a_wrong_cpu_level_is_a_fact_and_no_crash() -> None:
    code = (
        "from hy3d_rocm.diagnose.doctor.basic import collect\n"
        "from hy3d_rocm.diagnose.doctor.examination import columns, sections\n"
        "facts = collect(torch={'error': 'not asked'})\n"
        "print(columns(sections(facts, whole=False)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"HY3D_CPU": "sse", "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "HY3D_CPU=(3 characters, not shown)  (throws: no such level" in run.stdout


def test_basic_facts_import_neither_torch_nor_numpy() -> None:
    code = "import sys, hy3d_rocm.diagnose.doctor.basic\n"
    code += "print({'torch', 'numpy'} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert run.stdout.strip() == "set()"


def test_amd_gpus_show_in_the_text_as_torch_and_the_driver_name_them() -> None:
    facts = collect({})
    card = {"name": "Radeon", "architecture": "gfx1100", "memory_bytes": 24 << 30}
    facts["driver"] = {"gpus": [card], "rocm": "7.1.0"}
    facts["torch"] = {
        "version": "2.9.0+rocm7.0", "hip": "7.0", "cuda": None, "threads": 2,
        "miopen_or_cudnn_enabled": False, "gpus": [card],
    }  # fmt: skip
    text = columns(sections(facts, whole=False))
    for expected in (
        "torch 2.9.0+rocm7.0: ROCm 7.0", "MIOpen is switched off", "Radeon, gfx1100, 24.0 GB",
        "driver: Radeon", "ROCm 7.1.0 on the system",
    ):  # fmt: skip
        assert expected in text
