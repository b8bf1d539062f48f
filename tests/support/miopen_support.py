"""MIOpen's files on made-up trees, for the tests of the doctor's miopen commands."""

from __future__ import annotations

import io
import os
import sqlite3
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hy3d_rocm.diagnose.miopen import places

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


LINKS = pytest.mark.skipif(os.name == "nt", reason="links are not for every user there")
# Made-up trees are as on Linux; on Windows the defaults are made so, too.
_AS_ON_LINUX = (
    "from hy3d_rocm.diagnose.miopen import places\n"
    "places._DEFAULTS[True] = places._DEFAULTS[False]\n"
)


def at_home(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "USERPROFILE": str(home)}


@pytest.fixture(name="home")
def home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(places._DEFAULTS, True, places._DEFAULTS[False])
    path = tmp_path / "home"
    path.mkdir()
    return path


def found_in(home: Path, **variables: str) -> list[places.Place]:
    return places.places({"HOME": str(home), **variables}, windows=False)


def target(tmp_path: Path, name: str = "backup.tar.gz") -> Callable[[], Path]:
    return lambda: tmp_path / "kept" / name


def run_child(code: str, home: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, **at_home(home), "PYTHONPATH": path}
    environment.pop("MIOPEN_USER_DB_PATH", None)
    environment.pop("MIOPEN_CUSTOM_CACHE_DIR", None)
    return subprocess.run(
        [sys.executable, "-c", _AS_ON_LINUX + textwrap.dedent(code)],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


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
