"""tests/long/check_diagnose.py: how an excerpt is judged by its label."""

from __future__ import annotations

from typing import Any

import check_diagnose
import pytest

KILLED = "HW Exception by GPU node-1 (Agent handle: 0x3) reason :GPU Hang\n"
DONE = "Prompt executed in 3.0 seconds\n"


@pytest.mark.parametrize(
    ("log", "label", "verdict"),
    [
        (KILLED, {"expect": ["gpu-hang", "gpu-reset"]}, "right"),
        (KILLED, {"expect": ["hip-error"]}, "wrong"),
        (KILLED, {"expect": ["hip-error"], "never": ["gpu-hang"]}, "misleading"),
        (KILLED + "(IMPORT FAILED): /x", {"expect": ["node-import-failed"]}, "right, not first"),
        ("KeyError: 3\n", {"expect": ["gpu-hang"]}, "unknown"),
        (DONE, {"expect": ["gpu-hang"]}, "missed at exit 0"),
        (DONE, {"kind": "control"}, "control"),
        (KILLED, {"kind": "control"}, "wrong"),
        ("KeyError: 3\n", {"kind": "out-of-scope"}, "unknown"),
        (KILLED, {"expected": ["gpu-hang"]}, "right"),
        (KILLED, {"kind": "fault", "cause": "for a person"}, ""),
    ],
)
def test_an_excerpt_is_judged_by_its_label(log: str, label: dict[str, Any], verdict: str) -> None:
    found = {"id": "x", "log": log, **label}
    assert check_diagnose.judged(found, check_diagnose.examined(found)) == verdict
