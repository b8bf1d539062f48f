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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
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
_BATCH = 256
_MOST_JOBS = 8192  # a disk that is this far behind has stopped
# A transaction of ours takes milliseconds. Who holds the lock longer is stopped or stuck.
_LOCK_PATIENCE_S = 30.0
# What a caller got wrong: its job fails, not the file.
_JOB_ERRORS = (
    ValueError, TypeError, OverflowError, sqlite3.IntegrityError, sqlite3.DataError,
    sqlite3.ProgrammingError, sqlite3.InterfaceError,
)  # fmt: skip

_Work = Callable[[sqlite3.Connection], object]
# durable: on the disk (fsync) once it is done
_Job = tuple[_Work, bool, Future[None]]


class Store:
    """Made by Store.open(). All methods may be called by any thread, and none raises for a disk.

    It is memory-only, with one line in the log, where the file can't be kept: `trouble` says why.
    """

    def __init__(self, path: str, announce: bool) -> None:
        self.path = path
        self.trouble: str | None = None
        self._announce = announce
        self._said: set[str] = set()
        # Whoever changes `_known` queues the job that changes the file in the same breath.
        self._lock = threading.RLock()
        self._generation = 0
        # Dictionaries of records are replaced, not changed: readers hold the old ones.
        self._known: dict[Key, dict[str, Record]] = {}
        self._versions: frozenset[str] = frozenset()  # of hy3d_rocm, in the keys
        self._is_stale = True  # the file has rows that are not here yet
        self._is_unclear = False  # markers are left whose processes can't be asked for
        self._written = 0
        self._data_version: int | None = None
        self._next_poll = math.inf
        self._is_open = False  # there is a file
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="hy3d verdicts", daemon=True)
        # Of the thread alone.
        self._connection: sqlite3.Connection | None = None
        self._synchronous = ""

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
            new._is_open = True
            try:
                new._thread.start()
            except RuntimeError as error:  # no more threads, or the interpreter is ending
                new._fail(error)
            opened = new._write(new._conclude_dead, durable=True)
            if opened is not None:
                wait([opened], OPEN_S if patience_s is None else patience_s)
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
        # The verdicts that protect the machine must survive its reset.
        durable = record.verdict in ("hang", "wrong")
        save = functools.partial(self._save, key=key, record=record)
        self._change({(key, record.tier): record}, save, durable=durable)

    @contextlib.contextmanager
    def in_flight(self, key: Key, tier: str) -> Iterator[None]:
        """Around the first call of a shape: the file says so first (fsync), waiting at most TRY_S,
        and no longer afterwards. If the process ends within, the next one knows."""
        token = secrets.token_hex(8)
        marker = database.Marker(token, key, tier, time.time(), database.this_process())
        try:
            job = self._write(lambda c: database.write_marker(c, marker), durable=True)
            if job is not None and not wait([job], TRY_S).done:
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
        job = self._change(gone, lambda c: database.delete_records(c, gone), durable=True)
        if job is not None:
            wait([job], WHOLE_S)
        return len(gone)

    def flush(self, seconds: float = CLOSE_S) -> bool:
        """Whether all that was put so far is in the file, at the latest after that time."""
        job = self._write(lambda c: None, durable=True)
        return job is not None and bool(wait([job], seconds).done) and job.exception() is None

    def close(self, seconds: float = CLOSE_S) -> None:
        """Writes what is left, waiting at most that long. Afterwards the store is memory-only."""
        was_open, self._is_open = self._is_open, False
        self._next_poll = math.inf
        _OPEN.discard(self)
        if was_open:
            self._jobs.put(None)
            if self._thread.ident is not None:
                self._thread.join(seconds)

    # Memory.

    def _change(
        self, changes: Mapping[tuple[Key, str], Record | None], work: _Work, *, durable: bool
    ) -> Future[None] | None:
        """Here at once, in the file by `work`. None: it is forgotten."""
        with self._lock:
            self._versions |= {key.ours for key, _tier in changes}
            for (key, tier), record in changes.items():
                records = {n: r for n, r in self._known.get(key, {}).items() if n != tier}
                if record is not None:
                    records[tier] = record
                self._known[key] = records
            while len(self._known) > 2 * MOST_ROWS:  # where there is no file that forgets
                del self._known[next(iter(self._known))]
            self._generation += 1
            return self._write(work, durable=durable)

    def _take_in(self, rows: Iterable[Row]) -> bool:
        """What a file holds; whether it has all that was changed here. Readers, who take no lock,
        have the old rows until all new ones are there."""
        known: dict[Key, dict[str, Record]] = {}
        for key, record in rows:
            known.setdefault(key, {})[record.tier] = record
        with self._lock:
            is_whole = self.trouble is not None or self._jobs.empty()
            if is_whole:
                self._versions = frozenset(key.ours for key in known)
                self._known = known
                self._generation += 1
            return is_whole

    # The file, as any thread sees it.

    def _write(self, work: _Work, *, durable: bool = False) -> Future[None] | None:
        """Hands `work` to the thread; None where the file can't be written."""
        if not self._is_open or self.trouble is not None:
            return None
        if self._jobs.qsize() > _MOST_JOBS:
            self._fail(database.UnusableError("the disk does not keep up"))
            return None
        done: Future[None] = Future()
        self._jobs.put((work, durable, done))
        return done

    def _poll(self) -> None:
        """Has the thread look at the file, if it has nothing else to do."""
        self._next_poll = time.monotonic() + POLL_S
        if self._jobs.empty():
            self._write(self._look, durable=self._is_unclear)

    def _fail(self, error: BaseException) -> None:
        """From now on nothing is written; the first reason is kept."""
        if self.trouble is not None:
            return
        self.trouble = database.reason_of(error)
        self._next_poll = math.inf
        if isinstance(error, database.ReadOnlyError):
            with self._lock:
                self._take_in([*error.rows, *self.rows()])
        self._say(f"{self.trouble}; what is learnt now is kept in memory only")

    def _say(self, text: str) -> None:
        if self._announce and text not in self._said:
            self._said.add(text)
            _log.warning("knowledge of convolutions: %s: %s", self.path, text)

    def _forked(self) -> None:
        """In a forked child: its parent keeps the file. The thread isn't there, and the connection
        must never be closed, since SQLite would act on locks that are the parent's
        (https://sqlite.org/howtocorrupt.html section 2.6): one reference too many keeps it from its
        destructor."""
        self._lock = threading.RLock()
        self._jobs = queue.SimpleQueue()
        self._is_open = False
        self._next_poll = math.inf
        self.trouble = "this is a forked process, and its parent has the file"
        connection, self._connection = self._connection, None
        if connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

    # In the thread, which owns the connection and does what others ask for, in their order.

    def _serve(self) -> None:
        try:
            self._connection = database.open_for_writing(Path(self.path))
        except Exception as error:  # noqa: BLE001  (whatever it is, the host goes on without a file)
            self._fail(error)
        while jobs := self._take():
            try:
                if self._connection is None:
                    raise database.UnusableError(self.trouble)
                errors = self._do(self._connection, jobs)
            except Exception as error:  # noqa: BLE001  (as above)
                self._close()
                self._fail(error)
                errors = [error] * len(jobs)
            for (*_, done), failure in zip(jobs, errors, strict=True):
                done.set_result(None) if failure is None else done.set_exception(failure)
        self._close()

    def _take(self) -> list[_Job]:
        """The next jobs, at least one; none when the thread is to end. Many in one transaction
        write a tenth of the pages."""
        jobs: list[_Job] = []
        while not (jobs and self._jobs.empty()) and len(jobs) < _BATCH:
            job = self._jobs.get()
            if job is None:
                if jobs:
                    self._jobs.put(None)  # for the next time
                break
            jobs.append(job)
        return jobs

    def _do(
        self, connection: sqlite3.Connection, jobs: Sequence[_Job]
    ) -> Sequence[BaseException | None]:
        """In one transaction, again while another process holds the lock; what a caller got wrong,
        by job."""
        # NORMAL survives the death of the process, FULL also that of the machine.
        level = "FULL" if any(durable for _, durable, _ in jobs) else "NORMAL"
        if level != self._synchronous:
            connection.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level
        end = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                with database.transaction(connection):
                    database.check_version(connection)
                    errors = [_attempt(work, connection) for work, *_ in jobs]
                    if self._is_stale and self._jobs.empty():
                        self._load(connection)
                return errors
            except sqlite3.OperationalError as error:
                if not database.is_busy(error) or time.monotonic() > end:
                    raise

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):  # what is committed is committed
                connection.close()

    def _load(self, connection: sqlite3.Connection) -> None:
        version, rows = _version_of(connection), database.read_rows(connection)
        if self._take_in(rows):
            self._data_version, self._is_stale = version, False

    def _save(self, connection: sqlite3.Connection, key: Key, record: Record) -> None:
        database.write_record(connection, key, record)
        self._written += 1
        if self._written % _EVICT_EVERY == 0 and database.evict(connection, MOST_ROWS):
            self._is_stale = True

    def _look(self, connection: sqlite3.Connection) -> None:
        """Whether another process wrote; SQLite's number stays where this connection did."""
        self._is_stale |= _version_of(connection) != self._data_version
        if self._is_unclear:
            self._conclude_dead(connection)

    def _conclude_dead(self, connection: sqlite3.Connection) -> None:
        found, self._is_unclear = database.conclude_dead(connection)
        self._is_stale |= found


def _attempt(work: _Work, connection: sqlite3.Connection) -> BaseException | None:
    """Raises what is the file's fault, gives what is the job's."""
    try:
        work(connection)
    except _JOB_ERRORS as error:
        return error
    return None


def _version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


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
