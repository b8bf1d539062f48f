"""The database file as a Store sees it: two threads, each with a connection of its own.

Reads never wait for the writer: SQLite's write-ahead log lets them see the last commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hy3d_rocm.conv.knowledge import opening
from hy3d_rocm.conv.knowledge.schema import UnusableError
from hy3d_rocm.conv.knowledge.worker import Job, Worker

_MOST_JOBS = 8192  # a disk that is this far behind has stopped


class File:
    """Opened in the writer's thread; on_trouble(error) is called, once, when it can't be written
    (any more): there, or in write() where the disk falls too far behind."""

    def __init__(
        self, path: Path, most_pages: int, on_trouble: Callable[[BaseException], None]
    ) -> None:
        self._path, self._most_pages = path, most_pages
        self._on_trouble = on_trouble
        self._trouble = False
        self._reader_started = False
        self._late: Job | None = None
        self._writer = Worker("hy3d knowledge writer", self._connect, self._fail, commits=True)
        self._reader = Worker(
            "hy3d knowledge reader",
            lambda: opening.open_for_reading(path),
            self._fail_to_read,
            commits=False,
        )

    def start(self, work: Callable[[sqlite3.Connection], Any]) -> Job:
        """Starts opening the file; `work` is done first."""
        job = self._writer.submit(Job(work, durable=True))
        try:
            self._writer.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._fail(error)
            job.finish(error)
        return job

    def _connect(self) -> sqlite3.Connection:
        connection = opening.open_for_writing(self._path, self._most_pages)
        # Not before: it would make an empty file, or read a damaged one.
        self._reader.start()
        self._reader_started = True
        return connection

    def write(
        self,
        work: Callable[[sqlite3.Connection], Any],
        *,
        durable: bool = False,
        after: Callable[[], None] | None = None,
    ) -> Job | None:
        """Hands `work` to the writer; None where the file can't be written."""
        if self._trouble:
            return None
        if self._writer.backlog() > _MOST_JOBS:
            self._fail(UnusableError("the disk does not keep up"))
            return None
        return self._writer.submit(Job(work, durable=durable, after=after))

    def look(self, work: Callable[[sqlite3.Connection], Any]) -> None:
        """Has the writer's connection look at the file, if it has nothing else to do."""
        if not self._trouble and not self._writer.backlog():
            self._writer.submit(Job(work, alone=True))

    @property
    def readable(self) -> bool:
        return self._reader_started

    def read(self, work: Callable[[sqlite3.Connection], Any], seconds: float) -> tuple[bool, Any]:
        """(True, what `work` returned) or (False, None) where that took longer, or failed.

        After a read that took longer nobody waits before that one has come back.
        """
        late = self._late
        if not self._reader_started or (late is not None and not late.done):
            return False, None
        job = self._reader.submit(Job(work))
        if not job.wait(seconds):
            self._late = job
            return False, None
        return job.error is None, job.result

    @property
    def is_late(self) -> bool:
        return self._late is not None and not self._late.done

    def close(self, seconds: float) -> None:
        """Ends both threads after what they have to do, waiting at most that long.

        The writer ends last: whoever closes the file last folds SQLite's log into it.
        """
        self._trouble = True
        self._reader_started = False
        half = seconds / 2
        self._reader.stop(half)
        self._writer.stop(half)

    def abandon(self) -> None:
        """In a forked child, where neither thread is."""
        self._trouble = True
        self._reader_started = False
        self._reader.abandon()
        self._writer.abandon()

    def _fail_to_read(self, error: BaseException) -> None:
        self._reader_started = False
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._trouble:
            self._trouble = True
            self._on_trouble(error)
