"""ComfyUI's own VAEs through decode() and our node, in ComfyUI itself.

    HY3D_COMFYUI=DIR[:DIR2] [HY3D_COMFYUI_PYTHON=PYTHON] \\
        python -m pytest -rs tests/unit/comfy/test_vaes_in_comfyui.py

DIR is a checkout of ComfyUI, PYTHON an interpreter that has its packages. Skipped without.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from places import SUPPORT

CORES = [d for d in os.environ.get("HY3D_COMFYUI", "").split(os.pathsep) if d]
PYTHON = os.environ.get("HY3D_COMFYUI_PYTHON", sys.executable)
CHILD = SUPPORT / "comfy_vaes_child.py"
# The project's promise for streamed decodes in float32.
EXACT = 1e-4

pytestmark = [
    pytest.mark.skipif(not CORES, reason="HY3D_COMFYUI names no checkout of ComfyUI"),
    pytest.mark.parametrize("core", CORES),
]


@functools.cache
def measured(core: str, check: str) -> dict[str, Any]:
    done = subprocess.run(
        [PYTHON, str(CHILD), core, check], capture_output=True, text=True, timeout=900, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_streamed_decodes_are_those_of_the_cores_unsplit_modules(core: str) -> None:
    found = measured(core, "exactness")
    assert set(found) == {
        "hunyuan", "hunyuan15", "wan", "wan22", "ltx", "ltx_timestep", "image", "flux2"
    }  # fmt: skip
    for kind, errors in found.items():
        assert errors, kind
        assert max(errors.values()) <= EXACT, (kind, errors)


def test_means_of_the_encoder_are_the_cores(core: str) -> None:
    found = measured(core, "encoding")
    assert {"hunyuan", "wan", "wan22", "ltx", "image"} <= set(found)
    assert max(found.values()) <= EXACT, found


def test_the_node_gives_the_unsplit_decoders_images_under_a_small_budget(core: str) -> None:
    for kind, (error, shape, report) in measured(core, "nodes").items():
        assert "cannot be cut" not in report, (kind, report)
        assert error <= EXACT, (kind, error, shape)


def test_patches_of_the_weights_are_honoured(core: str) -> None:
    found = measured(core, "patches")
    assert len(found) == 4
    for name, (error, change, report) in found.items():
        assert "cannot be cut" not in report, (name, report)
        assert error <= EXACT < change, (name, error, change)


def test_the_vae_is_as_before_also_after_a_cancel_and_a_mistake(core: str) -> None:
    for kind, (after, later, raised) in measured(core, "unchanged").items():
        assert after, kind
        assert later, kind
        assert raised == ["InterruptProcessingException", "own decode"], kind


def test_prepared_weights_go_when_comfyui_frees_memory(core: str) -> None:
    found = measured(core, "unloading")
    for name, (held, left, listed) in found.items():
        assert held > 0, name
        assert left == 0, name
        assert listed is (name == "a part"), name
