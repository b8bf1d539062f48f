"""Archives that are damaged, hostile, or do not fit."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import random
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from miopen_support import (  # noqa: F401
    FIND_DB,
    LINKS,
    at_home,
    everything,
    found_in,
    home_folder,
    linked,
    make_tree,
    plain,
    snapshot,
    tar_with,
    target,
)

import hy3d_rocm
from hy3d_rocm import cli
from hy3d_rocm.diagnose.miopen import backup, command
from hy3d_rocm.diagnose.miopen.backup import ArchiveError


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (plain("databases/../../evil"), "no name that a backup of ours holds"),
        (plain("/etc/evil"), "no name that"),
        (plain("elsewhere/evil"), "no name that"),
        (plain("databases"), "no name that"),
        (linked("databases/link", tarfile.SYMTYPE), "no plain file"),
        (linked("databases/link", tarfile.LNKTYPE), "no plain file"),
        (linked("databases/pipe", tarfile.FIFOTYPE), "no plain file"),
        (plain("databases/good"), "no hy3d_rocm_miopen.json"),
    ],
)
def test_an_archive_that_is_none_of_ours_is_refused(
    home: Path, tmp_path: Path, member: tuple[tarfile.TarInfo, bytes], words: str
) -> None:
    before = make_tree(home)
    path = tar_with(tmp_path / "evil.tar.gz", member)
    with pytest.raises(ArchiveError, match=words):
        backup.restore(path, found_in(home), target(tmp_path))
    assert snapshot(tmp_path) == {
        "evil.tar.gz": path.read_bytes(), **{f"home/{n}": c for n, c in before.items()},
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["C:evil", "a\\..\\evil", "evil. ", "a./b", "a\nb", "con?", "NUL.db"]
)
def test_names_that_windows_takes_for_others_are_refused_there(name: str) -> None:
    with pytest.raises(ArchiveError, match=r"a\.zip: Windows can't hold"):
        backup.check_name(f"databases/{name}", Path("a.zip"), windows=True)
    backup.check_name(f"databases/{name}", Path("a.zip"), windows=False)


@pytest.mark.skipif(sys.platform != "linux", reason="no such names elsewhere")
@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
def test_odd_names_are_saved_and_put_back(home: Path, tmp_path: Path, ending: str) -> None:
    make_tree(home)
    names = [b"a:b", b"dot.", b"back\\slash", b"new\nline", "\u00e4".encode()]
    if ending == "tar.gz":
        names.append(b"latin\xe4")
    for name in names:
        (home / ".config/miopen" / os.fsdecode(name)).write_text("1=2\n")
    before = snapshot(home)
    done = backup.clear(found_in(home), target(tmp_path, f"a.{ending}"))
    assert done.backup is not None
    assert snapshot(home) == {}
    backup.restore(done.backup.path, found_in(home), target(tmp_path))
    assert snapshot(home) == before


@pytest.mark.skipif(sys.platform != "linux", reason="no such names elsewhere")
def test_a_name_that_a_zip_can_not_hold_is_told(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tree(home)
    (home / ".config/miopen" / os.fsdecode(b"latin\xe4.ufdb.txt")).write_text("1=2\n")
    before = snapshot(home)
    for name, value in at_home(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(command, "users_of", lambda *_: [])
    assert cli.main(["miopen", "clear", "--backup", str(tmp_path / "a.zip")]) == 1
    said = capsys.readouterr().err
    assert "latin\\udce4.ufdb.txt' is not UTF-8" in said
    assert ".part" not in said
    assert snapshot(home) == before
    assert [p.name for p in tmp_path.iterdir()] == ["home"]
    assert cli.main(["miopen", "info"]) == 0
    assert "latin\\xe4.ufdb.txt" in capsys.readouterr().out.encode().decode()


def test_a_name_that_can_not_be_decoded_is_a_sentence(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        b"\xe4".decode()

    (tmp_path / "a.zip").touch()
    monkeypatch.setattr(zipfile, "ZipFile", refuse)
    with pytest.raises(ArchiveError, match=r"can't be read: .*codec can't decode"):
        backup.restore(tmp_path / "a.zip", found_in(home), target(tmp_path))


def test_a_link_in_a_zip_is_refused(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "evil.zip"
    with zipfile.ZipFile(path, "w") as file:
        entry = zipfile.ZipInfo("databases/link")
        entry.external_attr = 0o120777 << 16
        file.writestr(entry, "/etc/passwd")
    with pytest.raises(ArchiveError, match="no plain file"):
        backup.restore(path, found_in(home), target(tmp_path))


def test_a_file_that_changed_in_the_archive_is_refused(home: Path, tmp_path: Path) -> None:
    index = {"format": 1, "files": {"databases/a": [4, "0" * 64]}}
    path = tar_with(
        tmp_path / "a.tar.gz",
        plain("databases/a"), plain(backup.INDEX, json.dumps(index).encode()),
    )  # fmt: skip
    with pytest.raises(ArchiveError, match="not what it was when it was saved"):
        backup.restore(path, found_in(home), target(tmp_path))


@pytest.mark.parametrize("name", ["b.tar.gz", "b.zip"])
def test_half_an_archive_is_refused_and_nothing_changes(
    home: Path, tmp_path: Path, name: str
) -> None:
    before = make_tree(home)
    made = backup.write_backup(found_in(home), tmp_path / name)
    whole = made.path.read_bytes()
    for part in (0, 10, len(whole) // 2):
        made.path.write_bytes(whole[:part])
        with pytest.raises(ArchiveError):
            backup.restore(made.path, found_in(home), target(tmp_path))
    assert snapshot(home) == before


@pytest.mark.parametrize("name", ["b.tar.gz", "b.zip"])
def test_damage_anywhere_in_an_archive_is_a_sentence(home: Path, tmp_path: Path, name: str) -> None:
    """Bytes of headers, too, with the check sums set right: the readers' own errors are many."""
    make_tree(home)
    made = backup.write_backup(found_in(home), tmp_path / name)
    whole, rng = made.path.read_bytes(), random.Random(name)
    for number in range(400):
        data = bytearray(whole)
        if name.endswith(".gz") and number % 2:
            data = bytearray(gzip.decompress(whole))
            for _ in range(3):
                block = rng.randrange(len(data) // 512) * 512
                data[block + rng.choice((0, 100, 124, 125, 135, 156, 157, 257))] = rng.randrange(
                    256
                )
            for block in range(0, len(data) - 511, 512):
                if data[block + 257 : block + 262] == b"ustar":
                    data[block + 148 : block + 156] = b" " * 8
                    data[block + 148 : block + 156] = b"%06o\0 " % sum(data[block : block + 512])
            data = bytearray(gzip.compress(bytes(data), 1))
        else:
            for _ in range(3):
                data[rng.randrange(len(data))] = rng.randrange(256)
        made.path.write_bytes(data)
        with contextlib.suppress(ArchiveError):  # anything else is a traceback
            backup.read_backup(made.path)


@pytest.mark.parametrize(
    "index",
    ["[" * 100_000, '{"files": {"a": [Infinity, "x"]}}', '{"files": {"a": [1e999, "x"]}}',
     '{"files": {"a": [' + "9" * 5000 + ', "x"]}}', '{"files": 5}', "null"],
)  # fmt: skip
def test_an_index_of_nonsense_is_a_sentence(tmp_path: Path, index: str) -> None:
    path = tar_with(tmp_path / "a.tar.gz", plain(backup.INDEX, index.encode()))
    with pytest.raises(ArchiveError):
        backup.read_backup(path)
    with pytest.raises(ArchiveError, match="can't be read"):
        backup.read_backup(tmp_path / "a\0b.zip")


def index_of(number: object) -> bytes:
    """As the first version with backups (2a4c088d) wrote it for a file of "x=1\\n"."""
    digest = "98752ee28d5484bdc2814fb70adb6a0b2fb31f6a9b8ee7ae81fd2fc9cf300b3b"
    index = {
        "format": number,
        "made": "2026-11-21T17:00:00Z",
        "places": {"databases": "/home/me/.config/miopen"},
        "files": {"databases/a.ufdb.txt": [4, digest]},
    }
    return json.dumps(index, indent=1).encode()


def test_a_backup_of_the_first_version_with_backups_is_read(tmp_path: Path) -> None:
    members = plain("databases/a.ufdb.txt", b"x=1\n"), plain(backup.INDEX, index_of(1))
    [saved] = backup.read_backup(tar_with(tmp_path / "a.tar.gz", *members))
    assert (saved.name, saved.size) == ("databases/a.ufdb.txt", 4)


def test_a_backup_of_another_format_names_both_and_nothing_is_restored(
    home: Path, tmp_path: Path
) -> None:
    before = make_tree(home)
    members = plain("databases/a.ufdb.txt", b"x=1\n"), plain(backup.INDEX, index_of(2))
    path = tar_with(tmp_path / "a.tar.gz", *members)
    with pytest.raises(ArchiveError) as caught:
        backup.restore(path, found_in(home), target(tmp_path))
    assert str(caught.value) == (
        f"{path} was made by another version of this program (format 2; this one, "
        f"{hy3d_rocm.__version__}, reads 1): restore it with that one"
    )
    assert snapshot(home) == before


@LINKS
def test_restore_does_not_write_through_a_link(home: Path, tmp_path: Path) -> None:
    make_tree(home)
    found = found_in(home)
    made = backup.clear(found, target(tmp_path)).backup
    assert made is not None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home / ".cache/miopen").mkdir(parents=True, exist_ok=True)
    (home / ".cache/miopen/3.3.0.a85ca8a54").symlink_to(elsewhere)
    with pytest.raises(ArchiveError, match="is or has a link"):
        backup.restore(made.path, found, target(tmp_path, "c.zip"))
    assert everything(elsewhere) == []


def test_restore_asks_for_room_first(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(home)
    made = backup.clear(found_in(home), target(tmp_path)).backup
    assert made is not None
    usage = backup.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(backup.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(ArchiveError, match="10 B are free"):
        backup.restore(made.path, found_in(home), target(tmp_path, "c.zip"))
    assert snapshot(home) == {}


def test_a_disk_that_fills_up_while_restoring_is_said_with_what_there_is(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_tree(home)
    found = found_in(home)
    made = backup.write_backup(found, tmp_path / "b.zip")
    (home / ".config/miopen" / FIND_DB).write_bytes(b"later=1\n")
    later = snapshot(home)
    real, calls = backup._copy, 0

    def copy(source: Any, file: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 3:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(source, file)

    monkeypatch.setattr(backup, "_copy", copy)
    with pytest.raises(
        ArchiveError, match=r"2 of 4 files were put back, then: .*No space left"
    ) as e:
        backup.restore(made.path, found, target(tmp_path))
    assert str(tmp_path / "kept" / "backup.tar.gz") in str(e.value)
    assert all(content in (before[name], later[name]) for name, content in snapshot(home).items())
    assert snapshot(home).keys() == before.keys()
