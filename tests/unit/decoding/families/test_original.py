"""VAEs under their authors' names are the same families and decode and encode alike."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import how_much  # noqa: E402
from decode_doubles import (  # noqa: E402
    TIMESTEP,
    relative_error,
    tiny_latents,
    tiny_pixels,
    tiny_vae,
    unsplit_moments,
)
from decode_originals import (  # noqa: E402
    in_pairs,
    latent_diffusion_original,
    ltx_original,
    wan_original,
)
from plain_engine import PlainEngine  # noqa: E402

from hy3d_rocm import decode  # noqa: E402
from hy3d_rocm.decoding import DecodeOptions, decode_with_report  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402

WANS = ("wan", "wan22", "qwen")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", WANS)
@pytest.mark.parametrize("scaled", [False, True])
def test_wans_own_layout_decodes_as_its_own_code_without_the_clamp(kind: str, scaled: bool) -> None:
    vae = tiny_vae(kind)
    with torch.no_grad():
        vae.decoder.conv_out.weight.mul_(4)  # beyond -1..1, where a clamp would show
    original = wan_original(vae, scaled)
    before = set(vars(original))
    family = family_for(original)
    assert isinstance(family, type(family_for(vae)))
    for frames in how_much.of((1, 3), (1, 2, 5)):
        z = tiny_latents(vae, frames, 1, 2, seed=frames)
        with torch.no_grad():
            wanted = family.whole(z)
        assert float(wanted.abs().max()) > 1
        assert relative_error(family.decode(PlainEngine(), z), wanted) <= 1e-5
        clamped = vae.decode(z).sample
        assert relative_error(wanted.clamp(-1, 1), clamped) <= 1e-6
    assert set(vars(original)) == before


@pytest.mark.parametrize("kind", WANS)
def test_wans_own_layout_encodes_alike(kind: str) -> None:
    vae = tiny_vae(kind)
    family = family_for(wan_original(vae))
    pixels = tiny_pixels(9, 2 * family.factor[1], family.factor[1])
    wanted = unsplit_moments(vae, pixels)
    assert relative_error(family.encode(PlainEngine(), pixels), wanted) <= 1e-5
    with pytest.raises(TypeError, match="gives the latent's mean only"):
        family.whole(pixels, encode=True)


@pytest.mark.parametrize("kind", ["image", "hunyuan", "hunyuan15"])
def test_latent_diffusions_layout_decodes_as_its_own_unsplit_code(kind: str) -> None:
    vae = tiny_vae(kind)
    original = latent_diffusion_original(vae)
    family = family_for(original)
    assert isinstance(family, type(family_for(vae)))
    for frames in (1,) if kind == "image" else how_much.of((1, 3), (1, 2, 5)):
        z = tiny_latents(vae, frames, 2, 3, seed=frames)
        with torch.no_grad():
            wanted = family.whole(z)
        assert relative_error(family.decode(PlainEngine(), z), wanted) <= 1e-5
        assert tuple(wanted.shape) == family.out_shape(tuple(z.shape))
    assert original.decoder.carried, "the VAE's own attribute"


@pytest.mark.parametrize("kind", ["image", "hunyuan", "hunyuan15"])
def test_latent_diffusions_layout_encodes_as_its_own_unsplit_code(kind: str) -> None:
    original = latent_diffusion_original(tiny_vae(kind))
    family = family_for(original)
    frames, side = 1 if kind == "image" else 9, family.factor[1]
    pixels = tiny_pixels(frames, 3 * side, 2 * side)
    got = family.encode(PlainEngine(), pixels)
    if kind == "hunyuan15":
        with pytest.raises(TypeError, match="gives the latent's mean only"):
            family.whole(pixels, encode=True)
        original.encoder.carried = False
        wanted = original.encoder(pixels)
    else:
        wanted = family.whole(pixels, encode=True)
    assert relative_error(got, wanted) <= 1e-5


@pytest.mark.parametrize("kind", ["hunyuan", "hunyuan15"])
def test_their_attention_sees_later_frames_and_diffusers_does_not(kind: str) -> None:
    vae = tiny_vae(kind)
    z = tiny_latents(vae, 3, 2, 2)
    theirs = family_for(latent_diffusion_original(vae)).decode(PlainEngine(), z)
    assert relative_error(family_for(vae).decode(PlainEngine(), z), theirs) > 1e-3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda vae: setattr(vae, "bn", object()), "normalises and packs its latents"),
        (lambda vae: setattr(vae.decoder, "tanh_out", True), "ends in a tanh"),
        (lambda vae: vae.decoder.up[0].attn.append(torch.nn.Linear(1, 1)), "outside the middle"),
        (lambda vae: delattr(vae.decoder.mid, "attn_1"), "no attribute 'attn_1'"),
    ],
)
def test_what_such_a_vae_does_beyond_its_family_is_refused(change: Any, words: str) -> None:
    original = latent_diffusion_original(tiny_vae("image"))
    change(original)
    with pytest.raises(TypeError, match=words):
        family_for(original)


@pytest.mark.parametrize(
    ("kind", "border"), how_much.in_turns(("ltx", "ltx_causal", "ltx095"), ("zeros", "reflect"))
)
def test_ltxs_own_layout_decodes_and_encodes_as_its_own_code(kind: str, border: str) -> None:
    vae = tiny_vae(kind)
    for module in vae.decoder.modules():
        if isinstance(module, torch.nn.Conv3d):
            module.padding_mode = border
            _, height, width = module.padding  # torch's own state for what is not "zeros"
            module._reversed_padding_repeated_twice = [width, width, height, height, 0, 0]
    original = ltx_original(vae, TIMESTEP.get(kind))
    family = family_for(original)
    assert family.timestep == TIMESTEP.get(kind)
    for frames in how_much.of((1, 3), (1, 2, 5)):
        z = tiny_latents(vae, frames, 2, 3, seed=frames)
        with torch.no_grad():
            wanted = family.whole(z)
        assert relative_error(family.decode(PlainEngine(), z), wanted) <= 1e-5
        assert tuple(wanted.shape) == family.out_shape(tuple(z.shape))
    z = tiny_latents(vae, 2, 3, 40)
    with torch.no_grad():
        wanted = family.whole(z)
    assert relative_error(decode(original, z), wanted) <= 1e-5
    tiled: Any = {"strategy": "tiled", "options": DecodeOptions(halo_pixels=None)}
    _, report = decode_with_report(original, z, **tiled)
    less = report.predicted_peak_bytes - 1  # of one tile
    made, report = decode_with_report(original, z, budget=less, **tiled)
    parameters = report.plan["parameters"]
    assert parameters["level"] > 0
    assert parameters["halo_pixels"] is None
    assert relative_error(made, wanted) <= 1e-5
    pixels = tiny_pixels(9, 2 * family.factor[1], 3 * family.factor[1])
    with torch.no_grad():
        wanted = family.whole(pixels, encode=True)
    assert relative_error(family.encode(PlainEngine(), pixels), wanted) <= 1e-5


def test_another_timestep_is_taken_by_the_layers_and_by_its_own_code() -> None:
    original = ltx_original(tiny_vae("ltx095"), 0.05)
    z = tiny_latents(tiny_vae("ltx095"), 2, 2, 2)
    family = family_for(original, timestep=0.4)
    with torch.no_grad():
        wanted = family.whole(z)
        usual = family_for(original).whole(z)
    assert relative_error(family.decode(PlainEngine(), z), wanted) <= 1e-5
    assert relative_error(usual, wanted) > 1e-3
    assert original.decode_timestep == 0.05


def test_an_ltx_encoder_with_another_log_variance_is_refused() -> None:
    original = ltx_original(tiny_vae("ltx"))
    original.encoder.latent_log_var = "constant"
    with pytest.raises(TypeError, match="log variance is 'constant'"):
        family_for(original)


def test_a_vae_that_decodes_at_a_timestep_of_its_own_is_tried_at_that_one() -> None:
    original = ltx_original(tiny_vae("ltx095"), 0.3)
    assert family_for(original).timestep == 0.3


def test_latents_of_two_frames_are_taken_apart_for_the_layers_and_not_for_its_own_code() -> None:
    """HunyuanVideo 1.5 as ComfyUI of 2025-10 has it: its decoder itself takes pairs apart."""
    original = in_pairs(latent_diffusion_original(tiny_vae("hunyuan15")))
    family = family_for(original)
    z = torch.randn(1, family.latent_channels, 2, 2, 3, generator=torch.Generator().manual_seed(0))
    assert family.latent_channels == 2 * tiny_vae("hunyuan15").config["latent_channels"]
    with torch.no_grad():
        wanted = family.whole(z)
    assert tuple(wanted.shape) == family.out_shape(tuple(z.shape))
    assert relative_error(family.decode(PlainEngine(), z), wanted) <= 1e-5
    with pytest.raises(TypeError, match="latents hold two frames"):
        family.encode(PlainEngine(), tiny_pixels(1, 32, 32))
