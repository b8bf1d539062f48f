"""decode() of a VAE of no known kind: its own decode(), whole or in tiles."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from decode_doubles import tiny_latents, tiny_vae, unsplit  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from unknown_vaes import (  # noqa: E402
    HALO,
    ConvNet,
    latents,
)

from hy3d_rocm import decode  # noqa: E402
from hy3d_rocm.decoding import DecodeOptions, decode_with_report, encode  # noqa: E402
from hy3d_rocm.decoding.families import family_or_unknown  # noqa: E402
from hy3d_rocm.decoding.families.proof import rounding_bound  # noqa: E402
from hy3d_rocm.decoding.families.unknown import UnknownFamily  # noqa: E402
from hy3d_rocm.decoding.memory.budget import Budget  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import Job, torch_backend  # noqa: E402
from hy3d_rocm.tools.planning import explain  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_plan_of_own_code_is_explained_by_what_was_looked_at() -> None:
    z = torch.zeros(1, 4, 3, 8, 8)
    family = family_or_unknown(ConvNet(), z)
    job = Job(family, tuple(z.shape), z.device, z.dtype, z.dtype, torch_backend)
    found = explain(job, Budget(1 << 40, 1 << 40, True, "given"))
    assert [c.variant.name for c in found.candidates] == ["whole"]
    assert found.plan is not None
    assert found.plan.compiled is None


class NotBelow(ConvNet):
    """Refuses latents of fewer rows than 32."""

    def decode(self, z: Any) -> Any:
        if z.shape[3] < 32:
            raise RuntimeError("input is smaller than the kernel")
        return super().decode(z)


class NoRoom(ConvNet):
    """Memory runs out for more than `most` latent positions, and shapes alone do not do."""

    most = 150
    error: Exception = torch.OutOfMemoryError("out of memory, tried to allocate 9 GiB")

    def decode(self, z: Any) -> Any:
        if z.is_meta:
            raise NotImplementedError("no kernel for meta tensors")
        if z[0, 0].numel() > self.most:
            raise copy.copy(self.error)
        return super().decode(z)


class Pictures(nn.Module):
    """(B, 4, H, W) -> (B, 3, 8 H, 8 W)."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv2d(4, 3, 3, padding=1).requires_grad_(False)

    def decode(self, z: Any) -> Any:
        return SimpleNamespace(sample=self.last(functional.interpolate(z, scale_factor=8)))

    def encode(self, pixels: Any) -> Any:
        mean = functional.avg_pool2d(pixels, 8)
        return SimpleNamespace(latent_dist=SimpleNamespace(mean=mean, logvar=mean - 1))


def off(got: Any, want: Any) -> float:
    """Largest difference in units of what another order of sums may make."""
    assert got.shape == want.shape
    return float((got - want).abs().max()) / rounding_bound(want.dtype, float(want.abs().max()))


def family_of(vae: Any, z: Any | None = None) -> UnknownFamily:
    return UnknownFamily(vae, latents() if z is None else z, "why")


def facts(vae: Any, z: Any | None = None) -> Any:
    return family_of(vae, z).facts


def test_whole_is_its_own_decode_bit_for_bit() -> None:
    vae, z = ConvNet(), latents(batch=2)
    got, report = decode_with_report(vae, z)
    assert torch.equal(got, torch.cat([vae.decode(one) for one in z.split(1)]))
    assert report.strategy == "whole"
    assert "the layers of ConvNet are not known" in report.reason


def test_what_runs_whole_is_asked_in_three_small_decodes_and_tiles_in_more() -> None:
    """Each size is one more search for kernels on an AMD GPU."""
    vae, z = ConvNet(), latents()
    decode(vae, z)
    small = [shape[2:] for shape in vae.calls if shape != tuple(z.shape)]
    assert small == [(n, 2, 4) for n in (1, 2, 3)]
    vae.calls.clear()
    decode_with_report(vae, z, strategy="tiled", options=HALO)
    assert (10, 2, 4) in {shape[2:] for shape in vae.calls}


@pytest.mark.parametrize("kind", ["tensor", "tuple", "object"])
def test_frames_are_found_in_what_decode_gives(kind: str) -> None:
    vae, z = ConvNet(), latents()
    want = vae.decode(z)
    wraps = {
        "tensor": lambda x: x,
        "tuple": lambda x: (x,),
        "object": lambda x: SimpleNamespace(sample=x),
    }
    outer = SimpleNamespace(decode=lambda z: wraps[kind](ConvNet.decode(vae, z)))
    assert torch.equal(decode(outer, z), want)


@pytest.mark.parametrize("time", ["causal", "both", "frame"])
def test_tiles_with_a_full_halo_are_the_whole_decode(time: str) -> None:
    vae, z = ConvNet(time), latents(frames=9)
    want = vae.decode(z)
    got, report = decode_with_report(vae, z, strategy="tiled", options=HALO)
    assert report.plan["parameters"]["engine"] == "own tiles"
    assert off(got, want) <= 1
    assert report.estimate_error is None
    assert "error can't be known" in report.reason
    assert 'strategy="whole"' in report.reason


@pytest.mark.parametrize(
    ("time", "warm_up"), [("causal", 8), ("both", None), ("frame", 0)], ids=str
)
def test_time_is_cut_only_where_earlier_frames_do_not_feel_later_ones(
    time: str, warm_up: int | None
) -> None:
    found = family_of(ConvNet(time))
    assert found.facts.is_regular
    assert found.warm_up == (warm_up, warm_up is not None)
    vae, z = ConvNet(time), latents(frames=40, height=4, width=4)
    options = DecodeOptions(halo_pixels=12, overlap_pixels=8, min_tile_pixels=16, chunk_size=8)
    if warm_up is None:  # one tile, and that is the whole
        with pytest.raises(ValueError, match="4 x 4 is one tile"):
            decode_with_report(vae, z, strategy="tiled", options=options)
        return
    want = vae.decode(z)
    vae.calls.clear()
    got, report = decode_with_report(vae, z, strategy="tiled", options=options)
    assert "latent frames at a time" in report.plan["way"]
    assert max(shape[2] for shape in vae.calls) < 40
    assert off(got, want) <= 1


def test_norms_over_the_whole_video_forbid_cuts_in_time() -> None:
    vae = ConvNet()
    norm = nn.GroupNorm(2, 8)
    plain = vae._conv
    vae._conv = lambda n, x: norm(plain(n, x)) if n == 1 else plain(n, x)  # type: ignore[method-assign]
    found = family_of(vae)
    assert found.facts.is_regular
    assert found.warm_up.latents is None


def test_what_does_not_fit_is_tiled_within_the_budget() -> None:
    vae, z = ConvNet("frame", space=8), latents(3, 24, 24)
    whole = decode_with_report(vae, z)[1].predicted_peak_bytes
    options = DecodeOptions(halo_pixels=24, overlap_pixels=8, min_tile_pixels=32)
    got, report = decode_with_report(vae, z, int(whole * 0.9), options=options)
    assert report.strategy == "tiled"
    assert 0 < report.predicted_peak_bytes <= whole * 0.9
    assert off(got, vae.decode(z)) <= 1


def test_a_decode_whose_memory_runs_out_goes_on_to_tiles_from_large_to_small() -> None:
    vae, z = NoRoom("frame"), latents(3, 20, 20)
    seen: list[tuple[int, int]] = []
    got, report = decode_with_report(
        vae, z, options=HALO, progress=lambda done, total, step: seen.append((done, total))
    )
    assert off(got, ConvNet.decode(vae, z)) <= 1
    tried = [event["way"] for event in report.events]
    assert tried[0] == "whole"
    assert report.strategy == "tiled"
    assert "can't be predicted" in report.reason
    assert report.predicted_peak_bytes == 0
    last = [total for _, total in seen][-1]
    assert seen[-last:] == [(n + 1, last) for n in range(last)]


def test_more_elements_than_an_operator_counts_are_decoded_in_tiles() -> None:
    vae, z = NoRoom("frame"), latents(3, 20, 20)
    vae.error = RuntimeError(
        "upsample_nearest3d only supports output tensors with less than INT_MAX elements, but got "
        "[1, 512, 65, 1024, 1024]"
    )
    got, report = decode_with_report(vae, z, options=HALO)
    assert off(got, ConvNet.decode(vae, z)) <= 1
    assert report.strategy == "tiled"
    assert "INT_MAX" in report.events[0]["error"]


def test_memory_that_runs_out_for_every_tile_ends_in_a_sentence() -> None:
    vae = NoRoom("frame")
    vae.most = 30
    with pytest.raises(MemoryError, match="nothing is left to try"):
        decode(vae, latents(2, 20, 20))


def test_what_fails_on_small_latents_is_decoded_whole_and_has_no_tiles() -> None:
    vae, z = NotBelow(), latents(3, 32, 32)
    assert torch.equal(decode(vae, z), ConvNet.decode(vae, z))
    with pytest.raises(ValueError, match=r"fails for small latents \(RuntimeError: input is small"):
        decode(vae, z, strategy="tiled")


def test_frames_that_follow_no_rule_are_decoded_whole_only() -> None:
    class Odd(ConvNet):
        def decode(self, z: Any) -> Any:
            return super().decode(z)[:, :, : z.shape[2] // 2 + 1]

    vae, z = Odd(), latents(5)
    assert torch.equal(decode(vae, z), vae.decode(z))
    with pytest.raises(ValueError, match="makes 1, 2 and 2 frames of 1, 2 and 3 latents"):
        decode(vae, z, strategy="tiled")


@pytest.mark.parametrize("strategy", ["streamed", "cpu"])
def test_strategies_that_need_layers_are_refused_in_words(strategy: str) -> None:
    with pytest.raises(ValueError, match='"streamed" and "cpu" need a VAE whose layers are known'):
        decode(ConvNet(), latents(), strategy=strategy)


def test_images_are_decoded_as_images_and_frame_by_frame() -> None:
    vae, z = Pictures(), latents(3)
    want = torch.stack([vae.decode(z[:, :, t]).sample for t in range(3)], 2)
    assert torch.equal(decode(vae, z[:, :, 0]), want[:, :, 0])
    assert torch.equal(decode(vae, z), want)
    options = DecodeOptions(halo_pixels=8, overlap_pixels=8, min_tile_pixels=32)
    got, _ = decode_with_report(vae, z, strategy="tiled", options=options)
    assert off(got, want) <= 1


def test_encode_is_its_own_encode() -> None:
    vae, pixels = Pictures(), torch.rand(2, 3, 1, 16, 24) * 2 - 1
    want = vae.encode(pixels[:, :, 0]).latent_dist
    assert torch.equal(encode(vae, pixels)[:, :, 0], want.mean)
    assert torch.equal(encode(vae, pixels, moments=True)[:, 3:, 0], want.logvar)
    of_a_decode = family_of(vae, torch.zeros(1, 3, 1, 2, 3))
    assert torch.equal(encode(of_a_decode, pixels)[:, :, 0], want.mean)
    with pytest.raises(ValueError, match="an encode has no tiles"):
        encode(vae, pixels, strategy="tiled")


def test_random_numbers_of_a_decode_are_as_if_nothing_was_asked() -> None:
    class Noisy(ConvNet):
        def decode(self, z: Any) -> Any:
            return super().decode(z + torch.randn_like(z))

    vae, z = Noisy(), latents()
    torch.manual_seed(3)
    want = vae.decode(z)
    torch.manual_seed(3)
    assert torch.equal(decode(vae, z), want)
    assert family_of(vae).warm_up.latents is None


def test_its_own_splitting_is_off_and_as_it_was_afterwards() -> None:
    class Splitting(ConvNet):
        use_tiling = True

        def decode(self, z: Any) -> Any:
            return super().decode(z) * (0.5 if self.use_tiling else 1)

    vae, z = Splitting(), latents()
    assert torch.equal(decode(vae, z), ConvNet.decode(vae, z))
    assert vae.use_tiling
    assert "use_tiling" not in vars(vae)


@pytest.mark.parametrize("vae", [object(), None, nn.Linear(2, 2)])
def test_what_has_no_decode_is_refused_in_a_sentence(vae: Any) -> None:
    with pytest.raises(TypeError, match="has no decoder: pass the complete VAE"):
        decode(vae, latents())


def test_a_decode_that_fails_for_every_latent_says_what_it_said() -> None:
    class Broken(nn.Module):
        def decode(self, z: Any) -> Any:
            raise RuntimeError("no codebook")

    with pytest.raises(TypeError, match=r"Its own decode\(\) fails.*no codebook"):
        decode(Broken(), latents())


def test_another_precision_decodes_a_copy() -> None:
    vae, z = ConvNet(), latents()
    before = {n: (p.data_ptr(), p.dtype) for n, p in vae.named_parameters()}
    got = decode(vae, z, precision="bf16")
    assert got.dtype == torch.float32
    assert 0 < float((got - vae.decode(z)).abs().max()) < float(vae.decode(z).abs().max()) / 8
    assert {n: (p.data_ptr(), p.dtype) for n, p in vae.named_parameters()} == before


def test_a_known_vae_stays_known() -> None:
    pytest.importorskip("diffusers")
    from decode_doubles import tiny_latents, tiny_vae

    for kind in ("hunyuan", "wan"):
        vae = tiny_vae(kind)
        assert not isinstance(family_or_unknown(vae, tiny_latents(vae, 1, 2, 2)), UnknownFamily)


def test_diffusers_vaes_of_no_known_layers_decode_whole_and_tiled() -> None:
    diffusers = pytest.importorskip("diffusers")
    vae = diffusers.VQModel(block_out_channels=(32, 32), num_vq_embeddings=4).eval()
    z = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = vae.decode(z).sample
    assert torch.equal(decode(vae, z), want)
    options = DecodeOptions(halo_pixels=2, overlap_pixels=2, min_tile_pixels=4)
    got, report = decode_with_report(vae, z, strategy="tiled", options=options)
    assert got.shape == want.shape
    assert "VQModel" in report.reason
    assert any("can't be known" in said for said in report.recommendations)


def test_noise_in_the_decoder_is_drawn_as_by_its_own_decode() -> None:
    diffusers = pytest.importorskip("diffusers")
    vae = diffusers.AutoencoderKLLTXVideo(
        latent_channels=4, block_out_channels=(8, 8), decoder_block_out_channels=(8, 8),
        layers_per_block=(1, 1), decoder_layers_per_block=(1, 1, 1),
        spatio_temporal_scaling=(True, False), decoder_spatio_temporal_scaling=(True, False),
        decoder_inject_noise=(True, True, True), patch_size=2,
        down_block_types=("LTXVideoDownBlock3D",) * 2,
    ).eval().requires_grad_(False)  # fmt: skip
    for name, parameter in vae.named_parameters():
        if "per_channel_scale" in name:
            parameter.fill_(0.5)
    z = latents(3, 8, 8)
    torch.manual_seed(5)
    want = vae.decode(z).sample
    torch.manual_seed(5)
    got, report = decode_with_report(vae, z)
    assert torch.equal(got, want)
    assert "adds fresh noise" in report.reason
    options = DecodeOptions(halo_pixels=4, overlap_pixels=4, min_tile_pixels=4)
    tiled, report = decode_with_report(vae, z, strategy="tiled", options=options)
    assert tiled.shape == want.shape
    assert "at a time" not in report.plan["way"]


def test_without_the_core_a_known_vae_runs_its_own_code_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole bit for bit; what does not fit in tiles; layers are refused in words."""
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 2, 8, 8)
    wanted, _ = decode_with_report(vae, z, strategy="whole")
    monkeypatch.setattr("hy3d_rocm._native.available", False)
    monkeypatch.setattr("hy3d_rocm._native.missing", "hidden by the test")
    frames, report = decode_with_report(vae, z)
    assert torch.equal(frames, wanted)
    assert report.strategy == "whole"
    assert "the C core, which plans its layers, is missing (hidden by the test)" in report.reason
    assert encode(vae, frames[:, :, :1].clamp(-1, 1)).shape == (1, z.shape[1], 1, 8, 8)
    with pytest.raises(ValueError, match="is missing"):
        decode(vae, z, strategy="streamed")
    tiled, report = decode_with_report(vae, z, strategy="tiled")
    assert report.plan["parameters"]["engine"] == "own tiles"
    assert "Tiles of it are an approximation" in report.reason
    assert tiled.shape == wanted.shape


@pytest.mark.parametrize("kind", ["hunyuan", "hunyuan15", "wan22", "ltx", "image"])
def test_without_the_core_every_kind_decodes_whole(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae = tiny_vae(kind)
    z = tiny_latents(vae, 1 if kind == "image" else 2, 3, 2)
    monkeypatch.setattr("hy3d_rocm._native.available", False)
    frames, report = decode_with_report(vae, z)
    assert report.strategy == "whole"
    assert torch.equal(frames, unsplit(vae, z))
