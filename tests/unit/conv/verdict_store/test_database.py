"""Opening the file, and every trouble with it: one line in the log, then memory only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from verdict_store_doubles import finish, key, record, start, tables
from verdict_store_fixtures import lines, patience  # noqa: F401

from hy3d_rocm.conv.verdict_store import database
from hy3d_rocm.conv.verdict_store.store import Store


def works_in_memory(store: Store) -> None:
    store.put(key(1), record())
    with store.in_flight(key(2), "vendor"):
        pass
    assert store.records(key(1))["triton"] == record()
    assert record() in [row.record for row in store.rows()]
    assert not store.flush()
    store.close()


def expect_one_line(path: Path, words: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Store.open(path)
    works_in_memory(store)
    [line] = lines(caplog)
    assert words in line
    assert str(path) in line


def test_network_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "network_disk", lambda folder: "nfs4")
    path = tmp_path / "knowledge.db"
    expect_one_line(path, "it is on a network disk (nfs4)", caplog)
    assert not path.exists()


def test_a_folder_that_is_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    expect_one_line(tmp_path / "file" / "knowledge.db", "its folder can't be made", caplog)


def test_a_path_that_is_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expect_one_line(tmp_path, "can't be opened", caplog)


def test_a_newer_schema_is_left_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "knowledge.db"
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {database.VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    expect_one_line(path, "made by a newer version of hy3d_rocm (schema 2, this one", caplog)
    assert path.read_bytes() == before


def test_another_programs_database_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "places.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE places (x)")
    connection.close()
    before = path.read_bytes()
    expect_one_line(path, "it is a database of another program", caplog)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"my notes " * 1000)
    expect_one_line(path, "it is no database of hy3d_rocm, and was left as it is", caplog)
    assert path.read_bytes() == b"my notes " * 1000


def filled(path: Path) -> bytes:
    store = Store.open(path)
    for number in range(200):
        store.put(key(number), record())
    store.close()
    return path.read_bytes()


@pytest.mark.parametrize("damage", ["head", "middle", "truncated"])
def test_a_damaged_file_is_moved_aside_and_a_new_one_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = tmp_path / "knowledge.db"
    whole = filled(path)
    broken = {
        "head": b"garbage!" * 64 + whole[512:],
        "middle": whole[:4096] + os.urandom(8192) + whole[12288:],
        "truncated": whole[: len(whole) // 2 - 100],
    }[damage]
    path.write_bytes(broken)
    store = Store.open(path)
    assert store.trouble is None
    store.put(key(1), record("gemm"))
    store.close()
    [aside] = tmp_path.glob("knowledge.db.damaged-*")
    assert aside.read_bytes() == broken
    [line] = lines(caplog)
    assert aside.name in line
    assert len(tables(path)["records"]) == 1


def test_damage_that_shows_later_ends_in_memory_not_in_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "knowledge.db"
    filled(path)
    store = Store.open(path)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(1 << 16))
    for number in range(200):
        store.records(key(number))
        store.put(key(number), record("gemm"))
    store.flush()
    store.put(key(5), record("cpu"))
    assert store.records(key(5))["cpu"] == record("cpu")
    store.rows()
    store.forget()
    store.close()
    assert len(lines(caplog)) <= 1


def test_a_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "knowledge.db"
    monkeypatch.setattr(database, "MOST_PAGES", 20)
    store = Store.open(path)
    for number in range(500):
        store.put(key(number), record())
    store.flush()
    assert store.records(key(499)) == {"triton": record()}
    works_in_memory(store)
    [line] = lines(caplog)
    assert "the disk is full" in line
    assert path.stat().st_size <= 20 * 4096
    tables(path)


# Root may write anywhere: the child becomes nobody, once it has imported what root's Python has.
_READ_ONLY = """
import logging, os, sys
from verdict_store_doubles import key, record
from hy3d_rocm.conv.verdict_store.store import Store
logging.basicConfig(format="%(message)s", stream=sys.stdout)
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
store = Store.open(sys.argv[1])
store.put(key(1), record("gemm"))
print(sorted(store.records(key(1))), store.flush())
store.close()
"""


@pytest.fixture
def locked_folder() -> Iterator[Path]:
    """A folder that every user can reach; the tests make it read-only."""
    folder = Path(tempfile.mkdtemp(prefix="hy3d-read-only-"))
    yield folder
    folder.chmod(stat.S_IRWXU)
    shutil.rmtree(folder)


@pytest.mark.skipif(os.name == "nt", reason="no folder is read-only by its mode there")
@pytest.mark.parametrize("existing", [False, True], ids=["no file", "a file"])
def test_a_read_only_folder(locked_folder: Path, existing: bool) -> None:
    path = locked_folder / "knowledge.db"
    if existing:
        filled(path)
        path.chmod(0o444)
    locked_folder.chmod(0o555)
    child = start(_READ_ONLY, path)
    lines = finish(child).splitlines()  # the thread's and the caller's, in any order
    [line] = [one for one in lines if "read-only" in one]
    [result] = [one for one in lines if one != line]
    assert "memory only" in line
    # What a file has that nobody can write is known all the same.
    assert result == ("['gemm', 'triton'] False" if existing else "['gemm'] False")
    assert [p.name for p in locked_folder.iterdir()] == ["knowledge.db"] * existing


def test_hosts_that_meet_a_damaged_file_move_it_once(tmp_path: Path) -> None:
    path = tmp_path / "knowledge.db"
    path.write_bytes(b"garbage " * 4096)
    code = (
        "import sys; from verdict_store_doubles import *;"
        " from hy3d_rocm.conv.verdict_store.store import"
        " Store; print('ready', flush=True); sys.stdin.readline(); s = Store.open(sys.argv[1]);"
        " s.put(key(int(sys.argv[2])), record()); assert s.flush(), s.trouble; s.close()"
    )
    children = [start(code, path, number) for number in range(4)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        finish(child)
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1
    assert len(tables(path)["records"]) == 4


def test_who_opens_a_file_waits_for_another_host_that_is_opening_it(tmp_path: Path) -> None:
    """So that none judges, or moves, what the other one is making."""
    path, order = tmp_path / "knowledge.db", []
    path.write_bytes(b"garbage " * 4096)

    def open_it() -> None:
        database.open_for_writing(path).close()
        order.append("opened")

    with database._alone(tmp_path):
        other = threading.Thread(target=open_it)
        other.start()
        time.sleep(0.2)
        path.rename(tmp_path / "aside")
        sqlite3.connect(path).close()  # half made
        order.append("made")
    other.join(30)
    assert order == ["made", "opened"]
    assert tables(path) == {"records": [], "trying": []}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["aside", "knowledge.db"]


class Kernel32:
    """Mutexes by name, as Windows has them; `log` is what was called."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.log.append((name, *(getattr(one, "value", one) for one in arguments)))
            return 7

        setattr(self, name, call)
        return call


def test_on_windows_who_opens_a_file_has_a_mutex_and_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel32 = Kernel32()
    monkeypatch.setattr(ctypes, "WinDLL", lambda _: kernel32, raising=False)
    monkeypatch.setattr(database, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(database.os.path, "normcase", lambda path: str(path).lower())
    for folder in (tmp_path, Path(str(tmp_path).upper()), tmp_path / "other"):
        with contextlib.suppress(KeyError), database._alone(folder):
            raise KeyError
    names = [call[3] for call in kernel32.log if call[0] == "CreateMutexW"]
    assert names[0] == names[1] != names[2]
    assert not any("\\" in name or len(name) > 260 for name in names)
    assert kernel32.log[1:4] == [
        ("WaitForSingleObject", 7, 10_000), ("ReleaseMutex", 7), ("CloseHandle", 7),
    ]  # fmt: skip


def test_a_damaged_file_that_is_open_for_a_moment_is_moved_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, replace, tries = tmp_path / "knowledge.db", os.replace, iter(range(1000))
    path.write_bytes(b"garbage " * 4096)

    def refuse(*paths: Any) -> None:
        if next(tries) < 2:
            error = PermissionError(13, "Sharing violation")
            error.winerror = 32  # type: ignore[attr-defined,unused-ignore]
            raise error
        replace(*paths)

    monkeypatch.setattr(os, "replace", refuse)
    database.open_for_writing(path).close()
    assert tables(path) == {"records": [], "trying": []}
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1


def test_reasons_are_words() -> None:
    with pytest.raises(sqlite3.Error) as caught:
        sqlite3.connect("/nowhere/at/all/x.db")
    assert "can't be opened" in database.reason_of(caught.value)
    assert database.reason_of(RuntimeError("x")) == "RuntimeError: x"


def test_tables_made_while_a_file_is_judged_are_not_taken_for_another_programs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "knowledge.db"
    first = sqlite3.connect(path, isolation_level=None, timeout=0)
    made = []

    def another_host(statement: str) -> None:
        if "user_version" not in statement or made:
            return
        made.append(statement)
        second = sqlite3.connect(path, isolation_level=None, timeout=0)
        with contextlib.closing(second), contextlib.suppress(sqlite3.OperationalError):
            database.prepare(second)  # locked out as a rule: it comes later then

    first.set_trace_callback(another_host)
    database.prepare(first)
    first.close()
    assert made
