"""The tables, and every SQL statement on them. A connection is of the calling thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hy3d_rocm.conv.knowledge.keys import Key
from hy3d_rocm.conv.knowledge.process import Identity
from hy3d_rocm.conv.knowledge.records import RECORD_FIELDS, Record, Row

VERSION = 1
APPLICATION_ID = 0x68793364  # "hy3d", at byte 68 of the file

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


def prepare(connection: sqlite3.Connection) -> None:
    """Makes the tables in a new file; UnusableError for a file of somebody else or of a newer
    version of ours, CorruptError for a damaged one, sqlite3.Error for what else is in the way.

    Takes the write lock once, so that a place which can't be written is known now.
    """
    version = _version(connection)
    if version:
        check = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if check != "ok":
            raise CorruptError(f"SQLite finds it damaged ({str(check).splitlines()[-1]})")
    # Once set it stays in the file; another process that holds a lock makes this fail as busy.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not _version(connection):
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _version(connection: sqlite3.Connection) -> int:
    """0 for an empty file, VERSION for one of ours.

    Read as of one moment: between two statements another process may make its tables, and no mark
    with tables would be another program's file.
    """
    if connection.in_transaction:
        return _read_version(connection)
    connection.execute("BEGIN")
    try:
        return _read_version(connection)
    finally:
        connection.execute("ROLLBACK")


def _read_version(connection: sqlite3.Connection) -> int:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if application == APPLICATION_ID:
        if version > VERSION:
            raise UnusableError(
                f"it was made by a newer version of hy3d_rocm (schema {version}, this one knows"
                f" {VERSION})"
            )
        return version
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise UnusableError("it is a database of another program")
    return 0


def read_records(connection: sqlite3.Connection, key: Key) -> dict[str, Record]:
    rows = connection.execute(f"SELECT {_RECORD} FROM records WHERE {_MATCH}", key)
    return {record.tier: record for record in map(_record, rows) if record is not None}


def read_rows(connection: sqlite3.Connection) -> list[Row]:
    """All rows. A row that this version can't read (damaged, or edited by hand) is left out."""
    return list(_rows(connection.execute(f"SELECT {_KEY}, {_RECORD} FROM records")))


def _rows(cursor: Iterable[tuple[object, ...]]) -> Iterator[Row]:
    count = len(Key._fields)
    for values in cursor:
        record = _record(values[count:])
        if record is not None:
            yield Row(Key(*map(str, values[:count])), record)


def _record(values: tuple[object, ...]) -> Record | None:
    try:
        return Record(*values)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def write_record(connection: sqlite3.Connection, key: Key, record: Record) -> None:
    connection.execute(
        f"INSERT OR REPLACE INTO records ({_KEY}, {_RECORD}) VALUES ({_MARKS})",
        (*key, *record.as_dict().values()),
    )


def delete_records(connection: sqlite3.Connection, names: Iterable[tuple[Key, str]]) -> int:
    """Deletes the rows of (key, tier); how many there were."""
    cursor = connection.executemany(
        f"DELETE FROM records WHERE {_MATCH} AND tier = ?", ((*key, tier) for key, tier in names)
    )
    return cursor.rowcount


def evict(connection: sqlite3.Connection, most: int) -> int:
    """Where there are more than `most` rows, the oldest go until there are 5 % fewer."""
    count = int(connection.execute("SELECT count(*) FROM records").fetchone()[0])
    if count <= most:
        return 0
    surplus = count - most * 19 // 20
    cursor = connection.execute(
        f"DELETE FROM records WHERE ({_KEY}, tier) IN"
        f' (SELECT {_KEY}, tier FROM records ORDER BY "when" LIMIT ?)',
        (surplus,),
    )
    return cursor.rowcount


class Attempt(NamedTuple):
    """A row of `trying`: a first call of the vendor library that has not come back yet."""

    token: str
    key: Key
    tier: str
    when: float
    process: Identity


def write_trying(connection: sqlite3.Connection, attempt: Attempt) -> None:
    values = (attempt.token, *attempt.key, attempt.tier, attempt.when, *attempt.process)
    connection.execute(f"INSERT INTO trying VALUES ({', '.join('?' * len(values))})", values)


def clear_trying(connection: sqlite3.Connection, token: str) -> None:
    connection.execute("DELETE FROM trying WHERE token = ?", (token,))


def read_trying(connection: sqlite3.Connection) -> list[Attempt]:
    count = len(Key._fields)
    return [
        Attempt(token, Key(*rest[:count]), rest[count], rest[count + 1], Identity(*rest[-4:]))
        for token, *rest in connection.execute('SELECT * FROM trying ORDER BY "when"')
    ]


def conclude(connection: sqlite3.Connection, attempt: Attempt, detail: str) -> bool:
    """Turns the attempt of a process that is gone into the verdict "hang", unless the shape was
    measured since. False where another process has done so first."""
    done = connection.execute("DELETE FROM trying WHERE token = ?", (attempt.token,)).rowcount
    if not done:
        return False
    known = read_records(connection, attempt.key).get(attempt.tier)
    if known is None or known.when <= attempt.when:
        record = Record(attempt.tier, "hang", detail=detail, when=attempt.when)
        write_record(connection, attempt.key, record.bounded())
    return True
