"""Archives that depend on the commit alone: not on the clock, the folder, the umask or the user."""

from __future__ import annotations

import gzip
import os
import subprocess
import tarfile
from pathlib import Path

STAMP = "SOURCE_DATE_EPOCH"
# Zip knows no earlier time.
FIRST_EPOCH = 315532800


def source_date(root: Path) -> int:
    """Seconds since 1970: the variable's, else the sdist's, else the commit's, else 1980."""
    word = os.environ.get(STAMP, "")
    if not word and (root / STAMP).is_file():
        word = (root / STAMP).read_text()
    if not word and (root / ".git").exists():
        command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
        try:
            word = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            word = ""
    return max(int(word), FIRST_EPOCH) if word.strip().isdigit() else FIRST_EPOCH


def plain_mode(path: Path, was: int) -> int:
    """0755 for folders and what is run, 0644 for the rest."""
    runs = path.suffix == ".so" or was & 0o100
    return 0o755 if path.is_dir() or runs else 0o644


def plain_modes(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(plain_mode(path, path.stat().st_mode))


def write_tar_gz(target: Path, base: Path, epoch: int) -> None:
    """Packs the folder `base` under its own name: sorted, one time, no owner, plain modes."""
    paths = sorted([base, *base.rglob("*")], key=lambda path: path.as_posix())
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in paths:
            member = archive.gettarinfo(path, path.relative_to(base.parent).as_posix())
            member.mtime = epoch
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = plain_mode(path, member.mode)
            if member.isfile():
                with path.open("rb") as data:
                    archive.addfile(member, data)
            else:
                archive.addfile(member)


def tracked(root: Path) -> set[str] | None:
    """Names of the files that git knows; None outside of a checkout."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "ls-files", "-z"]
    try:
        names = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return set(names.decode().split("\0"))
