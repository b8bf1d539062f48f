"""The C core's door to the operating system compiles for Windows; `make cwintest` runs it there."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from places import ROOT

COMPILER = "x86_64-w64-mingw32-gcc"
BASE = sorted((ROOT / "csrc" / "base").glob("*.c"))


def warnings() -> list[str]:
    text = (ROOT / "csrc" / "core.mk").read_text().replace("\\\n", " ")
    found = re.search(r"^CORE_WARNINGS := (.*)$", text, flags=re.M)
    assert found, "core.mk has no list of warnings"
    return found.group(1).split()


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no {COMPILER}")
def test_what_asks_the_operating_system_compiles_for_windows_without_a_warning() -> None:
    command = [COMPILER, "-std=c11", "-fsyntax-only", "-Iinclude", "-Icsrc", "-DHY3D_BUILD"]
    command += [*warnings(), "-Werror", *(str(path.relative_to(ROOT)) for path in BASE)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def function_names(source: str) -> set[str]:
    """Functions that a file defines for others."""
    text = (ROOT / "csrc" / "base" / source).read_text()
    return set(re.findall(r"^[\w ]+?\*?\b(hy3d__\w+)\([^;]*?\)\n\{", text, flags=re.M))


def test_both_systems_have_the_same_door() -> None:
    header = (ROOT / "csrc" / "base" / "os.h").read_text()
    declared = set(re.findall(r"^[\w ]+?\*?\b(hy3d__\w+)\([^;]*?\);", header, flags=re.M))
    assert len(declared) >= 20
    assert function_names("os_posix.c") == declared
    assert function_names("os_windows.c") == declared
