"""`hy3d-rocm db`: every answer is readable, every mistake gets a sentence."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from verdict_store_doubles import finish, key, record, start
from verdict_store_fixtures import patience  # noqa: F401

from hy3d_rocm.cli import main
from hy3d_rocm.conv.verdict_store import command
from hy3d_rocm.conv.verdict_store.records import VERDICTS, Machine, Row
from hy3d_rocm.conv.verdict_store.store import Store

WIDE = key(
    shape="1x128x35x640x608 w128x128x3x3x3 s2x2x2 p2+0x1x1 replicate/zeros/zeros d2x2x2 g2 bias"
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "knowledge.db"
    monkeypatch.setenv("HY3D_ROCM_DB", str(path))
    return path


@pytest.fixture
def filled(path: Path) -> Path:
    store = Store.open(path)
    for number in range(50):
        store.put(key(number), record(when=1.6e9 + number, seconds=0.00123))
    store.put(key(7), record("vendor", "error", seconds=None, detail="MIOpen\x1b[31m Error " * 9))
    store.put(key(7), record("gemm", peak_bytes=3 << 20, first_seconds=2.5, seconds=1.5))
    store.put(WIDE, record("vendor", "hang", seconds=None, measured_by="probe"))
    store.close()
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["db", *arguments])
    return (code, *capsys.readouterr())


def test_list_is_aligned_and_fits_100_columns(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "list", "--limit", "0")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == ["tier", "verdict", "time", "first", "peak", "by", "when"]
    columns = [lines[0].index(word) for word in ("tier", "verdict", "by ", "when")]
    rows = [line for line in lines[1:] if line[4:10].strip() in ("triton", "gemm", "vendor")]
    assert len(rows) == 53
    for line in rows:
        assert all(line[c - 2 : c] == "  " and line[c] != " " for c in columns), line


def test_tiles_are_told_apart(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(path)
    tiles = ["128x128x64w4s3g8", "128x128x64w4s4g8"]
    for tile in tiles:
        store.put(key()._replace(op="fused", shape="96 outputs of 9 x 288"), record(tile))
    store.close()
    lines = run(capsys, "list")[1].splitlines()
    assert sorted(line.split()[0] for line in lines[-2:]) == tiles
    assert max(map(len, lines)) <= 100


def test_list_says_what_it_left_out(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "list")
    assert out.count("conv3d") == 40
    assert "and 11 more, older keys (--limit 0 prints all)" in out
    _, out, _ = run(capsys, "list", "--limit", "50")
    assert "and 1 more, older key (" in out


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ("--tier gemm", 1),
        ("--verdict hang", 1),
        ("--shape 35x640x608", 1),
        ("--architecture gfx1100", 51),
        ("--tier triton --shape x7x", 1),
        ("--op conv3d --dtype bf16", 51),
    ],
)
def test_filters(
    filled: Path, capsys: pytest.CaptureFixture[str], options: str, count: int
) -> None:
    _, out, _ = run(capsys, "list", "--limit", "0", *options.split())
    assert out.count("conv3d") == count


def test_an_empty_list_says_what_there_is(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "list", "--tier", "tritn")
    assert "None of 53 rows matches. There are tiers: gemm, triton, vendor; verdicts:" in out


def test_here_is_this_machine_with_todays_versions(
    filled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = key()
    mine = Machine(here.architecture, here.driver, here.torch, here.vendor, here.ours)
    monkeypatch.setattr(command, "machines_here", lambda: [mine])
    assert run(capsys, "list", "--here", "--limit", "0")[1].count("conv3d") == 51
    monkeypatch.setattr(command, "machines_here", list)
    assert "None of 53 rows" in run(capsys, "list", "--here")[1]

    def fail() -> list[Machine]:
        raise ImportError("no torch")

    monkeypatch.setattr(command, "machines_here", fail)
    code, _, error = run(capsys, "list", "--here")
    assert (code, error) == (1, "hy3d-rocm db: --here needs a torch that works: no torch\n")


def test_show_has_the_machine_all_tiers_and_what_was_said(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "show", key(7).name)
    assert code == 0
    for word in (*key(7), r"MIOpen\x1b[31m Error", "1.50 s", "2.50 s", "3.0 MB", "1.23 ms"):
        assert word in out
    assert "\x1b" not in out
    tiers = [line.split()[0] for line in out.splitlines() if line.startswith("    ")]
    assert tiers[:4] == ["tier", "triton", "gemm", "vendor"]
    assert max(map(len, out.splitlines())) <= 100
    assert run(capsys, "show", "35x640x608")[0] == 0


def test_show_asks_back_where_several_keys_fit(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = run(capsys, "show", "1x8x5")
    assert (code, out) == (1, "")
    assert error.startswith("hy3d-rocm db: 1x8x5 fits 50 keys:\n")
    assert error.endswith("and 40 more\n")
    code, _, error = run(capsys, "show", "nothing")
    assert (code, "no key is called nothing" in error) == (1, True)


def test_forget_says_how_many_and_needs_to_know_what(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "forget")[0] == 1
    assert run(capsys, "forget", "--all", "--tier", "gemm")[0] == 1
    assert run(capsys, "forget", "--tier", "gemm")[1] == "Deleted 1 row of 53.\n"
    assert "None of 52 rows matches" in run(capsys, "forget", "--tier", "gemm")[1]
    assert run(capsys, "forget", "--verdict", "ok")[1] == "Deleted 50 rows of 52.\n"
    assert run(capsys, "forget", "--all")[1] == "Deleted 2 rows of 2.\n"
    assert run(capsys, "list")[1] == "Nothing is known yet: the file has no rows.\n"


def test_export_is_json_of_all_that_matches(
    filled: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = run(capsys, "export", "--tier", "vendor")
    rows = json.loads(out)["rows"]
    assert code == 0
    assert {row["verdict"] for row in rows} == {"error", "hang"}
    assert rows[0].keys() == Row(key(), record()).as_dict().keys()
    target = tmp_path / "out.json"
    code, out, error = run(capsys, "export", "--out", str(target))
    assert (code, out, error) == (0, "", f"53 rows in {target}\n")
    assert len(json.loads(target.read_text())["rows"]) == 53
    code, _, error = run(capsys, "export", "--out", str(tmp_path / "no" / "where.json"))
    assert code == 1
    assert "can't be written: No such file or directory" in error
    assert [p.name for p in tmp_path.glob("*.part")] == []


def test_asking_makes_no_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "list") == (0, f"Nothing is known yet: there is no {path}.\n", "")
    assert run(capsys, "show", "x")[0] == 1
    assert run(capsys, "forget", "--all")[0] == 0
    assert run(capsys, "export")[0] == 1
    assert list(path.parent.iterdir()) == []


def test_a_file_that_cannot_be_read_gets_a_sentence(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    for arguments in (["list"], ["forget", "--all"], ["export"], ["show", "x"]):
        code, out, error = run(capsys, *arguments)
        assert (code, out) == (1, "")
        assert error == f"hy3d-rocm db: {path}: it is a database of another program\n"


@pytest.mark.parametrize(
    "arguments", [["list", "--limit", "-1"], ["list", "--verdict", "fine"], [], ["purge"]]
)
def test_bad_usage_ends_in_argparses_sentence(path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["db", *arguments])
    assert caught.value.code == 2


def test_the_command_does_not_import_torch(filled: Path) -> None:
    code = (
        "import sys; from hy3d_rocm.cli import main; main(['db', 'list']);"
        " assert 'torch' not in sys.modules"
    )
    assert "conv3d" in finish(start(code))


def test_widest_values_fit() -> None:
    rows = [
        Row(WIDE, record("x" * 40, verdict, seconds=1e9, first_seconds=1e9, peak_bytes=2**63 - 1))
        for verdict in VERDICTS
    ]
    rows.append(Row(WIDE, record(when=1e300)))
    assert max(map(len, command.list_text(command.blocks(rows)).splitlines())) <= 100
    assert max(map(len, command.key_text(WIDE).splitlines())) <= 100
