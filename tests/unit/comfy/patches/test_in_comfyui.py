"""Parts of ComfyUI's own core with our patches. HY3D_COMFYUI names one or more folders of ComfyUI,
parted like PATH; HY3D_COMFYUI_PYTHON the Python that can run them (without it, this one)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT, SUPPORT

CORES = [core for core in os.environ.get("HY3D_COMFYUI", "").split(os.pathsep) if core]

pytestmark = [
    pytest.mark.skipif(not CORES, reason="HY3D_COMFYUI does not name a folder with ComfyUI"),
    pytest.mark.parametrize("core", CORES),
]


def result_of(script_name: str, core: str, base: Path) -> Any:
    """What a script beside this file prints after RESULT, run with a core."""
    script = SUPPORT / script_name
    path = os.pathsep.join([str(ROOT), str(script.parent)])
    done = subprocess.run(
        [os.environ.get("HY3D_COMFYUI_PYTHON", sys.executable), str(script), core, str(base)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT ")), None)
    assert line is not None, done.stderr[-3000:]
    return json.loads(line.removeprefix("RESULT "))


def test_a_switched_setting_runs_the_node_and_what_depends_on_it_again(
    core: str, tmp_path: Path
) -> None:
    again = ["delight", "sink"]
    assert result_of("core_cache_check.py", core, tmp_path) == [
        [["source", *again], True],  # the first prompt
        [[], True],  # the same again: all from the cache
        [again, True],  # the setting is another
        [[], True],
        [again, True],  # the node's own input is another
        [[], True],  # the setting does not count while the input says which
        [again, True],  # another seed
    ]


def test_the_cores_free_memory_unloads_what_is_short_and_no_more(core: str, tmp_path: Path) -> None:
    """6 GB are free, models of 3 and 5 GB are loaded; 6, 8, 10 and 15 GB are needed."""
    assert result_of("core_room_check.py", core, tmp_path) == [
        # GB counted as free, GB free afterwards, models still loaded
        [14, 6, 2],
        [14, 9, 1],
        [14, 14, 0],
        [14, 14, 0],  # more than there is: all that ComfyUI has
    ]
