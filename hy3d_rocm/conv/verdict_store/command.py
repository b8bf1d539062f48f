"""`hy3d-rocm db list|show|forget|export`: the verdict store for people, in 100 columns."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from hy3d_rocm import __version__, units
from hy3d_rocm.arguments import CommandError
from hy3d_rocm.conv.verdict_store import database
from hy3d_rocm.conv.verdict_store.records import (
    Key,
    Record,
    Row,
    clock_text,
    counts_on,
    machines_here,
)
from hy3d_rocm.conv.verdict_store.store import WHOLE_S, Store
from hy3d_rocm.diagnose.env.shown import printable  # error texts come from drivers
from hy3d_rocm.files import write_whole

_WIDTH = 100
_HEAD = ("tier", "verdict", "time", "first", "peak", "by", "when")
_WORDS = (0, 1, 5, 6)  # columns
_EXACT = ("tier", "verdict", "op", "dtype", "architecture")  # fields that a filter gives exactly


def run_db_command(arguments: argparse.Namespace) -> int:
    """The exit code, 0; CommandError."""
    action = {"list": _list, "show": _show, "forget": _forget, "export": _export}[arguments.db]
    action(arguments)
    return 0


def _list(arguments: argparse.Namespace) -> None:
    is_meant = _filter(arguments)
    with _opened(arguments) as store:
        if store is None:
            _print(f"Nothing is known yet: there is no {database.own_path(arguments.path)}.")
            return
        rows = _rows(store)
    found = blocks(filter(is_meant, rows))
    if not found:
        _print(_nothing(rows))
        return
    most = arguments.limit or len(found)
    _print(list_text(dict(list(found.items())[:most])))
    left = len(found) - most
    if left > 0:
        _print(f"\nand {left} more, older {'key' if left == 1 else 'keys'} (--limit 0 prints all)")


def _show(arguments: argparse.Namespace) -> None:
    wanted = arguments.key
    if not wanted:
        raise CommandError("show needs the name of a key, or a part of its shape")
    with _opened(arguments) as store:
        rows = [] if store is None else _rows(store)
    found = blocks(row for row in rows if row.key.name.startswith(wanted.lower()))
    found = found or blocks(row for row in rows if wanted in row.key.shape)
    if not found:
        raise CommandError(f"no key is called {wanted}, and no shape contains it; see db list")
    if len(found) > 1:
        names = [f"    {key_text(key)}" for key in list(found)[:10]]
        more = [f"    and {len(found) - 10} more"] if len(found) > 10 else []
        raise CommandError("\n".join([f"{wanted} fits {len(found)} keys:", *names, *more]))
    [(key, records)] = found.items()
    _print(_show_text(key, records))


def _forget(arguments: argparse.Namespace) -> None:
    is_meant = _filter(arguments)
    given = any(getattr(arguments, name) for name in (*_EXACT, "shape", "here"))
    if given == arguments.all:
        raise CommandError(
            "forget takes --all or filters, not both"
            if given
            else "forget needs to know what: --tier, --verdict, --shape, --op, --dtype,"
            " --architecture, --here, or --all"
        )
    with _opened(arguments) as store:
        if store is None:
            _print(f"Nothing is known yet: there is no {database.own_path(arguments.path)}.")
            return
        before = _rows(store)
        if store.trouble is not None:
            raise CommandError(f"{store.path}: {store.trouble}; nothing was deleted")
        count = store.forget(filter(is_meant, before))
        if not store.flush(WHOLE_S):
            why = store.trouble or "the disk does not answer"
            raise CommandError(f"{store.path}: {why}; the rows are still there")
    if not count and before:
        _print(_nothing(before))
        return
    _print(f"Deleted {count} {'row' if count == 1 else 'rows'} of {len(before)}.")


def _export(arguments: argparse.Namespace) -> None:
    is_meant = _filter(arguments)
    with _opened(arguments) as store:
        if store is None:
            path = database.own_path(arguments.path)
            raise CommandError(f"nothing is known yet: there is no {path}")
        rows = [row.as_dict() for row in filter(is_meant, _rows(store))]
    facts = {"made_by": f"hy3d_rocm {__version__}", "schema": database.VERSION, "rows": rows}
    text = json.dumps(facts, indent=1) + "\n"
    if arguments.out is None:
        sys.stdout.write(text)
        return
    try:
        write_whole(arguments.out, text, mode=0o600)
    except OSError as error:
        raise CommandError(f"{arguments.out} can't be written: {error.strerror}") from error
    sys.stderr.write(f"{len(rows)} rows in {arguments.out}\n")


@contextlib.contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[Store | None]:
    """The store; None where there is no file yet, which asking does not make.

    A file that can be read and not written is a store with trouble.
    """
    path = database.own_path(arguments.path)
    if path == database.IN_MEMORY or not os.path.lexists(path):
        yield None
        return
    with contextlib.closing(Store.open(path, patience_s=WHOLE_S, announce=False)) as store:
        yield store


def _rows(store: Store) -> list[Row]:
    """All rows; CommandError where there are none because they can't be read."""
    rows = store.rows()
    if not rows and store.trouble is not None:
        raise CommandError(f"{store.path}: {store.trouble}")
    return rows


def _filter(arguments: argparse.Namespace) -> Callable[[Row], bool]:
    """Whether a row is meant: all that is given must hold; an empty text is not given. shape: a
    part of the key's text, blanks and case as they are."""
    machines = None
    if arguments.here:
        try:
            machines = tuple(machines_here())
        except (ImportError, RuntimeError) as error:
            raise CommandError(f"--here needs a torch that works: {error}") from error
    exact = {name: wanted for name in _EXACT if (wanted := getattr(arguments, name))}

    def is_meant(row: Row) -> bool:
        fields = row.as_dict()
        if any(fields[name] != wanted for name, wanted in exact.items()):
            return False
        if arguments.shape and arguments.shape not in row.key.shape:
            return False
        return machines is None or counts_on(row, machines)

    return is_meant


def _nothing(rows: list[Row]) -> str:
    """Why a list is empty: what there is instead."""
    if not rows:
        return "Nothing is known yet: the file has no rows."
    known = {
        "tiers": {row.record.tier for row in rows},
        "verdicts": {row.record.verdict for row in rows},
        "architectures": {row.key.architecture for row in rows},
    }
    words = "; ".join(f"{name}: {', '.join(sorted(values))}" for name, values in known.items())
    return f"None of {len(rows)} rows matches. There are {words}."


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def blocks(rows: Iterable[Row]) -> dict[Key, list[Record]]:
    """Records by key, in the order in which the keys come; the fastest healthy tier first."""
    found: dict[Key, list[Record]] = {}
    for key, record in rows:
        found.setdefault(key, []).append(record)
    for records in found.values():
        records.sort(key=_by_time)
    return found


def _by_time(record: Record) -> tuple[bool, float, str]:
    seconds = float("inf") if record.seconds is None else record.seconds
    return record.verdict != "ok", seconds, record.tier


def list_text(blocks: dict[Key, list[Record]]) -> str:
    """One block a key: its name and what it is, then a line for each tier. Columns are aligned over
    all blocks."""
    head, *lines = _table([record for records in blocks.values() for record in records])
    text, rest = [head], iter(lines)
    for key, records in blocks.items():
        text += ["", *_wrapped(_what(key), f"{key.name}  "), *(next(rest) for _ in records)]
    return "\n".join(text)


def _show_text(key: Key, records: Sequence[Record]) -> str:
    """One key with its machine, all tiers, and what was said about each."""
    fields = {"key": key.name, **key._asdict()}
    width = max(map(len, fields))
    text: list[str] = []
    for name, value in fields.items():
        text += _wrapped(value or "-", f"{name:{width}}  ")
    head, *lines = _table(records)
    text += ["", head]
    for record, line in zip(records, lines, strict=True):
        text.append(line)
        if record.detail:
            text += _wrapped(printable(" ".join(record.detail.split())), "      ")
    return "\n".join(text)


def key_text(key: Key) -> str:
    """'3f9a01c2  conv3d 1x8x5x16x16 w8x8x3x3x3 p1x1x1 bias, bf16, gfx1100'."""
    return textwrap.shorten(f"{key.name}  {_what(key)}", _WIDTH - 4, placeholder=" ...")


def _what(key: Key) -> str:
    return f"{key.op} {key.shape}, {key.dtype}, {key.layout}, {key.architecture}"


def _wrapped(text: str, head: str) -> list[str]:
    blank = " " * len(head)
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=blank)


def _table(records: Iterable[Record]) -> list[str]:
    """The head, then a line for each."""
    rows = [_HEAD, *map(_cells, records)]
    return [f"    {line}" for line in units.aligned(rows, _WORDS)]


def _cells(record: Record) -> tuple[str, ...]:
    return (
        printable(record.tier)[:16],  # as long as a tile
        record.verdict,
        _seconds_text(record.seconds),
        _seconds_text(record.first_seconds),
        "-" if record.peak_bytes is None else units.size_text(record.peak_bytes),
        record.measured_by,
        clock_text(record.when),
    )


def _seconds_text(seconds: float | None) -> str:
    """Milliseconds below a second; "-" where nothing was measured."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.2f} s" if seconds < 1e4 else f"{seconds:.3g} s"
