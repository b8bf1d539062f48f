"""`hy3d-rocm db list|show|forget|export`: what is known about convolutions, for people."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hy3d_rocm.conv.knowledge import place, table
from hy3d_rocm.conv.knowledge.filters import Filters
from hy3d_rocm.conv.knowledge.machine import machines_here
from hy3d_rocm.conv.knowledge.records import VERDICTS, Row
from hy3d_rocm.conv.knowledge.store import Store
from hy3d_rocm.files import write_whole
from hy3d_rocm.units import brief

_PATIENCE_S = 60.0
_EPILOG = """\
The file is $HY3D_ROCM_DB, else hy3d_rocm/knowledge.db in $XDG_DATA_HOME (~/.local/share), or in
%LOCALAPPDATA% on Windows. ComfyUI may be running: it notices within seconds.
"""


class DatabaseError(Exception):
    """The text is the sentence for the user."""


def add_db_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "db",
        help="what was measured about convolutions here: list, show, forget, export",
        description="What is known about each convolution: which way of computing it was how "
        "fast, and which failed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="db", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="all keys, the newest first")
    _add_filters(listing)
    listing.add_argument(
        "--limit", type=_count, default=40, metavar="N", help="keys to print (default 40; 0: all)"
    )
    show = actions.add_parser("show", help="one key: its machine, all tiers, what was said")
    show.add_argument(
        "key", help="the first digits of its name in the list, or a part of its shape"
    )
    forget = actions.add_parser("forget", help="delete the rows that match")
    _add_filters(forget)
    forget.add_argument("--all", action="store_true", help="all rows")
    export = actions.add_parser("export", help="the rows that match, as JSON")
    _add_filters(export)
    export.add_argument("--out", type=Path, metavar="FILE", help="write there (default: stdout)")
    for action in (listing, show, forget, export):
        action.add_argument("--db", dest="path", metavar="FILE", help="another file")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tier", help="vendor, triton, gemm, conv2d, native, cpu, ...")
    parser.add_argument("--verdict", choices=VERDICTS)
    parser.add_argument("--shape", metavar="TEXT", help="a part of the shape, as the list has it")
    parser.add_argument("--op", choices=("conv2d", "conv3d"))
    parser.add_argument("--dtype", choices=("f32", "f16", "bf16", "f64"))
    parser.add_argument("--architecture", help="gfx1100, sm_90, cpu, ...")
    parser.add_argument(
        "--here", action="store_true", help="only this machine, with its versions of today"
    )


def run_db_command(arguments: argparse.Namespace) -> int:
    """The exit code: 0, or 1 with a sentence on stderr."""
    action = {"list": _list, "show": _show, "forget": _forget, "export": _export}[arguments.db]
    try:
        action(arguments)
    except DatabaseError as error:
        sys.stderr.write(f"hy3d-rocm db: {error}\n")
        return 1
    return 0


def _list(arguments: argparse.Namespace) -> None:
    filters = _filters(arguments)
    with _opened(arguments) as store:
        if store is None:
            _print(f"Nothing is known yet: there is no {_path(arguments)}.")
            return
        rows = _rows(store)
    kept = Filters(**filters).keep(rows)
    blocks = table.groups(kept)
    if not blocks:
        _print(_nothing(rows))
        return
    most = arguments.limit or len(blocks)
    shown = dict(list(blocks.items())[:most])
    _print(table.list_text(Row(key, record) for key in shown for record in shown[key]))
    left = len(blocks) - len(shown)
    if left:
        _print(f"\nand {left} more, older {'key' if left == 1 else 'keys'} (--limit 0 prints all)")


def _show(arguments: argparse.Namespace) -> None:
    wanted = arguments.key
    if not wanted:
        raise DatabaseError("show needs the name of a key, or a part of its shape")
    with _opened(arguments) as store:
        rows = [] if store is None else _rows(store)
    blocks = table.groups(Filters(name=wanted).keep(rows) or Filters(shape=wanted).keep(rows))
    if not blocks:
        raise DatabaseError(f"no key is called {wanted}, and no shape contains it; see db list")
    if len(blocks) > 1:
        names = [f"    {table.brief(key)}" for key in list(blocks)[:10]]
        more = [f"    and {len(blocks) - 10} more"] if len(blocks) > 10 else []
        raise DatabaseError("\n".join([f"{wanted} fits {len(blocks)} keys:", *names, *more]))
    [(key, records)] = blocks.items()
    _print(table.show_text(key, records))


def _forget(arguments: argparse.Namespace) -> None:
    filters = _filters(arguments)
    given = Filters(**filters).given
    if given == arguments.all:
        raise DatabaseError(
            "forget takes --all or filters, not both"
            if given
            else "forget needs to know what: --tier, --verdict, --shape, --op, --dtype,"
            " --architecture, --here, or --all"
        )
    with _opened(arguments) as store:
        if store is None:
            _print(f"Nothing is known yet: there is no {_path(arguments)}.")
            return
        before = _rows(store)
        if store.trouble is not None:
            raise DatabaseError(f"{store.path}: {store.trouble}; nothing was deleted")
        count = store.forget(**filters)
        if not store.flush(_PATIENCE_S):
            why = store.trouble or "the disk does not answer"
            raise DatabaseError(f"{store.path}: {why}; the rows are still there")
    if not count and before:
        _print(_nothing(before))
        return
    _print(f"Deleted {count} {'row' if count == 1 else 'rows'} of {len(before)}.")


def _export(arguments: argparse.Namespace) -> None:
    filters = _filters(arguments)
    with _opened(arguments) as store:
        if store is None:
            raise DatabaseError(f"nothing is known yet: there is no {_path(arguments)}")
        _rows(store)
        facts = store.export(**filters)
    text = json.dumps(facts, indent=1) + "\n"
    if arguments.out is None:
        sys.stdout.write(text)
        return
    try:
        write_whole(arguments.out, text, mode=0o600)
    except OSError as error:
        raise DatabaseError(f"{arguments.out} can't be written: {error.strerror}") from error
    sys.stderr.write(f"{len(facts['rows'])} rows in {arguments.out}\n")


@contextlib.contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[Store | None]:
    """The store; None where there is no file yet, which asking does not make.

    A file that can be read and not written is a store with trouble.
    """
    path = _path(arguments)
    if path == place.IN_MEMORY or not os.path.lexists(path):
        yield None
        return
    store = Store.open(path, patience_s=_PATIENCE_S, announce=False)
    try:
        yield store
    finally:
        store.close()


def _path(arguments: argparse.Namespace) -> str:
    chosen = arguments.path or place.default_path(os.environ, os.path.expanduser("~"))
    return place.absolute(chosen)


def _rows(store: Store) -> list[Row]:
    """All rows; DatabaseError where there are none because they can't be read."""
    rows = store.rows()
    if not rows and store.trouble is not None:
        raise DatabaseError(f"{store.path}: {store.trouble}")
    return rows


def _filters(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("tier", "verdict", "shape", "op", "dtype", "architecture")
    filters: dict[str, Any] = {name: getattr(arguments, name) or None for name in names}
    if arguments.here:
        try:
            filters["machines"] = tuple(machines_here())
        except (ImportError, RuntimeError) as error:
            raise DatabaseError(f"--here needs a torch that works: {error}") from error
    return filters


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


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no number of keys")
    return int(text)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
