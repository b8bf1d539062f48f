"""Fingerprints in ComfyUI's own executor. HY3D_COMFYUI names one or more folders of ComfyUI,
parted like PATH; HY3D_COMFYUI_PYTHON the Python that can run them (without it, this one)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORES = [core for core in os.environ.get("HY3D_COMFYUI", "").split(os.pathsep) if core]


@pytest.mark.skipif(not CORES, reason="HY3D_COMFYUI does not name a folder with ComfyUI")
@pytest.mark.parametrize("core", CORES)
def test_a_switched_setting_runs_the_node_and_what_depends_on_it_again(
    core: str, tmp_path: Path
) -> None:
    script = Path(__file__).with_name("core_cache_check.py")
    path = os.pathsep.join([str(ROOT), str(script.parent)])
    done = subprocess.run(
        [os.environ.get("HY3D_COMFYUI_PYTHON", sys.executable), str(script), core, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT ")), None)
    assert line is not None, done.stderr[-3000:]
    again = ["delight", "sink"]
    assert json.loads(line.removeprefix("RESULT ")) == [
        [["source", *again], True],  # the first prompt
        [[], True],  # the same again: all from the cache
        [again, True],  # the setting is another
        [[], True],
        [again, True],  # the node's own input is another
        [[], True],  # the setting does not count while the input says which
        [again, True],  # another seed
    ]
