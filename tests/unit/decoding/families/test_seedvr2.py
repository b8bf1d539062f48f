"""SeedVR2's VAE by its layers: the frames and moments of its own unsplit code, for every length, on
every way; what of its own settings give the same; what is not the same is said.

Each test runs on modules of our own with the same structure (decode_seedvr2.py), and on the true
classes where a checkout of the upscaler is there; nothing of that is kept here:

    HY3D_SEEDVR2=DIR pytest tests/unit/decoding/families/test_seedvr2.py

DIR: numz/ComfyUI-SeedVR2_VideoUpscaler, 4490bd1 or near it; it imports einops and diffusers. Seen
there: float64 decodes of 1 to 20 latent frames within 1.2e-15 of the range, encodes of 1 to 20
frames within 1.1e-15.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import how_much  # noqa: E402
from changed_vaes import (  # noqa: E402
    block_forward_of_the_class,
    forward_hook,
    forward_pre_hook,
    own_forward,
    parametrised,
    subclass_that_shrinks_large_pictures,
    subclassed_convolution,
    subclassed_norm,
    weight_norm,
)
from decode_doubles import (  # noqa: E402
    relative_error,
    tiles_of_level,
    tiny_pixels,
    tiny_vae,
    unsplit,
    unsplit_moments,
)

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding import decode_with_report, encode_with_report  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.families.parts import norm_of  # noqa: E402
from hy3d_rocm.decoding.families.proof import rounding_bound  # noqa: E402
from hy3d_rocm.decoding.report import DecodeOptions  # noqa: E402
from hy3d_rocm.tools.loading import BareSeedVr2  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
]
LENGTHS = range(1, 21)
#: (H, W) of latents, taken in turn, and of pixels
SIZES = ((2, 3), (1, 2), (3, 1), (5, 2))
PIXELS = ((16, 24), (17, 9), (31, 23), (8, 11))
TINY = {"layers_per_block": 1, "latent_channels": 4, "norm_num_groups": 4}
WIDTHS = (8, 8, 16, 16)
PLANS = ("streamed", "cpu", "tiled")


def true_module() -> Any:
    """attn_video_vae of the checkout; skips with the reason."""
    root = os.environ.get("HY3D_SEEDVR2", "")
    if not root:
        pytest.skip("HY3D_SEEDVR2 names no checkout of ComfyUI-SeedVR2_VideoUpscaler")
    pytest.importorskip("einops")
    name = "src.models.video_vae_v3.modules.attn_video_vae"
    if not Path(root, *name.split(".")).with_suffix(".py").is_file():
        pytest.skip(f"HY3D_SEEDVR2 is {root}, where no {name} is")
    if root not in sys.path:
        sys.path.insert(0, root)
    return importlib.import_module(name)


def true_vae(widths: Any, **changes: Any) -> Any:
    """As s8_c16_t4_inflation_sd3.yaml says, but for widths and changes."""
    given: dict[str, Any] = {
        "block_out_channels": widths, "layers_per_block": 2, "latent_channels": 16,
        "down_block_types": ("DownEncoderBlock3D",) * 4, "act_fn": "silu",
        "up_block_types": ("UpDecoderBlock3D",) * 4, "norm_num_groups": 32,
        "slicing_sample_min_size": 4, "temporal_scale_num": 2, "inflation_mode": "pad",
        "spatial_downsample_factor": 8, "temporal_downsample_factor": 4, "use_quant_conv": False,
        "use_post_quant_conv": False, "freeze_encoder": False,
    }  # fmt: skip
    kind = true_module().VideoAutoencoderKLWrapper
    return kind(**(given | changes)).eval().requires_grad_(False)


@pytest.fixture(params=["ours", "true"])
def vae(request: pytest.FixtureRequest) -> Any:
    ours = tiny_vae("seedvr2")
    if request.param == "ours":
        return ours.double()
    theirs = true_vae(WIDTHS, **TINY)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    return torch.nn.Module.to(theirs, torch.float64)


def randn(*size: int, dtype: Any = torch.float64) -> Any:
    generator = torch.Generator().manual_seed(sum(size))
    return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)


def narrow(vae: Any) -> Any:
    return torch.nn.Module.to(vae, torch.float32)  # diffusers' to() warns


def holds(got: Any, want: Any) -> bool:
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    bound = rounding_bound(want.dtype, float(want.abs().max()))
    return float((got - want).abs().max()) <= bound


def lengths_of(vae: Any, strategy: str) -> Any:
    """Every one of the true classes, and by chunks; of ours fewer in the gate."""
    if type(vae).__module__ != "decode_seedvr2":
        return LENGTHS
    if strategy == "streamed":
        return how_much.of((1, 2, 3, 5), LENGTHS)
    return how_much.of((1, 3), (1, 2, 6, 20))


# Frames and moments


@pytest.mark.parametrize("strategy", PLANS)
def test_frames_of_every_length_are_those_of_its_own_unsplit_decode(
    vae: Any, strategy: str
) -> None:
    for frames in lengths_of(vae, strategy):
        z = randn(1, 4, frames, *SIZES[frames % 4])
        want = unsplit(vae, z)
        assert want.shape[2] == 4 * frames - 3
        got, report = decode_with_report(vae, z, strategy=strategy)
        assert holds(got, want), (strategy, tuple(z.shape), report.reason)
        assert report.strategy == strategy
        assert report.vae == "SeedVR2"


@pytest.mark.parametrize("strategy", ["streamed", "cpu"])
def test_moments_of_every_length_are_those_of_its_own_unsplit_encode(
    vae: Any, strategy: str
) -> None:
    """Also of lengths that are not 1 + 4 k, and of sides that are no multiples of 8."""
    for frames in lengths_of(vae, strategy):
        x = tiny_pixels(frames, *PIXELS[frames % 4], seed=frames).double()
        want = unsplit_moments(vae, x)
        got, _ = encode_with_report(vae, x, strategy=strategy, moments=True)
        assert holds(got, want), (strategy, tuple(x.shape))


@pytest.mark.parametrize("strategy", ["streamed", "cpu"])
def test_float32_frames_have_float32s_error(vae: Any, strategy: str) -> None:
    """Where a frame has some positions: over two of them GroupNorm multiplies roundings."""
    vae = narrow(vae)
    for frames in how_much.of((1, 3), (1, 2, 7)):
        z = randn(1, 4, frames, 5, 6, dtype=torch.float32)
        assert holds(decode_with_report(vae, z, strategy=strategy)[0], unsplit(vae, z))
    x = tiny_pixels(how_much.of(5, 9), 41, 33)
    assert holds(encode_with_report(vae, x, strategy=strategy, moments=True)[0],
                 unsplit_moments(vae, x))  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_the_chunk_size_changes_nothing_but_roundings(vae: Any, chunk: int) -> None:
    z = randn(1, 4, 4, 2, 3)
    options = DecodeOptions(chunk_size=chunk)
    got, report = decode_with_report(vae, z, strategy="streamed", options=options)
    assert report.plan["parameters"]["chunk"] == chunk
    assert holds(got, unsplit(vae, z))


def test_a_batch_and_a_single_image_come_out_as_videos(vae: Any) -> None:
    z = randn(2, 4, 1, 3, 4)
    got, _ = decode_with_report(vae, z, strategy="streamed")
    assert tuple(got.shape) == (2, 3, 1, 24, 32)
    for one, part in zip(z, got, strict=True):
        assert holds(part[None], unsplit(vae, one[None]))


# Its own settings


def test_its_slices_of_time_are_the_unsplit_decode_and_encode(vae: Any) -> None:
    z, x = randn(1, 4, 4, 2, 3), tiny_pixels(13, 25, 17).double()
    frames, moments = unsplit(vae, z), unsplit_moments(vae, x)
    vae.use_slicing = True
    with torch.no_grad():
        assert holds(vae.decode(z).sample, frames)
        assert holds(vae.encode(x).posterior.parameters, moments)
    assert vae.use_slicing
    for strategy in ("whole", *PLANS):
        got, _ = decode_with_report(vae, z, strategy=strategy)
        assert holds(got, frames), strategy
        assert vae.use_slicing, "the setting is the user's"
    assert torch.equal(decode_with_report(vae, z, strategy="whole")[0], frames)


@pytest.mark.parametrize("split", [4, 8, 12])
@pytest.mark.parametrize("device", ["same", "cpu"])
def test_the_true_ones_slices_of_every_size_are_the_unsplit_decode(split: int, device: str) -> None:
    vae = torch.nn.Module.to(true_vae(WIDTHS, **TINY), torch.float64)
    z, x = randn(1, 4, 8, 3, 4), tiny_pixels(29, 25, 17).double()
    frames, moments = unsplit(vae, z), unsplit_moments(vae, x)
    vae.set_causal_slicing(split_size=split, memory_device=device)
    with torch.no_grad():
        assert holds(vae.decode(z).sample, frames)
        assert holds(vae.encode(x).posterior.parameters, moments)


def test_its_limits_of_memory_change_nothing_but_roundings() -> None:
    vae = torch.nn.Module.to(true_vae(WIDTHS, **TINY), torch.float64)
    z = randn(1, 4, 3, 16, 16)
    want = unsplit(vae, z)
    vae.set_causal_slicing(split_size=4, memory_device="cpu")
    vae.set_memory_limit(conv_max_mem=0.004, norm_max_mem=1e-6)
    try:
        with torch.no_grad():
            split = vae.decode(z).sample
        assert not torch.equal(split, want), "no convolution was split"
        assert holds(split, want)
        for strategy in ("whole", *PLANS):
            assert holds(decode_with_report(vae, z, strategy=strategy)[0], want), strategy
    finally:
        vae.set_memory_limit(None, None)  # the norms' is the module's


# Tiles


def in_tiles(vae: Any, z: Any) -> tuple[Any, Any]:
    with tiles_of_level(1):
        return decode_with_report(
            vae, z, strategy="tiled", options=DecodeOptions(halo_pixels=None, overlap_pixels=16)
        )


def test_tiles_say_that_norms_see_them_and_not_the_frame(vae: Any) -> None:
    z = randn(1, 4, 2, 44, 1)
    got, report = in_tiles(vae, z)
    assert report.plan["way"].startswith("tiled in 2 tiles")
    assert report.estimate_error is None
    assert "error can't be known: this VAE's norms see one tile" in report.reason
    assert any("GroupNorm saw one tile" in said for said in report.recommendations)
    assert not holds(got, unsplit(vae, z))
    _, alone = decode_with_report(vae, z, strategy="tiled")
    assert alone.estimate_error == 0.0
    assert "see one tile" not in alone.reason


def test_nothing_else_in_tiles_differs(vae: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With norms per position in place of those of frames, on both sides."""

    def by_position(family: Any, module: Any) -> Any:
        norm = norm_of(module)
        return type(norm)("layer", module, norm.eps, weight=norm.weight, bias=norm.bias)

    family = family_for(vae)
    monkeypatch.setattr(type(family), "norm", by_position)
    z = randn(1, 4, 2, 44, 1)
    want, _ = decode_with_report(family, z, strategy="streamed")
    got, report = in_tiles(family, z)
    assert report.plan["way"].startswith("tiled in 2 tiles")
    assert holds(got, want)
    assert not holds(want, unsplit(vae, z)), "the norms make no difference"


# Changes


def base_method(vae: Any) -> Any:
    """Which the wrapper's decode() comes to by super() only."""
    kind = next(base for base in type(vae).__mro__ if "_decode" in vars(base))
    before = kind._decode

    def darker(self: Any, *args: Any, **more: Any) -> Any:
        return before(self, *args, **more) * -3

    kind._decode = darker
    return lambda: setattr(kind, "_decode", before)


# test_changes.py has all of them, of other kinds.
CHANGES = how_much.of(
    (
        forward_hook, own_forward, subclass_that_shrinks_large_pictures, block_forward_of_the_class
    ),
    (
        forward_hook, forward_pre_hook, own_forward, subclassed_convolution, subclassed_norm,
        subclass_that_shrinks_large_pictures, block_forward_of_the_class, parametrised,
        weight_norm,
    ),
)  # fmt: skip
WHEN = ("first", "second")


@pytest.mark.parametrize(("change", "when"), how_much.in_turns((*CHANGES, base_method), WHEN))
def test_a_changed_one_is_decoded_by_its_own_code(vae: Any, change: Any, when: str) -> None:
    z = randn(1, 4, 2, 1, 4)
    unchanged = unsplit(vae, z)
    if when == "second":
        decode_with_report(vae, z, strategy="streamed")
    undo = change(vae)
    try:
        # In the gate one of a video and a picture, in turns; both where the base class was changed.
        both = (z, z[:, :, :1])
        turn = () if change is base_method else (CHANGES.index(change) // 2 % 2,)
        for latents in how_much.of([both[k] for k in turn] or both, both):
            want = unsplit(vae, latents)
            # Without tiles: which there would be takes decodes to find out.
            options = DecodeOptions(halo_pixels=None)
            with pytest.raises(ValueError, match=r"need a VAE whose layers are known"):
                decode_with_report(vae, latents, strategy="streamed", options=options)
            got, report = decode_with_report(vae, latents)
            assert "Its own code runs" in report.reason
            assert torch.equal(got, want)
        assert relative_error(unsplit(vae, z), unchanged) > 1e-2, "it changes nothing"
    finally:
        if undo is not None:
            undo()


@pytest.mark.parametrize("when", ["first", "second"])
def test_a_changed_one_is_encoded_by_its_own_code(vae: Any, when: str) -> None:
    x = tiny_pixels(5, 24, 16).double()
    if when == "second":
        encode_with_report(vae, x, strategy="streamed")
    vae.encoder.mid_block.resnets[0].conv2.register_forward_hook(lambda m, args, made: made * -3)
    got, report = encode_with_report(vae, x, moments=True)
    assert "Its own code runs" in report.reason
    assert holds(got, unsplit_moments(vae, x).clamp(-30, None))


def test_parts_that_its_layers_do_not_say_are_refused(vae: Any) -> None:
    vae.decoder.up_blocks[0].upsamplers[0].temporal_ratio = 1
    with pytest.raises(TypeError, match=r"looks like a SeedVR2 VAE, but"):
        family_for(vae)


# Structure


def shapes(module: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in module.state_dict().items()}


def test_the_structure_that_is_planned_for_is_ours_in_small() -> None:
    bare = BareSeedVr2(WIDTHS, **TINY)
    ours = tiny_vae("seedvr2")
    assert shapes(bare) == shapes(ours)
    bare.load_state_dict(ours.state_dict())
    from plain_engine import PlainEngine

    from hy3d_rocm.decoding.families.blocks import SeedVr2Family

    assert SeedVr2Family.recognises(bare)
    z, x = randn(1, 4, 3, 3, 4, dtype=torch.float32), tiny_pixels(9, 24, 17)
    for name, given in (("decode", z), ("encode", x)):
        made = [getattr(SeedVr2Family(v), name)(PlainEngine(), given) for v in (bare, ours)]
        assert torch.equal(*made)


def test_the_structure_that_is_planned_for_is_the_published_one() -> None:
    with torch.device("meta"):
        theirs, ours = true_vae((128, 256, 512, 512)), BareSeedVr2()
    assert shapes(ours) == shapes(theirs)
    families = [family_for(v.requires_grad_(False)) for v in (theirs, ours.eval())]
    facts = [(f.factor, f.latent_channels, f.out_channels) for f in families]
    assert facts[0] == facts[1] == ((4, 8), 16, 3)
