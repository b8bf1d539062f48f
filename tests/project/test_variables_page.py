"""docs/variables.md is what tools/site/variables.py makes of the rules."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from places import ROOT

from hy3d_rocm.diagnose.env import rules

_SPEC = importlib.util.spec_from_file_location("variables", ROOT / "tools/site/variables.py")
assert _SPEC is not None
assert _SPEC.loader is not None
variables = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(variables)


def test_the_page_for_users_is_the_table() -> None:
    page = (ROOT / "docs" / "variables.md").read_text()
    assert page == variables.page(), (
        "make it anew: python tools/site/variables.py > docs/variables.md"
    )


def test_the_page_has_a_row_for_each_rule() -> None:
    rows = [line for line in variables.page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(rules.table())
    for row, rule in zip(rows, rules.table(), strict=True):
        assert f"**{rule.verdict}**" in row
        assert rule.source in row
        assert ("Not confirmed" in row) is not rule.confirmed
        assert row.replace("\\|", "").count("|") == 7


def test_the_command_prints_the_page() -> None:
    printed = subprocess.run(
        [sys.executable, "tools/site/variables.py"], cwd=ROOT,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (printed.returncode, printed.stdout) == (0, variables.page())
