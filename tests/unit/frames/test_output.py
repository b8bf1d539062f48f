"""Sinks: frames arrive unchanged, files are whole or not there, faults are told."""

from __future__ import annotations

import io
import os
import sys
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
av = pytest.importorskip("av")

import warm_start  # noqa: E402
from sink_doubles import TensorSink  # noqa: E402

from hy3d_rocm.decoding.checks import check_result  # noqa: E402
from hy3d_rocm.frames import output, video  # noqa: E402
from hy3d_rocm.frames.claim import Claim  # noqa: E402
from hy3d_rocm.frames.output import OutputError, scratch  # noqa: E402
from hy3d_rocm.frames.sinks import MemmapSink, sink_for  # noqa: E402
from hy3d_rocm.meter import PeakMeter  # noqa: E402

FPS = Fraction(24)


def random_frames(*shape: int, dtype: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.rand(shape, generator=generator) * 2.2 - 1.1).to(dtype)


def smooth_frames(count: int, height: int, width: int) -> Any:
    """(1, 3, T, H, W), slow waves, as a codec likes them."""
    y = torch.linspace(-1, 1, height).view(-1, 1)
    x = torch.linspace(-1, 1, width).view(1, -1)
    t = torch.arange(count).view(-1, 1, 1) / 9
    return torch.stack([torch.sin(x + t + 0 * y), torch.cos(y - t + 0 * x), torch.sin(x + y + t)])[
        None
    ]


RESERVES = pytest.mark.skipif(
    not hasattr(os, "posix_fallocate"), reason="there a file has all its blocks once it is as long"
)


def _no_room(*_: object) -> None:
    raise OSError(28, "No space left on device")


def write(sink: Any, frames: Any, step: int = 5, plan: Any = None) -> Any:
    """Frames to a sink as a decode delivers them, all samples, `step` frames at a time."""
    sink.begin(tuple(frames.shape), frames.dtype, plan)
    for sample in range(frames.shape[0]):
        for first in range(0, frames.shape[2], step):
            sink.put(sample, first, frames[sample : sample + 1, :, first : first + step])
    return sink.finish()


def read(path: Path) -> Any:
    """uint8 (T, H, W, 3) of a video."""
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def shown(frames: Any) -> Any:
    """What a picture file holds of frames (1, C, T, H, W), worked out in float64."""
    values = np.clip(np.round((frames[0].double().numpy() + 1) * 127.5), 0, 255)
    return np.broadcast_to(values, (3, *values.shape[1:])).transpose(1, 2, 3, 0)


def test_a_tensor_of_the_callers_is_filled_and_given_back() -> None:
    frames = random_frames(2, 3, 7, 4, 6)
    out = torch.zeros_like(frames)
    assert write(TensorSink(out), frames, step=3) is out
    assert torch.equal(out, frames)
    assert torch.equal(write(TensorSink(), frames, step=4), frames)


def test_tiles_are_added_up_in_the_array_itself(tmp_path: Path) -> None:
    frames = random_frames(1, 3, 4, 6, 8)
    sink = MemmapSink(tmp_path / "a.npy")
    sink.begin(tuple(frames.shape), frames.dtype)
    for rows in (slice(0, 2), slice(2, 6)):
        sink.buffer[:, :, :, rows] += frames[:, :, :, rows]
    assert np.array_equal(np.load(sink.finish()), frames.numpy())


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        ([0.0], TypeError, "out is a list"),
        (torch.zeros(1, 3, 4, 6, 8, dtype=torch.int32), TypeError, "out is torch.int32"),
        (torch.zeros(1, 3, 4, 6, 9), ValueError, "out is (1, 3, 4, 6, 9) on cpu"),
        (torch.zeros(1, 3, 4, 6, 8, device="meta"), ValueError, "on meta"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_in_a_sentence(
    out: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        check_result(out, (1, 3, 4, 6, 8), (), ())
    assert words in str(caught.value)


def test_a_tensor_that_fits_may_be_a_view_of_another_float_type() -> None:
    check_result(
        torch.zeros(1, 3, 4, 8, 6, dtype=torch.float16).transpose(3, 4), (1, 3, 4, 6, 8), (), ()
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
def test_an_array_holds_every_frame_bit_for_bit(tmp_path: Path, dtype: Any) -> None:
    frames = random_frames(2, 3, 9, 4, 6, dtype=dtype)
    path = tmp_path / "frames.npy"
    sink = MemmapSink(path)
    sink.begin(tuple(frames.shape), dtype)
    assert not path.exists(), "nothing has the file's name before it is complete"
    assert write(sink, frames, step=4) == path
    stored = torch.from_numpy(np.load(path))
    expected = frames.float() if dtype == torch.bfloat16 else frames
    assert stored.dtype == expected.dtype
    assert torch.equal(stored, expected)
    assert [f.name for f in tmp_path.iterdir()] == ["frames.npy"]


def test_an_array_with_frames_missing_is_never_called_complete(tmp_path: Path) -> None:
    frames = random_frames(1, 3, 9, 4, 6)
    sink = MemmapSink(tmp_path / "a.npy")
    sink.begin(tuple(frames.shape), frames.dtype)
    sink.put(0, 0, frames[:, :, :5])
    with pytest.raises(RuntimeError, match="5 of 9 frames"):
        sink.finish()
    sink.abort()
    assert list(tmp_path.iterdir()) == []


@RESERVES
def test_an_array_on_a_full_disk_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output.os, "posix_fallocate", _no_room)
    with pytest.raises(OutputError, match="the disk is full"):
        MemmapSink(tmp_path / "a.npy").begin((1, 3, 4, 6, 8), torch.float32)
    assert list(tmp_path.iterdir()) == []


def test_an_arrays_pages_do_not_stay_in_the_process(tmp_path: Path) -> None:
    """64 MiB go through in one put(). The kernel adds up resident pages in batches: a sixteenth, as
    for PeakMeter."""
    frames = torch.ones(1, 1, 16, 1024, 1024)
    sink = MemmapSink(tmp_path / "a.npy")
    with PeakMeter(interval=0) as meter:
        sink.begin(tuple(frames.shape), torch.float32)
        sink.put(0, 0, frames)
        sink.finish()
    if not meter.exact:
        pytest.skip("the kernel does not let this process reset its high-water mark")
    assert meter.peak_bytes <= sink.host_bytes(tuple(frames.shape)) * 17 // 16
    assert np.load(tmp_path / "a.npy", mmap_mode="r")[0, 0, 15, 1023, 1023] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scratch_is_zeros_in_a_file_that_nobody_sees(tmp_path: Path, dtype: Any) -> None:
    frames = random_frames(1, 3, 4, 6, 8, dtype=dtype)
    tensor = scratch(tmp_path, tuple(frames.shape), dtype)
    if os.name != "nt":  # there it has a name until the last tensor goes
        assert list(tmp_path.iterdir()) == []
    assert not tensor.any()
    tensor.add_(frames)
    assert torch.equal(tensor, frames)
    del tensor
    assert list(tmp_path.iterdir()) == []


@RESERVES
def test_scratch_on_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.os, "posix_fallocate", _no_room)
    with pytest.raises(OutputError, match="the disk is full"):
        scratch(tmp_path, (1, 3, 4, 6, 8), torch.float32)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_a_video_has_each_frame_once_in_order_at_its_time(tmp_path: Path, suffix: str) -> None:
    """Each frame is of one grey, 6 apart from its neighbours': the nearest grey tells which one."""
    greys = torch.arange(40) * 6 + 10
    frames = (greys / 127.5 - 1).view(1, 1, -1, 1, 1).expand(1, 3, -1, 16, 32)
    path = write(sink_for(tmp_path / f"clip{suffix}", fps=FPS), frames, step=7)
    found = read(path).astype(int).mean((1, 2, 3))
    assert np.abs(found[:, None] - greys.numpy()).argmin(1).tolist() == list(range(40))
    with av.open(str(path)) as container:
        times = [frame.time for frame in container.decode(video=0)]
        assert container.streams.video[0].average_rate == FPS
    assert times == pytest.approx([n / 24 for n in range(40)], abs=0.0006)  # Matroska: milliseconds
    assert [f.name for f in tmp_path.iterdir()] == [path.name]


def test_a_lossless_video_is_as_near_as_8_bit_yuv_can_be(tmp_path: Path) -> None:
    """A step of Y is 255/219 of a grey step and a step of a chroma up to 2 * 0.9278 * 255/224, and
    each is off by half at most; then the way back rounds: 0.59 + 1.06 + 0.5 = 2.15, and grey steps
    are whole, with one more for the converter's own fixed-point rounding. Wrong colour
    coefficients are off by 8."""
    frames = smooth_frames(4, 32, 48)
    sink = sink_for(tmp_path / "a.mp4", fps=FPS, crf=0, pixel_format="yuv444p")
    found = read(write(sink, frames)).astype(int)
    assert np.abs(found - shown(frames)).max() <= 3


def test_values_beyond_the_range_are_clipped_and_grey_is_spread() -> None:
    frames = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0]).view(1, 1, 1, 1, 5)
    picture = video.picture(frames)
    assert picture[0].tolist() == [[0] * 3, [0] * 3, [128] * 3, [255] * 3, [255] * 3]


ENCODER = """
import sys
from fractions import Fraction
from pathlib import Path

import torch

from hy3d_rocm.frames.sinks import sink_for
from hy3d_rocm.meter import PeakMeter

noise, shape, peaks = torch.rand(3, 300, 480) * 2 - 1, (1, 3, 45, 240, 416), []
for n in range(3):
    sink = sink_for(Path(sys.argv[1]) / f"{n}.mp4", fps=Fraction(24))
    with PeakMeter(interval=0) as meter:
        sink.begin(shape, torch.float32)
        for first in range(45):
            part = noise[:, first : first + 240, first : first + 416]
            sink.put(0, first, part[None, :, None])
        sink.finish()
    peaks.append(meter.peak_bytes)
print(meter.exact, min(peaks), sink.host_bytes(shape))
"""


def test_an_encoder_takes_no_more_memory_than_is_planned(tmp_path: Path) -> None:
    """A moving picture of noise, 45 frames: more than the encoder looks ahead. The kernel adds up
    resident pages in batches: a sixteenth, as for PeakMeter. The least of three: the first loads
    code. In a process that has only imported: what other tests leave of a heap counts as the
    encoder's."""
    done = warm_start.run("-c", ENCODER, str(tmp_path), timeout=100)
    assert done.returncode == 0, done.stderr
    exact, peak, planned = done.stdout.split()
    if exact != "True":
        pytest.skip("the kernel does not let this process reset its high-water mark")
    assert 0 < int(peak) <= int(planned) * 17 // 16


def test_odd_sizes_are_padded_in_yuv420p_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = smooth_frames(3, 31, 47)
    path = write(sink_for(tmp_path / "a.mp4", fps=FPS), frames)
    assert read(path).shape == (3, 32, 48, 3)
    assert "47x31 is odd" in caplog.text
    whole = sink_for(tmp_path / "b.mp4", fps=FPS, pixel_format="yuv444p")
    assert read(write(whole, frames)).shape == (3, 31, 47, 3)


def test_the_same_frames_give_the_same_bytes(tmp_path: Path) -> None:
    frames = smooth_frames(20, 32, 48)
    a = write(sink_for(tmp_path / "a.mp4", fps=FPS), frames, step=20).read_bytes()
    assert write(sink_for(tmp_path / "b.mp4", fps=FPS), frames, step=3).read_bytes() == a


@pytest.mark.parametrize(("width", "mbtree"), [(32, 1), (48, 0), (33, 0), (720, 0), (832, 1)])
def test_where_x264_reads_what_nobody_wrote_that_part_of_it_is_off(
    tmp_path: Path, width: int, mbtree: int
) -> None:
    path = tmp_path / "clip.mp4"
    encoder = video.Encoder(path, (32, width), video.VideoSettings(fps=FPS))
    encoder.add(np.zeros((32, width, 3), np.uint8))
    encoder.close()
    assert b" mbtree=%d " % mbtree in path.read_bytes()


def test_frames_given_again_are_dropped_and_gaps_are_refused(tmp_path: Path) -> None:
    frames = smooth_frames(12, 32, 48)
    expected = read(write(sink_for(tmp_path / "a.mp4", fps=FPS), frames))
    sink = sink_for(tmp_path / "b.mp4", fps=FPS)
    sink.begin(tuple(frames.shape), frames.dtype)
    sink.put(0, 0, frames[:, :, :5])
    assert sink.first_wanted(0) == 5
    sink.begin(tuple(frames.shape), frames.dtype)
    sink.put(0, 0, frames[:, :, :7])
    with pytest.raises(RuntimeError, match="left out"):
        sink.put(0, 9, frames[:, :, 9:])
    sink.put(0, 7, frames[:, :, 7:])
    assert np.array_equal(read(sink.finish()), expected)


@pytest.mark.parametrize("name", ["a.mp4", "a.npy", "pictures", "tensor", "a.mp4+", "a.npy+"])
def test_a_ladder_that_steps_down_leaves_nothing_of_the_way_before(
    tmp_path: Path, name: str
) -> None:
    """All frames of a result are of one making; +: in parts that can be resumed."""
    frames = smooth_frames(70, 16, 32)
    path = tmp_path / name.strip("+")
    with Claim(path, {}) if name.endswith("+") else nullcontext() as parts:
        sink = TensorSink() if name == "tensor" else sink_for(path, fps=FPS, claim=parts)
        sink.begin(tuple(frames.shape), frames.dtype, {"way": "first"})
        sink.put(0, 0, -frames[:, :, :41])
        assert sink.first_wanted(0) == 41
        sink.begin(tuple(frames.shape), frames.dtype, {"way": "second"})
        assert sink.first_wanted(0) == 0
        sink.put(0, 0, frames)
        result = sink.finish()
    if name == "tensor":
        assert torch.equal(result, frames)
    elif ".npy" in name:
        assert np.array_equal(np.load(result), frames.numpy())
    elif ".mp4" in name:
        found = read(result).astype(int)
        assert len(found) == 70
        assert np.abs(found - shown(frames)).mean() < np.abs(found - shown(-frames)).mean() / 4
    else:
        assert len(list(result.iterdir())) == 70


def test_a_stopped_video_leaves_nothing(tmp_path: Path) -> None:
    frames = smooth_frames(8, 32, 48)
    path = tmp_path / "a.mp4"
    path.write_bytes(b"what was there before")
    sink = sink_for(path, fps=FPS, overwrite=True)
    sink.begin(tuple(frames.shape), frames.dtype)
    sink.put(0, 0, frames[:, :, :5])
    sink.abort()
    assert [f.name for f in tmp_path.iterdir()] == ["a.mp4"]
    assert path.read_bytes() == b"what was there before"


class _Full(io.FileIO):
    """A file on a disk that is full after `room` bytes."""

    room = 4000

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.room:
            raise OSError(28, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("room", [0, 500, 4000])
def test_a_video_on_a_full_disk_ends_with_a_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(video, "open", lambda path, mode: _Full(path, "w+"), raising=False)
    monkeypatch.setattr(_Full, "room", room)
    sink = sink_for(tmp_path / "a.mp4", fps=FPS)
    with pytest.raises(OutputError, match="the disk is full"):
        write(sink, random_frames(1, 3, 60, 32, 48))
    sink.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_pictures_holds_the_rounded_frames(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    frames = random_frames(1, 3, 5, 6, 8)
    folder = write(sink_for(tmp_path / "pictures", fps=FPS), frames, step=2)
    names = sorted(f.name for f in folder.iterdir())
    assert names == [f"frame_{n:06d}.png" for n in range(5)]
    found = np.stack([np.asarray(image.open(folder / name)) for name in names])
    assert np.array_equal(found, shown(frames))


def test_what_nobody_can_write_is_refused_in_a_sentence(tmp_path: Path) -> None:
    def begun(name: str, shape: tuple[int, ...] = (1, 3, 4, 6, 8), **settings: Any) -> None:
        sink_for(tmp_path / name, fps=FPS, **settings).begin(shape, torch.float32)  # type: ignore[arg-type]

    cases: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("nothing here writes .gif files", ("a.gif",), {}),
        ("the folder .* does not exist", ("no/a.mp4",), {}),
        ("the folder .* does not exist", ("no/a.npy",), {}),
        ("are 2 videos", ("a.mp4", (2, 3, 4, 6, 8)), {}),
        ("have 4 channels", ("a.mp4", (1, 4, 4, 6, 8)), {}),
        ("crf is 99", ("a.mp4",), {"crf": 99}),
        ("pixel_format is 'rgb'", ("a.mp4",), {"pixel_format": "rgb"}),
    ]
    for words, arguments, settings in cases:
        with pytest.raises(OutputError, match=words):
            begun(*arguments, **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_pyav_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(OutputError, match="pip install av"):
        sink_for(tmp_path / "a.mp4", fps=FPS).begin((1, 3, 4, 6, 8), torch.float32)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    for number in (13, 30):
        with (
            pytest.raises(OutputError, match="does not let this user write"),
            output.output_errors(tmp_path / "a.mp4"),
        ):
            raise OSError(number, "Permission denied")
