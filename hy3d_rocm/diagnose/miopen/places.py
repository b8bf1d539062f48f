"""Where MIOpen keeps what it has compiled and found out, which files there are its own, and what is
in them: versions, architectures, entries, sizes, when last written.

Read in ROCm/MIOpen 2d1fd99 (3.3.0): CMakeLists.txt (the defaults), src/db_path.cpp.in and
src/binary_cache.cpp (the variables; a home folder on a network disk is not used),
src/include/miopen/execution_context.hpp and src/find_db.cpp (the files' names). Kernels lie in a
folder named by the version in the default place, and without one where the variable names it.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hy3d_rocm import files
from hy3d_rocm.units import size_text

KERNELS, DATABASES = "kernels", "databases"
VARIABLES = {DATABASES: "MIOPEN_USER_DB_PATH", KERNELS: "MIOPEN_CUSTOM_CACHE_DIR"}
_DEFAULTS = {
    False: {DATABASES: (".config", "miopen"), KERNELS: (".cache", "miopen")},
    True: {DATABASES: (".miopen", "db"), KERNELS: (".miopen", "cache")},
}
# What statfs() must say for MIOpen to leave the home folder alone (src/expanduser.cpp).
NETWORK_DISKS = frozenset("nfs nfs4 smb smb2 smb3 smbfs cifs coda ocfs2 afs lustre ceph".split())
_OWN_NAME = re.compile(
    r".*\.(?:ufdb\.txt|udb\.txt|updb\.txt|udb|ukdb)(?:-wal|-shm|-journal)?", re.IGNORECASE
)
_OBJECT_FOLDER = re.compile(r"[0-9a-f]{32}")
_ANY = re.compile(r".*", re.DOTALL)
_OBJECTS = (_OBJECT_FOLDER, "objects")
_VERSIONS = (re.compile(r"\d+\.\d+\.\d+(?:\.[\w-]*)?"), "version")
# A kind of folder -> which of its files are MIOpen's, which folders in it are of which kind. In a
# shared one files have MIOpen's names, also in folders named by a version, where kernels are kept;
# single kernels are "<name>.o", and a folder of such a name may be another program's.
_FOLDERS: dict[str, tuple[re.Pattern[str], tuple[tuple[re.Pattern[str], str], ...]]] = {
    "own": (_ANY, ((_ANY, "own"),)),
    "shared": (_OWN_NAME, (_OBJECTS, _VERSIONS)),
    "version": (_OWN_NAME, (_OBJECTS,)),
    "objects": (re.compile(r".*\.o", re.DOTALL), ()),
}
_SIDE_ENDINGS = ("-wal", "-shm", "-journal")
_MOST_FILES = 200_000
FIND, PERFORMANCE, COMPILED, OTHER = "find", "performance", "compiled", "other"
_KINDS = (
    (".ufdb.txt", FIND), (".updb.txt", PERFORMANCE), (".udb.txt", PERFORMANCE),
    (".udb", PERFORMANCE), (".ukdb", COMPILED),
)  # fmt: skip
_TABLES = {".udb": "perf_db", ".ukdb": "kern_db"}
_LONGEST_TEXT_BYTES = 64 << 20
_PATIENCE_S = 0.5
_MOST_LISTED = 100


@dataclass(frozen=True)
class Place:
    """A folder of MIOpen's.

    kind: DATABASES or KERNELS. chosen_by: the variable that names it, "default", or
    "network" (MIOpen takes the temporary folder, since the home folder is on a network disk).
    is_shared: other programs may keep files there, so only those with MIOpen's names are its own.
    inner: other places below this one, as real paths; what is there is theirs alone.
    """

    kind: str
    path: Path
    chosen_by: str
    inner: frozenset[str] = frozenset()

    @property
    def is_shared(self) -> bool:
        return self.chosen_by != "default"


def places(environ: Mapping[str, str] = os.environ, *, windows: bool | None = None) -> list[Place]:
    """The folders that MIOpen uses in this environment, whether they exist or not.

    One place each for databases and kernels, one alone where both are the same folder.
    """
    windows = sys.platform == "win32" if windows is None else windows
    found: list[Place] = []
    for kind, variable in VARIABLES.items():
        place = _place(kind, variable, environ, windows)
        if all(_real(place.path) != _real(other.path) for other in found):
            found.append(place)
    reals = [_real(place.path) for place in found]
    below = [
        frozenset(real for real in reals if real.startswith(os.path.join(root, "")))
        for root in reals
    ]
    return [replace(place, inner=inner) for place, inner in zip(found, below, strict=True)]


def home_of(environ: Mapping[str, str], windows: bool) -> Path:
    """The user's folder as MIOpen looks it up."""
    home = environ.get("USERPROFILE" if windows else "HOME", "")
    return Path(home) if home else Path(os.path.expanduser("~"))


def _place(kind: str, variable: str, environ: Mapping[str, str], windows: bool) -> Place:
    home = home_of(environ, windows)
    chosen = environ.get(variable, "")
    if chosen:
        path = home / chosen[2:] if chosen.startswith("~/") else Path(chosen)
        return Place(kind, Path(os.path.abspath(path)), variable)
    path = home.joinpath(*_DEFAULTS[windows][kind])
    if not windows and network_disk(path):
        return Place(kind, Path(tempfile.gettempdir()), "network")
    return Place(kind, path, "default")


def network_disk(path: Path) -> str:
    """The kind of network disk for which MIOpen does not use this folder, "" for any other."""
    kind = files.network_disk(existing(path))
    return kind if kind in NETWORK_DISKS else ""


def existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    return next((f for f in (path, *path.parents) if os.path.isdir(f)), Path(path.anchor))


def kind_by_name(relative: str) -> str:
    """KERNELS or DATABASES, by a file's path in a folder that holds both."""
    *folders, name = relative.split("/")
    is_kernel = ".ukdb" in name.lower() or any(_OBJECT_FOLDER.fullmatch(f) for f in folders)
    return KERNELS if is_kernel else DATABASES


def is_database(name: str) -> bool:
    """Whether a file of this name is SQLite's."""
    return name.lower().endswith((".ukdb", ".udb"))


def side_files(database: Path) -> list[Path]:
    """Where SQLite keeps what is not yet, or no longer, in a database; there or not."""
    return [database.with_name(database.name + ending) for ending in _SIDE_ENDINGS]


def files_of(place: Place) -> Iterator[Path]:
    """MIOpen's regular files in a place, in a fixed order; links are neither given nor followed.

    OSError where a folder can't be listed: who saves or deletes must know of it.
    """
    if not os.path.lexists(place.path):
        return
    found = _walk(place.path, place.inner, "shared" if place.is_shared else "own")
    for count, path in enumerate(found):
        if count >= _MOST_FILES:
            raise OSError(f"{place.path} has more than {_MOST_FILES} files")
        yield path


def _walk(folder: Path, inner: frozenset[str], kind: str) -> Iterator[Path]:
    files, folders = _FOLDERS[kind]
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            below = next((kind for name, kind in folders if name.fullmatch(entry.name)), "")
            if below and not (inner and _real(entry.path) in inner):
                yield from _walk(Path(entry.path), inner, below)
        elif entry.is_file(follow_symlinks=False) and files.fullmatch(entry.name):
            yield Path(entry.path)


def _real(path: Path | str) -> str:
    return os.path.normcase(os.path.realpath(path))


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
    facts = collect(environ)
    size = size_text(facts["bytes"])
    found = f"{facts['find_entries']} results of earlier searches, {size} on disk"
    if not facts["bytes"]:
        found = "its database is empty, so the first decode takes longer"
    return f"find mode {mode}, {found}; convolutions that fail go another way"


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
