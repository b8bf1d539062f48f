"""What ComfyUI's and the wrappers' VAEs do around their layers, and whose weights are read.

With stand-ins of the same structure; tests/unit/comfy/test_vaes_in_comfyui.py has the real classes.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from comfy_doubles import comfy, module  # noqa: E402, F401
from comfy_vae_doubles import ManagedVae  # noqa: E402
from decode_doubles import relative_error, tiny_latents, tiny_vae  # noqa: E402
from decode_originals import latent_diffusion_original, wan_original  # noqa: E402

from hy3d_rocm.decoding.executor import decode, encode  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.families.base import Host  # noqa: E402
from hy3d_rocm.decoding.families.proof import proven  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Wrapper(torch.nn.Module):
    """As the WanVideoWrapper's: another VAE inside, latents scaled, frames clamped, lists."""

    def __init__(self) -> None:
        super().__init__()
        self.vae = tiny_vae("wan")
        with torch.no_grad():
            self.vae.decoder.conv_out.weight.mul_(4)  # beyond -1..1, so that the clamp shows
        self.model = wan_original(self.vae, scaled=True)
        channels = int(self.vae.config["z_dim"])
        self.scale = [torch.linspace(-1, 1, channels), 1 / torch.linspace(0.5, 2, channels)]

    def decode(self, latents: Any, device: Any) -> list[Any]:
        return [
            self.model.decode(one[None].to(device), self.scale)[0].clamp(-1, 1) for one in latents
        ]


def test_a_wrappers_scale_and_clamp_are_applied() -> None:
    vae = Wrapper()
    family = family_for(vae)
    assert family.view is not family.vae
    z = tiny_latents(vae.model, 3, 2, 3)
    with torch.no_grad():
        wanted = torch.stack(vae.decode(z, "cpu"))
    for strategy in ("whole", "streamed"):
        got = decode(vae, z, strategy=strategy)
        assert relative_error(got, wanted) <= 1e-5, strategy
    assert float(wanted.abs().max()) == 1.0


class Inside(torch.nn.Module):
    """As the WanVideoWrapper's model of 2026: it scales, by what it holds, and keeps a cache."""

    def __init__(self, vae: Any, mean: Any, inv_std: Any) -> None:
        super().__init__()
        tree = wan_original(vae)
        self.encoder, self.decoder = tree.encoder, tree.decoder
        self.conv1, self.conv2 = tree.conv1, tree.conv2
        self.mean, self.inv_std, self._outer = mean, inv_std, [tree, vae]

    def clear_cache(self) -> None:
        self.cache: list[Any] = []

    def decode(self, z: Any, pbar: bool = True) -> Any:
        self.cache.append(z)
        return self._outer[0].decode(z / self.inv_std + self.mean)

    def encode(self, x: Any, pbar: bool = True, sample: bool = False) -> Any:
        self.cache.append(x)
        return (self._outer[1].encode(x).latent_dist.mean - self.mean) * self.inv_std


class Wrapper2026(torch.nn.Module):
    """As the WanVideoWrapper's of 2026: frames are not clamped."""

    def __init__(self) -> None:
        super().__init__()
        vae = Wrapper().vae
        channels = int(vae.config["z_dim"])
        self.mean = torch.linspace(-1, 1, channels).view(1, -1, 1, 1, 1)
        self.inv_std = 1 / torch.linspace(0.5, 2, channels).view(1, -1, 1, 1, 1)
        self.model = Inside(vae, self.mean, self.inv_std)

    def decode(self, latents: Any, device: Any, tiled: bool = False) -> list[Any]:
        self.model.clear_cache()
        return [self.model.decode(one[None].to(device))[0] for one in latents]

    def encode(self, videos: Any, device: Any, tiled: bool = False) -> Any:
        self.model.clear_cache()
        return torch.stack([self.model.encode(one[None].to(device))[0] for one in videos])


def test_a_wrapper_whose_model_scales_is_decoded_and_encoded_as_by_itself() -> None:
    vae = Wrapper2026()
    family = family_for(vae)
    assert family.view is not family.vae
    z = tiny_latents(vae, 3, 2, 3)
    with torch.no_grad():
        wanted = torch.stack(vae.decode(z, "cpu"))
    mean, inv_std, cache = vae.model.mean, vae.model.inv_std, vae.model.cache
    for strategy in ("whole", "streamed"):
        assert relative_error(decode(vae, z, strategy=strategy), wanted) <= 1e-5, strategy
    assert float(wanted.abs().max()) > 1.0
    assert vae.model.mean is mean
    assert vae.model.inv_std is inv_std
    assert vae.model.cache is cache
    assert proven(family, encode=True)
    assert len(cache) == 1  # ours has another
    pixels = torch.rand(1, 3, 5, 16, 16) * 2 - 1
    with torch.no_grad():
        assert relative_error(encode(vae, pixels), vae.encode(pixels, "cpu")) <= 1e-5


def packed_image_vae() -> Any:
    """An image VAE whose latents are squares of positions, normalised (Flux 2)."""
    vae = latent_diffusion_original(tiny_vae("image"))
    channels = 4 * family_for(vae).latent_channels
    vae.bn = torch.nn.BatchNorm2d(channels, affine=False)
    vae.bn.running_mean.normal_()
    vae.bn.running_var.uniform_(0.5, 2)
    vae.bn_eps, vae.ps = 1e-4, [2, 2]
    return vae.eval()


def test_packed_latents_are_scaled_and_unpacked() -> None:
    vae = packed_image_vae()
    z = torch.randn(2, family_for(vae).latent_channels, 3, 2)
    spread = (vae.bn.running_var + vae.bn_eps).sqrt().view(1, -1, 1, 1)
    scaled = z * spread + vae.bn.running_mean.view(1, -1, 1, 1)
    plain = torch.nn.functional.pixel_shuffle(scaled, 2)
    vae.bn, without = None, vae.bn
    wanted = decode(vae, plain)
    vae.bn = without
    assert relative_error(decode(vae, z, strategy="streamed"), wanted) <= 1e-5
    with pytest.raises(TypeError, match="call its own encode"):
        family_for(vae).encode(None, None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("comfy")
@pytest.mark.parametrize("managed", [True, False])
def test_an_encoder_that_is_left_alone_is_so_for_the_reason_that_is_said(
    managed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is loaded for it: nothing of what is asked is looked at."""
    from hy3d_rocm.comfy import encode as comfy_encode

    vae = ManagedVae(packed_image_vae(), latent_dim=2)
    monkeypatch.setattr(comfy_encode.vaes, "is_managed", lambda _: managed)
    nothing: Any = None
    why = comfy_encode._known(vae, torch.rand(1, 16, 16, 3), nothing, nothing)
    wanted = str(family_for(vae.first_stage_model).processing.no_encode)
    assert why == (wanted if managed else "it is no VAE of ComfyUI's own")


def test_a_vae_in_its_authors_layout_is_priced_and_decoded_whole() -> None:
    vae = latent_diffusion_original(tiny_vae("hunyuan"))
    z = tiny_latents(vae, 3, 2, 2)
    with torch.no_grad():
        assert torch.equal(decode(vae, z, strategy="whole"), family_for(vae).whole(z))


class Doubled:
    """A host's weights: twice the parameters."""

    def __init__(self, dtype: Any, device: Any) -> None:
        self.dtype = dtype

    def of(self, module: Any, name: str) -> Any:
        found = getattr(module, name, None)
        return None if not isinstance(found, torch.Tensor) else found.detach().to(self.dtype) * 2


def test_a_hosts_weights_and_type_are_used_wherever_the_parameters_are() -> None:
    vae = latent_diffusion_original(tiny_vae("image"))
    z = torch.randn(1, family_for(vae).latent_channels, 3, 2)
    hosted = family_for(vae)
    hosted.host = Host(torch.device("cpu"), torch.float64, Doubled)
    got = decode(hosted, z, strategy="streamed", precision="auto")
    assert got.dtype == torch.float64
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.mul_(2)
    wanted = decode(vae, z.double(), strategy="streamed")
    assert relative_error(got, wanted) <= 1e-5


def test_a_hosted_vae_in_another_type_is_not_decoded_by_its_own_code() -> None:
    vae = latent_diffusion_original(tiny_vae("image"))
    hosted = family_for(vae)
    hosted.host = Host(torch.device("cpu"), torch.float64, Doubled)
    z = torch.randn(1, hosted.latent_channels, 3, 2)
    with pytest.raises(ValueError, match="the type that its host casts weights to"):
        decode(hosted, z, strategy="whole", precision="fp32")


class Layer(torch.nn.Conv2d):
    """As comfy.ops' layers."""

    comfy_cast_weights = True
    weight_function: list[Any] = []  # noqa: RUF012
    bias_function: list[Any] = []  # noqa: RUF012


def fake_ops(monkeypatch: pytest.MonkeyPatch, lends: bool) -> Any:
    """comfy.ops of 0.33, whose casts are lent from one buffer, or of 0.3.64."""
    buffer = torch.zeros(1000)
    given_back: list[Any] = []

    def patched(s: Any, dtype: Any) -> tuple[Any, Any]:
        weight = s.weight.to(dtype)
        for change in s.weight_function:
            weight = change(weight)
        return weight, s.bias.to(dtype)

    if lends:

        def cast(
            s: Any, input: Any = None, dtype: Any = None, device: Any = None,  # noqa: A002
            bias_dtype: Any = None, offloadable: bool = False,
        ) -> Any:  # fmt: skip
            weight, bias = patched(s, dtype)
            buffer[: weight.numel()] = weight.flatten()
            return buffer[: weight.numel()].view_as(weight), bias, "stream"

        def uncast(s: Any, weight: Any, bias: Any, stream: Any) -> None:
            given_back.append(stream)
            buffer.fill_(float("nan"))
    else:

        def cast(  # type: ignore[misc]
            s: Any, input: Any = None, dtype: Any = None, device: Any = None,  # noqa: A002
            bias_dtype: Any = None,
        ) -> Any:  # fmt: skip
            return patched(s, dtype)

        def uncast(s: Any, weight: Any, bias: Any, stream: Any) -> None:
            raise AssertionError("there is nothing to give back")

    ops = module("comfy.ops", cast_bias_weight=cast, uncast_bias_weight=uncast)
    monkeypatch.setitem(sys.modules, "comfy.ops", ops)
    sys.modules["comfy"].ops = ops  # type: ignore[attr-defined]
    return SimpleNamespace(given_back=given_back)


@pytest.mark.usefixtures("comfy")
@pytest.mark.parametrize("lends", [True, False])
def test_weights_come_through_the_cores_casting_and_stay(
    monkeypatch: pytest.MonkeyPatch,
    lends: bool,
) -> None:
    ops = fake_ops(monkeypatch, lends)
    from hy3d_rocm.comfy.vaes import ComfyWeights

    one, two = Layer(2, 3, 1), Layer(2, 3, 1)
    one.weight_function = [lambda w: w + 1]
    weights = ComfyWeights(torch.float32, "cpu")
    first = weights.of(one, "weight")
    weights.of(two, "weight")
    assert torch.equal(first, one.weight.detach() + 1)
    assert weights.of(one, "weight") is first
    assert torch.equal(weights.of(one, "bias"), one.bias.detach())
    assert len(ops.given_back) == (2 if lends else 0)


@pytest.mark.usefixtures("comfy")
def test_other_modules_weights_are_read_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ops(monkeypatch, True)
    from hy3d_rocm.comfy.vaes import ComfyWeights

    plain = torch.nn.Conv2d(2, 3, 1)
    plain.gamma = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    weights = ComfyWeights(torch.float32, "cpu")
    found = weights.of(plain, "weight")
    assert found is not None
    assert found.data_ptr() == plain.weight.data_ptr()
    assert weights.of(plain, "gamma").dtype == torch.float32  # type: ignore[union-attr]
