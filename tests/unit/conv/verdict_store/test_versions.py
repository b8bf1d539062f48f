"""Files of other versions: each earlier schema is taken over whole, a newer one is left alone.

tests/data/verdicts_schema_N.sql is what code of schema N wrote.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from verdict_store_doubles import ROOT, finish, key, record, start, tables
from verdict_store_fixtures import lines, patience  # noqa: F401

import hy3d_rocm
from hy3d_rocm.conv.verdict_store import database
from hy3d_rocm.conv.verdict_store.records import Machine, Record, Row, counts_on
from hy3d_rocm.conv.verdict_store.store import Store

DUMPS = {int(p.stem[-1]): p for p in (ROOT / "tests" / "data").glob("verdicts_schema_*.sql")}
# A schema that is not there yet.
STEP = ("ALTER TABLE records ADD COLUMN colour TEXT", "CREATE TABLE notes (text TEXT)")
CHILD = """
import os, sqlite3, sys
from verdict_store_doubles import *
from hy3d_rocm.conv.verdict_store import database
from hy3d_rocm.conv.verdict_store.store import Store
def newer(*step):
    database.MIGRATIONS = (*database.MIGRATIONS, step)
    database.VERSION = 1 + len(database.MIGRATIONS)
"""


def newer(monkeypatch: pytest.MonkeyPatch, *step: str) -> None:
    """From now on this is the next version, which has one step more."""
    steps = (*database.MIGRATIONS, step)
    monkeypatch.setattr(database, "MIGRATIONS", steps)
    monkeypatch.setattr(database, "VERSION", 1 + len(steps))


def file_of(schema: int, path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(DUMPS[schema].read_text(encoding="utf-8"))
    return path


def structure(path: Path) -> dict[str, object]:
    """The schema's number, and the columns and indexes of each table."""
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        found: dict[str, object] = {"number": connection.execute("PRAGMA user_version").fetchone()}
        for (name,) in names:
            columns = connection.execute(f"PRAGMA table_info({name})").fetchall()
            indexes = [
                (index, connection.execute(f"PRAGMA index_info({index})").fetchall())
                for (_, index, *_) in connection.execute(f"PRAGMA index_list({name})").fetchall()
            ]
            found[name] = (columns, sorted(indexes))
        return found


def test_there_is_a_file_of_each_schema() -> None:
    assert sorted(DUMPS) == list(range(1, database.VERSION + 1))


@pytest.mark.parametrize("schema", DUMPS)
def test_a_file_of_an_earlier_schema_keeps_its_rows_and_becomes_like_a_new_one(
    schema: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, new = file_of(schema, tmp_path / "knowledge.db"), tmp_path / "new.db"
    store = Store.open(path)
    assert store.trouble is None
    assert store.records(key(1)) == {
        "vendor": Record(
            "vendor", "hang", detail="killed after 30 s", when=1.76e9, measured_by="probe"
        ),
        "triton": Record(
            "triton", "ok", 0.0012, 1 << 20, 3.5, "tile 128x128x64w4s3g8", 1.76e9 + 1, "tune"
        ),
    }
    assert store.records(key(2))["gemm"].detail == "naïve text"
    # What the process had begun when it ended; one line says it.
    assert store.records(key(4))["vendor"].verdict == "hang"
    assert len(lines(caplog)) == 1
    assert len(store.rows()) == 5
    store.put(key(5), record())
    assert store.flush()
    store.close()
    Store.open(new).close()
    assert structure(path) == structure(new)
    assert len(tables(path)["records"]) == 6


def test_the_next_schema_keeps_all_rows_and_old_code_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = file_of(database.VERSION, tmp_path / "knowledge.db")
    old = database.VERSION
    with monkeypatch.context() as here:
        newer(here, *STEP)
        store = Store.open(path)
        assert store.trouble is None
        assert len(store.rows()) == 5
        store.put(key(5), record())
        store.close()
    assert structure(path)["number"] == (old + 1,)
    caplog.clear()
    before = path.read_bytes()
    store = Store.open(path)
    store.put(key(6), record())
    assert store.records(key(6)) == {"triton": record()}
    assert not store.flush()
    store.close()
    assert path.read_bytes() == before
    [line] = lines(caplog)
    assert line.endswith(
        f"{path}: it was made by a newer version of hy3d_rocm (schema {old + 1}, this one, "
        f"{hy3d_rocm.__version__}, knows {old}): update hy3d_rocm, or let HY3D_ROCM_DB name "
        "another file; what is learnt now is kept in memory only"
    )


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("INSERT INTO nowhere VALUES (1)", "no such table: nowhere"),
        ("CREATE TABLE wide AS SELECT zeroblob(1000000) AS x", "the disk is full"),
    ],
)
def test_a_step_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    statement: str, why: str,
) -> None:  # fmt: skip
    path = file_of(1, tmp_path / "knowledge.db")
    before = structure(path), tables(path)
    with monkeypatch.context() as here:
        here.setattr(database, "MOST_PAGES", 20)
        newer(here, *STEP, statement)
        store = Store.open(path)
        store.put(key(1), record("gemm"))
        assert store.records(key(1)) == {"gemm": record("gemm")}
        store.close()
    [line] = lines(caplog)
    assert why in line
    assert (structure(path), tables(path)) == before


def test_a_process_that_is_killed_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = file_of(1, tmp_path / "knowledge.db")
    before = structure(path), tables(path)
    child = start(
        f"""{CHILD}
newer(*{STEP}, "SELECT die()", "CREATE TABLE late (x)")
real = sqlite3.connect
def connect(*arguments, **named):
    made = real(*arguments, **named)
    made.create_function("die", 0, lambda: os.kill(os.getpid(), 9))
    return made
sqlite3.connect = connect
Store.open(sys.argv[1])
""",
        path,
    )
    child.communicate(timeout=60)
    assert child.returncode == (9 if os.name == "nt" else -9)
    assert (structure(path), tables(path)) == before


def test_a_running_process_stops_writing_once_a_newer_version_has_taken_the_file_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "knowledge.db"
    store = Store.open(path)
    store.put(key(1), record("vendor", "hang"))
    assert store.flush()
    finish(start(f"{CHILD}newer(*{STEP}); s = Store.open(sys.argv[1]); assert s.flush()", path))
    before = tables(path)
    store.put(key(2), record())
    assert not store.flush()
    with store.in_flight(key(3), "vendor"):
        pass
    # What it knew and what it learns protect it all the same.
    assert store.records(key(1))["vendor"].verdict == "hang"
    assert store.records(key(2)) == {"triton": record()}
    store.close()
    assert tables(path) == before
    [line] = lines(caplog)
    assert "made by a newer version" in line


def test_two_new_ones_at_once_take_one_step_and_an_old_one_meanwhile_loses_nothing(
    tmp_path: Path,
) -> None:
    path = file_of(1, tmp_path / "knowledge.db")
    ready = "print('ready', flush=True); sys.stdin.readline(); s = Store.open(sys.argv[1])"
    put = "s.put(key(int(sys.argv[2])), record())"
    new = f"{CHILD}newer(*{STEP})\n{ready}; {put}; assert s.flush(), s.trouble; s.close()"
    old = f"{CHILD}{ready}; {put}; print(s.flush(), s.trouble); s.close()"
    children = [start(new, path, 11), start(new, path, 12), start(old, path, 13)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    said = [finish(child) for child in children][-1]
    assert said == "True None\n" or "made by a newer version" in said
    assert structure(path)["number"] == (2,)
    kept = tables(path)["records"]
    assert len(kept) == 5 + 2 + said.startswith("True")


def test_an_earlier_schema_that_nobody_can_write_is_known_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(1, tmp_path / "knowledge.db")
    before = path.read_bytes()
    newer(monkeypatch, *STEP)
    assert len(database._read_anyway(path)) == 4
    assert path.read_bytes() == before


@pytest.mark.parametrize("number", [0, -1])
def test_a_number_that_no_schema_has_is_damage(
    number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = file_of(1, tmp_path / "knowledge.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {number}")
    store = Store.open(path)
    assert store.trouble is None
    store.close()
    assert len(list(tmp_path.glob("knowledge.db.damaged-*"))) == 1
    assert f"damaged (schema {number})" in lines(caplog)[0]


def test_words_of_a_newer_version_of_this_schema_are_left_out_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "knowledge.db"
    store = Store.open(path)
    store.put(key(1), record())
    store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE records SET verdict = 'leaks'")
    store = Store.open(path)
    assert store.records(key(1)) == {}
    store.put(key(1), record("gemm"))
    assert [row.record.tier for row in store.rows()] == ["gemm"]
    store.close()
    assert len(tables(path)["records"]) == 2


def test_a_file_of_no_bytes_in_a_folder_of_any_name_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / f"Données 数据 %41#{'' if os.name == 'nt' else '?'}" / "knowledge.db"
    path.parent.mkdir()
    path.touch()
    store = Store.open(path)
    store.put(key(1), record())
    assert store.flush()
    store.close()
    assert len(database._read_anyway(path)) == 1


# A new version of ours: the vendor's library is the same one.

HANG = record("vendor", "hang", seconds=None, when=5.0)


@pytest.mark.parametrize("other", ["0.0.9", "0.2.0"])
@pytest.mark.parametrize("reopened", [False, True])
def test_what_the_vendors_library_did_outlives_our_version(
    other: str, reopened: bool, tmp_path: Path
) -> None:
    store = Store.open(tmp_path / "knowledge.db")
    store.put(key(1, ours=other), HANG)
    store.put(key(1, ours=other), record("triton"))  # its kernels are ours
    store.put(key(2, ours=other), record("vendor", "wrong"))  # by our judgement
    store.put(key(3, driver="another", ours=other), HANG)
    if reopened:
        store.close()
        store = Store.open(tmp_path / "knowledge.db")
    assert store.records(key(1)) == {"vendor": HANG}
    assert store.records(key(2)) == store.records(key(3)) == {}
    assert len(store.rows()) == 4
    store.close()


def test_of_several_versions_the_newest_word_counts() -> None:
    store = Store.open(":memory:")
    store.put(key(1, ours="0.2.0"), HANG)
    store.put(key(1, ours="0.0.9"), record("vendor", when=4.0))
    assert store.records(key(1)) == {"vendor": HANG}
    store.put(key(1), record("vendor", when=4.5))
    assert store.records(key(1)) == {"vendor": HANG}
    store.put(key(1), record("vendor", when=6.0))
    assert store.records(key(1)) == {"vendor": record("vendor", when=6.0)}


def test_what_this_version_calls_wrong_is_not_overruled_by_another() -> None:
    """That a call came back says nothing against it."""
    store = Store.open(":memory:")
    wrong = record("vendor", "wrong", when=1.0)
    store.put(key(1), wrong)
    store.put(key(1, ours="0.2.0"), record("vendor", when=2.0))
    assert store.records(key(1)) == {"vendor": wrong}


def test_what_counts_here_is_listed_and_forgotten_as_here() -> None:
    here = Machine(*key()[4:])
    assert counts_on(Row(key(1, ours="0.0.9"), HANG), [here])
    assert not counts_on(Row(key(1, ours="0.0.9", driver="another"), HANG), [here])
    assert not counts_on(Row(key(1, ours="0.0.9"), record("triton")), [here])
    store = Store.open(":memory:")
    store.put(key(1, ours="0.0.9"), HANG)
    store.forget(row for row in store.rows() if counts_on(row, [here]))
    assert store.records(key(1)) == {}
