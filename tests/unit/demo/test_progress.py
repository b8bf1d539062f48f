"""What the demo prints of its children."""

from __future__ import annotations

import json

import pytest

from examples.demo.run import show_progress


@pytest.mark.parametrize(("total", "lines"), [(695, 24), (24, 24), (5, 5), (1, 1)])
def test_into_a_file_goes_a_line_for_each_24th(
    total: int, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for done in range(1, total + 1):
        show_progress("whole", json.dumps({"done": done, "total": total}))
    told = capsys.readouterr().out.splitlines()
    assert len(told) == lines
    assert told[-1] == f"  whole     [{'#' * 24}] {total}/{total}"
