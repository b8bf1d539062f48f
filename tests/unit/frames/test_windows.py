"""Outputs as Windows treats them: a player or a scanner has them open, names and times are its
own. Under Windows files are really open; elsewhere its answers are made up."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
av = pytest.importorskip("av")
pytest.importorskip("PIL")

from hy3d_rocm import files  # noqa: E402
from hy3d_rocm.frames import claim as claims  # noqa: E402
from hy3d_rocm.frames import claim as locks  # noqa: E402
from hy3d_rocm.frames.claim import Claim  # noqa: E402
from hy3d_rocm.frames.output import OutputError, output_errors  # noqa: E402
from hy3d_rocm.frames.sinks import sink_for  # noqa: E402

NAMES = ["clip.mp4", "clip.mkv", "clip.npy", "pictures"]
COUNT = 3
WINDOWS = SimpleNamespace(platform="win32")


@pytest.fixture(autouse=True)
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "sys", WINDOWS)
    monkeypatch.setattr(files, "_PATIENCE_SECONDS", 0.3)


@contextlib.contextmanager
def held(
    monkeypatch: pytest.MonkeyPatch, path: Path, times: float = float("inf")
) -> Iterator[None]:
    """A program has `path`, or a picture in it, open, for `times` tries to rename or replace it."""
    tries = iter(range(1000))
    # Windows renames no folder with an open file in it; wine does.
    is_real = os.name == "nt" and path.is_file()
    open_file = open(path, "rb") if is_real else None  # noqa: SIM115  closed below

    def wrap(name: str) -> Any:
        act = getattr(os, name)

        def wrapped(source: Any, target: Any) -> None:
            if path in (Path(source), Path(target)):
                goes = next(tries) >= times
                if not is_real and not goes and path.exists():
                    error = PermissionError(errno.EACCES, "Access is denied", str(source))
                    error.winerror = 5  # type: ignore[attr-defined,unused-ignore]
                    raise error
                if goes and open_file is not None:
                    open_file.close()
            act(source, target)

        return wrapped

    with monkeypatch.context() as patched:
        for name in ("replace", "rename"):
            patched.setattr(os, name, wrap(name))
        yield
    if open_file is not None:
        open_file.close()


def frames(grey: int) -> Any:
    return torch.full((1, 3, COUNT, 16, 16), grey / 127.5 - 1)


def decoded(path: Path, grey: int, **more: Any) -> Any:
    """The sink, which has all frames, and what is to be renamed at the end."""
    sink, made = sink_for(path, fps=Fraction(24), **more), frames(grey)
    sink.begin(tuple(made.shape), made.dtype, {})
    sink.put(0, 0, made)
    return sink


def written(path: Path, grey: int) -> Path:
    return Path(decoded(path, grey).finish())


def grey_of(path: Path) -> int:
    """Of all COUNT frames, to the nearest 60."""
    from PIL import Image

    if path.suffix == ".npy":
        found = (np.load(path)[0].mean((0, 2, 3)) + 1) * 127.5
    elif path.suffix == "":
        found = np.array([np.asarray(Image.open(file)).mean() for file in sorted(path.iterdir())])
    else:
        with open(path, "rb") as file, av.open(file) as opened:
            shown = [f.to_ndarray(format="rgb24").mean() for f in opened.decode(video=0)]
        found = np.array(shown)
    assert len(found) == COUNT
    (grey,) = {round(one / 60) * 60 for one in found}
    return grey


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_player_that_holds_the_old_output_costs_its_name_and_no_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, goes_on: bool
) -> None:
    path = written(tmp_path / name, 60)
    claim = Claim(path, {"a": 1} if goes_on else None, overwrite=True)
    sink = decoded(path, 180, claim=claim)
    other = path.with_name(f"{path.stem}_2{path.suffix}")
    with held(monkeypatch, path):
        with pytest.raises(OutputError) as caught:
            sink.finish()
        sink.abort()
    assert str(caught.value).startswith(f"{path} can't be replaced (")
    assert "a program has it open" in str(caught.value)
    assert str(caught.value).endswith(f"; the frames of this decode are in {other}")
    assert (grey_of(path), grey_of(other)) == (60, 180)
    assert {file.name for file in tmp_path.iterdir()} <= {name, other.name, f"{name}.partial"}
    assert goes_on or not claim.folder.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_player_that_lets_go_in_time_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = written(tmp_path / name, 60)
    sink = decoded(path, 180, overwrite=True)
    with held(monkeypatch, path, times=2):
        assert sink.finish() == path
    assert grey_of(path) == 180
    assert [file.name for file in tmp_path.iterdir()] == [name]


def made_by(sink: Any) -> Path:
    """The complete output before it has its name."""
    found: list[Path] = []
    publish = sink.claim.publish
    sink.claim.publish = found.append
    sink.claim.clear, clear = (lambda: None), sink.claim.clear
    sink.claim.release, release = (lambda: None), sink.claim.release
    sink.finish()
    sink.claim.publish, sink.claim.clear, sink.claim.release = publish, clear, release
    return found[0]


@pytest.mark.parametrize("times", [2, float("inf")], ids=["for a moment", "for ever"])
@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_scanner_that_holds_the_new_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_there: bool, times: float
) -> None:
    """For a moment it is waited for; for ever, the frames stay where they are, and that is said."""
    path = tmp_path / name
    if is_there:
        written(path, 60)
    sink = decoded(path, 180, overwrite=True)
    made = made_by(sink)
    with held(monkeypatch, made, times):
        if times == 2:
            sink.claim.publish(made)
        else:
            with pytest.raises(OutputError, match=r"the frames of this decode are in") as caught:
                sink.claim.publish(made)
            verb = "replaced" if is_there else "made"
            assert str(caught.value).startswith(f"{path} can't be {verb} (")
            moved = ": move them before you decode to that name again"
            assert str(caught.value).endswith(f"{made}{moved}")
        sink.claim.release()
    if times == 2:
        assert grey_of(path) == 180
        assert [file.name for file in tmp_path.iterdir()] == [name]
    else:
        assert grey_of(made) == 180
        assert (grey_of(path) == 60) if is_there else not path.exists()


def test_old_pictures_stay_where_the_new_ones_cannot_have_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old ones are moved away first: where their name is then refused, they get it back."""
    path = written(tmp_path / "pics", 60)
    sink = decoded(path, 180, overwrite=True)
    made = made_by(sink)
    rename = os.rename

    def refuse(source: Any, target: Any) -> None:
        if (Path(source), Path(target)) == (made, path):
            error = PermissionError(errno.EACCES, "Access is denied", str(source))
            error.winerror = 5  # type: ignore[attr-defined,unused-ignore]
            raise error
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OutputError, match=r"are in .*pics_2$"):
        sink.claim.publish(made)
    sink.claim.release()
    assert (grey_of(path), grey_of(tmp_path / "pics_2")) == (60, 180)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["pics", "pics_2"]


def test_a_scanner_that_holds_a_segment_for_a_moment_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it gets its name, and when it is removed."""
    path = tmp_path / "clip.mp4"
    unlink, tries = Path.unlink, iter(range(1000))

    def refuse(file: Path, missing_ok: bool = False) -> None:
        if file.name == "segment_000000.mp4" and next(tries) < 2:
            error = PermissionError(errno.EACCES, "Sharing violation", str(file))
            error.winerror = 32  # type: ignore[attr-defined,unused-ignore]
            raise error
        unlink(file, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with held(monkeypatch, tmp_path / "clip.mp4.partial" / "segment_000000.mp4.partial", times=2):
        sink = decoded(path, 120, claim=Claim(path, {"a": 1}))
    assert sink.finish() == path
    assert next(tries) > 2
    assert grey_of(path) == 120
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_lock_that_is_just_given_back_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A name that is being removed can't be had until that is over."""
    tries = iter(range(1000))

    def slow(act: Any) -> Any:
        def act_or_refuse(*arguments: Any) -> Any:
            if next(tries) < 2:
                error = PermissionError(errno.EACCES, "Access is denied")
                error.winerror = 5  # type: ignore[attr-defined,unused-ignore]
                raise error
            return act(*arguments)

        return act_or_refuse

    if what == "folder":
        monkeypatch.setattr(Path, "mkdir", slow(Path.mkdir))
    else:
        monkeypatch.setattr(locks, "open", slow(open), raising=False)
    with Claim(tmp_path / "clip.npy"):
        assert next(tries) > 2
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_removed_yet_spoils_no_complete_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, unlink = tmp_path / "clip.mp4", Path.unlink

    def refuse(file: Path, missing_ok: bool = False) -> None:
        if file.name == "segment_000000.mp4":
            error = PermissionError(errno.EACCES, "Sharing violation", str(file))
            error.winerror = 32  # type: ignore[attr-defined,unused-ignore]
            raise error
        unlink(file, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        assert decoded(path, 120, claim=Claim(path, {"a": 1})).finish() == path
    assert grey_of(path) == 120
    assert "clip.mp4 is complete; what is left beside it stays: " in caplog.text
    with Claim(path, overwrite=True):
        pass
    assert list(tmp_path.iterdir()) == [path]


def test_no_output_is_linked_where_renaming_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link would be made, and then the other name could not be removed while a scanner looks."""
    monkeypatch.setattr(os, "link", lambda *_: pytest.fail("linked"))
    assert grey_of(written(tmp_path / "clip.npy", 120)) == 120


@pytest.mark.parametrize("name", ["NUL.mp4", "12:30.mp4", "clip.mp4.", "aux", "a?.npy"])
def test_a_name_that_windows_takes_for_another_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match="Windows can't give a file the name"):
        sink_for(tmp_path / name, fps=Fraction(24))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "nt", reason="names differ in capitals here")
def test_a_name_in_other_capitals_is_the_same_output(tmp_path: Path) -> None:
    with (
        Claim(tmp_path / "clip.npy"),
        pytest.raises(OutputError, match="is being written by another process"),
        Claim(tmp_path / "CLIP.NPY"),
    ):
        pass
    written(tmp_path / "clip.npy", 60)
    with pytest.raises(OutputError, match="is there already"), Claim(tmp_path / "Clip.npy"):
        pass


def test_what_is_open_is_no_question_of_rights() -> None:
    error = PermissionError(errno.EACCES, "It is used", "clip.mp4.partial")
    error.winerror = 32  # type: ignore[attr-defined,unused-ignore]
    with pytest.raises(OutputError) as caught, output_errors(Path("clip.mp4")):
        raise error
    assert "a program has clip.mp4.partial open" in str(caught.value)
    assert "close it first" in str(caught.value)


def test_an_open_lock_file_keeps_its_name_and_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of some Pythons stat() and fstat() number a disk differently there."""
    monkeypatch.setattr(locks, "sys", WINDOWS)
    monkeypatch.setattr(locks, "_asked", lambda handle: True)
    monkeypatch.setattr(os.path, "samestat", lambda *_: False)
    with Claim(tmp_path / "clip.npy"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_refused_without_a_reason_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As wine's is."""

    def refuse(*_: Any) -> None:
        raise OSError(0, "Error")

    double = SimpleNamespace(locking=refuse, LK_NBLCK=2)
    monkeypatch.setattr(locks, "sys", WINDOWS)
    monkeypatch.setitem(sys.modules, "msvcrt", double)
    monkeypatch.setattr(os, "lseek", lambda *_: 0)
    assert locks._asked(0) is False
