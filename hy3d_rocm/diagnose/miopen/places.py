"""Where MIOpen keeps what it has compiled and found out, and which files there are its own.

Read in ROCm/MIOpen 2d1fd99 (3.3.0): CMakeLists.txt (the defaults), src/db_path.cpp.in and
src/binary_cache.cpp (the variables; a home folder on a network disk is not used),
src/include/miopen/execution_context.hpp and src/find_db.cpp (the files' names). Kernels lie in a
folder named by the version in the default place, and without one where the variable names it.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hy3d_rocm import files

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
