"""The verdict store: what was put is found again, by others too, and nothing waits for a disk."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from verdict_store_doubles import finish, key, record, start, tables
from verdict_store_fixtures import lines, new_path, open_store, patience  # noqa: F401

from hy3d_rocm.conv.verdict_store import database
from hy3d_rocm.conv.verdict_store import store as store_module
from hy3d_rocm.conv.verdict_store.records import Machine, Row
from hy3d_rocm.conv.verdict_store.store import Store


def test_a_record_is_there_at_once_and_after_reopening(path: Path, store: Store) -> None:
    full = record(peak_bytes=2**62, first_seconds=31.5, detail="naïve\n\0 text", seconds=None)
    store.put(key(1), full)
    store.put(key(1), record("gemm", "error"))
    assert store.records(key(1)) == {"triton": full, "gemm": record("gemm", "error")}
    assert store.records(key(2)) == {}
    store.close()
    again = Store.open(path)
    assert again.records(key(1)) == {"triton": full, "gemm": record("gemm", "error")}
    again.close()


def test_any_change_of_machine_or_version_starts_new_rows(store: Store) -> None:
    store.put(key(1), record())
    for name in ("architecture", "driver", "torch", "vendor", "ours", "dtype", "layout", "op"):
        assert store.records(key(1, **{name: "other"})) == {}, name


def test_generation_changes_with_every_change(store: Store) -> None:
    seen = [store.generation]
    store.put(key(1), record())
    seen.append(store.generation)
    store.put(key(1), record(seconds=0.002))
    seen.append(store.generation)
    store.forget(row for row in store.rows() if row.record.tier == "triton")
    seen.append(store.generation)
    assert len(set(seen)) == 4
    assert store.records(key(1)) == {}


def test_rows_of_another_process_are_noticed(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "POLL_S", 0.05)
    store._next_poll = 0.0
    assert store.records(key(1)) == {}
    before = store.generation
    code = (
        "import sys; from verdict_store_doubles import *;"
        " from hy3d_rocm.conv.verdict_store.store import"
        " Store; s = Store.open(sys.argv[1]); s.put(key(1), record('gemm')); s.close()"
    )
    finish(start(code, path))
    end = time.monotonic() + 10
    while store.records(key(1)) == {} and time.monotonic() < end:
        time.sleep(0.01)
    assert store.records(key(1)) == {"gemm": record("gemm")}
    assert store.generation != before


def test_no_reader_misses_a_row_while_all_are_read_anew(store: Store) -> None:
    """Another process wrote; a verdict that protects the machine stays in sight meanwhile."""
    hang = record("vendor", "hang")
    rows = [Row(key(n), hang) for n in range(2000)]
    missed, stop = 0, threading.Event()

    def read() -> None:
        nonlocal missed
        while not stop.is_set():
            missed += not store.records(key(1))

    store.put(key(1), hang)
    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        store._take_in(rows)
    stop.set()
    reader.join()
    assert missed == 0


def test_memory_only_store_knows_what_it_was_told() -> None:
    store = Store.open(":memory:")
    store.put(key(1), record())
    with store.in_flight(key(1), "vendor"):
        pass
    assert store.records(key(1)) == {"triton": record()}
    assert [row.record for row in store.rows()] == [record()]
    assert (store.forget(), store.rows()) == (1, [])
    assert not os.path.exists(":memory:")
    store.close()


def test_a_row_may_come_while_those_of_a_machine_are_looked_for() -> None:
    """Of any number another thread puts the next one meanwhile."""
    store = Store.open(":memory:")
    store.put(key(0), record())
    store.put(key(1), record())

    class Looked(Machine):
        def __eq__(self, other: object) -> bool:
            store.put(key(len(store.rows())), record())
            return super().__eq__(other)

        __hash__ = Machine.__hash__

    assert set(store.of(key(0).op, Looked(*key(0).machine))) == {key(0), key(1)}
    assert len(store.rows()) == 4


def test_threads_lose_nothing(path: Path, store: Store) -> None:
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(100):
                store.put(key(number), record(f"tier{thread}"))
                assert f"tier{thread}" in store.records(key(number))
                with (
                    store.in_flight(key(number), "vendor") if number % 20 == 0 else threading.Lock()
                ):
                    pass
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for number in range(100):
        assert len(store.records(key(number))) == 8
    store.close()
    found = tables(path)
    assert len(found["records"]) == 800
    assert found["trying"] == []


def test_oldest_rows_make_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_ROWS", 300)
    store = Store.open(path)
    for number in range(1000):
        store.put(key(number), record(when=1e9 + number))
    store.close()
    store = Store.open(path)
    rows = store.rows()
    store.close()
    # Looked at every 256 rows, and then cut to 95 %.
    assert 285 <= len(rows) <= 300 + 256
    assert {row.record.when for row in rows} == {1e9 + n for n in range(1000 - len(rows), 1000)}


def test_bad_values_are_refused_with_a_sentence_and_harm_nothing(path: Path, store: Store) -> None:
    with pytest.raises(ValueError, match="none of ok, slow-find, error, hang, wrong"):
        record(verdict="fine")
    with pytest.raises(ValueError, match="no time"):
        record(seconds=float("nan"))
    with pytest.raises(ValueError, match="number of bytes"):
        record(peak_bytes=2**63)
    store.put(key(1, driver="\udcff"), record())
    store.put(key(2), record(detail="\udcff" * 9999))
    assert store.flush()
    assert store.trouble is None
    assert len(tables(path)["records"]) == 1
    assert len(store.records(key(2))["triton"].detail) == 500


def test_a_slow_disk_holds_nobody_up(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()
    real = database.open_for_writing

    def slow(*arguments: Any) -> sqlite3.Connection:
        gate.wait(30)
        return real(*arguments)

    monkeypatch.setattr(database, "open_for_writing", slow)
    monkeypatch.setattr(store_module, "TRY_S", 0.1)
    begin = time.monotonic()
    store = Store.open(path, patience_s=0.1)
    store.put(key(1), record())
    assert store.records(key(1)) == {"triton": record()}
    with store.in_flight(key(2), "vendor"):
        pass
    assert time.monotonic() - begin < 5
    assert sum("the disk is slow" in line for line in lines(caplog)) == 1
    gate.set()
    assert store.flush(10)
    store.close()
    assert len(tables(path)["records"]) == 1


def test_nobody_waits_for_a_read(path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(key(1), record())
    assert store.flush()
    gate = threading.Event()
    real = database.read_rows

    def stuck(*arguments: Any) -> Any:
        gate.wait(30)
        return real(*arguments)

    monkeypatch.setattr(database, "read_rows", stuck)
    other = sqlite3.connect(path, isolation_level=None)
    database.write_record(other, key(2), record())
    other.close()
    store._next_poll = 0.0
    begin = time.monotonic()
    for number in range(50):
        assert store.records(key(number)) == ({"triton": record()} if number == 1 else {})
    store.put(key(3), record())
    assert store.records(key(3)) == {"triton": record()}
    assert time.monotonic() - begin < 5
    gate.set()
    end = time.monotonic() + 10
    while not store.records(key(2)) and time.monotonic() < end:
        time.sleep(0.01)
    assert all(store.records(key(number)) == {"triton": record()} for number in (1, 2, 3))


def test_what_is_forgotten_does_not_come_back_with_a_read(path: Path, store: Store) -> None:
    for number in range(3):
        store.put(key(number), record())
    assert store.flush()
    blocker = sqlite3.connect(path, isolation_level=None)
    database.write_record(blocker, key(7), record())
    gate = threading.Event()
    store._write(lambda c: gate.wait(30))
    store._write(store._look)
    forgetting = threading.Thread(target=store.forget, args=([store.rows()[0]],))
    first = store.rows()[0].key
    forgetting.start()
    while store.records(first):
        time.sleep(0.001)
    gate.set()
    forgetting.join(30)
    assert store.flush(10)
    blocker.close()
    assert store.records(first) == {}
    assert store.records(key(7)) == {"triton": record()}
    assert len(tables(path)["records"]) == 3


def test_a_lock_that_is_never_given_back_ends_in_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "_BUSY_S", 0.05)
    monkeypatch.setattr(store_module, "_LOCK_PATIENCE_S", 0.2)
    store = Store.open(path)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    store.put(key(1), record())
    assert not store.flush(10)
    blocker.execute("ROLLBACK")
    blocker.close()
    assert store.records(key(1)) == {"triton": record()}
    assert [row.key for row in store.rows()] == [key(1)]
    [line] = lines(caplog)
    assert "another process holds it locked" in line
    store.close()


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise RuntimeError('x')", "os.fork()"])
def test_what_was_put_outlives_a_process_that_does_not_close(path: Path, end: str) -> None:
    code = (
        "import os, sys; from verdict_store_doubles import *\n"
        "from hy3d_rocm.conv.verdict_store.store import store\n"
        "for n in range(200):\n    store().put(key(n), record())\n" + end
    )
    child = start(f"import os, sys; os.environ['HY3D_ROCM_DB'] = sys.argv[1]\n{code}", path)
    child.communicate(timeout=60)
    assert len(tables(path)["records"]) == 200


def test_a_path_may_begin_at_home_or_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USERPROFILE" if os.name == "nt" else "HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for text in ("~/one/k.db", "two/k.db"):
        store = Store.open(text)
        monkeypatch.chdir("/")
        store.put(key(1), record())
        store.close()
        monkeypatch.chdir(tmp_path)
    assert all(tables(tmp_path / name / "k.db")["records"] for name in ("one", "two"))


def test_without_threads_there_is_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    store = Store.open(path)
    store.put(key(1), record())
    with store.in_flight(key(1), "vendor"):
        pass
    assert store.records(key(1)) == {"triton": record()}
    assert not store.flush(0.1)
    assert len(lines(caplog)) == 1
    store.close()


def test_reads_do_not_wait_for_a_writer(path: Path) -> None:
    first = Store.open(path)
    first.put(key(1), record())
    first.close()
    store = Store.open(path)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    begin = time.monotonic()
    assert store.records(key(1)) == {"triton": record()}
    store.put(key(2), record())
    assert store.records(key(2)) == {"triton": record()}
    assert time.monotonic() - begin < 5  # it would be a minute
    assert not store.flush(0.1)
    blocker.execute("ROLLBACK")
    blocker.close()
    assert store.flush(10)
    assert len(tables(path)["records"]) == 2
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_the_file_outlives_a_fork(path: Path, store: Store) -> None:
    store.put(key(1), record())
    assert store.flush()
    pid = os.fork()
    if pid == 0:
        try:
            store.put(key(2), record("gemm"))
            known = store.records(key(2)) == {"gemm": record("gemm")}
            known &= store.rows() != [] and not store.flush()
            with store.in_flight(key(3), "vendor"):
                pass
            store.close()
            os._exit(0 if known else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    store.put(key(4), record())
    assert store.flush()
    assert store.trouble is None
    assert len(tables(path)["records"]) == 2
