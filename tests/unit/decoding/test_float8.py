"""VAEs and latents kept in float8: decoded in the type that is computed in, as if kept in that."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import how_much  # noqa: E402
from decode_doubles import TIMESTEP, tiny_latents, tiny_pixels, tiny_vae, unsplit  # noqa: E402
from torch import nn  # noqa: E402

from hy3d_rocm import decode  # noqa: E402
from hy3d_rocm.decoding import decode_with_report, encode  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402

KINDS = ("hunyuan", "wan", "ltx095", "image")
STRATEGIES = ("whole", "streamed", "tiled", "cpu")
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz)

pytestmark = pytest.mark.usefixtures("one_thread")


def to(vae: Any, dtype: Any) -> Any:
    """torch's own to(): diffusers' one warns of layers to be kept in float32 even if there are
    none. What is beyond the type's range, as LTX's multiplier of 1000, is made its largest first:
    of that torch before 2.13 makes NaN in float8."""
    most = torch.finfo(dtype).max
    with torch.no_grad():
        for tensor in (*vae.parameters(), *vae.buffers()):
            if tensor.is_floating_point() and tensor.dtype != dtype:
                tensor.copy_(tensor.float().clamp(-most, most))
    return nn.Module.to(vae, dtype)


def strategies(kind: str) -> tuple[str, ...]:
    """In the gate one of the four, in turns."""
    return how_much.of(STRATEGIES[KINDS.index(kind) :: 4], STRATEGIES)


def family_of(vae: Any, kind: str) -> Any:
    return family_for(vae, timestep=TIMESTEP[kind]) if kind in TIMESTEP else vae


def casting(kind: str, dtype: Any) -> tuple[Any, Any]:
    """A VAE that casts float8 weights to `dtype` layer by layer, and one that has them in it."""
    vae, plain = to(tiny_vae(kind), dtype), to(tiny_vae(kind), dtype)
    vae.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=dtype)
    kept = dict(vae.named_parameters())
    assert any(p.dtype == torch.float8_e4m3fn for p in kept.values())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(kept[name])
    return vae, plain


@pytest.mark.parametrize(
    ("kind", "dtype"), how_much.in_turns(KINDS, (torch.bfloat16, torch.float32))
)
def test_weights_cast_layer_by_layer_decode_as_if_they_had_the_type_they_are_cast_to(
    kind: str, dtype: Any
) -> None:
    vae, plain = casting(kind, dtype)
    z = tiny_latents(plain, 1 if kind == "image" else 2, 4, 4)
    own = unsplit(vae, z.to(dtype), TIMESTEP.get(kind))
    for strategy in strategies(kind):
        made, report = decode_with_report(family_of(vae, kind), z, strategy=strategy)
        want = decode(family_of(plain, kind), z, strategy=strategy)
        assert made.dtype == dtype
        assert torch.equal(made, want), strategy
        assert "its weights are float8_e4m3fn" in report.precision_reason
        if strategy == "whole":
            assert torch.equal(made, own)


@pytest.mark.parametrize("strategy", how_much.of(STRATEGIES[:2], STRATEGIES))
def test_another_precision_than_they_are_cast_to_can_be_had(strategy: str) -> None:
    vae, plain = casting("wan", torch.bfloat16)
    z = tiny_latents(plain, 2, 4, 4)
    made = decode(vae, z, strategy=strategy, precision="fp32")
    assert torch.equal(made, decode(plain, z, strategy=strategy, precision="fp32"))
    weight = vae.decoder.conv_in.weight
    assert weight.dtype == torch.float8_e4m3fn  # as before


@pytest.mark.parametrize(
    ("kind", "stored"), [*((kind, FLOAT8[0]) for kind in KINDS), ("wan", FLOAT8[1])]
)
def test_weights_that_nobody_casts_are_computed_in_bfloat16(kind: str, stored: Any) -> None:
    vae, plain = to(tiny_vae(kind), stored), to(to(tiny_vae(kind), stored), torch.bfloat16)
    z = tiny_latents(plain, 1 if kind == "image" else 2, 4, 4)
    for strategy in strategies(kind):
        made = decode(family_of(vae, kind), z, strategy=strategy)
        assert made.dtype == torch.bfloat16
        assert torch.equal(made, decode(family_of(plain, kind), z, strategy=strategy)), strategy


def test_encodes_with_float8_weights_as_well() -> None:
    vae, plain = casting("wan", torch.bfloat16)
    pixels = tiny_pixels(5, 16, 16)
    for strategy in ("whole", "streamed", "cpu"):
        made = encode(vae, pixels, strategy=strategy)
        assert torch.equal(made, encode(plain, pixels, strategy=strategy)), strategy


def test_own_code_that_does_not_compute_with_float8_gets_a_sentence() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv3d(4, 3, 1).requires_grad_(False)

        def decode(self, z: Any) -> Any:
            return self.layer(z)

    vae, z = Single().to(torch.float8_e4m3fn), torch.randn(1, 4, 2, 8, 8)
    with pytest.raises(TypeError, match=r"float8_e4m3fn .*: decode with vae.to\(torch.bfloat16\)"):
        decode(vae, z)
    assert decode(vae.to(torch.bfloat16), z).dtype == torch.bfloat16


@pytest.mark.parametrize("stored", FLOAT8)
def test_float8_latents_and_pixels_are_widened(stored: Any) -> None:
    vae = tiny_vae("wan")
    z, pixels = tiny_latents(vae, 2, 4, 4).to(stored), tiny_pixels(5, 16, 16).to(stored)
    for strategy in ("whole", "streamed"):
        made = decode(vae, z, strategy=strategy)
        assert torch.equal(made, decode(vae, z.float(), strategy=strategy))
    assert torch.equal(encode(vae, pixels), encode(vae, pixels.float()))
    broken = torch.full((1, 4, 1, 2, 2), float("nan")).to(stored)
    with pytest.raises(ValueError, match="16 NaN"):
        decode(vae, broken)


def test_integer_weights_get_a_sentence() -> None:
    vae = tiny_vae("wan")
    for parameter in vae.parameters():
        parameter.data = parameter.data.to(torch.int8)
    with pytest.raises(ValueError, match=r"weights are torch.int8 \(quantised\)"):
        decode(vae, tiny_latents(tiny_vae("wan"), 1, 4, 4))
