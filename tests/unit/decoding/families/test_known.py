"""Which VAEs are known: by their parts; what is not is refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

import how_much  # noqa: E402
from decode_doubles import EVERY_KIND, tiny_pixels, tiny_vae  # noqa: E402
from plain_engine import PlainEngine  # noqa: E402

from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.families.proof import proven  # noqa: E402
from hy3d_rocm.decoding.report import DecodeCancelled  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

# In the gate a test that is not of facts has half of the kinds.
HALF, OTHER_HALF = (how_much.dealt(EVERY_KIND, half, 2) for half in range(2))
FACTS = {
    "hunyuan": ("HunyuanVideo", (4, 8), True),
    "hunyuan15": ("HunyuanVideo 1.5", (4, 16), False),
    "wan": ("Wan", (4, 8), False),
    "wan22": ("Wan", (4, 16), False),
    "qwen": ("Wan", (4, 8), False),
    "ltx": ("LTX", (8, 16), False),
    "ltx_causal": ("LTX", (8, 16), False),
    "ltx095": ("LTX", (8, 16), False),
    "ltx095_ahead": ("LTX", (8, 16), False),
    "image": ("image", (1, 4), True),
    "image16": ("image", (1, 2), True),
    "seedvr2": ("SeedVR2", (4, 8), False),
}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_facts_are_read_off_the_layers(kind: str) -> None:
    vae = tiny_vae(kind)
    family = family_for(vae)
    assert (family.name, family.factor, family.has_global_norms) == FACTS[kind]
    assert family.out_channels == 3
    assert family.latent_channels == (
        vae.config.get("latent_channels") or vae.config.get("z_dim")
    )  # fmt: skip
    assert (family.dtype, family.device.type) == (torch.float32, "cpu")


@pytest.mark.parametrize("kind", HALF)
def test_a_class_of_another_name_is_known_by_its_parts(kind: str) -> None:
    vae = tiny_vae(kind)
    known = type(family_for(vae))
    vae.__class__ = type("SomebodysVae", (type(vae),), {})
    assert type(family_for(vae)) is known


class _Brighter:
    def decode(self, z: Any, *more: Any) -> Any:
        made = super().decode(z, *more)  # type: ignore[misc]
        if isinstance(made, tuple):
            return made._replace(sample=made.sample * 0.5)  # type: ignore[attr-defined]
        made.sample = made.sample * 0.5
        return made


@pytest.mark.parametrize("kind", OTHER_HALF)
def test_a_class_that_does_otherwise_with_the_same_parts_is_refused(kind: str) -> None:
    vae = tiny_vae(kind)
    vae.__class__ = type("SomebodysVae", (_Brighter, type(vae)), {})
    before = {name: repr(value) for name, value in vars(vae).items()}
    with pytest.raises(TypeError, match=r"SomebodysVae has the parts of a .* other values"):
        family_for(vae)
    assert {name: repr(value) for name, value in vars(vae).items()} == before


@pytest.mark.parametrize(
    "error",
    [
        DecodeCancelled("stop"),
        torch.OutOfMemoryError("HIP out of memory"),
        RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("HIP error: device-side assert triggered"),
    ],
)
def test_a_cancel_or_a_passing_fault_is_not_held_against_the_vae(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae = tiny_vae("wan")
    family = family_for(vae)

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(type(vae), "decode", fail)
    with pytest.raises(type(error)) as raised:
        proven(family)
    assert raised.value is error


def test_a_decoder_built_alike_that_quantises_its_latents_is_refused() -> None:
    vae = diffusers.VQModel(block_out_channels=(32, 32), num_vq_embeddings=4)
    with pytest.raises(TypeError, match="VQModel"):
        family_for(vae.eval())


@pytest.mark.parametrize("kind", HALF)
def test_a_parameter_that_no_layer_reads_is_refused_by_name(kind: str) -> None:
    vae = tiny_vae(kind)
    vae.decoder.up_blocks[0].surprise = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"decoder\.up_blocks\.0\.surprise\.weight has no place"):
        family_for(vae)


@pytest.mark.parametrize("kind", OTHER_HALF)
def test_a_missing_part_is_named(kind: str) -> None:
    vae = tiny_vae(kind)
    del vae.decoder.mid_block.resnets[0].conv2
    with pytest.raises(TypeError, match=r"a part is missing .*conv2.*: pass the complete VAE"):
        family_for(vae)
    vae.decoder = None
    with pytest.raises(TypeError, match="has no decoder: pass the complete VAE"):
        family_for(vae)


@pytest.mark.parametrize("kind", HALF)
def test_a_vae_without_encoder_decodes_and_says_what_encoding_needs(kind: str) -> None:
    vae = tiny_vae(kind)
    vae.encoder = None
    family = family_for(vae)
    with pytest.raises(TypeError, match="no encoder: load one"):
        family.encode(PlainEngine(), tiny_pixels(1, 32, 32))


def test_another_activation_is_refused() -> None:
    vae = tiny_vae("wan")
    vae.decoder.up_blocks[0].resnets[0].nonlinearity = torch.nn.GELU()
    with pytest.raises(TypeError, match="the activation is GELU, not SiLU"):
        family_for(vae)


def test_parts_whose_channels_do_not_fit_are_refused() -> None:
    vae = tiny_vae("wan")
    vae.decoder.conv_out = tiny_vae("wan", seed=1).decoder.conv_in
    with pytest.raises(TypeError, match="takes 4 channels where 8 come"):
        family_for(vae)


def test_fresh_noise_in_the_decoder_is_refused() -> None:
    vae = tiny_vae("ltx")
    block = vae.decoder.mid_block.resnets[0]
    block.per_channel_scale1 = torch.nn.Parameter(torch.ones(16, 1, 1))
    with pytest.raises(TypeError, match="adds fresh noise to every decode"):
        family_for(vae)


def test_a_timestep_is_asked_for_where_it_is_needed_and_only_there() -> None:
    conditioned = family_for(tiny_vae("ltx095"))
    z = torch.zeros(1, 8, 1, 2, 2)
    with pytest.raises(ValueError, match=r"conditioned on a timestep: give timestep=0\.05"):
        conditioned.decode(PlainEngine(), z)
    with pytest.raises(ValueError, match="conditioned on a timestep"):
        conditioned.whole(z)
    with pytest.raises(ValueError, match="decodes without one: leave it out"):
        family_for(tiny_vae("ltx"), timestep=0.05)


@pytest.mark.parametrize(
    ("kind", "shape", "words"),
    [
        ("hunyuan15", (1, 3, 7, 32, 32), r"encodes 1 \+ 4 k: cut to 5 or repeat the last to 9"),
        ("ltx095", (1, 3, 9, 32, 40), "multiples of 16: scale or crop them to 32x32"),
        ("wan22", (1, 3, 5, 24, 32), "multiples of 16: scale or crop them to 32x16"),
    ],
)
def test_pixels_that_the_vae_cannot_encode_are_refused_with_what_it_takes(
    kind: str, shape: tuple[int, ...], words: str
) -> None:
    vae = tiny_vae(kind)
    with pytest.raises(ValueError, match=words):
        family_for(vae).check_pixels(shape)
    with pytest.raises(RuntimeError), torch.no_grad():
        vae.encode(torch.zeros(shape))


@pytest.mark.parametrize("vae", [object(), torch.nn.Linear(2, 2), None])
def test_what_is_no_vae_is_refused_in_words(vae: Any) -> None:
    with pytest.raises(TypeError, match="has no decoder"):
        family_for(vae)


def test_diffusers_other_vaes_are_refused_in_words() -> None:
    refused = []
    for name in dir(diffusers):
        if not name.startswith("AutoencoderKL") or name == "AutoencoderKL":
            continue
        try:
            with torch.device("meta"):
                vae = getattr(diffusers, name)()
        except Exception:  # noqa: BLE001 - some need arguments or packages
            continue
        try:
            assert family_for(vae).latent_channels > 0
        except TypeError as error:
            refused.append((name, str(error)))
    assert len(refused) >= 3
    for name, words in refused:
        assert words.startswith((f"the {name} ", f"{name} is no VAE")), words
        assert "protect()" in words or "complete VAE" in words, words
