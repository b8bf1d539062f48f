"""MIOpen's files: found, counted, saved, cleared and put back, on made-up trees, with faults."""

from __future__ import annotations

import errno
import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hy3d_rocm import cli
from hy3d_rocm.doctor.miopen import archive, changes, contents, places, users
from hy3d_rocm.doctor.miopen.archive import ArchiveError

FIND_DB = "gfx1100_48.HIP.3_3_0_a85ca8a54.ufdb.txt"
OLD_FIND_DB = "gfx1100_48.HIP.3_2_0_5f7f6f2.ufdb.txt"
KERNELS = "3.3.0.a85ca8a54/gfx1100_48.ukdb"


def make_tree(home: Path) -> dict[str, bytes]:
    """A home folder as MIOpen leaves it. Path in the home folder -> content."""
    files = {
        f".config/miopen/{FIND_DB}": b"64-4-4=a:1\n128-8-8=b:2;c:3\n",
        f".config/miopen/{OLD_FIND_DB}": b"64-4-4=a:1\n",
        ".config/miopen/gfx1100_48.udb.txt": b"x=y\n",
    }
    for name, content in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    kernels = home / ".cache/miopen" / KERNELS
    kernels.parent.mkdir(parents=True)
    with sqlite3.connect(kernels) as database:
        database.execute("CREATE TABLE kern_db (id INTEGER PRIMARY KEY, kernel_name TEXT)")
        database.executemany("INSERT INTO kern_db(kernel_name) VALUES (?)", [("a",), ("b",)])
    database.close()
    return {p.relative_to(home).as_posix(): p.read_bytes() for p in everything(home)}


def everything(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def snapshot(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in everything(folder)}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


def found_in(home: Path, **variables: str) -> list[places.Place]:
    return places.places({"HOME": str(home), **variables}, windows=False)


def target(tmp_path: Path, name: str = "backup.tar.gz") -> Callable[[], Path]:
    return lambda: tmp_path / "kept" / name


# Where they are


def test_the_folders_are_those_of_the_platform(home: Path) -> None:
    linux = found_in(home)
    assert [(p.kind, p.path) for p in linux] == [
        ("databases", home / ".config/miopen"), ("kernels", home / ".cache/miopen"),
    ]  # fmt: skip
    windows = places.places({"USERPROFILE": str(home)}, windows=True)
    assert [p.path for p in windows] == [home / ".miopen/db", home / ".miopen/cache"]


def test_the_variables_choose_the_folders(home: Path) -> None:
    found = found_in(home, MIOPEN_USER_DB_PATH="~/a", MIOPEN_CUSTOM_CACHE_DIR=str(home / "b"))
    assert [(p.path, p.chosen_by) for p in found] == [
        (home / "a", "MIOPEN_USER_DB_PATH"), (home / "b", "MIOPEN_CUSTOM_CACHE_DIR"),
    ]  # fmt: skip
    both = found_in(home, MIOPEN_USER_DB_PATH=str(home), MIOPEN_CUSTOM_CACHE_DIR=f"{home}/.")
    assert len(both) == 1


def test_a_home_on_a_network_disk_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places.disks, "network_disk", lambda folder: "nfs4")
    assert {p.chosen_by for p in found_in(home)} == {"network"}
    monkeypatch.setattr(places.disks, "network_disk", lambda folder: "virtiofs")
    assert {p.chosen_by for p in found_in(home)} == {"default"}


def test_in_a_shared_folder_only_miopens_names_are_its_own(home: Path) -> None:
    (home / "letters.txt").write_text("mine")
    (home / FIND_DB).write_text("1=2\n")
    (home / "gfx1100_48.ukdb-wal").write_text("")
    (home / ("ab" * 16)).mkdir()
    (home / ("ab" * 16) / "kernel.o").write_text("code")
    (home / "photos").mkdir()
    (home / "photos" / "a.ukdb").write_text("not at MIOpen's depth")
    found = found_in(home, MIOPEN_USER_DB_PATH=str(home), MIOPEN_CUSTOM_CACHE_DIR=str(home))
    names = {p.relative_to(home).as_posix() for p in places.files_of(found[0])}
    assert names == {FIND_DB, "gfx1100_48.ukdb-wal", f"{'ab' * 16}/kernel.o"}


@pytest.mark.parametrize("both", [False, True])
def test_where_a_variable_names_the_kernels_folder_all_of_miopens_files_are_seen(
    home: Path, tmp_path: Path, both: bool
) -> None:
    make_tree(home)
    cache = home / ".cache/miopen"
    own = {KERNELS, f"3.3.0.a85ca8a54/{'ab' * 16}/x.s.o", f"{'cd' * 16}/y.cl.o", FIND_DB}
    foreign = {"3.3.0.a85ca8a54/letter.txt", "3.3.0.a85ca8a54/2.0.0/a.ukdb", "3.3.0-mine/a.ukdb",
               f"{'cd' * 16}/letter.txt", f"{'cd' * 16}/sub/x.o", "letter.txt"}  # fmt: skip
    for name in (own | foreign) - {KERNELS}:
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_text("1=2\n")
    variables = {"MIOPEN_USER_DB_PATH": "~/.cache/miopen"}
    if both:
        variables["MIOPEN_CUSTOM_CACHE_DIR"] = str(cache)
    [place] = found_in(home, **variables)
    assert {p.relative_to(cache).as_posix() for p in places.files_of(place)} == own
    facts = contents.collect({"HOME": str(home), **variables})
    assert (facts["find_entries"], facts["compiled_entries"]) == (1, 2)
    before = snapshot(cache)
    done = changes.clear([place], target(tmp_path))
    assert done.backup is not None
    assert snapshot(cache).keys() == foreign
    changes.restore(done.backup.path, [place], target(tmp_path, "second.zip"))
    assert snapshot(cache) == before


def test_links_are_neither_given_nor_followed(home: Path) -> None:
    make_tree(home)
    outside = home / "outside"
    outside.mkdir()
    (outside / "x.ukdb").write_text("")
    (home / ".cache/miopen/link").symlink_to(outside)
    (home / ".cache/miopen/file.ukdb").symlink_to(outside / "x.ukdb")
    given = [p for place in found_in(home) for p in places.files_of(place)]
    assert len(given) == 4
    assert not any(p.is_symlink() for p in given)


# What is in them


def test_entries_versions_and_sizes_are_told(home: Path) -> None:
    make_tree(home)
    facts = contents.collect({"HOME": str(home)})
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["find_entries"], facts["compiled_entries"]) == (3, 2)
    databases, kernels = facts["places"]
    assert list(databases["versions"]) == ["", "3.2.0", "3.3.0"]
    assert databases["last_written"] > 1e9
    [file] = kernels["files"]
    assert (file["version"], file["architecture"], file["entries"]) == ("3.3.0", "gfx1100", 2)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("gfx1100_48.ukdb", "gfx1100"), ("gfx90a68.ukdb", "gfx90a"), ("gfx906_60.x", "gfx906"),
     ("gfx103048.ukdb", "gfx1030"), ("other.ukdb", "")],
)  # fmt: skip
def test_the_architecture_is_read_from_the_name(name: str, architecture: str) -> None:
    assert contents.architecture_of(name) == architecture


def test_what_cannot_be_read_is_a_fact(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(home)
    (home / ".cache/miopen/3.3.0.a85ca8a54/broken.ukdb").write_bytes(b"no database at all")
    facts = contents.collect({"HOME": str(home)})
    [broken] = [f for f in facts["places"][1]["files"] if f["path"].endswith("broken.ukdb")]
    assert broken["entries"] is None

    def refuse(folder: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert contents.collect({"HOME": str(home)})["places"][0]["error"] == "Permission denied"


def test_counting_leaves_the_database_as_it_is(home: Path) -> None:
    make_tree(home)
    before = snapshot(home)
    contents.collect({"HOME": str(home)})
    assert snapshot(home) == before


def test_counting_a_wal_database_makes_no_files_beside_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tree(home)
    path = home / ".cache/miopen" / KERNELS
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
    before = snapshot(home)
    seen = set[str]()
    real = contents.closing

    def watched(database: Any) -> Any:
        database.execute("SELECT count(*) FROM kern_db").fetchone()
        seen.update(snapshot(home))
        return real(database)

    monkeypatch.setattr(contents, "closing", watched)
    assert contents.entries_in(path) == 2
    assert seen == before.keys()
    assert snapshot(home) == before
    path.with_name(path.name + "-wal").write_bytes(b"")
    before = snapshot(home)
    facts = contents.collect({"HOME": str(home)})
    assert snapshot(home) == before
    file = next(f for f in facts["places"][1]["files"] if f["path"] == KERNELS)
    assert (file["entries"], file["in_use"]) == (None, ["-wal"])
    monkeypatch.setenv("HOME", str(home))
    assert cli.main(["miopen", "info"]) == 0
    said = capsys.readouterr().out
    assert "? entries (it is open, or was not closed: -wal)" in said
    assert "0 compiled kernels, without those of 1 open databases" in said


# Backup


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "A.ZIP"])
def test_a_cleared_cache_comes_back_byte_for_byte(home: Path, tmp_path: Path, name: str) -> None:
    before = make_tree(home)
    found = found_in(home)
    done = changes.clear(found, target(tmp_path, name))
    assert done.backup is not None
    assert done.count == len(before) == len(done.backup.files)
    assert snapshot(home) == {}
    again = changes.restore(done.backup.path, found, target(tmp_path, f"second_{name}"))
    assert again.backup is None  # nothing was there
    assert snapshot(home) == before


def test_a_backup_is_not_written_over_anything(home: Path, tmp_path: Path) -> None:
    make_tree(home)
    (tmp_path / "a.zip").write_text("mine")
    with pytest.raises(ArchiveError, match="is there already"):
        archive.write_backup(found_in(home), tmp_path / "a.zip")
    with pytest.raises(ArchiveError, match=r"no \.tar\.gz and no \.zip"):
        archive.write_backup(found_in(home), tmp_path / "a.rar")
    assert (tmp_path / "a.zip").read_text() == "mine"


def test_a_backup_inside_of_the_cache_does_not_hold_itself(home: Path) -> None:
    before = make_tree(home)
    made = archive.write_backup(found_in(home), home / ".cache/miopen/b.tar.gz")
    assert len(made.files) == len(before)


@pytest.mark.parametrize(
    "variables",
    [{"MIOPEN_USER_DB_PATH": "~/.cache/miopen/db"},
     {"MIOPEN_CUSTOM_CACHE_DIR": "~/.config/miopen/kernels"},
     {"MIOPEN_USER_DB_PATH": "~/x", "MIOPEN_CUSTOM_CACHE_DIR": f"~/x/{'cd' * 16}"}],
)  # fmt: skip
def test_of_two_places_one_in_the_other_each_file_is_saved_once(
    home: Path, tmp_path: Path, variables: dict[str, str]
) -> None:
    make_tree(home)
    found = found_in(home, **variables)
    for place in found:
        place.path.mkdir(parents=True, exist_ok=True)
        (place.path / f"{place.kind}.ukdb").write_text("")
        (place.path / f"{place.kind}.ufdb.txt").write_text("1=2\n")
    before = snapshot(home)
    given = [path for place in found for path in places.files_of(place)]
    assert len(given) == len(set(given)) >= 4
    done = changes.clear(found, target(tmp_path))
    assert done.backup is not None
    assert done.count == len(given)
    assert len(snapshot(home)) == len(before) - len(given)
    changes.restore(done.backup.path, found, target(tmp_path, "second.zip"))
    assert snapshot(home) == before


def test_where_the_backup_fails_nothing_is_cleared(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_tree(home)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArchiveError, match="No space left on device; nothing was changed"):
        changes.clear(found_in(home), target(tmp_path))
    assert snapshot(home) == before
    assert everything(tmp_path / "kept") == []


def test_a_backup_that_reads_back_differently_is_none(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_tree(home)
    real = archive.read_backup
    monkeypatch.setattr(archive, "read_backup", lambda *a, **k: real(*a, **k)[1:])
    with pytest.raises(ArchiveError, match="not what was written"):
        changes.clear(found_in(home), target(tmp_path))
    assert snapshot(home) == before
    assert everything(tmp_path / "kept") == []


def test_what_is_written_meanwhile_stays(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(home)
    changed = home / ".config/miopen" / FIND_DB
    real = changes.write_backup

    def write_then_change(*arguments: Any) -> Any:
        made = real(*arguments)
        changed.write_text("new=1\n")
        (home / ".config/miopen/new.ufdb.txt").write_text("new=1\n")
        return made

    monkeypatch.setattr(changes, "write_backup", write_then_change)
    done = changes.clear(found_in(home), target(tmp_path))
    assert [path for path, _ in done.left] == [changed]
    assert {p.name for p in everything(home)} == {FIND_DB, "new.ufdb.txt"}


def run_child(code: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("MIOPEN_USER_DB_PATH", None)
    environment.pop("MIOPEN_CUSTOM_CACHE_DIR", None)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_disk_that_fills_up_loses_nothing(home: Path, tmp_path: Path) -> None:
    make_tree(home)
    (home / ".cache/miopen/big.ukdb").write_bytes(os.urandom(1 << 20))
    before = snapshot(home)
    out = tmp_path / "b.tar.gz"
    done = run_child(
        f"""
        import resource, sys
        from hy3d_rocm import cli
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        sys.exit(cli.main(["miopen", "clear", "--force", "--backup", {str(out)!r}]))
        """,
        home,
    )
    assert done.returncode == 1
    assert "File too large; nothing was changed" in done.stderr
    assert snapshot(home) == before
    assert [p.name for p in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("call", range(1, 5))
def test_killed_while_clearing_everything_is_in_the_backup(
    home: Path, tmp_path: Path, call: int
) -> None:
    before = make_tree(home)
    out = tmp_path / "b.tar.gz"
    done = run_child(
        f"""
        import os
        from pathlib import Path
        from hy3d_rocm.doctor.miopen import changes, places
        calls, real = 0, Path.unlink
        def unlink(path, *rest):
            global calls
            calls += 1
            if calls == {call}:
                os._exit(9)
            real(path, *rest)
        Path.unlink = unlink
        changes.clear(places.places(), lambda: Path({str(out)!r}))
        """,
        home,
    )
    assert done.returncode == 9, done.stderr
    assert len(snapshot(home)) == len(before) - call + 1
    changes.restore(out, found_in(home), target(tmp_path))
    assert snapshot(home) == before


@pytest.mark.parametrize("call", range(1, 5))
def test_killed_while_restoring_no_file_is_half_written(
    home: Path, tmp_path: Path, call: int
) -> None:
    before = make_tree(home)
    out = tmp_path / "b.tar.gz"
    archive.write_backup(found_in(home), out)
    (home / ".config/miopen" / FIND_DB).write_bytes(b"later=1\n")
    later = snapshot(home)
    kept = tmp_path / "kept.tar.gz"
    done = run_child(
        f"""
        import os
        from pathlib import Path
        from hy3d_rocm.doctor.miopen import changes, places
        calls, real = 0, changes._copy
        def copy(source, file):
            global calls
            calls += 1
            if calls == {call}:
                file.write(b"half")
                file.flush()
                os._exit(9)
            return real(source, file)
        changes._copy = copy
        changes.restore(Path({str(out)!r}), places.places(), lambda: Path({str(kept)!r}))
        """,
        home,
    )
    assert done.returncode == 9, done.stderr
    now = {n: c for n, c in snapshot(home).items() if not n.endswith(".part")}
    assert all(content in (before[name], later[name]) for name, content in now.items())
    changes.restore(kept, found_in(home), target(tmp_path))
    assert {n: c for n, c in snapshot(home).items() if not n.endswith(".part")} == later


# Restore


def test_what_restore_writes_over_is_saved_before(home: Path, tmp_path: Path) -> None:
    before = make_tree(home)
    found = found_in(home)
    made = archive.write_backup(found, tmp_path / "b.zip")
    (home / ".config/miopen" / FIND_DB).write_bytes(b"later=1\n")
    (home / ".config/miopen/added.ufdb.txt").write_bytes(b"stays=1\n")
    done = changes.restore(made.path, found, target(tmp_path))
    assert done.backup is not None
    now = snapshot(home)
    assert now.pop(".config/miopen/added.ufdb.txt") == b"stays=1\n"
    assert now == before
    changes.restore(done.backup.path, found, target(tmp_path, "x.zip"))
    assert (home / ".config/miopen" / FIND_DB).read_bytes() == b"later=1\n"


def rows_in(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [name for (name,) in database.execute("SELECT kernel_name FROM kern_db")]


def write_in_wal_mode(path: Path, name: str) -> None:
    """One more row, which is in the -wal alone, as a killed program leaves it."""
    code = f"""
        import os, sqlite3
        database = sqlite3.connect({str(path)!r})
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA wal_autocheckpoint=0")
        database.execute("INSERT INTO kern_db(kernel_name) VALUES ({name!r})")
        database.commit()
        os._exit(0)
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
    assert path.with_name(path.name + "-wal").stat().st_size > 0


def test_a_restored_database_does_not_take_up_side_files_of_another(
    home: Path, tmp_path: Path
) -> None:
    make_tree(home)
    found = found_in(home)
    path = home / ".cache/miopen" / KERNELS
    first = archive.write_backup(found, tmp_path / "first.zip")
    write_in_wal_mode(path, "later")
    done = changes.restore(first.path, found, target(tmp_path))
    assert done.backup is not None
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert rows_in(path) == ["a", "b"]
    # and back: the database with its -wal, over one without
    changes.restore(done.backup.path, found, target(tmp_path, "third.zip"))
    assert rows_in(path) == ["a", "b", "later"]


def test_a_hot_journal_is_not_rolled_back_into_a_restored_database(
    home: Path, tmp_path: Path
) -> None:
    before = make_tree(home)
    found = found_in(home)
    made = archive.write_backup(found, tmp_path / "first.zip")
    journal = home / ".cache/miopen" / (KERNELS + "-journal")
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(1000))
    changes.restore(made.path, found, target(tmp_path))
    assert snapshot(home) == before


def test_a_side_file_that_can_not_be_removed_stops_the_restoring(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(home)
    found = found_in(home)
    made = archive.write_backup(found, tmp_path / "first.zip")
    side = home / ".cache/miopen" / (KERNELS + "-wal")
    side.symlink_to(tmp_path / "elsewhere")  # no file of MIOpen's: it is in no backup
    before = snapshot(home)
    with pytest.raises(ArchiveError, match=r"0 of 4 files .*ukdb-wal is not in the backup"):
        changes.restore(made.path, found, target(tmp_path))
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
        changes.restore(made.path, found, target(tmp_path, "second.zip"))


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
    made = archive.write_backup(both, tmp_path / "both.zip")
    (tmp_path / "new").mkdir()
    two = found_in(tmp_path / "new")
    changes.restore(made.path, two, target(tmp_path))
    now = snapshot(tmp_path / "new")
    assert now.keys() == {
        f".config/miopen/{FIND_DB}", f".cache/miopen/{KERNELS}", f".cache/miopen/{kernel}"
    }  # fmt: skip
    assert {Path(name).name: content for name, content in now.items()} == before
    # and back into one folder
    made = archive.write_backup(two, tmp_path / "two.zip")
    one = found_in(tmp_path, MIOPEN_USER_DB_PATH="~/one", MIOPEN_CUSTOM_CACHE_DIR="~/one")
    changes.restore(made.path, one, target(tmp_path))
    assert {p.name: p.read_bytes() for p in everything(tmp_path / "one")} == before


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_a_restored_file_keeps_the_mode_of_the_one_it_replaces(home: Path, tmp_path: Path) -> None:
    make_tree(home)
    found = found_in(home)
    made = archive.write_backup(found, tmp_path / "a.zip")
    kept, gone = home / ".config/miopen" / FIND_DB, home / ".config/miopen" / OLD_FIND_DB
    kept.chmod(0o664)
    gone.unlink()
    kernels = home / ".cache/miopen" / KERNELS
    kernels.chmod(0o606)
    kernels.with_name(kernels.name + "-wal").write_text("")  # so that it is removed beforehand
    before = os.umask(0o027)
    try:
        changes.restore(made.path, found, target(tmp_path))
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
    made = archive.write_backup(found, tmp_path / "a.zip")
    kernels = home / ".cache/miopen" / KERNELS
    kernels.unlink()
    kernels.parent.rmdir()
    asked: list[tuple[int, int]] = []

    def chown(path: Any, user: int, group: int) -> None:
        asked.append((user, group))
        raise PermissionError(errno.EPERM, "Operation not permitted")  # as for most users

    monkeypatch.setattr(os, "chown", chown)
    changes.restore(made.path, found, target(tmp_path))
    assert len(asked) == 5  # four files and a folder
    assert set(asked) == {(home.stat().st_uid, home.stat().st_gid)}
    assert kernels.is_file()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_root_gives_restored_files_to_the_owner(home: Path, tmp_path: Path) -> None:
    make_tree(home)
    found = found_in(home)
    made = archive.write_backup(found, tmp_path / "a.zip")
    find_db, kernels = home / ".config/miopen" / FIND_DB, home / ".cache/miopen" / KERNELS
    os.chown(find_db, 1234, 1235)
    os.chown(kernels.parent.parent, 1236, 1237)
    kernels.unlink()
    kernels.parent.rmdir()
    changes.restore(made.path, found, target(tmp_path))
    owners = [(p.stat().st_uid, p.stat().st_gid) for p in (find_db, kernels.parent, kernels)]
    assert owners == [(1234, 1235), (1236, 1237), (1236, 1237)]


def tar_with(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for member, content in members:
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path


def plain(name: str, content: bytes = b"evil") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def linked(name: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    return member, b""


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
        changes.restore(path, found_in(home), target(tmp_path))
    assert snapshot(tmp_path) == {
        "evil.tar.gz": path.read_bytes(), **{f"home/{n}": c for n, c in before.items()},
    }  # fmt: skip


@pytest.mark.parametrize("name", ["C:evil", "a\\..\\evil", "evil. ", "a./b", "a\nb", "con?"])
def test_names_that_windows_takes_for_others_are_refused_there(name: str) -> None:
    with pytest.raises(ArchiveError, match=r"a\.zip: Windows can't hold"):
        archive.check_name(f"databases/{name}", Path("a.zip"), windows=True)
    archive.check_name(f"databases/{name}", Path("a.zip"), windows=False)


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
    done = changes.clear(found_in(home), target(tmp_path, f"a.{ending}"))
    assert done.backup is not None
    assert snapshot(home) == {}
    changes.restore(done.backup.path, found_in(home), target(tmp_path))
    assert snapshot(home) == before


@pytest.mark.skipif(sys.platform != "linux", reason="no such names elsewhere")
def test_a_name_that_a_zip_can_not_hold_is_told(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tree(home)
    (home / ".config/miopen" / os.fsdecode(b"latin\xe4.ufdb.txt")).write_text("1=2\n")
    before = snapshot(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(users, "users_of", lambda *_: [])
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

    monkeypatch.setattr(zipfile, "ZipFile", refuse)
    with pytest.raises(ArchiveError, match=r"can't be read: .*codec can't decode"):
        changes.restore(tmp_path / "a.zip", found_in(home), target(tmp_path))


def test_a_link_in_a_zip_is_refused(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "evil.zip"
    with zipfile.ZipFile(path, "w") as file:
        entry = zipfile.ZipInfo("databases/link")
        entry.external_attr = 0o120777 << 16
        file.writestr(entry, "/etc/passwd")
    with pytest.raises(ArchiveError, match="no plain file"):
        changes.restore(path, found_in(home), target(tmp_path))


def test_a_file_that_changed_in_the_archive_is_refused(home: Path, tmp_path: Path) -> None:
    index = {"format": 1, "files": {"databases/a": [4, "0" * 64]}}
    path = tar_with(
        tmp_path / "a.tar.gz",
        plain("databases/a"), plain(archive.INDEX, json.dumps(index).encode()),
    )  # fmt: skip
    with pytest.raises(ArchiveError, match="not what it was when it was saved"):
        changes.restore(path, found_in(home), target(tmp_path))


@pytest.mark.parametrize("name", ["b.tar.gz", "b.zip"])
def test_half_an_archive_is_refused_and_nothing_changes(
    home: Path, tmp_path: Path, name: str
) -> None:
    before = make_tree(home)
    made = archive.write_backup(found_in(home), tmp_path / name)
    whole = made.path.read_bytes()
    for part in (0, 10, len(whole) // 2):
        made.path.write_bytes(whole[:part])
        with pytest.raises(ArchiveError):
            changes.restore(made.path, found_in(home), target(tmp_path))
    assert snapshot(home) == before


def test_restore_does_not_write_through_a_link(home: Path, tmp_path: Path) -> None:
    make_tree(home)
    found = found_in(home)
    made = changes.clear(found, target(tmp_path)).backup
    assert made is not None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home / ".cache/miopen").mkdir(parents=True, exist_ok=True)
    (home / ".cache/miopen/3.3.0.a85ca8a54").symlink_to(elsewhere)
    with pytest.raises(ArchiveError, match="is or has a link"):
        changes.restore(made.path, found, target(tmp_path, "c.zip"))
    assert everything(elsewhere) == []


def test_restore_asks_for_room_first(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(home)
    made = changes.clear(found_in(home), target(tmp_path)).backup
    assert made is not None
    usage = changes.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(changes.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(ArchiveError, match="10 B are free"):
        changes.restore(made.path, found_in(home), target(tmp_path, "c.zip"))
    assert snapshot(home) == {}


def test_a_disk_that_fills_up_while_restoring_is_said_with_what_there_is(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_tree(home)
    found = found_in(home)
    made = archive.write_backup(found, tmp_path / "b.zip")
    (home / ".config/miopen" / FIND_DB).write_bytes(b"later=1\n")
    later = snapshot(home)
    real, calls = changes._copy, 0

    def copy(source: Any, file: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 3:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(source, file)

    monkeypatch.setattr(changes, "_copy", copy)
    with pytest.raises(
        ArchiveError, match=r"2 of 4 files were put back, then: .*No space left"
    ) as e:
        changes.restore(made.path, found, target(tmp_path))
    assert str(tmp_path / "kept" / "backup.tar.gz") in str(e.value)
    assert all(content in (before[name], later[name]) for name, content in snapshot(home).items())
    assert snapshot(home).keys() == before.keys()


# Who uses them


def fake_process(proc: Path, pid: int, line: str, maps: str = "", file: str = "") -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_bytes(line.replace(" ", "\0").encode())
    (folder / "maps").write_text(maps)
    if file:
        (folder / "fd" / "7").symlink_to(file)


def test_processes_that_use_the_files_are_told(home: Path, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    cache = home / ".cache/miopen"
    cache.mkdir(parents=True)
    fake_process(proc, 10, "/usr/bin/python main.py --listen", "7f /opt/libMIOpen.so.1\n")
    fake_process(proc, 11, "/usr/bin/python other.py", file=f"{cache}/x.ukdb")
    fake_process(proc, 12, "/bin/bash", file=f"{cache}-not/x")
    fake_process(proc, 13, "/bin/own", "libMIOpen.so")
    found = users.users_of([cache], proc, own=13)
    assert [(u.pid, u.name) for u in found] == [(10, "python main.py"), (11, "python other.py")]
    assert "has x.ukdb open" in str(found[1])


def test_the_command_refuses_while_files_are_used(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = make_tree(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(users, "users_of", lambda *_: [users.User(7, "python main.py", "uses")])
    out = tmp_path / "b.zip"
    assert cli.main(["miopen", "clear", "--backup", str(out)]) == 1
    assert "python main.py (process 7" in capsys.readouterr().err
    assert snapshot(home) == before
    assert cli.main(["miopen", "clear", "--backup", str(out), "--force"]) == 0
    assert snapshot(home) == {}


def test_the_command_informs_saves_clears_and_restores(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = make_tree(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setattr(users, "users_of", lambda *_: [])
    assert cli.main(["miopen", "info"]) == 0
    assert "find results for 3 convolutions, 2 compiled kernels" in capsys.readouterr().out
    assert cli.main(["miopen", "info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["users"] == []
    assert cli.main(["miopen", "clear"]) == 0
    [backup] = (home / "data/hy3d_rocm").glob("miopen-*.tar.gz")
    assert str(backup) in capsys.readouterr().out
    assert cli.main(["miopen", "clear"]) == 0
    assert "nothing to clear" in capsys.readouterr().out
    assert cli.main(["miopen", "restore", str(backup)]) == 0
    assert {n: c for n, c in snapshot(home).items() if not n.startswith("data")} == before
    assert cli.main(["miopen", "restore", str(home / "none.zip")]) == 1
    assert "can't be read" in capsys.readouterr().err
