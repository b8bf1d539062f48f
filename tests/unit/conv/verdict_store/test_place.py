"""Where the verdict store's file lies, and which disks are on another machine."""

from __future__ import annotations

import pytest

from hy3d_rocm import files
from hy3d_rocm.conv.verdict_store import database

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:30 / /home rw - nfs4 server:/home rw,vers=4.2
41 40 0:31 / /home/me/local rw - btrfs /dev/sdb rw
42 27 0:32 / /mnt/with\040blank rw - cifs //nas/share rw
43 27 0:33 / /mnt/c rw - 9p drvfs rw
44 27 0:34 / /mnt/over rw - ext4 /dev/sdc rw
45 44 0:35 / /mnt/over rw - fuse.sshfs me@host: rw
a line that makes no sense
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/work", "ext4"),
        ("/home/me/.local/share", "nfs4"),
        ("/home/me/local", "btrfs"),
        ("/home/me/local/share", "btrfs"),
        ("/home/me/localised", "nfs4"),
        ("/homeless", "ext4"),
        ("/mnt/with blank/x", "cifs"),
        ("/mnt/over/x", "fuse.sshfs"),
        ("/mnt/c/Users/me", "9p"),
        ("/", "ext4"),
    ],
)
def test_the_kernels_table_tells_the_file_system(folder: str, kind: str) -> None:
    assert files.file_system(MOUNTS, folder) == kind


def test_network_disks_are_told_from_local_ones() -> None:
    remote = "nfs nfs4 cifs smb3 9p virtiofs ceph lustre afs fuse fuse.sshfs fuse.rclone fuse.s3fs"
    local = "ext4 xfs btrfs tmpfs overlay zfs f2fs vfat fuseblk fuse.gocryptfs fuse.mergerfs"
    assert all(map(files.is_network, remote.split()))
    assert not any(map(files.is_network, [*local.split(), ""]))


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        (r"\\server\share\hy3d_rocm", True),
        ("//server/share/hy3d_rocm", True),
        (r"\\?\UNC\server\share", True),
        (r"\\?\unc\server\share", True),
        (r"\\wsl.localhost\Ubuntu\home", True),
        (r"C:\Users\me", False),
        (r"\\?\C:\Users\me", False),
        (r"\\.\C:", False),
        (r"relative\path", False),
    ],
)
def test_windows_servers_are_known_by_their_path(path: str, remote: bool) -> None:
    assert files.is_unc(path) is remote


@pytest.mark.parametrize(
    ("environ", "windows", "expected"),
    [
        ({}, False, "/home/me/.local/share/hy3d_rocm/knowledge.db"),
        ({"XDG_DATA_HOME": "/data"}, False, "/data/hy3d_rocm/knowledge.db"),
        ({"XDG_DATA_HOME": "not/absolute"}, False, "/home/me/.local/share/hy3d_rocm/knowledge.db"),
        ({"XDG_DATA_HOME": "/data", "HY3D_ROCM_DB": "/x/y.db"}, False, "/x/y.db"),
        ({"HY3D_ROCM_DB": ":memory:"}, True, ":memory:"),
        ({"LOCALAPPDATA": r"D:\Local"}, True, r"D:\Local\hy3d_rocm\knowledge.db"),
        ({"XDG_DATA_HOME": "/data"}, True, r"\home\me\AppData\Local\hy3d_rocm\knowledge.db"),
    ],
)
def test_default_path(environ: dict[str, str], windows: bool, expected: str) -> None:
    assert database.default_path(environ, "/home/me", windows=windows) == expected
