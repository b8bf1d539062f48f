"""A thread that owns one SQLite connection and does what others ask for, in their order.

No other thread ever touches the disk: whoever asks waits as long as it likes, and no longer.
"""

from __future__ import annotations

import ctypes
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

_BUSY, _LOCKED = 5, 6  # SQLite's result codes
# A transaction of ours takes milliseconds. Who holds the lock longer is stopped or stuck.
_LOCK_PATIENCE_S = 30.0
_BATCH = 256
# What a caller got wrong: its job fails, not the file.
_JOB_ERRORS = (
    ValueError, TypeError, OverflowError, sqlite3.IntegrityError, sqlite3.DataError,
    sqlite3.ProgrammingError, sqlite3.InterfaceError,
)  # fmt: skip


class Job:
    """One piece of work. durable: on the disk (fsync) when it is done; alone: outside of any
    transaction; after: called in the worker's thread once it is committed."""

    __slots__ = ("_done", "after", "alone", "durable", "error", "result", "work")

    def __init__(
        self,
        work: Callable[[sqlite3.Connection], Any],
        *,
        durable: bool = False,
        alone: bool = False,
        after: Callable[[], None] | None = None,
    ) -> None:
        self.work = work
        self.after = after
        self.durable = durable
        self.alone = alone
        self.result: Any = None
        self.error: BaseException | None = None
        self._done = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Whether it is done, well or with `error`, within that time."""
        return self._done.wait(seconds)

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def attempt(self, connection: sqlite3.Connection) -> None:
        """Does the work; raises what is the file's fault, keeps what is the job's."""
        self.error = None
        try:
            self.result = self.work(connection)
        except _JOB_ERRORS as error:
            self.error = error

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error or self.error
        if self.error is None and self.after is not None:
            self.after()
        self._done.set()


def is_busy(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(error, sqlite3.OperationalError) and code & 0xFF in (_BUSY, _LOCKED)


class Worker:
    """start() makes the thread; `connect` runs in it and its connection is used there alone.

    on_failure(error) is called in the thread, once, when the connection can't be had or used any
    more; from then on all jobs fail with that error at once. `commits`: each batch of jobs is one
    transaction.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        on_failure: Callable[[BaseException], None],
        *,
        commits: bool,
    ) -> None:
        self._connect = connect
        self._on_failure = on_failure
        self._commits = commits
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._connection: sqlite3.Connection | None = None
        self._failure: BaseException | None = None
        self._synchronous = ""
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> Job:
        self._jobs.put(job)
        return job

    def backlog(self) -> int:
        return self._jobs.qsize()

    def stop(self, seconds: float) -> bool:
        """Ends the thread after the jobs it has; whether it ended within that time."""
        if self._thread.ident is None:
            return True
        self._jobs.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

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
        going = True
        while going:
            jobs, going = self._take()
            if self._failure is None:
                self._handle(jobs)
            for job in jobs:
                job.finish(self._failure)
        self._close()

    def _take(self) -> tuple[list[Job], bool]:
        """The next jobs, at least one, and False when the thread is to end after them."""
        jobs: list[Job] = []
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) >= _BATCH or not self._commits:
                return jobs, True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return jobs, True
        return jobs, False

    def _handle(self, jobs: list[Job]) -> None:
        connection = self._connection
        assert connection is not None
        together = [job for job in jobs if self._commits and not job.alone]
        apart = [job for job in jobs if not self._commits or job.alone]
        try:
            if together:
                self._patiently(lambda: self._transaction(connection, together))
            for job in apart:
                self._patiently(lambda job=job: job.attempt(connection))  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001  (whatever it is, the host goes on without a file)
            self._fail(error)

    def _patiently(self, act: Callable[[], None]) -> None:
        """Again while another process holds the lock."""
        end = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                return act()
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > end:
                    raise

    def _transaction(self, connection: sqlite3.Connection, jobs: list[Job]) -> None:
        # NORMAL survives the death of the process, FULL also that of the machine.
        level = "FULL" if any(job.durable for job in jobs) else "NORMAL"
        if level != self._synchronous:
            connection.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level
        connection.execute("BEGIN IMMEDIATE")
        try:
            for job in jobs:
                job.attempt(connection)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._close()
        self._on_failure(error)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # what is committed is committed
