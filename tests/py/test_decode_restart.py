"""A decode in chunks that goes on in the middle gives the same bits as one from the start."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
chunkwise = pytest.importorskip("hy3d_rocm.decode.engines.chunkwise")
pytest.importorskip("hy3d_rocm.decode.families")

from decode_doubles import tiny_latents, tiny_vae  # noqa: E402

from hy3d_rocm.decode.families import family_for  # noqa: E402
from hy3d_rocm.decode.plain import PlainEngine  # noqa: E402
from hy3d_rocm.decode.restart import chunks_from, latents_before, start_latent  # noqa: E402
from hy3d_rocm.decode.torch_backend import TorchBackend  # noqa: E402
from hy3d_rocm.decode.weights import ModuleWeights  # noqa: E402

CPU = torch.device("cpu")
STREAMED = ("wan", "wan22", "ltx_causal")

pytestmark = pytest.mark.usefixtures("one_thread")


def decoded_from(family: Any, z: Any, chunk: int, wanted: int) -> tuple[int, Any]:
    """The first frame that came, and all that did."""
    engine = chunkwise.ChunkEngine(TorchBackend(ModuleWeights(family.dtype, CPU)))
    parts = list(chunks_from(engine, family, z, chunk, wanted, CPU, family.dtype))
    stops = [first + part.shape[2] for first, part in parts]
    assert [first for first, _ in parts[1:]] == stops[:-1]
    return parts[0][0], torch.cat([part for _, part in parts], 2)


@pytest.mark.parametrize(("kind", "chunk"), [("wan", 2), ("wan22", 3), ("ltx_causal", 1)])
def test_frames_from_the_middle_are_those_of_a_decode_from_the_start(kind: str, chunk: int) -> None:
    vae = tiny_vae(kind)
    family = family_for(vae)
    past = latents_before(family)
    assert past is not None
    z = tiny_latents(vae, past + 7, 1, 2)
    first, whole = decoded_from(family, z, chunk, 0)
    assert first == 0
    time = family.factor[0]
    last = whole.shape[2] - 1
    for wanted in (last, (past + 3) * time, (past + 2) * time + 1):
        assert start_latent(family, chunk, wanted) % chunk == 0
        first, rest = decoded_from(family, z, chunk, wanted)
        assert first == wanted
        assert torch.equal(rest, whole[:, :, wanted:])
    assert start_latent(family, chunk, last) > 0, "nothing was saved"


@pytest.mark.parametrize("kind", STREAMED)
def test_no_frame_depends_on_more_than_is_said(kind: str) -> None:
    """A NaN in one latent reaches every frame that depends on it, whatever the weights are."""
    vae = tiny_vae(kind)
    family = family_for(vae)
    past = latents_before(family)
    assert past is not None
    z = tiny_latents(vae, past + 6, 1, 1)
    z[:, :, 2] = float("nan")
    with torch.no_grad():
        frames = family.decode(PlainEngine(), z)
    hit = torch.isnan(frames).any(dim=1).any(dim=-1).any(dim=-1)[0].nonzero().flatten()
    own = (int(hit.max()) - 1) // family.factor[0] + 1
    assert own - 2 <= past, "a frame depends on a latent further back"
    assert past - (own - 2) <= 3, "far more would be decoded again than is needed"


@pytest.mark.parametrize("kind", ["hunyuan", "hunyuan15"])
def test_norms_and_attention_over_the_video_start_from_its_beginning(kind: str) -> None:
    family = family_for(tiny_vae(kind))
    assert latents_before(family) is None
    assert start_latent(family, 1, 1000) == 0
