"""hy3d-rocm decode by several processes, as torchrun starts them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytest.importorskip("diffusers")
pytest.importorskip("av")
dist = pytest.importorskip("torch.distributed")

import check_resume  # noqa: E402

from hy3d_rocm import _native, cli  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
    pytest.mark.skipif(not dist.is_available(), reason="torch has no torch.distributed"),
    pytest.mark.skipif(os.name == "nt", reason="processes end by signals"),
]
SECONDS = 120.0
# Tiles of Winograd begin at a strip's edge: each of some 30 layers is off by 8e-6 of its largest
# value at most (docs/numerics.md), and the frames are within -1 and 1.
BOUND = 30 * 8e-6


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    check_resume.make_inputs(folder)
    return folder


def command(inputs: Path, out: Path, *more: str) -> list[str]:
    return [
        "decode", str(inputs / "latents.safetensors"), "--vae", str(inputs / "vae"),
        "--out", str(out), "--device", "cpu", "--strategy", "streamed", *more,
    ]  # fmt: skip


def begun(words: list[str], count: int = 2) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count),
        "TORCHELASTIC_RUN_ID": "none",
    }  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, "-m", "hy3d_rocm", *words], text=True, stderr=subprocess.PIPE,
            env=os.environ | place | {"RANK": str(n), "LOCAL_RANK": str(n), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )
        for n in range(count)
    ]  # fmt: skip


def ended(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    told = [rank.communicate(timeout=SECONDS) for rank in ranks]
    return [(rank.returncode, *texts) for rank, texts in zip(ranks, told, strict=True)]


def test_two_processes_write_the_frames_of_one(inputs: Path, tmp_path: Path) -> None:
    alone, out = tmp_path / "alone.npy", tmp_path / "frames.npy"
    assert cli.main(command(inputs, alone)) == 0
    (code, said, why), (other, nothing, theirs) = ended(begun(command(inputs, out, "--resume")))
    assert (code, other) == (0, 0)
    assert "alone" not in why + theirs
    assert "rank 1" not in theirs
    assert "33 frames 24x16" in said
    assert nothing == ""
    want, found = np.load(alone), np.load(out)
    assert np.abs(found - want).max() < BOUND


def test_what_rank_0_can_not_do_ends_all(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "no" / "frames.npy"
    (code, _, why), (other, _, theirs) = ended(begun(command(inputs, out)))
    assert code == 1
    assert other == 0  # torchrun would end rank 0, which may be decoding alone
    assert str(tmp_path / "no") in why
    assert "rank 1: another rank of the group ended the decode (rank 0: " in theirs


def test_a_rank_that_is_killed_does_not_end_the_decode(inputs: Path, tmp_path: Path) -> None:
    alone, out = tmp_path / "alone.npy", tmp_path / "frames.npy"
    assert cli.main(command(inputs, alone)) == 0
    ranks = begun(command(inputs, out))
    time.sleep(1.0)  # it may or may not have joined by then
    deadline = time.monotonic() + SECONDS
    while not (tmp_path / "frames.npy.partial").exists() and ranks[0].poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ranks[1].send_signal(signal.SIGKILL)
    (code, said, why), _ = ended(ranks)
    assert code == 0, why
    assert "33 frames 24x16" in said
    want, found = np.load(alone), np.load(out)
    assert np.abs(found - want).max() < BOUND
