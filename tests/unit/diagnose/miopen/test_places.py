"""Where MIOpen's files are and what is in them, on made-up trees."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from miopen_support import (  # noqa: F401
    FIND_DB,
    KERNELS,
    LINKS,
    at_home,
    found_in,
    home_folder,
    make_tree,
    snapshot,
    target,
)

from hy3d_rocm import cli
from hy3d_rocm.diagnose.miopen import backup, places


def test_the_folders_are_those_of_the_platform(tmp_path: Path) -> None:
    home = tmp_path
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
    monkeypatch.setattr(places.files, "network_disk", lambda folder: "nfs4")
    assert {p.chosen_by for p in found_in(home)} == {"network"}
    monkeypatch.setattr(places.files, "network_disk", lambda folder: "virtiofs")
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
    facts = places.collect({**at_home(home), **variables})
    assert (facts["find_entries"], facts["compiled_entries"]) == (1, 2)
    before = snapshot(cache)
    done = backup.clear([place], target(tmp_path))
    assert done.backup is not None
    assert snapshot(cache).keys() == foreign
    backup.restore(done.backup.path, [place], target(tmp_path, "second.zip"))
    assert snapshot(cache) == before


@LINKS
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


def test_entries_versions_and_sizes_are_told(home: Path) -> None:
    make_tree(home)
    facts = places.collect(at_home(home))
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
    assert places.architecture_of(name) == architecture


def test_what_cannot_be_read_is_a_fact(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(home)
    (home / ".cache/miopen/3.3.0.a85ca8a54/broken.ukdb").write_bytes(b"no database at all")
    facts = places.collect(at_home(home))
    [broken] = [f for f in facts["places"][1]["files"] if f["path"].endswith("broken.ukdb")]
    assert broken["entries"] is None

    def refuse(folder: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert places.collect(at_home(home))["places"][0]["error"] == "Permission denied"


def test_counting_leaves_the_database_as_it_is(home: Path) -> None:
    make_tree(home)
    before = snapshot(home)
    places.collect(at_home(home))
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
    real = places.closing

    def watched(database: Any) -> Any:
        database.execute("SELECT count(*) FROM kern_db").fetchone()
        seen.update(snapshot(home))
        return real(database)

    monkeypatch.setattr(places, "closing", watched)
    assert places.entries_in(path) == 2
    assert seen == before.keys()
    assert snapshot(home) == before
    path.with_name(path.name + "-wal").write_bytes(b"")
    before = snapshot(home)
    facts = places.collect(at_home(home))
    assert snapshot(home) == before
    file = next(f for f in facts["places"][1]["files"] if f["path"] == KERNELS)
    assert (file["entries"], file["in_use"]) == (None, ["-wal"])
    for name, value in at_home(home).items():
        monkeypatch.setenv(name, value)
    assert cli.main(["miopen", "info"]) == 0
    said = capsys.readouterr().out
    assert "? entries (it is open, or was not closed: -wal)" in said
    assert "0 compiled kernels, without those of 1 open databases" in said
