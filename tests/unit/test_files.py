"""Files as Windows has them: names that it can't give, paths that are long for it, files that a
program has open. Elsewhere its answers are made up."""

from __future__ import annotations

import errno
import ntpath
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hy3d_rocm import files


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("clip.mp4", True), ("12.30 Jörg Müller ☂ 日本語.mp4", True), (".hidden", True),
        ("console.mp4", True), ("com10.mp4", True), ("COM.mp4", True), ("nul_2.mp4", True),
        ("NUL", False), ("nul.mp4", False), ("CON", False), ("aux.tar.gz", False),
        ("Com1.mp4", False), ("lpt9", False), ("LPT\xb2.npy", False), ("prn .mp4", False),
        ("conin$", False), ("12:30.mp4", False), ("clip.mp4:stream", False), ("a?.mp4", False),
        ("a*b", False), ("<a>", False), ('"a"', False), ("a|b", False), ("a\\b", False),
        ("a/b", False), ("a\tb", False), ("clip.", False), ("clip ", False), ("clip.mp4. .", False),
    ],
)  # fmt: skip
def test_a_name_is_one_where_windows_gives_a_file_that_and_no_other(name: str, good: bool) -> None:
    assert files.is_windows_name(name) is good


LONG = "ä" * 100 + "\\" + "b" * 100


@pytest.mark.parametrize(
    ("path", "reached"),
    [
        ("C:\\out\\clip.mp4", "C:\\out\\clip.mp4"),
        ("clip.mp4", "clip.mp4"),
        (f"C:\\{LONG}\\x.npy", f"\\\\?\\C:\\{LONG}\\x.npy"),
        (f"C:/out/../{LONG}/x.npy", f"\\\\?\\C:\\{LONG}\\x.npy"),
        (f"\\\\server\\share\\{LONG}\\x", f"\\\\?\\UNC\\server\\share\\{LONG}\\x"),
        (f"\\\\?\\C:\\{LONG}\\x", f"\\\\?\\C:\\{LONG}\\x"),
        (f"\\\\.\\pipe\\{LONG}", f"\\\\.\\pipe\\{LONG}"),
    ],
)
def test_a_path_near_windows_limit_is_marked_as_long(
    path: str, reached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert os.name == "nt" or files.reachable(Path(path)) == Path(path)
    monkeypatch.setattr(files, "sys", SimpleNamespace(platform="win32"))
    assert str(files.reachable(Path(path))) == reached


def test_a_long_relative_path_is_counted_from_where_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "sys", SimpleNamespace(platform="win32"))
    path = Path(*["d" * 50] * 4, "clip.mp4")
    assert str(files.reachable(path)) == "\\\\?\\" + ntpath.abspath(path)


def windows_error(number: int, code: int = errno.EACCES) -> OSError:
    error = OSError(code, "Windows' words", "clip.mp4")
    error.winerror = number  # type: ignore[attr-defined,unused-ignore]
    return error


class Refusing:
    """Raises `error` `times` times, then gives what it was given."""

    def __init__(self, error: OSError, times: float) -> None:
        self.error, self.left, self.calls = error, times, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls <= self.left:
            raise self.error
        return arguments


@pytest.mark.parametrize("number", [5, 32, 33])
def test_what_is_open_for_a_moment_is_waited_for(number: int) -> None:
    act = Refusing(windows_error(number), 2)
    assert files.patiently(act, 1, "two") == (1, "two")
    assert act.calls == 3


@pytest.mark.parametrize(
    ("error", "least"),
    [
        (windows_error(32), 2), (windows_error(183, errno.EEXIST), 1),
        (windows_error(112, errno.ENOSPC), 1), (PermissionError(errno.EACCES, "of Linux"), 1),
    ],
)  # fmt: skip
def test_what_stays_is_told_at_once_but_for_open_files(
    error: OSError, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PATIENCE_SECONDS", 0.15)
    act = Refusing(error, float("inf"))
    with pytest.raises(type(error)) as caught:
        files.patiently(act)
    assert caught.value is error
    assert act.calls >= least
    assert least > 1 or act.calls == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.write_json(path, {"a": 1}),
        lambda path: files.write_whole(path, "text"),
    ],
    ids=["write_json", "write_whole"],
)
@pytest.mark.parametrize("moments", [2, float("inf")], ids=["for a moment", "for ever"])
def test_a_file_that_is_replaced_while_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], moments: float
) -> None:
    """The old one stays where it stays open, and nothing else is left."""
    path = tmp_path / "facts.json"
    path.write_text("old")
    monkeypatch.setattr(files, "_PATIENCE_SECONDS", 0.3)
    replace, count = os.replace, iter(range(1000))

    def refuse(*paths: Any) -> None:
        if next(count) < moments:
            raise windows_error(32)
        replace(*paths)

    monkeypatch.setattr(os, "replace", refuse)
    if moments == 2:
        write(path)
        assert path.read_text() != "old"
    else:
        with pytest.raises(OSError, match="Windows' words"):
            write(path)
        assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
