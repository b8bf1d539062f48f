"""What is in MIOpen's folders: versions, architectures, entries, sizes, when last written."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from hy3d_rocm.diagnose.miopen.places import (
    Place,
    files_of,
    is_database,
    network_disk,
    places,
    side_files,
)
from hy3d_rocm.units import size_text

FIND, PERFORMANCE, COMPILED, OTHER = "find", "performance", "compiled", "other"
_KINDS = (
    (".ufdb.txt", FIND), (".updb.txt", PERFORMANCE), (".udb.txt", PERFORMANCE),
    (".udb", PERFORMANCE), (".ukdb", COMPILED),
)  # fmt: skip
_TABLES = {".udb": "perf_db", ".ukdb": "kern_db"}
_LONGEST_TEXT_BYTES = 64 << 20
_PATIENCE_S = 0.5
_MOST_LISTED = 100


def collect(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """{"places": [...], "find_entries", "compiled_entries", "bytes"}; JSON-able, never raises.

    A folder that can't be read has an "error"; entries that can't be counted are None, and
    "in_use" lists the side files of a database that is open, or was not closed.
    """
    found = [describe(place) for place in places(environ)]
    files = [file for place in found for file in place["files"]]
    return {
        "places": found,
        "find_entries": sum(f["entries"] or 0 for f in files if f["holds"] == FIND),
        "compiled_entries": sum(f["entries"] or 0 for f in files if f["holds"] == COMPILED),
        "bytes": sum(place["bytes"] for place in found),
    }


def in_a_line(environ: Mapping[str, str]) -> str:
    """MIOpen's find mode and what it has found, for a program's first lines."""
    import torch

    if not getattr(torch.version, "hip", None):
        return "not used by this torch"
    mode = environ.get("MIOPEN_FIND_MODE", "").strip() or "its default"
    return f"find mode {mode}, {_searches(environ)}; convolutions that fail go another way"


def _searches(environ: Mapping[str, str]) -> str:
    facts = collect(environ)
    if not facts["bytes"]:
        return "its database is empty, so the first decode takes longer"
    size = size_text(facts["bytes"])
    return f"{facts['find_entries']} results of earlier searches, {size} on disk"


def describe(place: Place) -> dict[str, Any]:
    """One place: its databases, bytes by version, and whether MIOpen can write there."""
    files: list[dict[str, Any]] = []
    error = ""
    try:
        files += (_file(path, place.path) for path in files_of(place))
    except OSError as failed:
        error = f"{failed.strerror or failed}"
    return {
        "kind": place.kind,
        "path": str(place.path),
        "chosen_by": place.chosen_by,
        "exists": os.path.isdir(place.path),
        "writable": _is_writable(place.path),
        "network_disk": network_disk(place.path),
        "error": error,
        # Of single kernels there may be thousands.
        "files": [file for file in files if file["holds"] != OTHER][:_MOST_LISTED],
        "count": len(files),
        "bytes": sum(file["bytes"] for file in files),
        "last_written": max((file["modified"] for file in files), default=None),
        "versions": _by_version(files),
    }


def kind_of(name: str) -> str:
    """FIND, PERFORMANCE, COMPILED or OTHER, by the file's name."""
    lower = re.sub(r"-(wal|shm|journal)$", "", name.lower())
    return next((kind for ending, kind in _KINDS if lower.endswith(ending)), OTHER)


def version_of(relative: str) -> str:
    """MIOpen's version by a file's path in its place, "" where it is not in it.

    "gfx1100_48.HIP.3_3_0_a85ca8a54.ufdb.txt" and "3.3.0.a85ca8a54/gfx1100_48.ukdb" are "3.3.0".
    """
    found = re.search(r"\.(?:HIP|OCL|OpenCL)\.(\d+)_(\d+)_(\d+)", relative)
    found = found or re.match(r"(\d+)\.(\d+)\.(\d+)(?:\.[\w-]*)?[/\\]", relative)
    return ".".join(found.groups()) if found else ""


def architecture_of(name: str) -> str:
    """The architecture in a database's name: "gfx90a68.ukdb" is gfx90a, "gfx1100_48..." gfx1100.

    Without an underscore the number of compute units follows in hexadecimal.
    """
    found = re.match(r"(gfx(?:9[0-9a-f]{2}|1[0-9a-f]{3}|[78][0-9a-f]{2}))", name)
    return found[1] if found else ""


def _file(path: Path, root: Path) -> dict[str, Any]:
    # As it can be printed: a name may be no UTF-8.
    relative = os.fsencode(path.relative_to(root).as_posix()).decode("utf-8", "backslashreplace")
    try:
        stat = path.stat()
        size, modified = stat.st_size, stat.st_mtime
    except OSError:  # gone since it was listed
        size, modified = 0, 0.0
    return {
        "path": relative,
        "holds": kind_of(path.name),
        "version": version_of(relative),
        "architecture": architecture_of(path.name),
        "bytes": size,
        "modified": modified,
        "entries": entries_in(path),
        "in_use": sides_of(path) if is_database(path.name) else [],
    }


def entries_in(path: Path) -> int | None:
    """How many problems or kernels a database holds; None for what is none or can't be read."""
    table = _TABLES.get(path.suffix.lower())
    try:
        if table is not None:
            return _rows(path, table)
        is_text = path.suffix.lower() == ".txt" and kind_of(path.name) != OTHER
        if is_text and path.stat().st_size <= _LONGEST_TEXT_BYTES:
            with open(path, "rb") as file:  # each entry is a line "key=values" (src/db.cpp)
                return sum(b"=" in line for line in file)
    except (OSError, sqlite3.Error):
        pass
    return None


def _rows(path: Path, table: str) -> int | None:
    """None where the database is in use: counting would write into its -shm, or make one."""
    if path.stat().st_size == 0:
        return 0
    if sides_of(path):
        return None
    with closing(sqlite3.connect(quiet_address(path), uri=True, timeout=_PATIENCE_S)) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def sides_of(path: Path) -> list[str]:
    """Endings of the side files that lie beside a database: it is in use, or was left so."""
    return [side.name[len(path.name) :] for side in side_files(path) if os.path.lexists(side)]


def quiet_address(path: Path) -> str:
    """Opens a database without side files so that none is made; mode=ro makes them for WAL."""
    return f"{path.resolve().as_uri()}?mode=ro&immutable=1"


def _is_writable(path: Path) -> bool:
    """Whether files can be made there, or the folder itself where it isn't there yet."""
    folder = next(f for f in (path, *path.parents) if os.path.lexists(f) or f == f.parent)
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _by_version(files: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes by version, the newest version last; files without one under ""."""
    found: dict[str, int] = {}
    for file in files:
        found[file["version"]] = found.get(file["version"], 0) + file["bytes"]
    return dict(sorted(found.items(), key=lambda item: [int(n) for n in item[0].split(".") if n]))
