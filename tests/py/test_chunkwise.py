"""A chunked run gives what the whole one gives, whatever the chunks."""

from __future__ import annotations

import pytest
import torch
from chunk_doubles import C, Function, SimpleBackend, WholeEngine, decoders, random_decoder
from torch import Tensor

from hy3d_rocm.decode.engines.chunkwise import ChunkEngine

DECODERS = decoders()

pytestmark = pytest.mark.usefixtures("one_thread")


def latent(frames: int, height: int = 3, width: int = 4) -> Tensor:
    return torch.randn(1, C, frames, height, width, generator=torch.Generator().manual_seed(frames))


def whole(function: Function, z: Tensor) -> Tensor:
    return function(WholeEngine(SimpleBackend()), z)


def chunked(function: Function, z: Tensor, chunk: int, engine: ChunkEngine | None = None) -> Tensor:
    """All chunks, checked to come in order without gap."""
    parts: list[Tensor] = []
    before = z.clone()
    for first, frames in (engine or ChunkEngine(SimpleBackend())).run(function, z, chunk):
        assert first == sum(p.shape[2] for p in parts)
        parts.append(frames.clone())
    assert torch.equal(z, before), "the latent was written to"
    return torch.cat(parts, 2)


def assert_same(got: Tensor, wanted: Tensor, what: str) -> None:
    assert got.shape == wanted.shape, what
    error = (got - wanted).abs().max() / (wanted.max() - wanted.min())
    assert error <= 1e-5, f"{what}: {error:.2e} of the range"


@pytest.mark.parametrize("kind", DECODERS)
def test_every_length_and_chunk_gives_the_whole_decode(kind: str) -> None:
    for frames in range(1, 13):
        z = latent(frames)
        wanted = whole(DECODERS[kind], z)
        for chunk in (1, 2, 5):
            assert_same(chunked(DECODERS[kind], z, chunk), wanted, f"T {frames}, chunk {chunk}")


@pytest.mark.parametrize("kind", DECODERS)
def test_slices_of_a_chunk_change_nothing(kind: str) -> None:
    z = latent(7)
    wanted = whole(DECODERS[kind], z)
    for size in (1, 2000, 6000):
        engine = ChunkEngine(SimpleBackend(), slice_bytes=size)
        assert_same(chunked(DECODERS[kind], z, 3, engine), wanted, f"slices of {size} bytes")


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_give_the_whole_decode(seed: int) -> None:
    """Replay: random_decoder(seed)."""
    function = random_decoder(seed)
    for frames in (1, 2, 6):
        z = latent(frames, 2, 3)
        wanted = whole(function, z)
        for chunk, size in ((1, None), (3, None), (2, 100)):
            engine = ChunkEngine(SimpleBackend(), slice_bytes=size)
            got = chunked(function, z, chunk, engine)
            assert_same(got, wanted, f"seed {seed}, T {frames}, chunk {chunk}, slices {size}")
