"""A decode that was stopped goes on; one that is another's, or was made otherwise, is refused."""

from __future__ import annotations

import json
import logging
import os
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
av = pytest.importorskip("av")
pytest.importorskip("diffusers")

import check_resume  # noqa: E402
import how_much  # noqa: E402

import hy3d_rocm  # noqa: E402
from hy3d_rocm.frames import sinks  # noqa: E402
from hy3d_rocm.frames.claim import Claim, FileFingerprints, tensor_fingerprint  # noqa: E402
from hy3d_rocm.frames.output import OutputError  # noqa: E402
from hy3d_rocm.frames.sinks import sink_for  # noqa: E402

JOB = {"latents": "abc", "budget": "6GB"}
PLAN = {"strategy": "streamed", "chunk": 2}
COUNT = 13


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "SEGMENT_FRAMES", 4)


def make_frames(samples: int = 1) -> Any:
    generator = torch.Generator().manual_seed(7)
    rough = torch.rand(samples, 3, COUNT, 4, 6, generator=generator) * 2 - 1
    return rough.repeat_interleave(8, 3).repeat_interleave(8, 4)


def begin(path: Path, parts: Any, frames: Any, plan: Any = PLAN) -> Any:
    sink = sink_for(path, fps=Fraction(24), claim=parts)
    sink.begin(tuple(frames.shape), frames.dtype, plan)
    return sink


def put(sink: Any, frames: Any, first: int, stop: int, step: int = 3, sample: int = 0) -> None:
    for at in range(first, stop, step):
        end = min(at + step, stop)
        sink.put(sample, at, frames[sample : sample + 1, :, at:end])


def whole(path: Path, frames: Any) -> bytes:
    """The bytes of a file that nobody disturbed."""
    with Claim(path, JOB) as parts:
        sink = begin(path, parts, frames)
        for sample in range(frames.shape[0]):
            put(sink, frames, 0, COUNT, sample=sample)
        sink.finish()
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.mark.parametrize(
    ("suffix", "stop"),
    [(".mp4", n) for n in (0, 1, 4, 5, 11, 12, 13)]
    + [(".mkv", n) for n in (5, 13)]
    + [(".npy", n) for n in range(COUNT + 1)],
)
def test_a_decode_stopped_at_any_frame_goes_on_to_the_same_bytes(
    tmp_path: Path, suffix: str, stop: int
) -> None:
    frames, path = make_frames(), tmp_path / f"clip{suffix}"
    expected = whole(path, frames)
    with Claim(path, JOB) as parts:
        sink = begin(path, parts, frames)
        put(sink, frames, 0, stop)
        sink.abort()
    assert not path.exists()
    with Claim(path, JOB) as parts:
        assert parts.manifest["plan"] == PLAN
        sink = begin(path, parts, frames)
        wanted = sink.first_wanted(0)
        # An array that is stopped records all it has, a video its complete segments.
        assert wanted == (stop if suffix == ".npy" or stop == COUNT else stop // 4 * 4)
        assert parts.is_complete == (stop == COUNT)
        put(sink, frames, wanted // 3 * 3, COUNT)
        sink.finish()
    assert path.read_bytes() == expected
    assert [f.name for f in tmp_path.iterdir()] == [path.name]


def test_segments_start_with_a_key_frame_and_play_alone(tmp_path: Path) -> None:
    frames, path = make_frames(), tmp_path / "clip.mp4"
    with Claim(path, JOB) as parts:
        put(begin(path, parts, frames), frames, 0, COUNT)
        found = sorted(parts.folder.glob("segment_*.mp4"))
        counts = []
        for file in found:
            with av.open(str(file)) as container:
                decoded = list(container.decode(video=0))
                counts.append(len(decoded))
                assert decoded[0].key_frame
        assert counts == [4, 4, 4, 1]


def test_a_batch_goes_on_in_its_second_sample(tmp_path: Path) -> None:
    frames, path = make_frames(2), tmp_path / "clip.npy"
    with Claim(path, JOB) as parts:
        sink = begin(path, parts, frames)
        put(sink, frames, 0, COUNT)
        put(sink, frames, 0, 6, sample=1)
    with Claim(path, JOB) as parts:  # killed: nobody called abort()
        sink = begin(path, parts, frames)
        # Recorded were 6, 12 and 16 frames: at least 4 more each time.
        assert (sink.first_wanted(0), sink.first_wanted(1)) == (COUNT, 3)
        put(sink, frames, 0, COUNT, sample=1)
        sink.finish()
    assert np.array_equal(np.load(path), frames.numpy())


def test_another_jobs_parts_are_refused_and_thrown_away_only_when_told(tmp_path: Path) -> None:
    frames, path = make_frames(), tmp_path / "clip.mp4"
    with Claim(path, JOB) as parts:
        put(begin(path, parts, frames), frames, 0, 8)
    other = JOB | {"latents": "xyz"}
    with (
        pytest.raises(OutputError, match=r"differs in latents .*abc.*xyz.*--restart"),
        Claim(path, other),
    ):
        pass
    with Claim(path, JOB) as parts:
        sink = begin(path, parts, frames)
        assert sink.first_wanted(0) == 8
        sink.abort()  # on Windows nobody removes what is open
    with Claim(path, other, restart=True) as parts:
        assert parts.manifest == {}
        assert begin(path, parts, frames).first_wanted(0) == 0


def test_frames_made_in_another_way_are_refused(tmp_path: Path) -> None:
    frames, path = make_frames(), tmp_path / "clip.mp4"
    with Claim(path, JOB) as parts:
        put(begin(path, parts, frames), frames, 0, 8)
    with Claim(path, JOB) as parts, pytest.raises(OutputError, match=r"plan .*tiled.*--restart"):
        begin(path, parts, frames, {"strategy": "tiled"})


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    with (
        Claim(path, JOB),
        pytest.raises(OutputError, match="by another process"),
        Claim(path, JOB),
    ):
        pass
    with Claim(path, JOB):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}'])
def test_a_manifest_that_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "clip.mp4"
    (tmp_path / "clip.mp4.partial").mkdir()
    (tmp_path / "clip.mp4.partial" / "manifest.json").write_text(text)
    with pytest.raises(OutputError, match="--restart starts from scratch"), Claim(path, JOB):
        pass
    with Claim(path, JOB, restart=True) as parts:
        assert parts.manifest == {}


@pytest.mark.parametrize("number", [1, 3])
def test_a_decode_that_another_version_began_stays_until_told_otherwise(
    tmp_path: Path, number: int
) -> None:
    """Format 1 had fingerprints of a part of each file, and its pictures under their last name."""
    path, folder = tmp_path / "clip.mp4", tmp_path / "clip.mp4.partial"
    folder.mkdir()
    made = {"job": JOB, "shape": [1, 3, 33, 64, 64], "dtype": "uint8", "plan": {}, "done": 17}
    (folder / "manifest.json").write_text(json.dumps({"format": number, **made, "unknown": []}))
    (folder / "segment_000000.mp4").write_bytes(b"frames")
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    with pytest.raises(OutputError) as caught, Claim(path, JOB):
        pass
    assert str(caught.value) == (
        f"{folder / 'manifest.json'} is of another version of this program (format {number}; this "
        f"one, {hy3d_rocm.__version__}, reads 2): go on with that one, or --restart starts from "
        "scratch"
    )
    with pytest.raises(OutputError, match="holds a decode that can go on"), Claim(path):
        pass
    left = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    assert {name: left[name] for name in before} == before
    with Claim(path, JOB, restart=True) as parts:
        assert parts.manifest == {}
    assert not folder.exists()


def test_a_segment_that_a_disk_has_broken_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames, path = make_frames(), tmp_path / "clip.mp4"
    expected = whole(path, frames)
    for damage in (b"", b"no video"):
        path.unlink(missing_ok=True)
        with Claim(path, JOB) as parts:
            put(begin(path, parts, frames), frames, 0, 12)
            (parts.folder / "segment_000001.mp4").write_bytes(damage)
        with Claim(path, JOB) as parts:
            sink = begin(path, parts, frames)
            assert sink.first_wanted(0) == 4
            assert "is made again" in caplog.text
            put(sink, frames, 3, COUNT)
            sink.finish()
        assert path.read_bytes() == expected


def test_segments_without_a_manifest_are_never_used(tmp_path: Path) -> None:
    """They may be of any job."""
    frames, path = make_frames(), tmp_path / "clip.mp4"
    with Claim(path, JOB) as parts:
        put(begin(path, parts, frames), frames, 0, 12)
        (parts.folder / "manifest.json").unlink()
    with Claim(path, JOB) as parts:
        assert begin(path, parts, frames).first_wanted(0) == 0


def test_a_kill_between_the_arrays_renaming_and_the_end_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames, path = make_frames(), tmp_path / "clip.npy"
    with Claim(path, JOB) as parts:
        sink = begin(path, parts, frames)
        put(sink, frames, 0, COUNT)
        monkeypatch.setattr(parts, "clear", lambda: None)
        sink.finish()
    with Claim(path, JOB) as parts:
        assert parts.is_complete
        sink = begin(path, parts, frames)
        assert sink.first_wanted(0) == COUNT
        assert sink.finish() == path
    assert np.array_equal(np.load(path), frames.numpy())
    assert [f.name for f in tmp_path.iterdir()] == ["clip.npy"]


@pytest.mark.parametrize("name", ["clip.mp4", "clip.npy"])
def test_a_kill_while_the_file_has_both_names_loses_nothing_and_makes_no_second_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    frames, path = make_frames(), tmp_path / name

    class Killed(BaseException):
        pass

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with Claim(path, JOB) as parts:
        sink = begin(path, parts, frames)
        put(sink, frames, 0, COUNT)
        with monkeypatch.context() as patched:
            patched.setattr("hy3d_rocm.frames.claim.Path.unlink", kill)
            with pytest.raises(Killed):
                sink.finish()
    content = path.read_bytes()
    with Claim(path, JOB) as parts:
        assert begin(path, parts, frames).finish() == path
    assert path.read_bytes() == content
    assert [f.name for f in tmp_path.iterdir()] == [name]


def test_an_array_whose_data_are_gone_is_never_taken_for_complete_again(tmp_path: Path) -> None:
    frames, path = make_frames(), tmp_path / "clip.npy"
    with Claim(path, JOB) as parts:
        sink = begin(path, parts, frames)
        put(sink, frames, 0, COUNT)
        sink.abort()
        (parts.folder / "frames.npy").unlink()
    for _ in range(2):  # killed as soon as there is a new file, and then once more
        with Claim(path, JOB) as parts:
            assert begin(path, parts, frames).first_wanted(0) == 0


def test_what_is_the_users_in_the_folder_stays(tmp_path: Path) -> None:
    frames, path = make_frames(), tmp_path / "clip.mp4"
    with Claim(path, JOB, restart=True) as parts:
        note = parts.folder / "notes.txt"
        note.write_text("mine")
        sink = begin(path, parts, frames)
        put(sink, frames, 0, COUNT)
        sink.finish()
    assert note.read_text() == "mine"
    assert [f.name for f in note.parent.iterdir()] == ["notes.txt"]


def test_a_leftover_of_a_run_without_resume_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    (tmp_path / "clip.mp4.partial").write_bytes(b"half a video")
    frames = make_frames()
    with Claim(path, JOB) as parts:
        assert parts.folder.is_dir()
        begin(path, parts, frames)
    with pytest.raises(OutputError, match="give --resume, or remove that folder"):
        begin(path, None, frames)


def test_fingerprints_see_what_matters(tmp_path: Path) -> None:
    latents = torch.zeros(1, 4, 3, 2, 2)
    known = tensor_fingerprint(latents)
    assert tensor_fingerprint(latents.clone()) == known
    changed = latents.clone()
    changed[0, 3, 2, 1, 1] = 1e-30
    others = [changed, latents.half(), latents.view(1, 4, 2, 3, 2), latents.transpose(1, 2)]
    assert len({tensor_fingerprint(t) for t in others} | {known}) == 5
    files = []
    middle = bytearray(b"a" * (9 << 20))
    middle[(9 << 20) // 2 + 12345] ^= 1  # where samples would not look
    for content in (
        bytes(middle),
        b"a" * 10,
        b"b" * 10,
        b"a" * 11,
        b"a" * (9 << 20),
        b"b" + b"a" * ((9 << 20) - 1),
    ):
        files.append(tmp_path / "weights")
        files[-1].write_bytes(content)
        files[-1] = FileFingerprints().of(files[-1:])
    assert len(set(files)) == 6


def test_the_manifest_is_on_the_disk_before_the_first_segment(tmp_path: Path) -> None:
    frames, path = make_frames(), tmp_path / "clip.mp4"
    with Claim(path, JOB) as parts:
        begin(path, parts, frames)
        written = json.loads((parts.folder / "manifest.json").read_text())
    assert written["job"] == JOB
    assert written["plan"] == PLAN
    assert written["shape"] == list(frames.shape)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="its trials are forked")
@pytest.mark.parametrize(
    ("decoder", "suffix", "count"),
    how_much.of(
        [("double", "mp4", 1), ("double", "npy", 1), ("vae", "mp4", 1)],
        [("double", "mp4", 4), ("double", "npy", 2), ("vae", "mp4", 1)],
    ),
)
def test_killed_decodes_end_in_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, decoder: str, suffix: str, count: int
) -> None:
    """A few of check_resume's trials; `tests/long/check_resume.py --count 200` runs more."""
    folder = tmp_path_factory.mktemp("killed")
    threads, level = torch.get_num_threads(), logging.getLogger("hy3d_rocm").level
    try:
        assert check_resume.check(folder, count, 1, decoder, suffix) > 0
    finally:
        torch.set_num_threads(threads)
        logging.getLogger("hy3d_rocm").setLevel(level)
        shutil.rmtree(folder, ignore_errors=True)
