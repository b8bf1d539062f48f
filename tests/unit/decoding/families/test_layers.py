"""Every known VAE through its family's layers: the values, frames and facts of its own code."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import how_much  # noqa: E402
from decode_doubles import (  # noqa: E402
    EVERY_KIND,
    IN_FLOAT64,
    TIMESTEP,
    relative_error,
    tiny_latents,
    tiny_pixels,
    tiny_vae,
    unsplit,
    unsplit_moments,
)
from plain_engine import PlainEngine  # noqa: E402

from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.graph import Recorder, record  # noqa: E402
from hy3d_rocm.decoding.layers import Attention, Conv  # noqa: E402

# In the gate some tests have one half of the kinds, and others the other: of frames and moments
# each kind has every length below.
HALF, OTHER_HALF = (how_much.dealt(EVERY_KIND, half, 2) for half in range(2))
LENGTHS = how_much.of((1, 2, 3, 5), range(1, 13))
#: (H, W) of latents, taken in turn
SIZES = ((2, 3), (1, 2), (3, 1), (2, 2))
BOUND = 1e-5  # of the range, in float32: a tenth of what an engine may err in all
BOUND_64 = 1e-12

pytestmark = pytest.mark.usefixtures("one_thread")


def family_of(kind: str, vae: Any) -> Any:
    return family_for(vae, timestep=TIMESTEP.get(kind))


def lengths_of(kind: str) -> Any:
    return (1,) if kind.startswith("image") else LENGTHS


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_decode_gives_the_vaes_own_frames_for_every_length_and_odd_sizes(kind: str) -> None:
    vae = tiny_vae(kind)
    dtype, bound = (torch.float64, BOUND_64) if kind in IN_FLOAT64 else (torch.float32, BOUND)
    family = family_of(kind, vae.to(dtype))
    for frames in lengths_of(kind):
        # Long ones are narrow: the mask of HunyuanVideo's own attention has positions^2 values.
        size = SIZES[frames % 4] if frames < 6 else (1, 1 + frames % 2)
        z = tiny_latents(vae, frames, *size, seed=frames).to(dtype)
        wanted = unsplit(vae, z, TIMESTEP.get(kind))
        got = family.decode(PlainEngine(), z)
        assert relative_error(got, wanted) <= bound, (kind, tuple(z.shape))
        assert family.out_shape(tuple(z.shape)) == tuple(wanted.shape)
        time, space = family.factor
        assert tuple(wanted.shape[2:]) == (
            (frames - 1) * time + 1, z.shape[3] * space, z.shape[4] * space
        )  # fmt: skip


@pytest.mark.parametrize("kind", IN_FLOAT64)
def test_float32_frames_are_as_near_where_there_are_some_positions(kind: str) -> None:
    vae = tiny_vae(kind)
    for frames in lengths_of(kind):
        z = tiny_latents(vae, frames, 3, 4, seed=frames)
        got = family_for(vae).decode(PlainEngine(), z)
        assert relative_error(got, unsplit(vae, z)) <= BOUND, (kind, tuple(z.shape))


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_encode_gives_the_vaes_own_moments_for_every_length_it_takes(kind: str) -> None:
    vae = tiny_vae(kind)
    family = family_of(kind, vae)
    step, side = family.pixel_steps
    most = how_much.of(6, 12) if step == 1 else how_much.of(4, 5)
    for k in range(1 if kind.startswith("image") else most):
        frames = 1 + step * k
        height, width = (n * family.factor[1] for n in SIZES[k % 4])
        if side < family.factor[1]:  # sizes that its convolutions take and no latent has
            height, width = height + side, width + 3 * side
        pixels = tiny_pixels(frames, height, width, seed=frames)
        wanted = unsplit_moments(vae, pixels)
        got = family.encode(PlainEngine(), pixels)
        assert relative_error(got, wanted) <= BOUND, (kind, tuple(pixels.shape))
        assert family.out_shape(tuple(pixels.shape), encode=True) == tuple(wanted.shape)


@pytest.mark.parametrize("kind", HALF)
def test_whole_is_the_vaes_own_code_bit_for_bit_and_writes_nothing(kind: str) -> None:
    vae = tiny_vae(kind)
    family = family_of(kind, vae)
    z = tiny_latents(vae, 1 if kind.startswith("image") else 2, 2, 2)
    wanted = unsplit(vae, z, TIMESTEP.get(kind))
    pixels = wanted[:, :, : 1 + 2 * family.factor[0]].clamp(-1, 1)
    moments = unsplit_moments(vae, pixels)
    before = {name: repr(value) for name, value in vars(vae).items()}
    with torch.no_grad():
        assert torch.equal(family.whole(z), wanted)
        assert torch.equal(family.whole(pixels, encode=True), moments)
    family.decode(PlainEngine(), z)
    family.encode(PlainEngine(), pixels)
    assert {name: repr(value) for name, value in vars(vae).items()} == before


class _Shapes:
    """Weights on "meta"."""

    def of(self, module: Any, name: str) -> Any:
        value = getattr(module, name, None)
        return value.to("meta") if isinstance(value, torch.Tensor) else None


@pytest.mark.parametrize("kind", OTHER_HALF)
def test_a_vae_whose_nodes_are_known_is_recorded_the_same_and_runs_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae = tiny_vae(kind)
    for encode in (False, True):
        family = family_for(vae, timestep=TIMESTEP.get(kind), encode=encode)
        family.seen.nodes.clear()
        wanted = record(family, encode)
        shape = family.out_shape((1, family.latent_channels, 2, 4, 6))
        if encode:
            family.out_shape(shape, encode=True)
        with monkeypatch.context() as patch:
            patch.setattr(Recorder, "_map_of", lambda *_: pytest.fail("a function was run"))
            found = record(family, encode)
        assert found.nodes == wanted.nodes
        assert found.made == wanted.made


@pytest.mark.parametrize("kind", HALF)
def test_every_tensor_that_layers_bring_comes_through_the_weights(kind: str) -> None:
    """So that a decode can be predicted on shapes, and can run elsewhere than the VAE is."""
    vae = tiny_vae(kind)
    family = family_of(kind, vae)
    frames = 1 if kind.startswith("image") else 2
    z = torch.empty(1, family.latent_channels, frames, 2, 3, device="meta")
    made = family.decode(PlainEngine(_Shapes()), z)
    assert (made.device.type, tuple(made.shape)) == ("meta", family.out_shape(tuple(z.shape)))
    moments = family.encode(PlainEngine(_Shapes()), made)
    assert tuple(moments.shape) == family.out_shape(tuple(made.shape), encode=True)


@pytest.mark.parametrize("kind", OTHER_HALF)
def test_half_precision_layers_keep_their_type_and_stay_near_the_exact_frames(kind: str) -> None:
    vae = tiny_vae(kind)
    z = tiny_latents(vae, 1 if kind.startswith("image") else 2, 2, 2)
    exact = unsplit(vae, z, TIMESTEP.get(kind))
    vae = vae.to(torch.bfloat16)
    got = family_of(kind, vae).decode(PlainEngine(), z.bfloat16())
    theirs = unsplit(vae, z.bfloat16(), TIMESTEP.get(kind))
    assert got.dtype == torch.bfloat16
    error = relative_error(got, exact)
    assert error <= max(2 * relative_error(theirs, exact), 2**-7), error


class _Forgetful(PlainEngine):
    """Reads every layer with one of its fields at the default."""

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = field

    def conv(self, x: Any, layer: Conv, **more: Any) -> Any:
        holder, _, field = self.field.rpartition(".")
        if holder == "shuffle" and layer.shuffle is not None:
            default = {f.name: f.default for f in dataclasses.fields(layer.shuffle)}[field]
            shuffle = dataclasses.replace(layer.shuffle, **{field: default})
            layer = dataclasses.replace(layer, shuffle=shuffle)
        elif not holder:
            default = {f.name: f.default for f in dataclasses.fields(layer)}[field]
            layer = dataclasses.replace(layer, **{field: default})
        return super().conv(x, layer, **more)

    def attention(self, x: Any, layer: Attention) -> Any:
        if self.field == "attention.span":
            layer = dataclasses.replace(layer, span="video")
        return super().attention(x, layer)


@pytest.mark.parametrize(
    ("kind", "coder", "field"),
    [
        ("hunyuan", "decode", "keep_first"),
        ("hunyuan", "decode", "modes"),
        ("hunyuan", "decode", "attention.span"),
        ("hunyuan15", "decode", "shuffle.first"),
        ("hunyuan15", "decode", "attention.span"),
        ("wan", "decode", "skip_first"),
        ("wan", "encode", "reread"),
        ("wan22", "decode", "attention.span"),
        ("ltx", "decode", "shuffle.drop"),
        ("ltx", "decode", "modes"),
        ("image", "decode", "act"),
        ("seedvr2", "decode", "modes"),
        ("seedvr2", "decode", "shuffle.first"),
        ("seedvr2", "decode", "attention.span"),
        ("seedvr2", "encode", "after"),
    ],
)
def test_the_comparison_sees_each_field_that_an_engine_forgets(
    kind: str, coder: str, field: str
) -> None:
    vae = tiny_vae(kind)
    family = family_of(kind, vae)
    if coder == "decode":
        x = tiny_latents(vae, 1 if kind == "image" else 3, 2, 2)
    else:
        x = tiny_pixels(9, 16, 16)
    exact = getattr(family, coder)(PlainEngine(), x)
    try:
        got = getattr(family, coder)(_Forgetful(field), x)
    except RuntimeError:  # sizes of a residual no longer fit
        return
    assert relative_error(got, exact) > 100 * BOUND
