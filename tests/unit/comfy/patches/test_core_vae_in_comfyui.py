"""ComfyUI's own VAE nodes with its VAE class patched, in ComfyUI itself, on tiny VAEs.

    HY3D_COMFYUI=DIR[:DIR2] [HY3D_COMFYUI_PYTHON=PYTHON] \\
        python -m pytest -rs tests/unit/comfy/patches/test_core_vae_in_comfyui.py

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
CHILD = SUPPORT / "comfy_patch_vae_child.py"
# The project's promise for streamed decodes in float32.
EXACT = 1e-4
NODES = ("VAEDecode", "VAEDecodeTiled", "VAEEncode", "VAEEncodeTiled")

pytestmark = [
    pytest.mark.skipif(not CORES, reason="HY3D_COMFYUI names no checkout of ComfyUI"),
    pytest.mark.parametrize("core", CORES),
    pytest.mark.timeout(900),
]


@functools.cache
def found(core: str, check: str) -> dict[str, Any]:
    clean = {name: value for name, value in os.environ.items() if name != "HY3D_FAULTS"}
    done = subprocess.run(
        [PYTHON, str(CHILD), core, check], capture_output=True, text=True, timeout=900, check=False,
        env={**clean, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def test_without_a_fault_the_nodes_give_what_they_gave(core: str) -> None:
    plain = found(core, "plain")
    assert len(plain["off"]) == 12
    assert all(error == 0.0 for error, _ in plain["off"].values())
    assert all(error <= EXACT for error, _ in plain["protect"].values()), plain["protect"]
    assert all(error <= EXACT for error, _ in plain["full"].values()), plain["full"]
    for case in plain["full"]:  # tiles that were asked for stay
        if case.endswith("Tiled"):
            assert plain["full"][case] == plain["protect"][case], case


def test_every_injected_fault_ends_in_the_same_frames(core: str) -> None:
    faulty = found(core, "under_faults")
    assert len(faulty) == 12
    for name, cases in faulty.items():
        assert sum(fired for _, fired in cases.values()), f"{name}: no fault acted"
        for case, (error, _) in cases.items():
            assert error <= EXACT, (name, case)


def test_what_fails_without_the_patch_succeeds_and_other_errors_keep_their_type(core: str) -> None:
    raised = found(core, "exceptions")
    for node in NODES:
        assert raised[f"{node} unpatched"] == "RuntimeError"
        assert raised[f"{node} protect"] == raised[f"{node} full"] == "nothing"
    kinds = {raised[f"channels {mode}"] for mode in ("unpatched", "protect", "full")}
    assert kinds == {"RuntimeError"}


def test_a_cancel_is_comfyuis_own_exception_and_is_over_with_it(core: str) -> None:
    raised = found(core, "interrupts")
    assert len(raised) == 16
    for case, kind in raised.items():
        assert kind == ("nothing" if case.endswith("after") else "InterruptProcessingException")


def test_the_cores_own_retry_in_tiles_still_works(core: str) -> None:
    assert found(core, "retries") == {
        "hunyuan VAEDecode": [True, ["decode_tiled_3d"]],
        "hunyuan VAEEncode": [True, ["encode_tiled_3d"]],
        "image VAEDecode": [True, ["decode_tiled_"]],
        "image VAEEncode": [True, ["encode_tiled_"]],
    }
