"""The store of what convolutions have taught: in memory for readers, in one SQLite file for later.

Bounds on what a decode waits for, whatever the disk does: OPEN_S once, READ_S for a shape that
was never asked for, TRY_S before a first call of the vendor library, CLOSE_S at the end.
Everything else is handed to a thread.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import secrets
import sqlite3
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hy3d_rocm import __version__
from hy3d_rocm.conv.knowledge import opening, place, schema
from hy3d_rocm.conv.knowledge.file import File
from hy3d_rocm.conv.knowledge.filters import Filters
from hy3d_rocm.conv.knowledge.keys import Key
from hy3d_rocm.conv.knowledge.process import myself
from hy3d_rocm.conv.knowledge.records import VERDICTS, Record, Row, Trial
from hy3d_rocm.conv.knowledge.suspects import Search
from hy3d_rocm.conv.knowledge.worker import Job

__all__ = ["VERDICTS", "Record", "Row", "Store", "Trial", "store"]

_log = logging.getLogger("hy3d_rocm")

OPEN_S = 2.0
READ_S = 1.0
TRY_S = 1.0
CLOSE_S = 3.0
WHOLE_S = 60.0  # for the command line: reading or deleting many rows
POLL_S = 5.0  # how soon another process's rows are noticed

MOST_ROWS = 20_000  # 12 MB; a video VAE has 60 shapes at each resolution, times tiers
_MOST_KEYS = 4096  # in memory
_EVICT_EVERY = 256


class Store:
    """Made by Store.open(). All methods may be called by any thread, and none raises for a disk.

    It is memory-only, with one line in the log, where the file can't be kept: `trouble` says why.
    """

    def __init__(self, path: str, most_rows: int = MOST_ROWS) -> None:
        self.path = path
        self.trouble: str | None = None
        self._most_rows = most_rows
        self._lock = threading.Lock()
        self._generation = 0
        self._known: dict[Key, dict[str, Record]] = {}
        # What the file doesn't have yet, or never will.
        self._pending: OrderedDict[Key, dict[str, Record]] = OrderedDict()
        self._search = Search()
        self._written = 0
        self._announce = True
        self._said: set[str] = set()
        self._data_version: int | None = None
        self._next_poll = math.inf
        self._file: File | None = None
        self._opened: Job | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        most_rows: int = MOST_ROWS,
        most_pages: int = opening.MOST_PAGES,
        patience_s: float | None = None,
        announce: bool = True,
    ) -> Store:
        """The store at `path` (None: the default, see place.default_path; ":memory:": no file).

        Waits at most `patience_s` (None: OPEN_S) for the disk; a file that takes longer comes in
        when it is ready.
        Without `announce`, what goes wrong is only in `trouble`.
        """
        if path is None:
            path = place.default_path(os.environ, os.path.expanduser("~"))
        new = cls(place.absolute(os.fspath(path)), most_rows)
        new._announce = announce
        if new.path != place.IN_MEMORY:
            new._file = File(Path(new.path), most_pages, new._fail)
            new._next_poll = time.monotonic() + POLL_S
            _OPEN.add(new)
            new._opened = new._file.start(new._search_dead)
            new._settled(OPEN_S if patience_s is None else patience_s)
        return new

    # What is known.

    @property
    def generation(self) -> int:
        """Changes with every change, by this process at once, by others within POLL_S."""
        if time.monotonic() >= self._next_poll:
            self._poll()
        return self._generation

    def records(self, key: Key) -> dict[str, Record]:
        """What is known at `key`, by tier. Not to be changed. From memory after the first time."""
        if time.monotonic() >= self._next_poll:
            self._poll()
        found = self._known.get(key)
        return self._load(key) if found is None else found

    def put(self, key: Key, record: Record) -> None:
        """Known at once to this process; the file has it within milliseconds."""
        record = record.bounded()
        with self._lock:
            self._remember(key, record)
        # The verdicts that protect the machine must survive its reset.
        durable = record.verdict in ("hang", "wrong")
        if self._file is not None:
            self._file.write(
                lambda c: self._save(c, key, record),
                durable=durable,
                after=lambda: self._landed(key, record),
            )

    @contextlib.contextmanager
    def try_(self, key: Key, tier: str) -> Iterator[None]:
        """Around the first call of a shape: the file says so first (fsync), waiting at most TRY_S,
        and no longer afterwards. If the process ends within, the next one knows."""
        attempt = schema.Attempt(secrets.token_hex(8), key, tier, time.time(), myself())
        file = self._file
        if file is None:
            yield
            return
        try:
            job = file.write(lambda c: schema.write_trying(c, attempt), durable=True)
            if job is not None and not job.wait(TRY_S):
                self._say("the disk is slow: a reset during a first call may go unnoticed")
            yield
        finally:
            # Durable too: a machine that is reset later must not bring the row back.
            file.write(lambda c: schema.clear_trying(c, attempt.token), durable=True)

    def left_trying(self) -> list[Trial]:
        """First calls that their processes did not survive, found since this store was opened:
        the tier is recorded as "hang" there."""
        self._settled(OPEN_S)
        return list(self._search.found)

    # For the command line: these may wait for as long as WHOLE_S.

    def rows(self, **filters: Any) -> list[Row]:
        """All rows that match (see Filters), the newest first."""
        wanted = Filters(**filters)
        found: dict[tuple[Key, str], Row] = {}
        if self._file is not None:
            self.flush(WHOLE_S)
            _, rows = self._file.read(schema.read_rows, WHOLE_S)
            found = {(row.key, row.record.tier): row for row in rows or ()}
        with self._lock:
            for key, records in self._pending.items():
                found.update({(key, tier): Row(key, r) for tier, r in records.items()})
        kept = wanted.keep(found.values())
        return sorted(kept, key=lambda row: (-row.record.when, row.key, row.record.tier))

    def forget(self, **filters: Any) -> int:
        """Deletes the rows that match; how many there were. Without filters: all."""
        names = [(row.key, row.record.tier) for row in self.rows(**filters)]
        with self._lock:
            for key, tier in names:
                for table in (self._pending, self._known):
                    if tier in table.get(key, {}):
                        table[key] = {t: r for t, r in table[key].items() if t != tier}
            self._generation += 1
        if self._file is not None:
            job = self._file.write(lambda c: schema.delete_records(c, names), durable=True)
            if job is not None:
                job.wait(WHOLE_S)
        return len(names)

    def export(self, **filters: Any) -> dict[str, Any]:
        """The rows that match, JSON-able, with what made them."""
        rows = [row.as_dict() for row in self.rows(**filters)]
        return {"made_by": f"hy3d_rocm {__version__}", "schema": schema.VERSION, "rows": rows}

    def flush(self, seconds: float = CLOSE_S) -> bool:
        """Whether all that was put so far is in the file, at the latest after that time."""
        job = None if self._file is None else self._file.write(lambda c: None, durable=True)
        return job is not None and job.wait(seconds) and job.error is None

    def close(self, seconds: float = CLOSE_S) -> None:
        """Writes what is left, waiting at most that long. Afterwards the store is memory-only."""
        file, self._file = self._file, None
        self._next_poll = math.inf
        _OPEN.discard(self)
        if file is not None:
            file.close(seconds)

    # Memory and file.

    def _settled(self, seconds: float) -> bool:
        """Waits until the file is open, and what it says of dead processes is known."""
        return self._opened is None or self._opened.wait(seconds)

    def _load(self, key: Key) -> dict[str, Record]:
        merged: dict[str, Record] = {}
        for _ in range(3):
            with self._lock:
                generation = self._generation
                # What lands while we read may be in neither place when we look.
                before = self._pending.get(key, {})
            rows = self._read(key)
            with self._lock:
                merged = {**(rows or {}), **before, **self._pending.get(key, {})}
                if rows is None:
                    break
                # Else something was written, or forgotten, while we read.
                if generation == self._generation:
                    if len(self._known) >= _MOST_KEYS:
                        self._known.clear()
                    self._known[key] = merged
                    break
        return merged

    def _read(self, key: Key) -> dict[str, Record] | None:
        """What the file has; None where it can't say in time, which isn't to be remembered."""
        file = self._file
        if file is None or (self.trouble is not None and not file.readable):
            return {}
        answered, rows = file.read(lambda c: schema.read_records(c, key), READ_S)
        if file.is_late:
            self._say("the disk is slow: what the file knows is left out until it answers")
        return rows if answered else None

    def _remember(self, key: Key, record: Record) -> None:
        """Called with the lock. Dictionaries are replaced: readers hold the old ones."""
        self._pending[key] = {**self._pending.get(key, {}), record.tier: record}
        self._pending.move_to_end(key)
        if len(self._pending) > _MOST_KEYS:
            self._pending.popitem(last=False)
        if key in self._known:
            self._known[key] = {**self._known[key], record.tier: record}
        self._generation += 1

    def _landed(self, key: Key, record: Record) -> None:
        """The file has it: what others write or forget there counts from now on."""
        with self._lock:
            records = self._pending.get(key, {})
            if records.get(record.tier) is record:
                rest = {tier: r for tier, r in records.items() if tier != record.tier}
                if rest:
                    self._pending[key] = rest
                else:
                    del self._pending[key]

    # In the writer's thread.

    def _save(self, connection: sqlite3.Connection, key: Key, record: Record) -> None:
        schema.write_record(connection, key, record)
        self._written += 1
        if self._written % _EVICT_EVERY == 0:
            schema.evict(connection, self._most_rows)

    def _poll(self) -> None:
        self._next_poll = time.monotonic() + POLL_S
        if self._file is not None:
            self._file.look(self._look)

    def _look(self, connection: sqlite3.Connection) -> None:
        """Whether another process wrote; SQLite's number stays where this connection did."""
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._data_version:
            self._data_version = version
            self._outdated()
        if self._search.unclear and self._file is not None:
            self._file.write(self._search_dead, durable=True)

    def _search_dead(self, connection: sqlite3.Connection) -> None:
        if self._search.run(connection):
            self._outdated()

    def _outdated(self) -> None:
        with self._lock:
            self._known.clear()
            self._generation += 1

    def _fail(self, error: BaseException) -> None:
        """From now on memory-only."""
        self.trouble = opening.reason_of(error)
        self._next_poll = math.inf
        if isinstance(error, opening.ReadOnlyError):
            with self._lock:
                for key, record in error.rows:
                    self._remember(key, record)
                self._known.clear()
        self._say(f"{self.trouble}; what is learnt now is kept in memory only")

    def _say(self, text: str) -> None:
        if self._announce and text not in self._said:
            self._said.add(text)
            _log.warning("knowledge of convolutions: %s: %s", self.path, text)

    def _forked(self) -> None:
        """In a forked child: its parent keeps the file (https://sqlite.org/howtocorrupt.html)."""
        self._lock = threading.Lock()
        file, self._file = self._file, None
        self._next_poll = math.inf
        self.trouble = "this is a forked process, and its parent has the file"
        if file is not None:
            file.abandon()


_OPEN: weakref.WeakSet[Store] = weakref.WeakSet()
_own: Store | None = None
_own_lock = threading.Lock()


def store() -> Store:
    """The process's own store, at the default place. Opened at the first call."""
    global _own
    if _own is None:
        with _own_lock:
            if _own is None:
                _own = Store.open()
    return _own


def _close_all() -> None:
    for one in list(_OPEN):
        one.close()


def _after_fork() -> None:
    global _own_lock
    _own_lock = threading.Lock()
    for one in list(_OPEN):
        one._forked()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
