"""decode(out=): a tensor of the caller's takes the frames, unless it lies in what is read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import numpy as np  # noqa: E402
from decode_doubles import tiny_latents, tiny_vae  # noqa: E402
from torch import nn  # noqa: E402

from hy3d_rocm import decode  # noqa: E402
from hy3d_rocm.aliasing import shares_memory  # noqa: E402

LIES = "out lies in the memory of the "

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def vae() -> Any:
    return tiny_vae("wan")


@pytest.fixture(scope="module")
def z(vae: Any) -> Any:
    return torch.cat([tiny_latents(vae, 2, 4, 4, seed) for seed in range(2)])


@pytest.fixture(scope="module")
def frames(vae: Any, z: Any) -> Any:
    return decode(vae, z, strategy="streamed")


def beside(z: Any, frames: Any, at: int) -> tuple[Any, Any]:
    """The latents, and from element `at` on room for frames, in one piece of memory."""
    memory = torch.zeros(at + frames.numel() + z.numel())
    own = memory[: z.numel()].view(z.shape).copy_(z)
    return own, memory[at : at + frames.numel()].view(frames.shape)


@pytest.mark.parametrize("strategy", ["auto", "whole", "streamed", "tiled", "cpu"])
def test_an_output_in_the_memory_of_the_latents_is_refused(
    vae: Any, z: Any, frames: Any, strategy: str
) -> None:
    for at in (0, 1, z.numel() - 1):
        own, out = beside(z, frames, at)
        with pytest.raises(ValueError, match=LIES + "latents"):
            decode(vae, own, strategy=strategy, out=out)
        assert torch.equal(own, z)


def test_one_that_begins_where_the_latents_end_is_filled(vae: Any, z: Any, frames: Any) -> None:
    own, out = beside(z, frames, z.numel())
    assert decode(vae, own, strategy="streamed", out=out) is out
    assert torch.equal(out, frames)
    assert torch.equal(own, z)


def test_an_image_comes_back_as_the_tensor_that_was_given() -> None:
    image = tiny_vae("image")
    z = tiny_latents(image, 1, 4, 4)[:, :, 0]
    want = decode(image, z, strategy="streamed")
    out = torch.zeros_like(want)
    assert decode(image, z, strategy="streamed", out=out) is out
    assert torch.equal(out, want)


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_one_in_the_memory_of_the_vaes_weights_is_refused(z: Any, frames: Any, kind: str) -> None:
    vae = tiny_vae("wan")
    size = vae.decoder.conv_in.weight.numel()
    memory = torch.zeros(size + frames.numel())
    out = memory[size - 1 : -1].view(frames.shape)
    held = memory[:size].view(vae.decoder.conv_in.weight.shape)
    held.copy_(vae.decoder.conv_in.weight)
    if kind == "parameter":
        vae.decoder.conv_in.weight = nn.Parameter(held, requires_grad=False)
    else:
        vae.register_buffer("extra", held)
    with pytest.raises(ValueError, match=LIES + "VAE's weights"):
        decode(vae, z, strategy="streamed", out=out)


def test_a_vae_that_is_no_module_has_weights_as_well() -> None:
    class Holder:
        def __init__(self, layer: Any) -> None:
            self.layer = layer

        def decode(self, z: Any) -> Any:
            return self.layer(z)

    memory = torch.ones(1 + 2 * 5 * 4)
    layer = nn.Conv3d(1, 1, 1, bias=False).requires_grad_(False)
    layer.weight.data = memory[:1].view(1, 1, 1, 1, 1)
    z = torch.randn(1, 1, 2, 5, 4)
    with pytest.raises(ValueError, match=LIES + "VAE's weights"):
        decode(Holder(layer), z, out=memory[:40].view(1, 1, 2, 5, 4))
    assert torch.equal(decode(Holder(layer), z, out=memory[1:].view(1, 1, 2, 5, 4)), z)


def test_arrays_that_share_memory_are_seen_through_their_tensors(
    vae: Any, z: Any, frames: Any
) -> None:
    array = np.zeros(frames.numel() + z.numel(), np.float32)
    own = torch.from_numpy(array[: z.numel()]).view(z.shape).copy_(z)
    with pytest.raises(ValueError, match=LIES + "latents"):
        decode(vae, own, out=torch.from_numpy(array[1 : 1 + frames.numel()]).view(frames.shape))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/maps tells")
def test_two_mappings_of_a_files_bytes_are_one_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    page = 1 << 16
    path.write_bytes(bytes(4 * page))

    def at(offset: int, mode: str = "r+") -> Any:
        return torch.from_numpy(np.memmap(path, np.uint8, mode, offset, page))  # type: ignore[call-overload]

    out = at(page)
    assert shares_memory(out, [at(page)])
    assert shares_memory(out[1:], [at(2 * page), at(0), at(page, "c")[-1:]])
    assert not shares_memory(out, [at(2 * page), at(0)])
    assert not shares_memory(at(page, "c"), [at(page)])  # what is written stays here
    (tmp_path / "y.bin").write_bytes(bytes(4 * page))
    assert not shares_memory(out, [torch.from_numpy(np.memmap(tmp_path / "y.bin", np.uint8, "r+"))])


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda s: np.zeros(s, np.float32), TypeError, "torch.from_numpy"),
        (lambda s: torch.zeros(s, dtype=torch.int32), TypeError, "torch.int32"),
        (lambda s: torch.zeros(s).to(torch.float8_e4m3fn), TypeError, "float8_e4m3fn"),
        (lambda s: torch.zeros(s).to_sparse(), ValueError, "torch.sparse_coo"),
        (lambda s: torch.zeros(s, device="meta"), ValueError, "on meta"),
        (lambda s: torch.zeros(1).expand(s), ValueError, "several elements at one address"),
        (lambda s: torch._neg_view(torch.zeros(s)), ValueError, "its sign in a flag"),
    ],
)
def test_what_cannot_take_frames_gets_a_sentence(
    vae: Any, z: Any, frames: Any, make: Any, kind: Any, words: str
) -> None:
    with pytest.raises(kind, match=words):
        decode(vae, z, out=make(tuple(frames.shape)))


def test_a_tensor_of_inference_mode_is_filled_in_it_and_refused_outside(
    vae: Any, z: Any, frames: Any
) -> None:
    with torch.inference_mode():
        out = torch.zeros_like(frames)
        assert torch.equal(decode(vae, z, strategy="streamed", out=out), frames)
    with pytest.raises(ValueError, match="inference_mode"):
        decode(vae, z, out=out)
