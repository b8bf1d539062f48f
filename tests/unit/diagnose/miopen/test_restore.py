"""MIOpen's files put back: databases whole, modes and owners kept."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from miopen_support import (  # noqa: F401
    FIND_DB,
    KERNELS,
    LINKS,
    OLD_FIND_DB,
    everything,
    found_in,
    home_folder,
    make_tree,
    rows_in,
    snapshot,
    target,
    write_in_wal_mode,
)

from hy3d_rocm.diagnose.miopen import backup, places
from hy3d_rocm.diagnose.miopen.backup import ArchiveError


def test_what_restore_writes_over_is_saved_before(home: Path, tmp_path: Path) -> None:
    before = make_tree(home)
    found = found_in(home)
    made = backup.write_backup(found, tmp_path / "b.zip")
    (home / ".config/miopen" / FIND_DB).write_bytes(b"later=1\n")
    (home / ".config/miopen/added.ufdb.txt").write_bytes(b"stays=1\n")
    done = backup.restore(made.path, found, target(tmp_path))
    assert done.backup is not None
    now = snapshot(home)
    assert now.pop(".config/miopen/added.ufdb.txt") == b"stays=1\n"
    assert now == before
    backup.restore(done.backup.path, found, target(tmp_path, "x.zip"))
    assert (home / ".config/miopen" / FIND_DB).read_bytes() == b"later=1\n"


def test_a_restored_database_does_not_take_up_side_files_of_another(
    home: Path, tmp_path: Path
) -> None:
    make_tree(home)
    found = found_in(home)
    path = home / ".cache/miopen" / KERNELS
    first = backup.write_backup(found, tmp_path / "first.zip")
    write_in_wal_mode(path, "later")
    done = backup.restore(first.path, found, target(tmp_path))
    assert done.backup is not None
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert rows_in(path) == ["a", "b"]
    # and back: the database with its -wal, over one without
    backup.restore(done.backup.path, found, target(tmp_path, "third.zip"))
    assert rows_in(path) == ["a", "b", "later"]


def test_a_hot_journal_is_not_rolled_back_into_a_restored_database(
    home: Path, tmp_path: Path
) -> None:
    before = make_tree(home)
    found = found_in(home)
    made = backup.write_backup(found, tmp_path / "first.zip")
    journal = home / ".cache/miopen" / (KERNELS + "-journal")
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(1000))
    backup.restore(made.path, found, target(tmp_path))
    assert snapshot(home) == before


@LINKS
def test_a_side_file_that_can_not_be_removed_stops_the_restoring(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(home)
    found = found_in(home)
    made = backup.write_backup(found, tmp_path / "first.zip")
    side = home / ".cache/miopen" / (KERNELS + "-wal")
    side.symlink_to(tmp_path / "elsewhere")  # no file of MIOpen's: it is in no backup
    before = snapshot(home)
    with pytest.raises(ArchiveError, match=r"0 of 4 files .*ukdb-wal is not in the backup"):
        backup.restore(made.path, found, target(tmp_path))
    assert snapshot(home) == before
    side.unlink()
    side.write_bytes(b"old")
    real = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == side:
            raise PermissionError(errno.EACCES, "Permission denied")
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(ArchiveError, match=r"ukdb-wal can't be removed: Permission denied"):
        backup.restore(made.path, found, target(tmp_path, "second.zip"))


def test_a_backup_of_one_folder_for_both_kinds_is_divided_by_names(
    home: Path, tmp_path: Path
) -> None:
    make_tree(home)
    kernel = f"3.3.0.a85ca8a54/{'ab' * 16}/x.s.o"
    (home / ".cache/miopen" / kernel).parent.mkdir()
    (home / ".cache/miopen" / kernel).write_text("code")
    (home / ".cache/miopen" / FIND_DB).write_text("1=2\n")
    both = found_in(home, MIOPEN_USER_DB_PATH="~/.cache/miopen")
    before = {p.name: p.read_bytes() for p in places.files_of(both[0])}
    made = backup.write_backup(both, tmp_path / "both.zip")
    (tmp_path / "new").mkdir()
    two = found_in(tmp_path / "new")
    backup.restore(made.path, two, target(tmp_path))
    now = snapshot(tmp_path / "new")
    assert now.keys() == {
        f".config/miopen/{FIND_DB}", f".cache/miopen/{KERNELS}", f".cache/miopen/{kernel}"
    }  # fmt: skip
    assert {Path(name).name: content for name, content in now.items()} == before
    # and back into one folder
    made = backup.write_backup(two, tmp_path / "two.zip")
    one = found_in(tmp_path, MIOPEN_USER_DB_PATH="~/one", MIOPEN_CUSTOM_CACHE_DIR="~/one")
    backup.restore(made.path, one, target(tmp_path))
    assert {p.name: p.read_bytes() for p in everything(tmp_path / "one")} == before


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_a_restored_file_keeps_the_mode_of_the_one_it_replaces(home: Path, tmp_path: Path) -> None:
    make_tree(home)
    found = found_in(home)
    made = backup.write_backup(found, tmp_path / "a.zip")
    kept, gone = home / ".config/miopen" / FIND_DB, home / ".config/miopen" / OLD_FIND_DB
    kept.chmod(0o664)
    gone.unlink()
    kernels = home / ".cache/miopen" / KERNELS
    kernels.chmod(0o606)
    kernels.with_name(kernels.name + "-wal").write_text("")  # so that it is removed beforehand
    before = os.umask(0o027)
    try:
        backup.restore(made.path, found, target(tmp_path))
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o7777 for path in (kept, gone, kernels)] == [
        0o664, 0o640, 0o606
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="owners are POSIX's")
def test_a_restored_file_belongs_to_whom_the_old_one_or_its_folder_belongs(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(home)
    found = found_in(home)
    made = backup.write_backup(found, tmp_path / "a.zip")
    kernels = home / ".cache/miopen" / KERNELS
    kernels.unlink()
    kernels.parent.rmdir()
    asked: list[tuple[int, int]] = []

    def chown(path: Any, user: int, group: int) -> None:
        asked.append((user, group))
        raise PermissionError(errno.EPERM, "Operation not permitted")  # as for most users

    monkeypatch.setattr(os, "chown", chown)
    backup.restore(made.path, found, target(tmp_path))
    assert len(asked) == 5  # four files and a folder
    assert set(asked) == {(home.stat().st_uid, home.stat().st_gid)}
    assert kernels.is_file()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_root_gives_restored_files_to_the_owner(home: Path, tmp_path: Path) -> None:
    make_tree(home)
    found = found_in(home)
    made = backup.write_backup(found, tmp_path / "a.zip")
    find_db, kernels = home / ".config/miopen" / FIND_DB, home / ".cache/miopen" / KERNELS
    os.chown(find_db, 1234, 1235)
    os.chown(kernels.parent.parent, 1236, 1237)
    kernels.unlink()
    kernels.parent.rmdir()
    backup.restore(made.path, found, target(tmp_path))
    owners = [(p.stat().st_uid, p.stat().st_gid) for p in (find_db, kernels.parent, kernels)]
    assert owners == [(1234, 1235), (1236, 1237), (1236, 1237)]
