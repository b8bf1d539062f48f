"""Who uses MIOpen's files, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from miopen_support import (  # noqa: F401
    LINKS,
    at_home,
    home_folder,
    make_tree,
    snapshot,
)

from hy3d_rocm import cli
from hy3d_rocm.diagnose.miopen import command


def fake_process(proc: Path, pid: int, line: str, maps: str = "", file: str = "") -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_bytes(line.replace(" ", "\0").encode())
    (folder / "maps").write_text(maps)
    if file:
        (folder / "fd" / "7").symlink_to(file)


@LINKS
def test_processes_that_use_the_files_are_told(home: Path, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    cache = home / ".cache/miopen"
    cache.mkdir(parents=True)
    fake_process(proc, 10, "/usr/bin/python main.py --listen", "7f /opt/libMIOpen.so.1\n")
    fake_process(proc, 11, "/usr/bin/python other.py", file=f"{cache}/x.ukdb")
    fake_process(proc, 12, "/bin/bash", file=f"{cache}-not/x")
    fake_process(proc, 13, "/bin/own", "libMIOpen.so")
    found = command.users_of([cache], proc, own=13)
    assert [(u.pid, u.name) for u in found] == [(10, "python main.py"), (11, "python other.py")]
    assert "has x.ukdb open" in str(found[1])


def test_the_command_refuses_while_files_are_used(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = make_tree(home)
    for name, value in at_home(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(command, "users_of", lambda *_: [command.User(7, "python main.py", "uses")])
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
    for name, value in at_home(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("LOCALAPPDATA", str(home / "data"))
    monkeypatch.setattr(command, "users_of", lambda *_: [])
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
