"""A VAE that somebody changed in place computes what its modules now compute, never what they did.

Each way of changing it, before the first decode and between two: "streamed" is refused in a
sentence, and what "auto" and "tiled" give is what the VAE's own code makes.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import how_much  # noqa: E402
from changed_vaes import (  # noqa: E402
    EVERYWHERE,
    SOMEWHERE,
    ChangeIt,
    block_forward_of_the_class,
    convolution,
    decode_of_the_class,
    dropout_while_training,
    forward_hook,
    own_forward,
    parametrised,
    seamless_tiling,
    subclassed_convolution,
    subclassed_silu,
    up_sampling_mode,
    weight_norm,
)
from decode_doubles import relative_error, tiny_latents, tiny_pixels, tiny_vae  # noqa: E402
from decode_originals import latent_diffusion_original, wan_original  # noqa: E402
from torch import nn  # noqa: E402
from unchanged_vaes import SAME, other_weights  # noqa: E402

from hy3d_rocm.decoding.executor import decode, decode_with_report, encode  # noqa: E402
from hy3d_rocm.decoding.families import changes, family_for  # noqa: E402
from hy3d_rocm.decoding.report import DecodeOptions  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

# The families' own code is asked in many small decodes, which take a second or so of Wan's. In the
# gate each change meets one of its kinds between two decodes, kinds in turns; and every eighth
# another kind before the first decode: of a VAE that is not as it was in the last decode nothing is
# known, either.
WHEN = ("first", "second")
SEVERAL = ("hunyuan", "image", "ltx")
LARGER = ("hunyuan15", "wan", "wan22")
OF_LARGER = how_much.of(
    (forward_hook, own_forward, block_forward_of_the_class),
    (forward_hook, own_forward, subclassed_convolution, block_forward_of_the_class),
)


def pairs(k: int, kinds: tuple[str, ...]) -> list[tuple[str, str]]:
    """(kind, when) of the k-th change; `make test-long` takes every kind at both times."""
    some = [(kinds[k % len(kinds)], "second"), (kinds[(k + 1) % len(kinds)], "first")]
    few = some if kinds is LARGER else some[: 1 + (k % 8 == 1)]
    return how_much.of(few, [(kind, when) for kind in kinds for when in WHEN])


def cases() -> list[Any]:
    made = [
        (change, pair)
        for table in (
            dict.fromkeys(EVERYWHERE, SEVERAL), dict.fromkeys(OF_LARGER, LARGER), SOMEWHERE
        )
        for k, (change, kinds) in enumerate(table.items())
        for pair in pairs(k, kinds)
    ]  # fmt: skip
    return [
        pytest.param(kind, change, when, id=f"{kind}-{change.__name__}-{when}")
        for change, (kind, when) in made
    ]


RANDOM = (dropout_while_training,)
# So that a refusal need not find out which tiles there would be, which takes decodes.
NO_TILES = DecodeOptions(halo_pixels=None)


class Opaque:
    """A VAE of which nothing but decode() can be known."""

    def __init__(self, vae: Any) -> None:
        self.decode = lambda z: vae.decode(z)
        self.decoder_of = vae  # where the parameters are


def plain(vae: Any, z: Any) -> Any:
    """The VAE's own unsplit decode."""
    image = z.shape[2] == 1
    with torch.no_grad():
        torch.manual_seed(3)
        made = vae.decode(z[:, :, 0] if image else z)
        made = getattr(made, "sample", made)
    return made.unsqueeze(2) if image else made


def latents(kind: str, vae: Any) -> Any:
    """Where a VAE's own convolutions pad, as an image's and LTX's do, more than three columns are
    what one of the changes takes for many."""
    sizes = {"image": (1, 3, 4), "ltx": (2, 2, 4)}
    return tiny_latents(vae, *sizes.get(kind, (2, 2, 3)))


@functools.cache
def unchanged_of(kind: str) -> tuple[Any, Any]:
    """Latents and their own decode; only to be read."""
    vae = tiny_vae(kind)
    z = latents(kind, vae)
    return z, plain(vae, z)


def test_each_kind_is_tried_at_both_times_and_each_change_at_least_between_two_decodes() -> None:
    met: dict[Any, set[str]] = {}
    for kind, change, when in (case.values for case in cases()):
        met.setdefault(kind, set()).add(when)
        met.setdefault(change, set()).add(when)
    assert set(met) >= {*EVERYWHERE, *SOMEWHERE, "hunyuan15", "wan22"}
    assert all("second" in times for times in met.values())
    both = {what for what, times in met.items() if times == set(WHEN)}
    assert both >= {*SEVERAL, *LARGER, *how_much.of((), (*EVERYWHERE, *SOMEWHERE))}


@pytest.mark.parametrize(("kind", "change", "when"), cases())
def test_a_change_is_never_ignored(kind: str, change: ChangeIt, when: str) -> None:
    vae = tiny_vae(kind)
    z, unchanged = unchanged_of(kind)
    if when == "second":
        before = decode(vae, z, strategy="streamed")
        assert relative_error(before, unchanged) <= 1e-4
    undo = change(vae)
    try:
        wanted = plain(vae, z)
        assert relative_error(wanted, unchanged) > 1e-2, "it changes nothing"
        with pytest.raises(ValueError, match=r'"streamed" .* need a VAE whose layers are known'):
            decode_with_report(vae, z, strategy="streamed", options=NO_TILES)
        torch.manual_seed(3)
        got, report = decode_with_report(vae, z)
        assert "Its own code runs" in report.reason
        assert change in RANDOM or torch.equal(got, wanted)
    finally:
        if undo is not None:
            undo()


TILES = DecodeOptions(halo_pixels=16, overlap_pixels=16, min_tile_pixels=16)


@pytest.mark.parametrize(
    ("change", "when"),
    how_much.in_turns(
        (
            forward_hook, own_forward, subclassed_silu, decode_of_the_class, parametrised,
            seamless_tiling,
        ),
        WHEN,
    ),
)  # fmt: skip
def test_tiles_of_a_changed_vae_are_tiles_of_its_own_code(change: ChangeIt, when: str) -> None:
    vae = tiny_vae("image")
    z = tiny_latents(vae, 1, 16, 16)
    ignored = None
    if when == "second":
        ignored = decode_with_report(vae, z, strategy="tiled", options=TILES)[0]
    undo = change(vae)
    try:
        got, report = decode_with_report(vae, z, strategy="tiled", options=TILES)
        assert report.strategy == "tiled"
        assert report.estimate_error is None  # nobody can tell
        wanted = decode_with_report(Opaque(vae), z, strategy="tiled", options=TILES)[0]
        assert torch.equal(got, wanted)
        assert ignored is None or relative_error(ignored, wanted) > 1e-2
    finally:
        if undo is not None:
            undo()


# What is as it was is streamed


@pytest.mark.parametrize(
    ("change", "kind", "when"),
    [(c, *pair) for k, c in enumerate(SAME) for pair in pairs(k, ("hunyuan", "wan"))],
)
def test_what_leaves_the_function_as_it_is_is_streamed(
    change: ChangeIt, kind: str, when: str
) -> None:
    vae, twin = tiny_vae(kind), tiny_vae(kind)
    z = latents(kind, vae)
    if change is other_weights:
        change(twin)
    wanted = plain(twin, z)
    if when == "second":
        decode(vae, z, strategy="streamed")
    undo = change(vae)
    try:
        got, report = decode_with_report(vae, z, strategy="streamed")
    finally:
        if undo is not None:
            undo()
    assert report.strategy == "streamed"
    assert relative_error(got, wanted) <= 1e-4


@pytest.mark.parametrize("change", [forward_hook, own_forward, block_forward_of_the_class])
def test_a_change_that_is_taken_back_is_forgotten(change: ChangeIt) -> None:
    vae = tiny_vae("image")
    z = latents("image", vae)
    wanted = plain(vae, z)
    undo = change(vae)
    with pytest.raises(ValueError, match="need a VAE whose layers are known"):
        decode(vae, z, strategy="streamed")
    convolution(vae)._forward_hooks.clear()
    vars(convolution(vae)).pop("forward", None)
    if undo is not None:
        undo()
    assert relative_error(decode(vae, z, strategy="streamed"), wanted) <= 1e-4


def test_hooks_of_accelerate_that_do_more_than_move_weights_are_not_passed_by() -> None:
    hooks = pytest.importorskip("accelerate.hooks")

    class Tripled(hooks.ModelHook):  # type: ignore[misc]
        def post_forward(self, module: Any, output: Any) -> Any:
            return output * -3

    for hook in (Tripled(), hooks.SequentialHook(hooks.ModelHook(), Tripled())):
        vae = tiny_vae("image")
        z = latents("image", vae)
        hooks.add_hook_to_module(convolution(vae), hook)
        with pytest.raises(ValueError, match=r"conv2 has a hook of .*around its forward"):
            decode(vae, z, strategy="streamed")
        assert torch.equal(decode(vae, z), plain(vae, z))


# Encodes, VAEs that are only built alike, families that are kept


@pytest.mark.parametrize("when", ["first", "second"])
@pytest.mark.parametrize("kind", ["hunyuan", "image"])
def test_a_changed_encoder_is_not_ignored_either(kind: str, when: str) -> None:
    vae = tiny_vae(kind)
    x = tiny_pixels(1 if kind == "image" else 5, 32, 32)
    if when == "second":
        encode(vae, x, strategy="streamed")
    vae.encoder.mid_block.resnets[0].conv2.register_forward_hook(lambda m, args, made: made * -3)
    with pytest.raises(ValueError, match="need a VAE whose layers are known"):
        encode(vae, x, strategy="streamed")
    with torch.no_grad():
        wanted = vae.encode(x[:, :, 0] if kind == "image" else x).latent_dist.mean
    assert torch.equal(encode(vae, x), wanted.unsqueeze(2) if kind == "image" else wanted)
    decode(vae, latents(kind, vae), strategy="streamed")


def test_a_patch_of_what_a_subclass_calls_by_super_is_not_passed_by() -> None:
    vae = tiny_vae("wan")
    z, base = latents("wan", vae), type(vae)

    class Somebodys(base):  # type: ignore[misc, valid-type]
        def decode(self, z: Any, return_dict: bool = True) -> Any:
            return super().decode(z, return_dict)

    vae.__class__ = Somebodys
    assert relative_error(decode(vae, z, strategy="streamed"), plain(vae, z)) <= 1e-4
    before = base._decode

    def darker(self: Any, *args: Any, **more: Any) -> Any:
        made = before(self, *args, **more)
        made.sample = made.sample * -3
        return made

    base._decode = darker
    try:
        with pytest.raises(ValueError, match="need a VAE whose layers are known"):
            decode(vae, z, strategy="streamed")
    finally:
        base._decode = before


def test_a_class_whose_encode_does_otherwise_is_encoded_by_it() -> None:
    vae = tiny_vae("image")

    class Somebodys(type(vae)):  # type: ignore[misc]
        def _encode(self, x: Any) -> Any:
            return super()._encode(x) * 0.5

    vae.__class__ = Somebodys
    x = tiny_pixels(1, 32, 32)
    with pytest.raises(ValueError, match="encodes a small image to other values"):
        encode(vae, x, strategy="streamed")
    with torch.no_grad():
        wanted = vae.encode(x[:, :, 0]).latent_dist.mean.unsqueeze(2)
    assert torch.equal(encode(vae, x), wanted)
    vae.__class__ = type("SomebodysOther", (Somebodys.__base__,), {})
    assert relative_error(encode(vae, x, strategy="streamed"), plain_mean(vae, x)) <= 1e-4


def plain_mean(vae: Any, x: Any) -> Any:
    with torch.no_grad():
        return vae.encode(x[:, :, 0]).latent_dist.mean.unsqueeze(2)


@pytest.mark.parametrize(
    ("change", "when"),
    how_much.in_turns(
        (forward_hook, own_forward, subclassed_convolution, weight_norm, up_sampling_mode), WHEN
    ),
)
def test_a_vae_in_its_authors_layout_is_looked_at_as_well(change: ChangeIt, when: str) -> None:
    inner = tiny_vae("wan")
    vae = wan_original(inner)
    z = latents("wan", inner)
    if when == "second":
        decode(vae, z, strategy="streamed")
    change(inner)
    with pytest.raises(ValueError, match="need a VAE whose layers are known"):
        decode_with_report(vae, z, strategy="streamed", options=NO_TILES)
    assert torch.equal(decode(vae, z), plain(vae, z))


def test_a_family_that_was_made_before_the_change_is_refused() -> None:
    vae = tiny_vae("image")
    z = latents("image", vae)
    family = family_for(vae)
    decode(family, z, strategy="streamed")
    forward_hook(vae)
    with pytest.raises(TypeError, match=r"AutoencoderKL was changed, decoder\..* has a hook"):
        decode(family, z, strategy="streamed")


def test_a_patch_at_the_cast_is_honoured_by_a_host_that_casts_and_by_nobody_else() -> None:
    class Cast(nn.Conv2d):
        """As comfy.ops' layers."""

        comfy_cast_weights = True
        weight_function: list[Any] = []  # noqa: RUF012

        def forward(self, x: Any) -> Any:
            weight = self.weight
            for change in self.weight_function:
                weight = change(weight)
            return self._conv_forward(x, weight, self.bias)

    inner = tiny_vae("image")
    module = inner.decoder.conv_out
    made = Cast(module.in_channels, module.out_channels, 3, padding=1)
    made.load_state_dict(module.state_dict())
    inner.decoder.conv_out = made.requires_grad_(False)
    vae = latent_diffusion_original(inner)

    class Comfys(type(vae)):  # type: ignore[misc]
        def decode(self, z: Any) -> Any:
            return inner.decode(z).sample

    vae.__class__ = Comfys
    z = torch.randn(1, 4, 1, 3, 4)
    assert decode_with_report(vae, z, strategy="streamed")[1].strategy == "streamed"
    made.weight_function = [lambda weight: weight * -3]
    with pytest.raises(ValueError, match=r"patched when they are read \(weight_function\)"):
        decode(vae, z, strategy="streamed")
    assert torch.equal(decode(vae, z), plain(vae, z))
    assert changes.examined(vae, casts=True).change == ""


def test_looking_at_a_vae_takes_no_time_to_speak_of() -> None:
    """HunyuanVideo's at its real width: about 1.5 ms on one core; ten times that may be another's
    load."""
    from diffusers import AutoencoderKLHunyuanVideo

    with torch.device("meta"):
        vae = AutoencoderKLHunyuanVideo()
    first = changes.examined(vae)
    seconds = []
    for _ in range(20):
        began = time.process_time()
        again = changes.examined(vae)
        seconds.append(time.process_time() - began)
    assert again.state == first.state
    assert min(seconds) < 0.015
