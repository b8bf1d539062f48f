"""The interpreter's memory runs out inside the binding: a part of what
tests/long/check_binding_faults.py does, and what that has found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import LONG

pytest.importorskip("hy3d_rocm._core")
CHECK = LONG / "check_binding_faults.py"

import check_binding_faults  # noqa: E402

from hy3d_rocm import _core  # noqa: E402
from hy3d_rocm._fallback import device as twin  # noqa: E402


@pytest.mark.skipif(sys.platform == "win32", reason="its library is built for Linux")
@pytest.mark.skipif(
    shutil.which(check_binding_faults.compiler()) is None, reason="there is no C compiler"
)
def test_every_allocation_of_the_interpreter_may_fail_in_a_part_of_the_calls(
    tmp_path: Path,
) -> None:
    library = check_binding_faults.build_no_memory(tmp_path)
    done = subprocess.run(
        [sys.executable, str(CHECK), "--way", "interpreter", "--library", str(library),
         "--count", "1", "--part", "3", "--parts", "12"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == []
    assert found["runs"] > 20


class Poor:
    """No memory for any attribute."""

    def __getattr__(self, name: str) -> Any:
        raise MemoryError(name)


@pytest.mark.parametrize("resolve", [_core.resolve_device, twin.resolve_device])
def test_no_memory_is_not_taken_for_a_pipeline_without_a_device(resolve: Any) -> None:
    """It gave the default, and the pipeline ran elsewhere than its weights were."""
    with pytest.raises(MemoryError):
        resolve(Poor(), "cpu")


def test_no_memory_is_not_taken_for_an_object_without_dlpack() -> None:
    with pytest.raises(MemoryError):
        _core.channel_moments(Poor(), np.zeros(2), np.zeros(2), 1, None)
