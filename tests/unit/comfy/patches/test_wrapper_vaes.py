"""The VAEs of the Wan and HunyuanVideo wrappers, patched. Both are stand-ins."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import patches_doubles
import pytest
import torch
from patches_doubles import module
from vae_patch_doubles import HUNYUAN_SOURCE, WAN_SOURCE, Model, applied, latents, run_source

from hy3d_rocm.conv import Fault, forget, inject_faults

fake_comfy = patches_doubles.fake_comfy

WAN = ("custom_nodes.Wan", "wanvideo.wan_video_vae", WAN_SOURCE, "WanVideoDecode", "WanVideoVAE")
HUNYUAN = (
    "custom_nodes.Hy", "hyvideo.vae.autoencoder_kl_causal_3d", HUNYUAN_SOURCE, "HyVideoDecode",
    "AutoencoderKLCausal3D",
)  # fmt: skip


class Pack(SimpleNamespace):
    """A loaded pack. place: as the engine finds it; specs: its patches; vae: one of its VAEs."""

    place: Any
    specs: Any
    vae: Any
    mappings: Any


def load(kind: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> Pack:
    from hy3d_rocm.comfy.patches import upstream

    package, suffix, source, node, owner = kind
    defined = run_source(f"{package}.{suffix}", source, monkeypatch)
    mappings = {node: type(node, (), {"__module__": f"{package}.nodes"})}
    monkeypatch.setitem(sys.modules, package, module(package, NODE_CLASS_MAPPINGS=mappings))
    found = [
        (pack, place) for pack in upstream.PACKS[2:] for place in upstream.find(pack.name, mappings)
    ]
    ((pack, place),) = [pair for pair in found if pair[1].name == package]
    vae = getattr(defined, owner)(Model())
    return Pack(place=place, specs=pack.specs(), vae=vae, mappings=mappings)


@pytest.fixture
def wan(fake_comfy: Any, monkeypatch: pytest.MonkeyPatch) -> Pack:
    forget()
    return load(WAN, monkeypatch)


@pytest.fixture
def hunyuan(fake_comfy: Any, monkeypatch: pytest.MonkeyPatch) -> Pack:
    forget()
    return load(HUNYUAN, monkeypatch)


def budgeted_is(monkeypatch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    """The setting is "full", and what runs in parts is twice what came in."""
    from hy3d_rocm.comfy.patches import vaes

    def twice(
        vae: Any,
        given: torch.Tensor,
        budget: str,
        strategy: str,
        encode: bool = False,
        moments: bool = False,
    ) -> Any:
        seen.append((tuple(given.shape), budget, strategy, moments))
        return given * 2, "in parts"

    monkeypatch.setenv("HY3D_ROCM_VAE", "full")
    monkeypatch.setattr(vaes, "wrapper_in_parts", twice)


def test_a_pack_is_found_by_what_it_is_and_not_without(
    wan: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy.patches import upstream

    again = upstream.find("wan", wan.mappings)
    assert len(again) == 1
    assert again[0].same_as(wan.place)
    monkeypatch.delitem(sys.modules, "custom_nodes.Wan.wanvideo.wan_video_vae")
    assert upstream.find("wan", wan.mappings) == []


def test_failing_convolutions_of_wans_vae_end_in_the_same_frames(wan: Pack) -> None:
    z = latents()
    want = wan.vae.decode(z, "cpu"), wan.vae.encode(z, "cpu", tiled=True)
    with inject_faults(Fault("current")):
        with pytest.raises(RuntimeError, match="No suitable algorithm"):
            wan.vae.decode(z, "cpu")
        with applied(wan.place, *wan.specs):
            frames = wan.vae.decode(z, device="cpu")
            assert isinstance(frames, list)
            assert all(torch.equal(a, b) for a, b in zip(frames, want[0], strict=True))
            assert torch.equal(wan.vae.encode(z, "cpu", tiled=True), want[1])


def test_in_full_wans_plain_calls_run_in_parts_and_tiles_stay(
    wan: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    budgeted_is(monkeypatch, seen)
    monkeypatch.setenv("HY3D_ROCM_VAE_BUDGET", "80%")
    z = latents()
    with applied(wan.place, *wan.specs):
        frames = wan.vae.decode(z, "cpu")
        assert isinstance(frames, list)
        assert torch.equal(torch.stack(frames), z * 2)
        assert torch.equal(wan.vae.encode(list(z), "cpu"), z * 2)
        assert len(seen) == 2
        for other in ({"tiled": True}, {"end_": True}):
            wan.vae.decode(z, "cpu", **other)
            wan.vae.encode(z, "cpu", **other)
        wan.vae.encode(z, "cpu", sample=True)
    assert seen == [((2, 2, 4, 4), "80%", "auto", False)] * 2


def test_in_full_wans_frames_are_float32_and_videos_of_two_sizes_are_left_to_upstream(
    wan: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy.patches import vaes

    def half(vae: Any, given: torch.Tensor, budget: str, strategy: str, encode: bool) -> Any:
        return given.bfloat16(), "in parts"

    monkeypatch.setenv("HY3D_ROCM_VAE", "full")
    monkeypatch.setattr(vaes, "wrapper_in_parts", half)
    z = latents()
    smaller = z[0, :, :, :2]
    with applied(wan.place, *wan.specs):
        assert {frames.dtype for frames in wan.vae.decode(z, "cpu")} == {torch.float32}
        frames = wan.vae.decode([z[0], smaller], "cpu")
    assert frames[0].shape != frames[1].shape


def test_failing_convolutions_of_hunyuans_vae_end_in_the_same_frames(hunyuan: Pack) -> None:
    z = latents()
    want = hunyuan.vae.decode(z, return_dict=False)[0]
    with inject_faults(Fault("current")), applied(hunyuan.place, *hunyuan.specs):
        assert torch.equal(hunyuan.vae.decode(z, return_dict=False)[0], want)
        assert torch.equal(hunyuan.vae.decode(z).sample, want)
        assert torch.equal(hunyuan.vae.encode(z).latent_dist.parameters, want)


def test_in_full_hunyuans_automatic_tiles_give_way_and_chosen_ones_stay(
    hunyuan: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    budgeted_is(monkeypatch, seen)
    z, vae = latents(), hunyuan.vae
    with applied(hunyuan.place, *hunyuan.specs):
        vae.use_spatial_tiling = vae.use_temporal_tiling = True
        decoded, encoded = vae.decode(z, return_dict=False), vae.encode(z)
        assert torch.equal(decoded[0], z * 2)
        assert torch.equal(vae.decode(z).sample, z * 2)
        assert torch.equal(encoded.latent_dist.parameters, z * 2)
        assert type(encoded).__name__ == "AutoencoderKLOutput"
        assert torch.equal(vae.encode(z, return_dict=False)[0].parameters, z * 2)
        vae.tile_latent_min_size = 64
        vae.decode(z, return_dict=False)
        vae.encode(z)
    assert sorted(moments for _, _, _, moments in seen) == [False, False, True, True]
    assert vae.model.modes == [1, 1]


@pytest.mark.parametrize("name", ["decode", "encode"])
@pytest.mark.parametrize("kind", ["wan", "hunyuan"])
def test_protected_they_say_where_they_are_before_and_after(
    name: str, kind: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    pack: Pack = request.getfixturevalue(kind)
    more = ("cpu",) if kind == "wan" else ()
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    with applied(pack.place, *pack.specs):
        getattr(pack.vae, name)(latents(), *more)
    stage = f"VAE {name.capitalize()}"
    assert [line.split(" - ")[0].split(" Free")[0] for line in caplog.messages] == [
        f"[Before {stage}]",  # the wrapper's node has loaded it by then
        f"[{stage}] Starting",
        f"[{stage}] VAE device cpu, VAE dtype of its own",
        f"[{stage}] Attempting CPU {name} on cpu",
        f"[{stage}] CPU {name} SUCCESS",
        f"[After {stage}]",
    ]


def test_on_the_cpu_they_run_in_parts_there(wan: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    budgeted_is(monkeypatch, seen)
    monkeypatch.setenv("HY3D_ROCM_VAE", "cpu")
    with applied(wan.place, *wan.specs):
        wan.vae.decode(latents(), "cpu")
        wan.vae.encode(latents(), "cpu")
    assert [strategy for _, _, strategy, _ in seen] == ["cpu", "cpu"]


def test_switched_off_by_their_names_they_are_as_upstream_wrote_them(
    wan: Pack, hunyuan: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import settings

    now = settings.Settings("stream", "auto", frozenset({"wan-vae", "hunyuan-vae"}))
    monkeypatch.setattr(settings, "current", lambda: now)
    with applied(wan.place, *wan.specs), applied(hunyuan.place, *hunyuan.specs):
        wan.vae.decode(latents(), "cpu")
        hunyuan.vae.decode(latents())
    assert wan.vae.model.modes == [0, 0]
    assert hunyuan.vae.model.modes == [0]


def test_a_call_that_upstream_refuses_is_refused_in_its_own_words(wan: Pack) -> None:
    with (
        applied(wan.place, *wan.specs),
        pytest.raises(TypeError, match="missing 1 required positional argument: 'device'"),
    ):
        wan.vae.decode(latents())


def test_changed_classes_are_not_as_we_know_them(wan: Pack, hunyuan: Pack) -> None:
    type(wan.vae).encode = lambda self, videos, device, tiled=False: videos
    assert "has no use of single_encode" in (wan.specs[0].expects(wan.place) or "")
    del type(hunyuan.vae).decode
    assert hunyuan.specs[0].expects(hunyuan.place) == (
        "AutoencoderKLCausal3D has no method decode"
    )  # fmt: skip
