"""MIOpen's files saved and cleared: nothing is lost, whatever fails in between."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from miopen_support import (  # noqa: F401
    FIND_DB,
    KERNELS,
    everything,
    found_in,
    home_folder,
    make_tree,
    run_child,
    snapshot,
    target,
)

from hy3d_rocm import files
from hy3d_rocm.diagnose.miopen import backup, places
from hy3d_rocm.diagnose.miopen.backup import ArchiveError


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "A.ZIP"])
def test_a_cleared_cache_comes_back_byte_for_byte(home: Path, tmp_path: Path, name: str) -> None:
    before = make_tree(home)
    found = found_in(home)
    done = backup.clear(found, target(tmp_path, name))
    assert done.backup is not None
    assert done.count == len(before) == len(done.backup.files)
    assert snapshot(home) == {}
    again = backup.restore(done.backup.path, found, target(tmp_path, f"second_{name}"))
    assert again.backup is None  # nothing was there
    assert snapshot(home) == before


def test_a_backup_is_not_written_over_anything(home: Path, tmp_path: Path) -> None:
    make_tree(home)
    (tmp_path / "a.zip").write_text("mine")
    with pytest.raises(ArchiveError, match="is there already"):
        backup.write_backup(found_in(home), tmp_path / "a.zip")
    with pytest.raises(ArchiveError, match=r"no \.tar\.gz and no \.zip"):
        backup.write_backup(found_in(home), tmp_path / "a.rar")
    assert (tmp_path / "a.zip").read_text() == "mine"


def test_a_backup_inside_of_the_cache_does_not_hold_itself(home: Path) -> None:
    before = make_tree(home)
    made = backup.write_backup(found_in(home), home / ".cache/miopen/b.tar.gz")
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
    done = backup.clear(found, target(tmp_path))
    assert done.backup is not None
    assert done.count == len(given)
    assert len(snapshot(home)) == len(before) - len(given)
    backup.restore(done.backup.path, found, target(tmp_path, "second.zip"))
    assert snapshot(home) == before


def test_where_the_backup_fails_nothing_is_cleared(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_tree(home)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArchiveError, match="No space left on device; nothing was changed"):
        backup.clear(found_in(home), target(tmp_path))
    assert snapshot(home) == before
    assert everything(tmp_path / "kept") == []


def test_a_backup_that_reads_back_differently_is_none(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_tree(home)
    real = backup.read_backup
    monkeypatch.setattr(backup, "read_backup", lambda *a, **k: real(*a, **k)[1:])
    with pytest.raises(ArchiveError, match="not what was written"):
        backup.clear(found_in(home), target(tmp_path))
    assert snapshot(home) == before
    assert everything(tmp_path / "kept") == []


def test_what_is_written_meanwhile_stays(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(home)
    changed = home / ".config/miopen" / FIND_DB
    real = backup.write_backup

    def write_then_change(*arguments: Any) -> Any:
        made = real(*arguments)
        changed.write_text("new=1\n")
        (home / ".config/miopen/new.ufdb.txt").write_text("new=1\n")
        return made

    monkeypatch.setattr(backup, "write_backup", write_then_change)
    done = backup.clear(found_in(home), target(tmp_path))
    assert [path for path, _ in done.left] == [changed]
    assert {p.name for p in everything(home)} == {FIND_DB, "new.ufdb.txt"}


@pytest.fixture
def held(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A database that a ComfyUI has open, as Windows treats it."""
    make_tree(home)
    path = home / ".cache/miopen" / KERNELS
    monkeypatch.setattr(files, "_PATIENCE_SECONDS", 0.2)
    if os.name == "nt":
        with open(path, "rb"):
            yield path
        return
    error = PermissionError(errno.EACCES, "Sharing violation", str(path))
    error.winerror = 32  # type: ignore[attr-defined,unused-ignore]

    def refusing(act: Any) -> Any:
        def act_or_refuse(*arguments: Any, **more: Any) -> None:
            if path in map(Path, arguments):
                raise error
            act(*arguments, **more)

        return act_or_refuse

    for owner, name in ((Path, "unlink"), (os, "replace")):
        monkeypatch.setattr(owner, name, refusing(getattr(owner, name)))
    yield path


def test_what_a_program_has_open_is_told_and_stays_and_the_rest_goes(
    home: Path, tmp_path: Path, held: Path
) -> None:
    before = snapshot(home)
    done = backup.clear(found_in(home), target(tmp_path))
    assert done.backup is not None
    assert len(done.backup.files) == len(before) == done.count + 1
    assert [(path, bool(why)) for path, why in done.left] == [(held, True)]
    assert everything(home) == [held]


def test_what_a_program_has_open_is_not_half_restored(
    home: Path, tmp_path: Path, held: Path
) -> None:
    made = backup.write_backup(found_in(home), tmp_path / "first.zip")
    before = snapshot(home)
    with pytest.raises(ArchiveError, match=r"3 of 4 files were put back, then: .*kept"):
        backup.restore(made.path, found_in(home), target(tmp_path))
    assert snapshot(home) == before


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
        from hy3d_rocm.diagnose.miopen import backup, places
        calls, real = 0, Path.unlink
        def unlink(path, *rest):
            global calls
            calls += 1
            if calls == {call}:
                os._exit(9)
            real(path, *rest)
        Path.unlink = unlink
        backup.clear(places.places(), lambda: Path({str(out)!r}))
        """,
        home,
    )
    assert done.returncode == 9, done.stderr
    assert len(snapshot(home)) == len(before) - call + 1
    backup.restore(out, found_in(home), target(tmp_path))
    assert snapshot(home) == before


@pytest.mark.parametrize("call", range(1, 5))
def test_killed_while_restoring_no_file_is_half_written(
    home: Path, tmp_path: Path, call: int
) -> None:
    before = make_tree(home)
    out = tmp_path / "b.tar.gz"
    backup.write_backup(found_in(home), out)
    (home / ".config/miopen" / FIND_DB).write_bytes(b"later=1\n")
    later = snapshot(home)
    kept = tmp_path / "kept.tar.gz"
    done = run_child(
        f"""
        import os
        from pathlib import Path
        from hy3d_rocm.diagnose.miopen import backup, places
        calls, real = 0, backup._copy
        def copy(source, file):
            global calls
            calls += 1
            if calls == {call}:
                file.write(b"half")
                file.flush()
                os._exit(9)
            return real(source, file)
        backup._copy = copy
        backup.restore(Path({str(out)!r}), places.places(), lambda: Path({str(kept)!r}))
        """,
        home,
    )
    assert done.returncode == 9, done.stderr
    now = {n: c for n, c in snapshot(home).items() if not n.endswith(".part")}
    assert all(content in (before[name], later[name]) for name, content in now.items())
    backup.restore(kept, found_in(home), target(tmp_path))
    assert {n: c for n, c in snapshot(home).items() if not n.endswith(".part")} == later
