"""TorchBackend against the plainest reading of a layer: normalise, up-sample, pad, convolve."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import how_much  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from layer_frames import own_frames, source_range  # noqa: E402
from live_storages import LiveStorages  # noqa: E402
from random_layers import (  # noqa: E402
    Holder,
    cut,
    plain,
    random_layer,
    seeded,
    whole_numbers,
)

from hy3d_rocm.decoding.backends.statistics import (  # noqa: E402
    blocks,
    channel_moments,
    combine,
    group_affine,
)
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend, own_norm, position_norm  # noqa: E402
from hy3d_rocm.decoding.geometry import kernel_size, out_frames, shuffled_frames  # noqa: E402
from hy3d_rocm.decoding.layers import (  # noqa: E402
    Conv,
    ModuleWeights,
    Norm,
    Pieces,
)

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread", "no_gradients")


@pytest.mark.parametrize("seed", range(how_much.of(40, 120)))
def test_any_frames_of_any_layer_equal_the_whole_layers(seed: int) -> None:
    """Whole numbers: equal bit for bit. Replay: the seed is the test's number."""
    rng = random.Random(seed)
    layer = random_layer(rng, "reflect")
    weights = ModuleWeights(torch.float32, CPU)
    weight = layer.module.weight
    kernel = kernel_size(weight)
    c, t, h, w = weight.shape[1], rng.randint(kernel[0], 7), rng.randint(3, 6), rng.randint(3, 6)
    n = own_frames(layer, t, kernel[0])
    x = whole_numbers(rng, 1, c, t, h, w)
    affine = None
    if layer.norm is not None:
        affine = (whole_numbers(rng, c), whole_numbers(rng, c))
    expected = plain(layer, x, affine)
    assert expected.shape[2] == out_frames(layer, t, kernel[0])
    a = rng.randrange(n)
    b = rng.randint(a + 1, n)

    def made(own: int) -> int:
        return own if layer.shuffle is None else shuffled_frames(layer.shuffle, (0, own))

    pieces = cut(rng, x, *source_range(layer, (a, b), kernel[0], t))
    before = x.clone()
    part = expected[:, :, made(a) if a else 0 : made(b)]
    add = whole_numbers(rng, *part.shape) if rng.random() < 0.5 else None
    part = part if add is None else part + add
    result, _ = TorchBackend(weights).convolve(layer, pieces, (a, b), affine=affine, add=add)
    assert torch.equal(result, part)
    assert torch.equal(x, before)


def test_a_picture_too_small_to_be_reflected_is_refused() -> None:
    weight = {"weight": (2, 2, 1, 3, 3)}
    layer = Conv(
        Holder(random.Random(0), **weight), before=(0, 1, 1), after=(0, 1, 1),
        modes=("zeros", "reflect", "reflect"),
    )  # fmt: skip
    backend = TorchBackend(ModuleWeights(torch.float32, CPU))
    words = "1 columns can't be padded by reflection of 1: at least 2 are needed"
    with pytest.raises(ValueError, match=words):
        backend.convolve(layer, Pieces((torch.zeros(1, 2, 1, 2, 1),), 0, 1), (0, 1))


def test_missing_frames_are_named() -> None:
    rng = random.Random(0)
    layer = Conv(Holder(rng, weight=(2, 2, 3, 1, 1)), before=(2, 0, 0))
    x = whole_numbers(rng, 1, 2, 3, 4, 4)
    backend = TorchBackend(ModuleWeights(torch.float32, CPU))
    for pieces in (Pieces((x,), 2, 9), Pieces((x,), 0, 9)):
        with pytest.raises(ValueError, match="the source holds frames"):
            backend.convolve(layer, pieces, (3, 5))


def test_a_group_norm_without_moments_is_refused() -> None:
    layer = Conv(Holder(random.Random(0), weight=(2, 2)), norm=Norm("group", None, 1e-6))
    with pytest.raises(ValueError, match="without the moments"):
        TorchBackend(ModuleWeights(torch.float32, CPU)).convolve(
            layer, Pieces((torch.zeros(1, 2, 1, 2, 2),), 0, 1), (0, 1)
        )


@pytest.mark.parametrize("kind", ["l2", "rms", "layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_position_norms_are_those_of_the_words_in_layers_py(kind: str, dtype: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, 4, 5, generator=generator).to(dtype)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.randn(6, 1, 1, 1, generator=generator).to(dtype))
    module.bias = torch.nn.Parameter(torch.randn(6, generator=generator).to(dtype))
    scale, shift = (torch.randn(6, generator=generator) for _ in range(2))
    eps = 1e-3
    wide = x.double()
    if kind == "l2":
        y = wide / wide.square().sum(0, keepdim=True).sqrt().clamp_min(eps) * 6**0.5
    elif kind == "rms":
        y = wide * (wide.square().mean(0, keepdim=True) + eps).rsqrt()
    else:
        y = F.layer_norm(wide.movedim(0, -1), (6,), eps=eps).movedim(-1, 0)
    y = y * module.weight.double() + module.bias.double().view(-1, 1, 1, 1)
    y = y * (1 + scale.double().view(-1, 1, 1, 1)) + shift.double().view(-1, 1, 1, 1)
    norm = Norm(kind, module, eps, bias="bias", scale=scale, shift=shift)
    out = torch.empty_like(x)
    position_norm(x, norm, ModuleWeights(dtype, CPU), out)
    # A dozen float32 operations, then one rounding to dtype.
    largest = float(y.abs().max())
    bound = (32 * torch.finfo(torch.float32).eps + torch.finfo(dtype).eps / 2) * largest
    assert float((out.double() - y).abs().max()) <= bound


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_norm_of_single_frames_is_group_norm_of_each(dtype: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    frames = torch.arange(1, 5).view(1, -1, 1, 1)  # each of another mean and spread
    x = (torch.randn(6, 4, 5, 7, generator=generator) * frames + frames).to(dtype)
    module = torch.nn.GroupNorm(3, 6, eps=1e-3, dtype=dtype)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    y = torch.stack([module.double()(frame[None])[0] for frame in x.double().unbind(1)], 1)
    out = torch.empty_like(x)
    own_norm(
        x, Norm("frame", module.to(dtype), 1e-3, 3, bias="bias"), ModuleWeights(dtype, CPU), out
    )
    wide = torch.promote_types(dtype, torch.float32)
    bound = 32 * torch.finfo(wide).eps + torch.finfo(dtype).eps / 2
    assert float((out.double() - y).abs().max()) <= bound * float(y.abs().max())


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_moments_do_not_cancel(offset: float, dtype: Any) -> None:
    """A mean a thousand times the deviation: sums of squares in float32 would lose it all."""
    x = (torch.randn(1, 4, 5, 40, 40, generator=torch.Generator().manual_seed(2)) + offset).to(
        dtype
    )
    variance, mean = torch.var_mean(x.double(), dim=(0, 2, 3, 4), correction=0)
    parts = [channel_moments(part) for part in x.split([2, 1, 2], dim=2)]
    for moments in (channel_moments(x), combine(parts)):
        assert moments.count == 8000
        assert torch.allclose(moments.mean, mean, rtol=1e-6, atol=1e-6)
        assert torch.allclose(moments.deviations, variance * 8000, rtol=2e-4)


def test_group_affine_is_group_norm() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 8, 3, 4, 5, generator=generator) * 2 + 5
    module = torch.nn.GroupNorm(2, 8, eps=1e-6)
    for p in module.parameters():
        torch.nn.init.normal_(p, 1.0, 0.5, generator=generator)
    norm = Norm("group", module, 1e-6, groups=2, bias="bias")
    weights = ModuleWeights(torch.float32, CPU)
    factor, summand = group_affine(norm, channel_moments(x), weights)
    ours = x * factor.view(-1, 1, 1, 1) + summand.view(-1, 1, 1, 1)
    wide = torch.nn.GroupNorm(2, 8, eps=1e-6).double()
    wide.load_state_dict(module.state_dict())
    # The summand is about mean / deviation times the result: that many roundings.
    assert float((ours - wide(x.double())).abs().max()) <= 64 * torch.finfo(torch.float32).eps * 5


@pytest.mark.parametrize("limit", [1, 7, 20, 61, 10**6])
def test_blocks_cover_each_element_once(limit: int) -> None:
    x = torch.zeros(3, 4, 4, 5)
    for channels, frames in blocks(x, limit):
        part = x[channels, frames]
        part += 1
        assert part.numel() <= max(limit, 20)
    assert torch.equal(x, torch.ones_like(x))


def test_half_norms_round_once() -> None:
    """The norm's result is the float32 result rounded, not a norm in half arithmetic."""
    rng = random.Random(4)
    layer = Conv(Holder(rng, weight=(2, 2, 1, 1, 1)), norm=Norm("group", None, 1e-6))
    layer.module.weight.data.copy_(torch.eye(2).view(2, 2, 1, 1, 1))
    x = torch.randn(1, 2, 3, 4, 4, generator=seeded(rng)).to(torch.bfloat16)
    affine = (torch.tensor([1.7, -0.3]), torch.tensor([100.3, -2.1]))
    result, _ = TorchBackend(ModuleWeights(torch.bfloat16, CPU)).convolve(
        layer, Pieces((x,), 0, 3), (0, 3), affine=affine
    )
    view = (1, 2, 1, 1, 1)
    expected = torch.addcmul(affine[1].view(view), x.float(), affine[0].view(view))
    assert torch.equal(result, expected.to(torch.bfloat16))


def test_weights_are_converted_once_and_never_written() -> None:
    module = torch.nn.Conv3d(2, 2, 1)
    weights = ModuleWeights(torch.bfloat16, CPU)
    first = weights.of(module, "weight")
    assert first is weights.of(module, "weight")
    assert first.dtype == torch.bfloat16
    assert module.weight.dtype == torch.float32
    same = ModuleWeights(torch.float32, CPU).of(module, "weight")
    assert same.data_ptr() == module.weight.data_ptr()
    assert weights.of(module, "gamma") is None
    assert weights.of(torch.nn.Conv3d(1, 1, 1, bias=False), "bias") is None
    odd = torch.nn.Module()
    odd.bias = 0.0  # WanRMS_norm without a bias
    assert weights.of(odd, "bias") is None
    odd.bias = "x"
    with pytest.raises(TypeError, match="str"):
        ModuleWeights(torch.float32, CPU).of(odd, "bias")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("up", [(1, 1, 1), (2, 2, 2)])
def test_beside_operands_and_result_there_is_only_the_predicted_workspace(
    dtype: Any, up: Any
) -> None:
    """Live storages with real tensors against what was said; and no tensor of the up-sampled
    size but the padded input."""
    rng = random.Random(5)
    layer = Conv(
        Holder(rng, weight=(8, 8, 3, 3, 3), bias=(8,)),
        before=(2, 1, 1),
        after=(0, 1, 1),
        modes=("replicate",) * 3,
        norm=Norm("group", None, 1e-6),
        act="silu",
        up=up,
        keep_first=True,
    )
    weights = ModuleWeights(dtype, CPU)
    backend = TorchBackend(weights)
    x = torch.randn(1, 8, 6, 24, 24).to(dtype)
    pieces = Pieces((x[:, :, :3], x[:, :, 3:]), 0, 6)
    frames = (2, 5)
    affine = (torch.ones(8), torch.zeros(8))
    predicted, _ = backend.workspace(layer, pieces, frames)
    known = [x, weights.of(layer.module, "weight"), weights.of(layer.module, "bias"), *affine]
    with LiveStorages(known, CPU) as live:
        result, _ = backend.convolve(layer, pieces, frames, affine=affine, moments=True)
    assert live.peak - result.nbytes <= predicted
    buffer = 8 * 5 * (24 * up[1] + 2) * (24 * up[2] + 2) * x.element_size()
    assert predicted <= 4 * buffer + 8 * (1 << 20)


def test_shapes_alone_take_the_same_path() -> None:
    rng = random.Random(6)
    for _ in range(30):
        layer = random_layer(rng, "reflect")
        weights = ModuleWeights(torch.float32, "meta")
        c = layer.module.weight.shape[1]
        kernel_t = layer.module.weight.shape[2] if layer.module.weight.dim() == 5 else 1
        n = own_frames(layer, 4, kernel_t)
        x = torch.empty(1, c, 4, 5, 5, device="meta")
        affine = (torch.empty(c, device="meta"), torch.empty(c, device="meta"))
        result, _ = TorchBackend(weights).convolve(
            layer, Pieces((x,), 0, 4), (0, n), affine=affine, moments=True
        )
        assert result.shape[2] == out_frames(layer, 4, kernel_t)
