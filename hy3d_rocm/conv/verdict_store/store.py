"""The verdict store: in memory for readers, in one SQLite file for later.

Bounds on what a decode waits for, whatever the disk does: OPEN_S once, READ_S for a shape that
was never asked for, TRY_S before a first call of the vendor library, CLOSE_S at the end.
No caller touches the disk: two threads do, one that writes and one that reads, which SQLite's
write-ahead log lets see the last commit meanwhile.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import logging
import math
import os
import queue
import secrets
import sqlite3
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hy3d_rocm.conv.verdict_store import database, markers, place
from hy3d_rocm.conv.verdict_store.records import Key, Record, Row

_log = logging.getLogger("hy3d_rocm")

OPEN_S = 2.0
READ_S = 1.0
TRY_S = 1.0
CLOSE_S = 3.0
WHOLE_S = 60.0  # for the command line: reading or deleting many rows
POLL_S = 5.0  # how soon another process's rows are noticed

MOST_ROWS = 20_000  # 12 MB; a video VAE has 60 shapes at each resolution, times tiers
_MOST_KEYS = 4096  # in memory
_MOST_PENDING = 4 * _MOST_KEYS
_EVICT_EVERY = 256
_MOST_JOBS = 8192  # a disk that is this far behind has stopped
_BATCH = 256
# A transaction of ours takes milliseconds. Who holds the lock longer is stopped or stuck.
_LOCK_PATIENCE_S = 30.0
# What a caller got wrong: its job fails, not the file.
_JOB_ERRORS = (
    ValueError, TypeError, OverflowError, sqlite3.IntegrityError, sqlite3.DataError,
    sqlite3.ProgrammingError, sqlite3.InterfaceError,
)  # fmt: skip

_Work = Callable[[sqlite3.Connection], Any]


class Store:
    """Made by Store.open(). All methods may be called by any thread, and none raises for a disk.

    It is memory-only, with one line in the log, where the file can't be kept: `trouble` says why.
    """

    def __init__(self, path: str, announce: bool) -> None:
        self.path = path
        self.trouble: str | None = None
        self._announce = announce
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._generation = 0
        self._known: dict[Key, dict[str, Record]] = {}
        # By key and tier: what the file doesn't have yet, or never will.
        self._pending: OrderedDict[tuple[Key, str], Record] = OrderedDict()
        self._is_unclear = False  # markers are left whose processes can't be asked for
        self._written = 0
        self._data_version: int | None = None
        self._next_poll = math.inf
        # None: there is no file, or not any more; no reader yet while the file is being opened.
        self._writer: _Worker | None = None
        self._reader: _Worker | None = None
        self._opened: _Job | None = None
        self._late: _Job | None = None  # a read that nobody waits for any more

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        patience_s: float | None = None,
        announce: bool = True,
    ) -> Store:
        """The store at `path` (None: the default, see place.default_path; ":memory:": no file).

        Waits at most `patience_s` (None: OPEN_S) for the disk; a file that takes longer comes in
        when it is ready.
        Without `announce`, what goes wrong is only in `trouble`.
        """
        new = cls(place.own_path(path), announce)
        if new.path != place.IN_MEMORY:
            new._next_poll = time.monotonic() + POLL_S
            _OPEN.add(new)
            new._writer = _Worker("hy3d verdict writer", new._connect, new._fail)
            new._opened = new._writer.submit(_Job(new._conclude_dead, durable=True))
            new._writer.start()
            new._opened.done.wait(OPEN_S if patience_s is None else patience_s)
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
        after = functools.partial(self._landed, key, record)
        self._write(lambda c: self._save(c, key, record), durable=durable, after=after)

    @contextlib.contextmanager
    def in_flight(self, key: Key, tier: str) -> Iterator[None]:
        """Around the first call of a shape: the file says so first (fsync), waiting at most TRY_S,
        and no longer afterwards. If the process ends within, the next one knows."""
        token = secrets.token_hex(8)
        marker = markers.Marker(token, key, tier, time.time(), markers.this_process())
        try:
            job = self._write(lambda c: markers.write_marker(c, marker), durable=True)
            if job is not None and not job.done.wait(TRY_S):
                self._say("the disk is slow: a reset during a first call may go unnoticed")
            yield
        finally:
            # Durable too: a machine that is reset later must not bring the row back.
            self._write(lambda c: markers.clear_marker(c, token), durable=True)

    # For the command line: these may wait for as long as WHOLE_S.

    def rows(self) -> list[Row]:
        """All rows, the newest first."""
        found: dict[tuple[Key, str], Row] = {}
        if self._writer is not None:
            self.flush(WHOLE_S)
            _, rows = self._read(database.read_rows, WHOLE_S)
            found = {(row.key, row.record.tier): row for row in rows or ()}
        with self._lock:
            found.update({name: Row(name[0], r) for name, r in self._pending.items()})
        return sorted(found.values(), key=lambda row: (-row.record.when, row.key, row.record.tier))

    def forget(self, rows: Iterable[Row] | None = None) -> int:
        """Deletes these rows (None: all); how many there were."""
        names = [(row.key, row.record.tier) for row in (self.rows() if rows is None else rows)]
        with self._lock:
            for key, tier in names:
                self._pending.pop((key, tier), None)
                known = self._known.get(key, {})
                if tier in known:
                    self._known[key] = {name: r for name, r in known.items() if name != tier}
            self._generation += 1
        job = self._write(lambda c: database.delete_records(c, names), durable=True)
        if job is not None:
            job.done.wait(WHOLE_S)
        return len(names)

    def flush(self, seconds: float = CLOSE_S) -> bool:
        """Whether all that was put so far is in the file, at the latest after that time."""
        job = self._write(lambda c: None, durable=True)
        return job is not None and job.done.wait(seconds) and job.error is None

    def close(self, seconds: float = CLOSE_S) -> None:
        """Writes what is left, waiting at most that long. Afterwards the store is memory-only."""
        # The writer ends last: whoever closes the file last folds SQLite's log into it.
        workers, self._reader, self._writer = (self._reader, self._writer), None, None
        self._next_poll = math.inf
        _OPEN.discard(self)
        for worker in workers:
            if worker is not None:
                worker.stop(seconds / 2)

    # Memory.

    def _load(self, key: Key) -> dict[str, Record]:
        merged: dict[str, Record] = {}
        for _ in range(3):
            with self._lock:
                generation = self._generation
                # What lands while we read may be in neither place when we look.
                before = self._pending_at(key)
            is_read, rows = self._read(lambda c: database.read_records(c, key), READ_S)
            with self._lock:
                merged = {**(rows or {}), **before, **self._pending_at(key)}
                if not is_read:  # in time: that isn't to be remembered
                    break
                # Else something was written, or forgotten, while we read.
                if generation == self._generation:
                    if len(self._known) >= _MOST_KEYS:
                        self._known.clear()
                    self._known[key] = merged
                    break
        return merged

    def _pending_at(self, key: Key) -> dict[str, Record]:
        return {tier: record for (other, tier), record in self._pending.items() if other == key}

    def _remember(self, key: Key, record: Record) -> None:
        """Called with the lock. Dictionaries are replaced: readers hold the old ones."""
        self._pending[key, record.tier] = record
        self._pending.move_to_end((key, record.tier))
        if len(self._pending) > _MOST_PENDING:
            self._pending.popitem(last=False)
        if key in self._known:
            self._known[key] = {**self._known[key], record.tier: record}
        self._generation += 1

    def _landed(self, key: Key, record: Record) -> None:
        """The file has it: what others write or forget there counts from now on."""
        with self._lock:
            if self._pending.get((key, record.tier)) is record:
                del self._pending[key, record.tier]

    def _outdated(self) -> None:
        with self._lock:
            self._known.clear()
            self._generation += 1

    # The file, as any thread sees it.

    def _write(
        self, work: _Work, *, durable: bool = False, after: Callable[[], None] | None = None
    ) -> _Job | None:
        """Hands `work` to the writer; None where the file can't be written."""
        writer = self._writer
        if writer is None or self.trouble is not None:
            return None
        if writer.backlog() > _MOST_JOBS:
            self._fail(database.UnusableError("the disk does not keep up"))
            return None
        return writer.submit(_Job(work, durable=durable, after=after))

    def _read(self, work: _Work, seconds: float) -> tuple[bool, Any]:
        """(True, what `work` returned) or (False, None) where that took longer, or failed.

        After a read that took longer nobody waits before that one has come back.
        """
        reader, late = self._reader, self._late
        if reader is None:
            # There will be one if the file is still being opened; else there is nothing to read.
            return self._writer is None or self.trouble is not None, None
        if late is not None and not late.done.is_set():
            return False, None
        job = reader.submit(_Job(work, apart=True))
        if not job.done.wait(seconds):
            self._late = job
            self._say("the disk is slow: what the file knows is left out until it answers")
            return False, None
        return job.error is None, job.result

    def _poll(self) -> None:
        """Has the writer's connection look at the file, if it has nothing else to do."""
        self._next_poll = time.monotonic() + POLL_S
        writer = self._writer
        if writer is not None and self.trouble is None and not writer.backlog():
            writer.submit(_Job(self._look, apart=True))

    def _fail(self, error: BaseException) -> None:
        """From now on nothing is written; the first reason is kept."""
        if self.trouble is not None:
            return
        self.trouble = database.reason_of(error)
        self._next_poll = math.inf
        if isinstance(error, database.ReadOnlyError):
            with self._lock:
                for key, record in error.rows:
                    self._remember(key, record)
                self._known.clear()
        self._say(f"{self.trouble}; what is learnt now is kept in memory only")

    def _fail_to_read(self, error: BaseException) -> None:
        self._reader = None
        self._fail(error)

    def _say(self, text: str) -> None:
        if self._announce and text not in self._said:
            self._said.add(text)
            _log.warning("knowledge of convolutions: %s: %s", self.path, text)

    def _forked(self) -> None:
        """In a forked child: its parent keeps the file (https://sqlite.org/howtocorrupt.html)."""
        self._lock = threading.Lock()
        workers, self._reader, self._writer = (self._reader, self._writer), None, None
        self._next_poll = math.inf
        self.trouble = "this is a forked process, and its parent has the file"
        for worker in workers:
            if worker is not None:
                worker.abandon()

    # In the writer's thread.

    def _connect(self) -> sqlite3.Connection:
        path = Path(self.path)
        connection = database.open_for_writing(path)
        # Not before: it would make an empty file, or read a damaged one.
        if self._writer is not None:  # else the store was closed meanwhile
            connect = functools.partial(database.open_for_reading, path)
            reader = _Worker("hy3d verdict reader", connect, self._fail_to_read)
            self._reader = reader
            reader.start()
        return connection

    def _save(self, connection: sqlite3.Connection, key: Key, record: Record) -> None:
        database.write_record(connection, key, record)
        self._written += 1
        if self._written % _EVICT_EVERY == 0:
            database.evict(connection, MOST_ROWS)

    def _look(self, connection: sqlite3.Connection) -> None:
        """Whether another process wrote; SQLite's number stays where this connection did."""
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._data_version:
            self._data_version = version
            self._outdated()
        if self._is_unclear:
            self._write(self._conclude_dead, durable=True)

    def _conclude_dead(self, connection: sqlite3.Connection) -> None:
        found, self._is_unclear = markers.conclude_dead(connection)
        if found:
            self._outdated()


@dataclass(slots=True, eq=False)
class _Job:
    """One piece of work. durable: on the disk (fsync) when it is done; apart: outside of any
    transaction; after: called in the worker's thread once it is committed."""

    work: _Work
    durable: bool = False
    apart: bool = False
    after: Callable[[], None] | None = None
    result: Any = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def attempt(self, connection: sqlite3.Connection) -> None:
        """Does the work; raises what is the file's fault, keeps what is the job's."""
        self.error = None
        try:
            self.result = self.work(connection)
        except _JOB_ERRORS as error:
            self.error = error

    def finish(self, error: BaseException | None) -> None:
        self.error = error or self.error
        if self.error is None and self.after is not None:
            self.after()
        self.done.set()


class _Worker:
    """A thread that owns one SQLite connection and does what others ask for, in their order.

    `connect` runs in it and its connection is used there alone. on_failure(error) is called, once,
    when the connection can't be had or used any more; from then on all jobs fail with that error.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._connect = connect
        self._on_failure = on_failure
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._connection: sqlite3.Connection | None = None
        self._failure: BaseException | None = None
        self._synchronous = ""
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._fail(error)
            while not self._jobs.empty():
                job = self._jobs.get()
                if job is not None:
                    job.finish(error)

    def submit(self, job: _Job) -> _Job:
        self._jobs.put(job)
        return job

    def backlog(self) -> int:
        return self._jobs.qsize()

    def stop(self, seconds: float) -> None:
        """Ends the thread after the jobs it has, and waits for that no longer than that time."""
        self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def abandon(self) -> None:
        """In a forked child: the thread isn't there, and the connection must never be closed,
        since SQLite would act on locks that are the parent's (https://sqlite.org/howtocorrupt.html
        section 2.6). One reference too many keeps it from its destructor."""
        connection, self._connection = self._connection, None
        if connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

    def _serve(self) -> None:
        try:
            self._connection = self._connect()
        except Exception as error:  # noqa: BLE001  (whatever it is, the host goes on without a file)
            self._fail(error)
        while jobs := self._take():
            if self._connection is not None:
                try:
                    self._do(self._connection, jobs)
                except Exception as error:  # noqa: BLE001  (as above)
                    self._fail(error)
            for job in jobs:
                job.finish(self._failure)
        self._close()

    def _take(self) -> list[_Job]:
        """The next jobs, at least one; none when the thread is to end."""
        jobs: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) >= _BATCH or self._jobs.empty():
                return jobs
            job = self._jobs.get()
        if jobs:
            self._jobs.put(None)  # for the next time
        return jobs

    def _do(self, connection: sqlite3.Connection, jobs: list[_Job]) -> None:
        """Those that may be one transaction in one; again while another process holds the lock."""
        end = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                for job in jobs:
                    if job.apart:
                        job.attempt(connection)
                together = [job for job in jobs if not job.apart]
                if together:
                    self._commit(connection, together)
                return
            except sqlite3.OperationalError as error:
                if not database.is_busy(error) or time.monotonic() > end:
                    raise

    def _commit(self, connection: sqlite3.Connection, jobs: list[_Job]) -> None:
        # NORMAL survives the death of the process, FULL also that of the machine.
        level = "FULL" if any(job.durable for job in jobs) else "NORMAL"
        if level != self._synchronous:
            connection.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level
        with database.transaction(connection):
            for job in jobs:
                job.attempt(connection)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._close()
        self._on_failure(error)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):  # what is committed is committed
                connection.close()


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
