"""One decode writes an output: real processes at one name, locks of dead ones, names taken."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
av = pytest.importorskip("av")
Image = pytest.importorskip("PIL.Image")

import claim_child  # noqa: E402
from claim_child import COUNT  # noqa: E402

from hy3d_rocm.frames import claim as claims  # noqa: E402
from hy3d_rocm.frames import claim as locks  # noqa: E402
from hy3d_rocm.frames.claim import Claim, FileFingerprints  # noqa: E402
from hy3d_rocm.frames.output import OutputError  # noqa: E402
from hy3d_rocm.frames.sinks import sink_for  # noqa: E402

NAMES = ["clip.mp4", "clip.mkv", "clip.npy", "pictures", "12.30 Jörg ☂.mp4"]
if os.name == "nt":
    PROCESSES: Any = multiprocessing.get_context("spawn")
else:
    NAMES.append("12:30.mp4")  # on Windows what is behind the colon is a stream of the file "12"
    # Its children have imported torch before they are forked: seconds, if each did it.
    PROCESSES = multiprocessing.get_context("forkserver")
    PROCESSES.set_forkserver_preload(["av", "numpy", "torch", "hy3d_rocm.frames.sinks"])


class Child:
    """A process that is ready to claim `path`, see claim_child.write()."""

    def __init__(self, path: Path, grey: int, resume: bool = False, hold: bool = False) -> None:
        self.talk, other = PROCESSES.Pipe()
        self.process = PROCESSES.Process(
            target=claim_child.write, args=(path, grey, resume, hold, other), daemon=True
        )
        self.process.start()
        other.close()

    def tell(self) -> None:
        """To begin, or to go on."""
        self.talk.send("go")

    def end(self) -> tuple[int | None, list[str]]:
        """Its exit code, and what it said that was not read."""
        said = []
        with contextlib.suppress(EOFError, BrokenPipeError):  # the latter on Windows
            while self.talk.poll(120):
                said.append(self.talk.recv())
        self.process.join(120)
        return self.process.exitcode, said


def greys(path: Path) -> set[int]:
    """Of all frames, to the nearest 60; all of them are there."""
    if path.suffix == ".npy":
        found = (np.load(path)[0].mean((0, 2, 3)) + 1) * 127.5
    elif path.is_dir():
        found = np.array([np.asarray(Image.open(file)).mean() for file in sorted(path.iterdir())])
    else:
        with open(path, "rb") as file, av.open(file) as container:
            found = np.array(
                [f.to_ndarray(format="rgb24").mean() for f in container.decode(video=0)]
            )
    assert len(found) == COUNT
    return {round(grey / 60) * 60 for grey in found}


def frames(grey: int = 120) -> Any:
    return torch.full((1, 3, COUNT, 16, 16), grey / 127.5 - 1)


def write(path: Path, grey: int = 120, **more: Any) -> Any:
    sink = sink_for(path, fps=Fraction(24), **more)
    made = frames(grey)
    try:
        sink.begin(tuple(made.shape), made.dtype, {})
        sink.put(0, 0, made)
        return sink.finish()
    except BaseException:
        sink.abort()
        raise


@pytest.mark.parametrize(
    ("name", "resumed"),
    [(name, (False, False)) for name in NAMES]
    + [("clip.mp4", (True, False)), ("clip.npy", (False, True)), ("pictures", (True, True))],
)
def test_the_second_of_two_processes_is_refused_before_it_begins(
    tmp_path: Path, name: str, resumed: tuple[bool, bool]
) -> None:
    path = tmp_path / name
    first, second = Child(path, 60, resumed[0], hold=True), Child(path, 180, resumed[1])
    first.tell()
    assert first.talk.recv() == "began"
    second.tell()
    code, (said,) = second.end()
    assert code == 1, said
    assert f"{path} is being written by another process ({first.process.pid} on" in said
    first.tell()
    assert first.end() == (0, [])
    assert greys(path) == {60}
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_of_many_processes_at_once_each_output_is_of_one_and_whole(tmp_path: Path) -> None:
    """Whoever says 0 has written all of it; who comes when another is done may begin."""
    path = tmp_path / "clip.mp4"
    children = [Child(path, 60 * (1 + n % 3), n % 2 == 0) for n in range(4)]
    for one in children:
        one.tell()
    ends = [one.end() for one in children]
    codes = [code for code, _ in ends]
    assert set(codes) <= {0, 1}, ends
    assert 0 in codes
    done = {60 * (1 + n % 3) for n, code in enumerate(codes) if code == 0}
    assert len(greys(path)) == 1
    assert greys(path) <= done
    assert [file.name for file in tmp_path.iterdir()] == ["clip.mp4"]


@pytest.mark.parametrize("name", ["clip.mp4", "clip.npy", "pictures"])
def test_the_lock_of_a_killed_process_is_not_for_ever(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    first = Child(path, 60, hold=True)
    first.tell()
    assert first.talk.recv() == "began"
    with pytest.raises(OutputError, match="by another process"):
        Claim(path).take()
    first.process.kill()
    first.process.join()
    assert write(path, 180) == path
    assert greys(path) == {180}
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", NAMES)
def test_what_somebody_else_made_meanwhile_stays_and_so_do_the_frames(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    sink, made = sink_for(path, fps=Fraction(24)), frames()
    sink.begin(tuple(made.shape), made.dtype, {})
    sink.put(0, 0, made)
    if path.suffix:
        path.write_bytes(b"another program's")
    else:
        path.mkdir()
        (path / "mine.png").write_bytes(b"another program's")
    with pytest.raises(OutputError, match=r"by somebody else meanwhile, and stays.*_2"):
        sink.finish()
    sink.abort()
    kept = path if path.suffix else path / "mine.png"
    assert kept.read_bytes() == b"another program's"
    other = path.with_name(f"{path.stem}_2{path.suffix}")
    assert greys(other) == {120}
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted([path.name, other.name])


def test_a_file_that_was_there_is_replaced_where_that_is_asked_for_and_not_if_it_changes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "clip.npy"
    path.write_bytes(b"old")
    with pytest.raises(OutputError, match="is there already: give --overwrite"):
        write(path)
    assert path.read_bytes() == b"old"
    assert write(path, overwrite=True) == path
    assert greys(path) == {120}
    sink, made = sink_for(path, fps=Fraction(24), overwrite=True), frames()
    sink.begin(tuple(made.shape), made.dtype, {})
    sink.put(0, 0, made)
    path.unlink()
    path.write_bytes(b"new and not ours")
    with pytest.raises(OutputError, match="meanwhile"):
        sink.finish()
    assert path.read_bytes() == b"new and not ours"


def test_a_folder_with_an_older_longer_clip_is_refused_or_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "pictures"
    path.mkdir()
    for number in range(100):
        (path / f"frame_{number:06d}.png").write_bytes(b"old")
    with pytest.raises(OutputError, match="holds 100 pictures already: give --overwrite"):
        write(path)
    assert len(list(path.iterdir())) == 100
    assert write(path, overwrite=True) == path
    assert greys(path) == {120}
    (path / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"holds other files \('notes.txt'\)"):
            write(path, overwrite=overwrite)
    assert len(list(path.iterdir())) == COUNT + 1
    (path / "notes.txt").unlink()
    kept = tmp_path / "pictures.partial" / "old" / "notes.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    with pytest.raises(OutputError, match=r"old is in the way of .*pictures: remove it"):
        write(path, overwrite=True)
    assert kept.read_text() == "mine"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert greys(write(empty)) == {120}


@pytest.mark.parametrize("stop", range(COUNT + 1))
def test_a_folder_of_pictures_goes_on_behind_the_last_whole_one(tmp_path: Path, stop: int) -> None:
    path, made = tmp_path / "pictures", frames()
    with Claim(path, {"a": 1}) as parts:
        sink = sink_for(path, fps=Fraction(24), claim=parts)
        sink.begin(tuple(made.shape), made.dtype, {})
        sink.put(0, 0, made[:, :, :stop])
        if stop > 2:  # a disk's failure
            last = parts.folder / "pictures" / f"frame_{stop - 1:06d}.png"
            last.write_bytes(last.read_bytes()[:-5])
        sink.abort()
    assert not path.exists()
    with Claim(path, {"a": 1}) as parts:
        sink = sink_for(path, fps=Fraction(24), claim=parts)
        sink.begin(tuple(made.shape), made.dtype, {})
        assert sink.first_wanted(0) == (stop - 1 if stop > 2 else stop)
        sink.put(0, 0, made)
        assert sink.finish() == path
    assert greys(path) == {120}
    assert [file.name for file in tmp_path.iterdir()] == ["pictures"]


def test_a_kill_between_publishing_and_the_end_is_known_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("clip.mp4", "clip.npy", "pictures"):
        path, made = tmp_path / name, frames()
        with Claim(path, {"a": 1}) as parts:
            sink = sink_for(path, fps=Fraction(24), claim=parts)
            sink.begin(tuple(made.shape), made.dtype, {})
            sink.put(0, 0, made)
            monkeypatch.setattr(parts, "clear", lambda: None)
            sink.finish()
        inode = path.stat().st_ino
        with Claim(path, {"a": 1}) as parts:
            assert parts.is_complete
            sink = sink_for(path, fps=Fraction(24), claim=parts)
            sink.begin(tuple(made.shape), made.dtype, {})
            assert sink.finish() == path
        assert path.stat().st_ino == inode
        assert greys(path) == {120}
    assert len(list(tmp_path.iterdir())) == 3


def test_pictures_that_could_not_be_replaced_are_put_back_and_the_decode_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made = tmp_path / "pictures", frames(180)
    write(path, 60)

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for number in range(2):
        with Claim(path, {"a": 1}, overwrite=True) as claim, monkeypatch.context() as patched:
            sink = sink_for(path, fps=Fraction(24), claim=claim)
            sink.begin(tuple(made.shape), made.dtype, {})
            assert sink.first_wanted(0) == number * COUNT
            sink.put(0, 0, made)
            if number:
                assert sink.finish() == path
            else:
                patched.setattr(claims, "_has_got_name", fail)
                with pytest.raises(OutputError, match="Input/output error"):
                    sink.finish()
                sink.abort()
                assert greys(path) == {60}
    assert greys(path) == {180}
    assert [file.name for file in tmp_path.iterdir()] == ["pictures"]


def test_a_drive_without_locks_has_an_owners_file_that_counts_while_he_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_asked", lambda handle: None)
    path = tmp_path / "clip.npy"
    words = r"or remove .*clip.npy.partial[\\/]owner if that is over"
    with Claim(path), pytest.raises(OutputError, match=words):
        Claim(path).take()
    assert list(tmp_path.iterdir()) == []
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "clip.npy.partial").mkdir()
    owner = tmp_path / "clip.npy.partial" / "owner"
    if os.name != "nt":  # where nobody is asked, since drives have locks
        owner.write_bytes(locks._me().replace(str(os.getpid()).encode(), str(ended.pid).encode()))
        assert write(path) == path
        (tmp_path / "clip.npy.partial").mkdir()
    owner.write_text("1 another-machine\n")
    with pytest.raises(OutputError, match=r"\(1 on another-machine\)"):
        Claim(path).take()


def test_a_drive_that_never_answers_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_LOCK_SECONDS", 0.05)
    monkeypatch.setattr(locks, "_asked", lambda handle: time.sleep(1))
    with pytest.raises(OutputError, match="does not answer when asked for a lock"):
        Claim(tmp_path / "clip.mp4").take()


def test_a_drive_without_second_names_still_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(claims.os, "link", refuse)
    path = tmp_path / "clip.npy"
    assert write(path) == path
    assert greys(path) == {120}


POSIX = pytest.mark.skipif(os.name == "nt", reason="no pipes with names, links only for some users")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("x" * 300 + ".mp4", "too long", marks=POSIX),  # Windows: "does not exist"
        ("a\0b.mp4", "is no name of a file"),
        ("..", "is no name of a file"),
        ("dir.mp4", "is a folder; remove it"),
        ("file.txt/clip.mp4", "is no folder|is not a directory|does not exist"),
        pytest.param("fifo.mp4", "is a device, a pipe or a link to nothing", marks=POSIX),
        pytest.param("broken.mp4", "is a device, a pipe or a link to nothing", marks=POSIX),
        ("no/such/clip.mp4", "does not exist; make it first"),
        ("file", "is a file; name a folder for the pictures"),
        pytest.param("loop/clip.mp4", "leads to itself", marks=POSIX),
    ],
)
def test_a_name_that_cannot_be_had_is_told_before_anything_is_made(
    tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / "dir.mp4").mkdir()
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "file").write_text("")
    if os.name != "nt":
        os.mkfifo(tmp_path / "fifo.mp4")
        (tmp_path / "broken.mp4").symlink_to(tmp_path / "nothing")
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = sorted(f.name for f in tmp_path.iterdir())
    with pytest.raises(OutputError, match=words):
        sink_for(tmp_path / name, fps=Fraction(24)).begin((1, 3, COUNT, 16, 16), torch.float32, {})
    assert sorted(f.name for f in tmp_path.iterdir()) == before


@POSIX
def test_a_device_is_no_output() -> None:
    with pytest.raises(OutputError, match="is a device"):
        Claim(Path("/dev/full")).take()


def test_a_changed_byte_anywhere_in_a_vae_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "vae.safetensors"
    content = bytearray(np.random.default_rng(0).bytes(300_001))
    file.write_bytes(content)
    os.utime(file, ns=(0, 0))
    known = FileFingerprints()
    first = known.of([file])
    for at in (0, 150_000, 299_999, 300_000):
        content[at] ^= 1
        file.write_bytes(content)
        if os.name != "nt":  # which does not tell the time of the change
            os.utime(file, ns=(0, 0))  # the same time and size: that of the change is another one
        content[at] ^= 1
        assert FileFingerprints().of([file]) != first
        assert known.changed() == file
