"""Where the verdict store's file lies, and whether SQLite can work there."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

FILE_NAME = "knowledge.db"
VARIABLE = "HY3D_ROCM_DB"
IN_MEMORY = ":memory:"

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

    Of mounts at one place the last hides the others. Format: man 5 proc_pid_mountinfo.
    """
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if not separator or len(fields) < 5:
            continue
        # The kernel writes blank, tab, newline and backslash as three octal digits.
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), right.split(" ")[0]
    return kind


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
