"""`hy3d-rocm doctor`: its exit code, its JSON, its page."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest
from doctor_machines import changed, healthy, put

import hy3d_rocm
from hy3d_rocm import cli
from hy3d_rocm.diagnose.doctor import examination
from hy3d_rocm.diagnose.doctor.examination import Examination, judge
from hy3d_rocm.diagnose.doctor.finding import Finding, Severity


def sick(folder: Path) -> Examination:
    facts = changed(
        healthy(folder),
        put("torch.architectures", ["gfx1030"]),
        put("disks.0.free_bytes", 2 << 30),
        put("disks.0.uses", ["<script>alert(1)</script>"]),
    )
    return Examination(facts, tuple(judge(facts)))


@pytest.fixture
def examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces examine() by a sick machine's; what it was called with."""
    asked: list[dict[str, Any]] = []
    found = sick(tmp_path / "machine")

    def examine(**options: Any) -> Examination:
        asked.append(options)
        return found

    monkeypatch.setattr(examination, "examine", examine)
    return asked


def test_the_exit_code_says_the_worst(
    examined: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", "--no-self-test", "--seconds", "9"]) == 2
    assert (examined[0]["self_test"], examined[0]["seconds"]) == (False, 9.0)
    text = capsys.readouterr().out
    assert text.startswith("hy3d-rocm doctor: 1 error, 1 warning")
    assert text.index("ERROR") < text.index("WARNING") < text.index("system")


def test_json_holds_findings_and_facts(
    examined: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 2
    assert found["version"] == hy3d_rocm.__version__
    assert [f["severity"] for f in found["findings"]] == ["error", "warning", "fine"]
    assert set(found["findings"][0]) == {
        "id", "severity", "title", "evidence", "remedy", "source",
    }  # fmt: skip


@pytest.mark.parametrize("seconds", ["0", "x", "nan", "99999"])
def test_a_time_that_is_none_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["doctor", "--seconds", seconds])
    assert stop.value.code == 2
    assert "give 5 to 3600 seconds" in capsys.readouterr().err


class Page(html.parser.HTMLParser):
    """Tags that are open, addresses that something is loaded from, all text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.loaded += [v or "" for n, v in attributes if n in ("src", "srcset", "data")]
        self.loaded += [v or "" for n, v in attributes if n == "href" and tag != "a"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_loads_nothing_and_escapes_everything(
    examined: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    assert cli.main(["doctor", "--report", str(path)]) == 2
    text = path.read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.loaded == []
    assert "script" not in page.tags
    assert "&lt;script&gt;" in text
    assert not re.search(r"url\(|@import|<link", text)
    assert "prefers-color-scheme: dark" in text
    assert text.count("<article") == 3
    assert [p.name for p in tmp_path.glob("*.part")] == []


def test_only_web_addresses_become_links(tmp_path: Path) -> None:
    found = Finding("a", Severity.ERROR, "t", "e", "r", 'javascript:alert(1) https://x.org/"q')
    page = Examination({}, (found,)).html()
    assert "javascript:alert(1)</a>" not in page
    assert 'href="https://x.org/&quot;q"' in page


def test_a_report_that_cannot_be_written_is_said(
    examined: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", "--report", str(tmp_path / "none" / "r.html")]) == 3
    assert "can't be written: No such file" in capsys.readouterr().err


def test_an_interrupt_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def examine(**_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(examination, "examine", examine)
    assert cli.main(["doctor"]) == 130
