"""Faults of the disk under what the library writes: a few of what tests/long/check_disk_faults.py
does, and what that has found."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("resource")

import check_disk_faults as check  # noqa: E402
import how_much  # noqa: E402
from disk_damage import READERS, begun, went_on  # noqa: E402
from disk_faults import Fault  # noqa: E402
from disk_writers import WRITERS, array, capture, old_pictures  # noqa: E402

from hy3d_rocm.capture import CaptureError, read_capture  # noqa: E402
from hy3d_rocm.frames.output import OutputError  # noqa: E402
from hy3d_rocm.frames.sinks import sink_for  # noqa: E402

QUICK = ("array that goes on", "knowledge", "capture", "facts", "MIOpen clear", "render's report")


@pytest.mark.parametrize("writer", [w for w in WRITERS if w.name in QUICK], ids=lambda w: w.name)
def test_a_fault_of_the_disk_leaves_the_old_or_the_new(writer: Any) -> None:
    """Replay: the seed is in the message."""
    known = check.Known(writer)
    for number in range(how_much.of(3, 5)):
        seed = f"quick/{writer.name}/{number}"
        try:
            check.fault_trial(known, random.Random(seed))
        except check.DiskError as error:
            raise AssertionError(f"{seed}: {error}") from error


def test_pictures_that_are_replaced_are_the_old_or_the_new_after_a_kill_at_any_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two renamings no folder had the name, and the next decode threw both away."""
    writer = next(w for w in WRITERS if w.name == "pictures that are replaced")
    known = check.Known(writer)
    # Before, pictures are made. The last one is closed, gets its name, and all names are changed
    # in the last 28 calls.
    for number in range(how_much.of(known.calls - 28, known.calls // 2), known.calls + 1):
        fault = Fault("kill", number)
        monkeypatch.setattr(check, "chosen_fault", lambda *_, fault=fault: fault)
        check.fault_trial(known, random.Random(0))


def test_pictures_between_two_names_are_put_back_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old_pictures(tmp_path)
    pictures, partial = tmp_path / "pictures", tmp_path / "pictures.partial"
    (partial / "pictures").mkdir(parents=True)
    pictures.rename(partial / "old")
    with pytest.raises(OutputError, match="holds 3 pictures already: give --overwrite"):
        sink_for(pictures, fps=Fraction(8)).begin((1, 3, 2, 4, 4), torch.float32)
    assert "pictures was put back as it was" in caplog.text
    assert len(list(pictures.iterdir())) == 3
    assert not partial.exists()


@pytest.mark.parametrize("reader", READERS, ids=lambda r: r.name)
def test_a_damaged_file_is_told_or_done_without(reader: Any) -> None:
    for number in range(how_much.of(2, 3)):
        check.damage_trial(reader, random.Random(f"quick/{reader.name}/{number}"))


def test_an_array_that_cannot_get_its_name_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("hy3d_rocm.frames.claim.os.replace", refuse)
    monkeypatch.setattr("hy3d_rocm.frames.claim.os.link", refuse)
    with pytest.raises(OutputError, match="does not let this user write"):
        array(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 40, 200])
def test_frames_of_a_decode_that_are_cut_are_refused(tmp_path: Path, size: int) -> None:
    """They were filled up with zeros, and the decode went on behind them."""
    begun(tmp_path)
    file = tmp_path / "frames.npy.partial" / "frames.npy"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(OutputError, match="--restart"):
        went_on(tmp_path)


def test_a_capture_that_finds_no_room_is_an_error_of_the_disk_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors' own error is none, and ended the decode that was to be captured."""
    import safetensors.torch

    def full(stored: Any, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        capture(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_capture_is_refused_in_a_sentence(tmp_path: Path) -> None:
    capture(tmp_path)
    tensors = next(tmp_path.glob("*.safetensors"))
    tensors.write_bytes(tensors.read_bytes()[:20])
    with pytest.raises(CaptureError, match="damaged"):
        read_capture(tmp_path)
