"""First calls on record: written before they start, and what is said of those that did not end."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from verdict_store_doubles import finish, key, record, start, tables
from verdict_store_fixtures import lines, new_path, open_store, patience  # noqa: F401

from hy3d_rocm.conv.verdict_store import database as markers
from hy3d_rocm.conv.verdict_store.store import Store


def test_try_row_is_on_the_disk_before_the_call_and_gone_after(path: Path, store: Store) -> None:
    with store.in_flight(key(1), "vendor"):
        row = tables(path)["trying"][0]
        assert (row[2], row[10], row[12]) == (key(1).shape, "vendor", os.getpid())
    assert store.flush()
    assert tables(path)["trying"] == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit, GeneratorExit])
def test_an_exception_passes_and_clears_the_try_row(
    path: Path, store: Store, error: type[BaseException]
) -> None:
    with pytest.raises(error), store.in_flight(key(1), "vendor"):
        raise error
    store.close()
    assert tables(path)["trying"] == []


_DIES = """
import os, sys
from verdict_store_doubles import key, record
from hy3d_rocm.conv.verdict_store.store import Store
store = Store.open(sys.argv[1])
with store.in_flight(key(7), "vendor"):
    os.kill(os.getpid(), 9)
"""


def test_a_first_call_that_its_process_did_not_survive_is_recorded_as_hang(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    child = start(_DIES, path)
    assert child.wait(30) == (9 if os.name == "nt" else -9)
    store = Store.open(path)
    [(at, found)] = store.rows()
    assert (at, found.tier, found.verdict) == (key(7), "vendor", "hang")
    assert abs(found.when - time.time()) < 60
    assert tables(path)["trying"] == []
    assert f"process {child.pid} ended during its first call" in found.detail
    assert len([line for line in lines(caplog) if "ended during the call" in line]) == 1
    store.close()
    later = Store.open(path)
    assert later.records(key(7)) == {"vendor": found}
    later.close()


def test_try_rows_of_living_processes_are_left_alone(path: Path) -> None:
    code = _DIES.replace("os.kill(os.getpid(), 9)", "print('in', flush=True); sys.stdin.read()")
    child = start(code, path)
    assert child.stdout is not None
    assert child.stdout.readline() == "in\n"
    store = Store.open(path)
    assert store.records(key(7)) == {}
    store.close()
    finish(child)
    assert tables(path) == {"records": [], "trying": []}


def attempts(path: Path, changes: dict[str, Any]) -> Store:
    """A store that finds an attempt of this process, changed as said, in its file."""
    Store.open(path).close()
    connection = sqlite3.connect(path)
    me = markers.this_process()._replace(**{k: v for k, v in changes.items() if k != "when"})
    when = changes.get("when", time.time())
    with connection:
        markers.write_marker(connection, markers.Marker("token", key(7), "vendor", when, me))
    connection.close()
    return Store.open(path)


@pytest.mark.parametrize(
    ("changes", "suspected"),
    [
        ({}, False),
        ({"start": "1"}, True),  # the number was given again
        ({"boot": "another"}, True),
        ({"numbering": "another container"}, False),
        ({"numbering": "another container", "when": 1e9}, True),
        ({"start": ""}, False),
    ],
)
def test_processes_are_told_apart(path: Path, changes: dict[str, Any], suspected: bool) -> None:
    store = attempts(path, changes)
    assert bool(store.records(key(7))) is suspected
    store.close()
    assert bool(tables(path)["trying"]) is not suspected


def test_a_newer_measurement_is_not_overwritten_by_a_suspicion(path: Path) -> None:
    store = Store.open(path)
    store.put(key(7), record("vendor", when=2e9))
    store.close()
    store = attempts(path, {"boot": "another", "when": 1e9})
    assert store.records(key(7))["vendor"].verdict == "ok"
    store.close()
    assert tables(path)["trying"] == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_is_known_by_number_and_start_time(tmp_path: Path) -> None:
    me = markers.this_process()
    assert me.pid == os.getpid()
    assert all(me)
    assert markers.is_gone(me, me) is False
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert markers.start_time(pid) is None, "a zombie is no process"
    os.waitpid(pid, 0)
    assert markers.start_time(pid) is None


def test_a_process_with_brackets_in_its_name(tmp_path: Path) -> None:
    for pid in ("self", "12"):
        (tmp_path / pid).mkdir()
        fields = " ".join(map(str, range(4, 30)))
        (tmp_path / pid / "stat").write_text(f"12 (a) (b c)) S {fields}\n")
    assert markers.start_time(12, tmp_path) == "22"
    assert markers.start_time(13, tmp_path) is None
