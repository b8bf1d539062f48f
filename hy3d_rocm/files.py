"""Files that are complete or not there, with time stamps under test_data/, JSON that any reader
takes, names and disks that are not like others. Imports no torch."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import ntpath
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path, PureWindowsPath
from typing import IO, Any, TypeVar

from hy3d_rocm import __version__
from hy3d_rocm.diagnose.env.shown import printable

T = TypeVar("T")

ROOT = Path("test_data")
DEBUG, OPTIMIZATION, BENCHMARKS = ROOT / "debug", ROOT / "optimization", ROOT / "benchmarks"

# Windows' own numbers: a sharing violation, a lock violation, access denied.
SHARING = (32, 33)
_HELD = (*SHARING, 5)
_PATIENCE_SECONDS = 3.0
# A path has 260 characters there, a folder's 248; what we put beside a file or below it is longer.
_LONG = 200
# With any ending: NUL.mp4 is the device, too.
_DEVICE = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[1-9\xb9\xb2\xb3])\s*(?:[.].*)?", re.IGNORECASE
)

# Write-ahead logging needs memory that all processes share: SQLite's documentation rules out
# network file systems (https://sqlite.org/wal.html). virtiofs and 9p are another machine's disk.
_NETWORK = frozenset(
    "9p afs beegfs ceph cifs coda fhgfs fuse gfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 "
    "orangefs panfs prl_fs pvfs2 smb2 smb3 smbfs vboxsf virtiofs vmhgfs".split()
)
# A file system in user space may be anything; these keep their data on a local disk.
_LOCAL_FUSE = frozenset(
    "bindfs encfs exfat ext2 fuse-overlayfs gocryptfs lowntfs-3g mergerfs ntfs ntfs-3g".split()
)
_DRIVE_REMOTE = 4  # GetDriveTypeW


def is_held(error: BaseException | None) -> bool:
    """Whether Windows says that a file can't be had because a program has it open, or that nobody
    may have it, which it does not tell apart. Never so elsewhere."""
    return getattr(error, "winerror", None) in _HELD


def patiently(act: Callable[..., T], *arguments: Any) -> T:
    """act(*arguments), retried for some seconds while is_held(): a scanner of viruses, a search
    index or a folder that is copied to a server opens each new file for a moment."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return act(*arguments)
        except OSError as error:
            if not is_held(error) or time.monotonic() >= end:
                raise
        time.sleep(0.05)


def is_windows_name(name: str) -> bool:
    """Whether Windows can give a file that name, and no other in its place: it drops dots and
    blanks at the end, has devices of some names, and a colon begins a second stream of a file."""
    return not (
        name != name.rstrip(" .")
        or any(c in '\\/:*?"<>|' or ord(c) < 32 for c in name)
        or _DEVICE.fullmatch(name)
    )


def reachable(path: Path) -> Path:
    r"""On Windows a path that comes near its limit as \\?\C:\..., which has none."""
    if sys.platform == "win32":
        full = ntpath.abspath(path)
        if len(full) > _LONG and not full.startswith((r"\\?", r"\\.")):
            return Path(r"\\?\UNC" + full[1:] if full.startswith(r"\\") else r"\\?" + "\\" + full)
    return path


def network_disk(folder: Path) -> str | None:
    """The kind of network file system that the existing `folder` is on, None for a local one."""
    if sys.platform == "win32":
        return "a network drive" if _is_remote_drive(str(folder)) else None
    try:
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        kind = file_system(table, str(folder.resolve()))
    except OSError:
        return None
    return kind if is_network(kind) else None


def file_system(mountinfo: str, path: str) -> str:
    """The file system type of an absolute `path` by the kernel's table; "" if it isn't in it.

    Of mounts at one place the last hides the others.
    """
    best, kind = -1, ""
    for point, _, its_kind, _ in mounts(mountinfo):
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), its_kind
    return kind


def mounts(mountinfo: str) -> Iterator[tuple[str, str, str, str]]:
    """Of each line of the kernel's table: where it is mounted, which part of the file system it
    shows, the type and the options of that. Format: man 5 proc_pid_mountinfo."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) >= 5 and len(kind) >= 3:
            # The kernel writes blank, tab, newline and backslash as three octal digits.
            shown, point = (
                re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
                for text in fields[3:5]
            )
            yield point, shown, kind[0], kind[2]


def is_network(kind: str) -> bool:
    """Whether that type is on another machine, or may be (unknown ones in user space)."""
    if kind.startswith("fuse."):
        return kind.removeprefix("fuse.") not in _LOCAL_FUSE
    return kind in _NETWORK


def is_unc(path: str) -> bool:
    r"""Whether a Windows path names a server: \\server\share, //server/share, \\?\UNC\server\...

    \\?\C:\x and \\.\device are local.
    """
    text = path.replace("/", "\\")
    if text.startswith("\\\\?\\"):
        return text[4:8].upper() == "UNC\\"
    return text.startswith("\\\\") and not text.startswith("\\\\.\\")


def _is_remote_drive(path: str) -> bool:
    """Windows: a server's path, or a letter that is connected to one."""
    if sys.platform == "win32" and not is_unc(path):
        import ctypes

        root = PureWindowsPath(path).drive + "\\"
        return int(ctypes.windll.kernel32.GetDriveTypeW(root)) == _DRIVE_REMOTE
    return is_unc(path)


def formats_text(found: object, known: int) -> str:
    """For a file of another version of hy3d_rocm: its format number, whatever it is, and ours."""
    return f"(format {printable(str(found), 20)}; this one, {__version__}, reads {known})"


def partial_of(path: Path) -> Path:
    """Where `path` is written until it is complete."""
    return path.with_name(path.name + ".partial")


def stamped(folder: Path, stem: str, suffix: str, now: datetime | None = None) -> Path:
    """A path in `folder` (made where it is missing) that nobody else is given: stem_20260131_235959
    .json, in UTC, with _2, _3 ... where several fall into one second. `suffix` with its dot.

    The name, with any suffix, is the caller's: an empty NAME.partial keeps it until write_json()
    has written `path`, which is there from then on.
    """
    folder = reachable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    moment = f"{now or datetime.now(UTC):%Y%m%d_%H%M%S}"
    for number in itertools.count(1):
        path = folder / f"{stem}_{moment}{f'_{number}' if number > 1 else ''}{suffix}"
        try:
            partial_of(path).touch(exist_ok=False)
        except FileExistsError:
            continue
        # Looked at now: whoever had the name before has written it, or has let it go.
        if not path.exists():
            return path
        partial_of(path).unlink(missing_ok=True)
    raise AssertionError("numbers end")


def let_go(path: Path) -> None:
    """The name that stamped() gave is not used."""
    with contextlib.suppress(OSError):
        partial_of(path).unlink()


def write_json(path: Path, data: Any) -> None:
    """`data` in strict JSON; the file is complete or not there."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(plain(data), indent=1) + "\n", encoding="utf-8")


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """All of it or nothing. mode: of the file. OSError where that fails."""
    with beside(path, f".{path.name}") as (file, name):
        file.write(text.encode())
        os.chmod(name, mode)


@contextlib.contextmanager
def beside(path: Path, prefix: str) -> Iterator[tuple[IO[bytes], Path]]:
    """A file in the folder of `path` under a name that nobody else has, open to write and read. It
    becomes `path`, or goes where that fails."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=".part")
    with replacing(path, Path(name)) as partial, os.fdopen(handle, "w+b") as file:
        yield file, partial


@contextlib.contextmanager
def replacing(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """A name to write to inside, which becomes `path`, or goes where that fails."""
    partial = partial or partial_of(path)
    try:
        yield partial
        patiently(os.replace, partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def settle(file: Any) -> None:
    """What was written to the open `file` is on the disk afterwards."""
    file.flush()
    os.fsync(file.fileno())


def settle_folder(folder: Path) -> None:
    """The folder's entries are on the disk afterwards, where the system can say that."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: as text. Tuples become lists, what JSON lacks its text."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)
