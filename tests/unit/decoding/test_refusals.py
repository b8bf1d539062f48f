"""Input that decode() can't take gets a sentence that says what was wrong and what to do."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiny_latents, tiny_vae  # noqa: E402

from hy3d_rocm import decode  # noqa: E402
from hy3d_rocm.decoding import DecodeOptions, encode  # noqa: E402


@pytest.fixture(scope="module")
def hunyuan() -> Any:
    return tiny_vae("hunyuan")


@pytest.fixture(scope="module", params=["hunyuan", "wan"])
def vae(request: pytest.FixtureRequest) -> Any:
    return tiny_vae(request.param)


def latents_of(vae: Any, frames: int) -> Any:
    return tiny_latents(vae, frames, 4, 5)


def test_images_side_by_side_in_time_are_refused_in_words() -> None:
    vae = tiny_vae("image")
    z = latents_of(vae, 1)
    with pytest.raises(ValueError, match="batch axis"):
        decode(vae, z.expand(-1, -1, 3, -1, -1))
    with pytest.raises(ValueError, match="batch axis"):
        encode(vae, torch.zeros(1, 3, 2, 16, 16))
    made = decode(vae, z[:, :, 0], strategy="streamed")
    own = torch.full_like(made, math.nan)
    decode(vae, z[:, :, 0], strategy="streamed", out=own)
    assert torch.equal(own, made)


@pytest.mark.parametrize(
    ("latents", "kind", "words"),
    [
        ({"samples": torch.zeros(1, 4, 1, 2, 2)}, TypeError, r'pass latent\["samples"\]'),
        ([1, 2], TypeError, "not a list"),
        (torch.zeros(1, 4, 1, 2, 2, dtype=torch.int64), TypeError, "floating point"),
        (torch.zeros(1, 4, 2, 2), ValueError, r"unsqueeze\(2\)"),
        (torch.zeros(1, 7, 1, 2, 2), ValueError, "decodes 4"),
        (torch.zeros(1, 4, 0, 2, 2), ValueError, "nothing to decode"),
        (torch.full((1, 4, 1, 2, 2), math.nan), ValueError, "16 NaN"),
        (torch.full((1, 4, 1, 2, 2), math.inf), ValueError, "16 infinite"),
    ],
)
def test_bad_latents_get_a_sentence(vae: Any, latents: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        decode(vae, latents)


def test_bad_arguments_get_a_sentence(hunyuan: Any) -> None:
    z = latents_of(hunyuan, 1)
    with pytest.raises(ValueError, match="strategy is 'fast'"):
        decode(hunyuan, z, strategy="fast")
    with pytest.raises(ValueError, match="precision is 'fp8'"):
        decode(hunyuan, z, precision="fp8")
    with pytest.raises(ValueError, match="budget is '6 parsecs'"):
        decode(hunyuan, z, budget="6 parsecs")
    with pytest.raises(TypeError, match="Linear"):
        decode(torch.nn.Linear(1, 1), z)
    with pytest.raises(ValueError, match="statistic_passes is -1"):
        DecodeOptions(statistic_passes=-1)
    with pytest.raises(ValueError, match="out is"):
        decode(hunyuan, z, out=torch.zeros(3))
    with pytest.raises(ValueError, match="fallback_precision is 'fp8'"):
        DecodeOptions(fallback_precision="fp8")
    with pytest.raises(ValueError, match="cpu_offload is 'no'"):
        DecodeOptions(cpu_offload="no")  # type: ignore[arg-type]
