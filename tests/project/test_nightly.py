"""The table of long checks names commands that exist, with options that they have."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from nightly_checks import CHECKS

COMMANDS = [pytest.param(words, id=words) for c in CHECKS for words in sorted({c.full, c.quick})]
MAKEFILES = [*ROOT.glob("csrc/*.mk"), *ROOT.glob("tests/**/*.mk"), ROOT / "Makefile"]


def targets() -> set[str]:
    found: set[str] = set()
    for path in MAKEFILES:
        for names in re.findall(
            r"^([\w -]+):(?!=)", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            found |= set(names.split())
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_nightly_command_exists_and_knows_its_options(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "make":
        wanted = {word for word in words if "=" not in word}
        assert wanted
        assert wanted <= targets()
        return
    assert program == "python"
    script = ROOT / words[0]
    text = script.read_text(encoding="utf-8")
    assert [w for w in words[1:] if w.startswith("--") and f'"{w}"' not in text] == []


def test_nightly_names_are_told_apart_and_listed() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "nightly.py", "--list"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert [line.split()[0] for line in done.stdout.splitlines()] == names


def test_nightly_counts_what_failed_and_says_where(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); import nightly, nightly_checks as table\n"
        "good = table.Check('good', '', 'python -c \"print(7)\"', '')\n"
        "bad = good._replace(name='bad', full='python -c \"raise SystemExit(3)\"')\n"
        "none = good._replace(name='none', full='python -c \"print(8); raise SystemExit(77)\"')\n"
        "nightly.CHECKS = (good, bad, none)\n"
        "sys.argv[1:] = ['--logs', sys.argv[1]]; raise SystemExit(nightly.main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path, ROOT / "tests"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "1 passed, 1 failed, 1 skipped"
    assert lines[0].split()[:2] == ["good", "passed"]
    assert lines[0].endswith("  7")
    assert str(tmp_path / "bad.log") in done.stdout
