"""hy3d-rocm decode by several processes, with what torchrun tells each of them."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytest.importorskip("diffusers")
pytest.importorskip("av")
dist = pytest.importorskip("torch.distributed")

import check_resume  # noqa: E402
from places import ROOT  # noqa: E402
from warm_start import Server, Started  # noqa: E402

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


@pytest.fixture(scope="module")
def wanted(inputs: Path) -> Any:
    """The frames of one process."""
    out = inputs / "alone.npy"
    assert cli.main(command(inputs, out)) == 0
    return np.load(out)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Ranks do not import torch, diffusers and the command anew."""
    made = Server("check_resume", *(f"hy3d_rocm.{name}" for name in check_resume.COMMAND))
    yield made
    made.close()


@dataclass
class Rank:
    process: Started
    errors: IO[bytes]

    def ended(self) -> tuple[int, str, str]:
        """Its exit code, and what it wrote."""
        self.process.stdin.close()
        said = self.process.stdout.read().decode()
        self.process.stdout.close()
        code = self.process.wait(SECONDS)
        self.errors.seek(0)
        why = self.errors.read().decode()
        self.errors.close()
        return code, said, why


def command(inputs: Path, out: Path, *more: str) -> list[str]:
    return [
        "decode", str(inputs / "latents.safetensors"), "--vae", str(inputs / "vae"),
        "--out", str(out), "--device", "cpu", "--strategy", "streamed", *more,
    ]  # fmt: skip


def begun(server: Server, words: list[str], count: int = 2) -> list[Rank]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count),
        "TORCHELASTIC_RUN_ID": "none",
    }  # fmt: skip
    ranks = []
    for n in range(count):
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the rank has ended
        own = {"RANK": str(n), "LOCAL_RANK": str(n), "OMP_NUM_THREADS": "1"}
        process = server.run(
            ROOT / "hy3d_rocm" / "__main__.py", *words, stderr=errors.fileno(),
            environ=os.environ | place | own,
        )  # fmt: skip
        ranks.append(Rank(process, errors))
    return ranks


def test_two_processes_write_the_frames_of_one(
    server: Server, inputs: Path, wanted: Any, tmp_path: Path
) -> None:
    out = tmp_path / "frames.npy"
    ranks = begun(server, command(inputs, out, "--resume"))
    (code, said, why), (other, nothing, theirs) = (rank.ended() for rank in ranks)
    assert (code, other) == (0, 0), why + theirs
    assert "alone" not in why + theirs
    assert "rank 1" not in theirs
    assert "33 frames 24x16" in said
    assert nothing == ""
    assert np.abs(np.load(out) - wanted).max() < BOUND


def test_what_rank_0_can_not_do_ends_all(server: Server, inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "no" / "frames.npy"
    ranks = begun(server, command(inputs, out))
    (code, _, why), (other, _, theirs) = (rank.ended() for rank in ranks)
    assert code == 1
    assert other == 0  # torchrun would end rank 0, which may be decoding alone
    assert str(tmp_path / "no") in why
    assert "rank 1: another rank of the group ended the decode (rank 0: " in theirs


def test_a_rank_that_is_killed_does_not_end_the_decode(
    server: Server, inputs: Path, wanted: Any, tmp_path: Path
) -> None:
    out = tmp_path / "frames.npy"
    ranks = begun(server, command(inputs, out))
    deadline = time.monotonic() + SECONDS
    while not (tmp_path / "frames.npy.partial").exists() and ranks[0].process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ranks[1].process.kill()
    (code, said, why), _ = (rank.ended() for rank in ranks)
    assert code == 0, why
    assert "33 frames 24x16" in said
    assert np.abs(np.load(out) - wanted).max() < BOUND
