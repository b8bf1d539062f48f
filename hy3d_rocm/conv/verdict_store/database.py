"""The SQLite file: where it lies, how it is opened, its tables. A damaged one is renamed and
replaced; one that is not ours is left as it is. A connection is of the calling thread.

One process at a time opens it (_alone): else the second one would move what the first has made.

In-flight markers (docs/knowledge.md) are rows of the table `trying`. Process numbers are given
again, so a process is known by its number and its start time, within one boot and one numbering
(container).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import itertools
import logging
import math
import os
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

from hy3d_rocm import __version__
from hy3d_rocm.conv.verdict_store.records import RECORD_FIELDS, Key, Record, Row, clock_text
from hy3d_rocm.diagnose.env import gpu
from hy3d_rocm.files import network_disk, patiently

_log = logging.getLogger("hy3d_rocm")

# The statements that make a file of schema N one of N + 1, at index N - 1. One that was
# released is never changed; _TABLES are those after the last.
MIGRATIONS: tuple[tuple[str, ...], ...] = ()
VERSION = 1 + len(MIGRATIONS)
APPLICATION_ID = 0x68793364  # "hy3d", at byte 68 of the file

FILE_NAME = "knowledge.db"
VARIABLE = "HY3D_ROCM_DB"
IN_MEMORY = ":memory:"

# 20,000 rows of 600 bytes, and room for free pages: 64 MiB in pages of 4 KiB.
MOST_PAGES = 16384
_BUSY_S = 5.0
_PATIENCE_S = 10.0  # of two hosts that make the file at once, one waits for the other
_HEADER = b"SQLite format 3\0"
_SUFFIXES = (".db", ".sqlite", ".sqlite3")

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NO_WRITING = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
_REASONS = {
    sqlite3.SQLITE_PERM: "it may not be opened",
    sqlite3.SQLITE_READONLY: "it or its folder is read-only",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened or made there (is the folder read-only?)",
    sqlite3.SQLITE_NOTADB: "it is damaged",
}

PROC = Path("/proc")
# A first call takes seconds, a find step minutes. What another container began longer ago and has
# not finished has hung, whether or not that container still runs.
_LONG_AGO_S = 600.0
_LINES = 5

_KEY = ", ".join(Key._fields)
_KEY_COLUMNS = ", ".join(f"{name} TEXT NOT NULL" for name in Key._fields)
_MATCH = " AND ".join(f"{name} = ?" for name in Key._fields)
_RECORD = ", ".join(RECORD_FIELDS).replace("when", '"when"')
_MARKS = ", ".join("?" * (len(Key._fields) + len(RECORD_FIELDS)))

# WITHOUT ROWID: the long key is stored once, not in the table and in its index.
_TABLES = (
    f"""CREATE TABLE records ({_KEY_COLUMNS}, tier TEXT NOT NULL, verdict TEXT NOT NULL,
        seconds REAL, peak_bytes INTEGER, first_seconds REAL, detail TEXT NOT NULL,
        "when" REAL NOT NULL, measured_by TEXT NOT NULL,
        PRIMARY KEY ({_KEY}, tier)) WITHOUT ROWID""",
    'CREATE INDEX records_by_age ON records ("when")',
    f"""CREATE TABLE trying (token TEXT PRIMARY KEY, {_KEY_COLUMNS}, tier TEXT NOT NULL,
        "when" REAL NOT NULL, pid INTEGER NOT NULL, start TEXT NOT NULL, boot TEXT NOT NULL,
        numbering TEXT NOT NULL) WITHOUT ROWID""",
)


class UnusableError(Exception):
    """The file can't be used; the text is the sentence for the user."""


class CorruptError(UnusableError):
    """The file is damaged and may be moved aside."""


class ReadOnlyError(UnusableError):
    """It can be read, not written: `rows` are what it holds."""

    def __init__(self, reason: str, rows: list[Row]) -> None:
        super().__init__(reason)
        self.rows = rows


# Where it lies, and how it is opened.


def default_path(environ: Mapping[str, str], home: str, *, windows: bool | None = None) -> str:
    """$HY3D_ROCM_DB, else %LOCALAPPDATA% or $XDG_DATA_HOME (~/.local/share), hy3d_rocm/.

    `home` is the user's folder; environ's empty values count as missing.
    """
    chosen = environ.get(VARIABLE, "")
    if chosen:
        return chosen
    if sys.platform == "win32" if windows is None else windows:
        local = environ.get("LOCALAPPDATA", "")
        folder = PureWindowsPath(local) if local else PureWindowsPath(home, "AppData", "Local")
        return str(folder / "hy3d_rocm" / FILE_NAME)
    data = environ.get("XDG_DATA_HOME", "")
    # The specification: a path that is not absolute is to be ignored.
    if not data.startswith("/"):
        data = str(PurePosixPath(home, ".local", "share"))
    return str(PurePosixPath(data, "hy3d_rocm", FILE_NAME))


def own_path(chosen: str | os.PathLike[str] | None = None) -> str:
    """Where `chosen` (None: the default) is, also after the host has changed its folder; "~" is the
    user's."""
    path = os.fspath(chosen or default_path(os.environ, os.path.expanduser("~")))
    if path == IN_MEMORY:
        return path
    try:
        return os.path.abspath(os.path.expanduser(path))
    except OSError:  # the current folder was deleted
        return path


def open_for_writing(path: Path) -> sqlite3.Connection:
    """A connection to the checked or newly made file; a damaged one is moved aside first.

    Raises UnusableError with the reason in words.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UnusableError(f"its folder can't be made ({reason})") from error
    disk = network_disk(path.parent)
    if disk is not None:
        raise UnusableError(f"it is on a network disk ({disk}), where SQLite's log can't work")
    with _alone(path.parent):
        try:
            return _prepared(path)
        except CorruptError as error:
            aside = _move_aside(path)
            _log.warning(
                "knowledge of convolutions: %s: %s; it was moved to %s and a new one begins",
                path, error, aside.name,
            )  # fmt: skip
            return _prepared(path)


def is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and _code(error) in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def reason_of(error: BaseException) -> str:
    """Why a file can't be used, for the middle of a sentence."""
    if isinstance(error, UnusableError):
        return str(error)
    if is_busy(error):
        return "another process holds it locked"
    known = _REASONS.get(_code(error))
    return f"{known} ({error})" if known else f"{type(error).__name__}: {error}"


def _code(error: BaseException) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _prepared(path: Path) -> sqlite3.Connection:
    """Raises CorruptError where the damaged file is ours to move, else UnusableError."""
    connection = None
    try:
        connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        connection.execute(f"PRAGMA max_page_count = {MOST_PAGES}")
        connection.execute("PRAGMA journal_size_limit = 4194304")
        prepare(connection)
        return connection
    except (sqlite3.Error, UnusableError) as error:
        if connection is not None:
            connection.close()
        raise _judged(path, error) from error


def _judged(path: Path, error: Exception) -> UnusableError:
    code = _code(error)
    if code in _DAMAGED or isinstance(error, CorruptError):
        if is_ours(path):
            return CorruptError(reason_of(error))
        return UnusableError("it is no database of hy3d_rocm, and was left as it is")
    if isinstance(error, UnusableError):
        return error
    if code in _NO_WRITING and path.is_file():
        return ReadOnlyError(reason_of(error), _read_anyway(path))
    return UnusableError(reason_of(error))


def is_ours(path: Path) -> bool:
    """Whether a damaged file may be moved: it has our mark, or no head at all but a database's
    name. A file that the variable names by mistake is not touched."""
    try:
        with path.open("rb") as file:
            head = file.read(72)
    except OSError:
        return False
    if head.startswith(_HEADER):
        return int.from_bytes(head[68:72], "big") == APPLICATION_ID
    return path.suffix in _SUFFIXES


def _read_anyway(path: Path) -> list[Row]:
    """The rows of a file that nobody can write, such as one in a container's image.

    Of an older schema a copy in memory is brought up to date. immutable=1 takes no locks, so it is
    only for a file without a log beside it.
    """
    if path.with_name(path.name + "-wal").exists():
        return []
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with (
            contextlib.closing(sqlite3.connect(uri, uri=True)) as connection,
            contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as copy,
        ):
            connection.backup(copy)
            prepare(copy)
            return read_rows(copy)
    except (sqlite3.Error, OSError, UnusableError):
        return []


def _move_aside(path: Path) -> Path:
    """Renames the file, and the log that belongs to it, to the first name that is free."""
    name = f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (f"{name}-{number}" if number else name for number in itertools.count())
    aside = next(one for one in map(path.with_name, names) if not one.exists())
    for suffix in ("-wal", "-shm", ""):
        source = path.with_name(path.name + suffix)
        try:
            patiently(os.replace, source, aside.with_name(aside.name + suffix))
        except FileNotFoundError:
            continue
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UnusableError(f"it is damaged and can't be moved aside ({reason})") from error
    return aside


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """By a lock on the folder, on Windows by a mutex with its name, which leave nothing behind."""
    if sys.platform == "win32":
        with _mutex(os.path.normcase(os.path.realpath(folder))):
            yield
        return
    import fcntl

    with contextlib.ExitStack() as stack:
        end = time.monotonic() + _PATIENCE_S  # who has it may have been stopped
        try:
            number = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            end = -math.inf
        else:
            stack.callback(os.close, number)
        while time.monotonic() < end:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.02)
        yield


@contextlib.contextmanager
def _mutex(name: str) -> Iterator[None]:
    """Windows: this user's, of his processes one at a time; waited for as long as _alone() waits.
    The system lets it go where its process ends."""
    kernel32 = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]
    kernel32.CreateMutexW.restype = ctypes.c_void_p
    # No backslash may be in a name, and no more than 260 characters.
    name = "hy3d_rocm " + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    mutex = ctypes.c_void_p(kernel32.CreateMutexW(None, False, name))
    try:
        kernel32.WaitForSingleObject(mutex, int(_PATIENCE_S * 1000))
        yield
    finally:
        kernel32.ReleaseMutex(mutex)
        kernel32.CloseHandle(mutex)


# Its tables.


def prepare(connection: sqlite3.Connection) -> None:
    """Makes the tables in a new file, and takes one of an older schema up to ours; UnusableError
    for a file of somebody else or of a newer version of ours, CorruptError for a damaged one,
    sqlite3.Error for what else is in the way.

    Takes the write lock once, so that a place which can't be written is known now. All of it or
    nothing is in the file, whatever ends the process.
    """
    # As of one moment: between two statements another process may make its tables, and no mark
    # with tables would be another program's file.
    with transaction(connection, "BEGIN"):
        version = _read_version(connection)
    if version:
        check = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if check != "ok":
            raise CorruptError(f"SQLite finds it damaged ({str(check).splitlines()[-1]})")
    # Once set it stays in the file; another process that holds a lock makes this fail as busy.
    connection.execute("PRAGMA journal_mode = WAL")
    with transaction(connection, "BEGIN IMMEDIATE"):
        version = _read_version(connection)  # another process may have been faster
        if version == VERSION:
            return
        migrations = MIGRATIONS[version - 1 :] if version else (_TABLES,)
        for statement in itertools.chain.from_iterable(migrations):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Committed at the end, or taken back where something is raised."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _read_version(connection: sqlite3.Connection) -> int:
    """0 for an empty file, the schema of one of ours."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application == APPLICATION_ID:
        return check_version(connection)
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise UnusableError("it is a database of another program")
    return 0


def check_version(connection: sqlite3.Connection) -> int:
    """The schema of a file of ours. UnusableError for a newer one, also of a file that a newer
    version has taken over since it was opened."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise UnusableError(
            f"it was made by a newer version of hy3d_rocm (schema {version}, this one,"
            f" {__version__}, knows {VERSION}): update hy3d_rocm, or let {VARIABLE} name"
            " another file"
        )
    if version < 1:
        raise CorruptError(f"it is damaged (schema {version})")
    return version


def read_rows(connection: sqlite3.Connection) -> list[Row]:
    """All rows. A row that this version can't read (damaged, or edited by hand) is left out."""
    count = len(Key._fields)
    found = []
    for values in connection.execute(f"SELECT {_KEY}, {_RECORD} FROM records"):
        with contextlib.suppress(TypeError, ValueError):
            found.append(Row(Key(*map(str, values[:count])), Record(*values[count:])))
    return found


def write_record(connection: sqlite3.Connection, key: Key, record: Record) -> None:
    connection.execute(
        f"INSERT OR REPLACE INTO records ({_KEY}, {_RECORD}) VALUES ({_MARKS})",
        (*key, *record.as_dict().values()),
    )


def delete_records(connection: sqlite3.Connection, names: Iterable[tuple[Key, str]]) -> None:
    """Deletes the rows of (key, tier)."""
    connection.executemany(
        f"DELETE FROM records WHERE {_MATCH} AND tier = ?", ((*key, tier) for key, tier in names)
    )


def evict(connection: sqlite3.Connection, most: int) -> bool:
    """Where there are more than `most` rows, the oldest go until there are 5 % fewer; whether there
    were."""
    count = int(connection.execute("SELECT count(*) FROM records").fetchone()[0])
    if count > most:
        connection.execute(
            f"DELETE FROM records WHERE ({_KEY}, tier) IN"
            f' (SELECT {_KEY}, tier FROM records ORDER BY "when" LIMIT ?)',
            (count - most * 19 // 20,),
        )
    return count > most


# In-flight markers.


class Process(NamedTuple):
    """start: clock ticks since the boot on Linux, else Unix time; boot: the kernel's id of this
    boot; numbering: the process-number namespace, so the container. "" where unknown."""

    pid: int
    start: str
    boot: str
    numbering: str


class Marker(NamedTuple):
    """A first call of `tier` at `key` that has not come back yet. `when`: Unix time."""

    token: str
    key: Key
    tier: str
    when: float
    process: Process

    def verdict(self) -> Record:
        """Of one whose process has ended."""
        detail = (
            f"process {self.process.pid} ended during its first call here, at"
            f" {clock_text(self.when)}: a driver reset, a crash, or somebody ended it"
        )
        return Record(self.tier, "hang", detail=detail, when=self.when).bounded()


def write_marker(connection: sqlite3.Connection, marker: Marker) -> None:
    values = (marker.token, *marker.key, marker.tier, marker.when, *marker.process)
    connection.execute(f"INSERT INTO trying VALUES ({', '.join('?' * len(values))})", values)


def clear_marker(connection: sqlite3.Connection, token: str) -> bool:
    """Whether it was there."""
    return bool(connection.execute("DELETE FROM trying WHERE token = ?", (token,)).rowcount)


def read_markers(connection: sqlite3.Connection) -> list[Marker]:
    """The oldest first."""
    count = len(Key._fields)
    return [
        Marker(token, Key(*rest[:count]), rest[count], rest[count + 1], Process(*rest[-4:]))
        for token, *rest in connection.execute('SELECT * FROM trying ORDER BY "when"')
    ]


def conclude_dead(connection: sqlite3.Connection) -> tuple[bool, bool]:
    """Makes verdicts of the markers of dead processes, where the shape was not measured since, with
    a line in the log for each. Whether there were any, and whether there are others of processes
    that can't be asked for: later, perhaps."""
    me, now = this_process(), time.time()
    is_unclear = False
    found: list[Marker] = []
    for marker in read_markers(connection):
        gone = is_gone(marker.process, me)
        if gone is None:
            gone = now - marker.when > _LONG_AGO_S
            is_unclear |= not gone
        if gone and clear_marker(connection, marker.token):  # else another process has concluded it
            found.append(marker)
            newer = f'SELECT 1 FROM records WHERE {_MATCH} AND tier = ? AND "when" > ?'
            if not connection.execute(newer, (*marker.key, marker.tier, marker.when)).fetchone():
                write_record(connection, marker.key, marker.verdict())
    for marker in found[:_LINES]:
        _log.warning(
            "%s %s, %s: the process that first tried %s for it, at %s, ended during the call;"
            " it is not tried there again (hy3d-rocm db forget --shape ... lets it)",
            marker.key.op, marker.key.shape, marker.key.dtype, marker.tier,
            clock_text(marker.when),
        )  # fmt: skip
    if len(found) > _LINES:
        left = len(found) - _LINES
        _log.warning("and %d more such shapes: hy3d-rocm db list --verdict hang", left)
    return bool(found), is_unclear


def this_process() -> Process:
    """Not cached without its number: after a fork it is another one."""
    return _process(os.getpid())


@functools.lru_cache(maxsize=2)
def _process(pid: int) -> Process:
    boot, numbering = gpu.text(PROC / "sys" / "kernel" / "random" / "boot_id"), ""
    with contextlib.suppress(OSError):
        numbering = os.readlink(PROC / "self" / "ns" / "pid")
    return Process(pid, start_time(pid) or "", boot, numbering)


def is_gone(other: Process, me: Process) -> bool | None:
    """Whether that process has ended; None where it can't be told from here (another container
    of this boot, or no way to ask for a process's start time)."""
    if other.boot != me.boot:
        return True
    if other.numbering != me.numbering or not other.start:
        return None
    now = start_time(other.pid)
    return None if now == "" else now != other.start


def start_time(pid: int, proc: Path = PROC) -> str | None:
    """When process `pid` started, None if there is none (one that ended and was not reaped is
    none), "" if that can't be found out."""
    if not (proc / "self" / "stat").exists():
        return _start_by_psutil(pid)
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return ""
    # The name, in brackets, may hold spaces and brackets: fields are counted from the last one.
    fields = text.rpartition(")")[2].split()
    if not fields or fields[0] in ("Z", "X"):
        return None
    return fields[19] if len(fields) > 19 else ""


def _start_by_psutil(pid: int) -> str | None:
    try:
        psutil = importlib.import_module("psutil")
    except ImportError:
        return ""
    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.NoSuchProcess:
        return None
    except psutil.Error:
        return ""
