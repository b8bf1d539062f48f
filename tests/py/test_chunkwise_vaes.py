"""Every VAE with norms per position decodes and encodes exactly in chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decode_doubles import relative_error, tiny_latents, tiny_vae, unsplit

from hy3d_rocm.decode.engines.chunkwise import ChunkEngine
from hy3d_rocm.decode.families import family_for
from hy3d_rocm.decode.torch_backend import TorchBackend
from hy3d_rocm.decode.weights import ModuleWeights

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = ("hunyuan15", "wan", "wan22", "ltx", "ltx_causal")


def engine(**options: Any) -> ChunkEngine:
    return ChunkEngine(TorchBackend(ModuleWeights(torch.float32, "cpu")), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_decode_as_diffusers_unsplit(kind: str) -> None:
    vae = tiny_vae(kind)
    family = family_for(vae)
    for frames, chunk in ((1, 1), (2, 1), (5, 2), (6, 1), (7, 3)):
        z = tiny_latents(vae, frames, 2, 3)
        parts = [made for _, made in engine().decode(family, z, chunk)]
        error = relative_error(torch.cat(parts, 2), unsplit(vae, z))
        assert error <= 1e-5, (frames, chunk, error)


@pytest.mark.parametrize("kind", KINDS)
def test_slices_of_one_frame_decode_as_diffusers_unsplit(kind: str) -> None:
    vae = tiny_vae(kind)
    z = tiny_latents(vae, 4, 2, 3)
    parts = [made for _, made in engine(slice_bytes=1).decode(family_for(vae), z, 2)]
    assert relative_error(torch.cat(parts, 2), unsplit(vae, z)) <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_encode_as_the_vae_unsplit(kind: str) -> None:
    vae = tiny_vae(kind)
    family = family_for(vae)
    time, space = family.factor
    for latents, chunk in ((1, 1), (2, 3), (4, 8), (3, 5)):
        frames = (latents - 1) * time + 1
        generator = torch.Generator().manual_seed(latents)
        pixels = torch.randn(1, 3, frames, space, 2 * space, generator=generator)
        wanted = family.whole_encode(pixels)
        parts = [made for _, made in engine().encode(family, pixels, chunk)]
        assert relative_error(torch.cat(parts, 2), wanted) <= 1e-5, (latents, chunk)


def test_a_picture_is_a_video_of_one_frame() -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 1, 3, 2)
    ((first, frames),) = engine().decode(family_for(vae), z, 1)
    assert first == 0
    assert relative_error(frames, unsplit(vae, z)) <= 1e-5
