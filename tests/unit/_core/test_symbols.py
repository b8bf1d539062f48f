"""The extension exports its init function only: nobody's symbols can take the core's place."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

_core = pytest.importorskip("hy3d_rocm._core")


@pytest.mark.skipif(sys.platform == "win32", reason="a DLL's exports are named in its build")
@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm of binutils")
def test_the_extension_exports_its_init_function_and_nothing_else() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["PyInit__core"]
