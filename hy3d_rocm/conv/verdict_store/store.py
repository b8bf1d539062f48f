"""The verdict store: in memory for readers, in one SQLite file for later.

All rows are in memory. One thread owns the connection: it reads the file when it is opened and
after another process has written, and writes what is put. No caller touches the disk; how long one
waits for that thread is bounded: OPEN_S once, TRY_S before a first call of the vendor library,
CLOSE_S at the end.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hy3d_rocm.conv.verdict_store import database
from hy3d_rocm.conv.verdict_store.records import Key, Machine, Record, Row

_log = logging.getLogger("hy3d_rocm")

OPEN_S = 2.0
TRY_S = 1.0
CLOSE_S = 3.0
WHOLE_S = 60.0  # for the command line: opening and deleting many rows
POLL_S = 5.0  # how soon another process's rows are noticed

MOST_ROWS = 20_000  # 12 MB; a video VAE has 60 shapes at each resolution, times tiers
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

_Work = Callable[[sqlite3.Connection], object]
_NOTHING = object()


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
        # Dictionaries of records are replaced, not changed: readers hold the old ones.
        self._known: dict[Key, dict[str, Record]] = {}
        self._versions: frozenset[str] = frozenset()  # of hy3d_rocm, in the keys
        # By key and tier: what the file doesn't have yet, None for what it still has.
        self._pending: dict[tuple[Key, str], Record | None] = {}
        self._is_unclear = False  # markers are left whose processes can't be asked for
        self._written = 0
        self._data_version: int | None = None
        self._next_poll = math.inf
        self._writer: _Writer | None = None  # None: there is no file, or not any more

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        patience_s: float | None = None,
        announce: bool = True,
    ) -> Store:
        """The store at `path` (None: the default, see database.default_path; ":memory:": no file).

        Waits at most `patience_s` (None: OPEN_S) for the disk; a file that takes longer comes in
        when it is ready.
        Without `announce`, what goes wrong is only in `trouble`.
        """
        new = cls(database.own_path(path), announce)
        if new.path != database.IN_MEMORY:
            new._next_poll = time.monotonic() + POLL_S
            _OPEN.add(new)
            connect = functools.partial(database.open_for_writing, Path(new.path))
            new._writer = _Writer(connect, new._fail)
            opened = new._writer.submit(_Job(new._begin, durable=True))
            new._writer.start()
            opened.done.wait(OPEN_S if patience_s is None else patience_s)
        return new

    # What is known.

    @property
    def generation(self) -> int:
        """Changes with every change, by this process at once, by others within POLL_S."""
        if time.monotonic() >= self._next_poll:
            self._poll()
        return self._generation

    def records(self, key: Key) -> dict[str, Record]:
        """What is known at `key`, by tier, and what outlives the versions of hy3d_rocm that saw
        it. Not to be changed."""
        if time.monotonic() >= self._next_poll:
            self._poll()
        known = self._known
        found = known.get(key) or {}
        for version in self._versions:
            if version != key.ours:
                for tier, record in (known.get(key._replace(ours=version)) or {}).items():
                    mine = found.get(tier)
                    older = mine is None or (mine.outlives_versions and mine.when < record.when)
                    if record.outlives_versions and older:
                        found = {**found, tier: record}
        return found

    def of(self, op: str, machine: Machine) -> dict[Key, dict[str, Record]]:
        """All that is known of an operation on a machine with its versions. Not to be changed."""
        with self._lock:
            known = list(self._known.items())
        return {key: found for key, found in known if key.op == op and key[4:] == machine}

    def put(self, key: Key, record: Record) -> None:
        """Known at once to this process; the file has it within milliseconds."""
        record = record.bounded()
        self._change({(key, record.tier): record})
        # The verdicts that protect the machine must survive its reset.
        durable = record.verdict in ("hang", "wrong")
        after = functools.partial(self._landed, {(key, record.tier): record})
        self._write(lambda c: self._save(c, key, record), durable=durable, after=after)

    @contextlib.contextmanager
    def in_flight(self, key: Key, tier: str) -> Iterator[None]:
        """Around the first call of a shape: the file says so first (fsync), waiting at most TRY_S,
        and no longer afterwards. If the process ends within, the next one knows."""
        token = secrets.token_hex(8)
        marker = database.Marker(token, key, tier, time.time(), database.this_process())
        try:
            job = self._write(lambda c: database.write_marker(c, marker), durable=True)
            if job is not None and not job.done.wait(TRY_S):
                self._say("the disk is slow: a reset during a first call may go unnoticed")
            yield
        finally:
            # Durable too: a machine that is reset later must not bring the row back.
            self._write(lambda c: database.clear_marker(c, token), durable=True)

    def rows(self) -> list[Row]:
        """All rows, the newest first."""
        with self._lock:
            found = [Row(key, r) for key, records in self._known.items() for r in records.values()]
        return sorted(found, key=lambda row: (-row.record.when, row.key, row.record.tier))

    def forget(self, rows: Iterable[Row] | None = None) -> int:
        """Deletes these rows (None: all); how many there were. Waits for that up to WHOLE_S."""
        gone = {(row.key, row.record.tier): None for row in (self.rows() if rows is None else rows)}
        self._change(gone)
        after = functools.partial(self._landed, gone)
        job = self._write(lambda c: database.delete_records(c, gone), durable=True, after=after)
        if job is not None:
            job.done.wait(WHOLE_S)
        return len(gone)

    def flush(self, seconds: float = CLOSE_S) -> bool:
        """Whether all that was put so far is in the file, at the latest after that time."""
        job = self._write(lambda c: None, durable=True)
        return job is not None and job.done.wait(seconds) and job.error is None

    def close(self, seconds: float = CLOSE_S) -> None:
        """Writes what is left, waiting at most that long. Afterwards the store is memory-only."""
        writer, self._writer = self._writer, None
        self._next_poll = math.inf
        _OPEN.discard(self)
        if writer is not None:
            writer.stop(seconds)

    # Memory.

    def _change(self, changes: Mapping[tuple[Key, str], Record | None]) -> None:
        """None: it is forgotten."""
        with self._lock:
            if self._writer is not None and self.trouble is None:
                self._pending.update(changes)
            self._apply(changes, self._known)

    def _apply(
        self, changes: Mapping[tuple[Key, str], Record | None], known: dict[Key, dict[str, Record]]
    ) -> None:
        """Changes `known`, which is what counts from now on. Called with the lock."""
        self._versions |= {key.ours for key, _tier in changes}
        for (key, tier), record in changes.items():
            records = {name: r for name, r in known.get(key, {}).items() if name != tier}
            if record is not None:
                records[tier] = record
            known[key] = records
        while len(known) > 2 * MOST_ROWS:  # where there is no file that forgets
            del known[next(iter(known))]
        self._known = known
        self._generation += 1

    def _landed(self, changes: Mapping[tuple[Key, str], Record | None]) -> None:
        """The file has it: what others write or forget there counts from now on."""
        with self._lock:
            for name, record in changes.items():
                if self._pending.get(name, _NOTHING) is record:
                    del self._pending[name]

    def _take_in(self, rows: Iterable[Row]) -> None:
        """What a file holds, below what it does not have yet. Readers, who take no lock, have the
        old rows until all new ones are there."""
        known: dict[Key, dict[str, Record]] = {}
        for key, record in rows:
            known.setdefault(key, {})[record.tier] = record
        with self._lock:
            self._versions = frozenset(key.ours for key in known)
            self._apply(self._pending, known)

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

    def _poll(self) -> None:
        """Has the writer's connection look at the file, if it has nothing else to do."""
        self._next_poll = time.monotonic() + POLL_S
        writer = self._writer
        if writer is not None and self.trouble is None and not writer.backlog():
            writer.submit(_Job(self._look, durable=self._is_unclear))

    def _fail(self, error: BaseException) -> None:
        """From now on nothing is written; the first reason is kept."""
        if self.trouble is not None:
            return
        self.trouble = database.reason_of(error)
        self._next_poll = math.inf
        if isinstance(error, database.ReadOnlyError):
            self._take_in(error.rows)
        self._say(f"{self.trouble}; what is learnt now is kept in memory only")

    def _say(self, text: str) -> None:
        if self._announce and text not in self._said:
            self._said.add(text)
            _log.warning("knowledge of convolutions: %s: %s", self.path, text)

    def _forked(self) -> None:
        """In a forked child: its parent keeps the file (https://sqlite.org/howtocorrupt.html)."""
        self._lock = threading.Lock()
        writer, self._writer = self._writer, None
        self._next_poll = math.inf
        self.trouble = "this is a forked process, and its parent has the file"
        if writer is not None:
            writer.abandon()

    # In the writer's thread.

    def _begin(self, connection: sqlite3.Connection) -> None:
        self._load(connection)
        self._conclude_dead(connection)

    def _load(self, connection: sqlite3.Connection) -> None:
        self._data_version = _version_of(connection)
        self._take_in(database.read_rows(connection))

    def _save(self, connection: sqlite3.Connection, key: Key, record: Record) -> None:
        database.write_record(connection, key, record)
        self._written += 1
        if self._written % _EVICT_EVERY == 0 and database.evict(connection, MOST_ROWS):
            self._take_in(database.read_rows(connection))

    def _look(self, connection: sqlite3.Connection) -> None:
        """Whether another process wrote; SQLite's number stays where this connection did."""
        if _version_of(connection) != self._data_version:
            self._load(connection)
        if self._is_unclear:
            self._conclude_dead(connection)

    def _conclude_dead(self, connection: sqlite3.Connection) -> None:
        """What the markers of dead processes say, unless the shape was measured since."""
        found, self._is_unclear = database.take_dead(connection)
        for marker in found:
            known = self._known.get(marker.key, {}).get(marker.tier)
            if known is None or known.when <= marker.when:
                database.write_record(connection, marker.key, marker.verdict())
                with self._lock:
                    self._apply({(marker.key, marker.tier): marker.verdict()}, self._known)


def _version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


@dataclass(slots=True, eq=False)
class _Job:
    """One piece of work. durable: on the disk (fsync) when it is done; after: called in the
    writer's thread once it is committed."""

    work: _Work
    durable: bool = False
    after: Callable[[], None] | None = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def attempt(self, connection: sqlite3.Connection) -> None:
        """Does the work; raises what is the file's fault, keeps what is the job's."""
        self.error = None
        try:
            self.work(connection)
        except _JOB_ERRORS as error:
            self.error = error

    def finish(self, error: BaseException | None) -> None:
        self.error = error or self.error
        if self.error is None and self.after is not None:
            self.after()
        self.done.set()


class _Writer:
    """A thread that owns the SQLite connection and does what others ask for, in their order.

    `connect` runs in it and its connection is used there alone. on_failure(error) is called, once,
    when the connection can't be had or used any more; from then on all jobs fail with that error.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._connect = connect
        self._on_failure = on_failure
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._connection: sqlite3.Connection | None = None
        self._failure: BaseException | None = None
        self._synchronous = ""
        self._thread = threading.Thread(target=self._serve, name="hy3d verdicts", daemon=True)

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
        """In one transaction; again while another process holds the lock."""
        end = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                return self._commit(connection, jobs)
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
            database.check_version(connection)
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
