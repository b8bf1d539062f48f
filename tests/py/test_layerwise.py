"""The engine that goes layer by layer: exact whatever the slices, and each layer by itself."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import (  # noqa: E402
    KINDS,
    relative_error,
    tiny_latents,
    tiny_pixels,
    tiny_vae,
    unsplit,
    unsplit_moments,
)
from layerwise_doubles import CPU, Counter, joined, make_engine  # noqa: E402
from test_torch_backend import Holder, random_layer, whole_numbers  # noqa: E402

from hy3d_rocm.decode.engines import layer_attention  # noqa: E402
from hy3d_rocm.decode.engines.layerwise import LayerEngine  # noqa: E402
from hy3d_rocm.decode.families import family_for  # noqa: E402
from hy3d_rocm.decode.layers import Attention, Conv, Local, Norm, Shuffle  # noqa: E402
from hy3d_rocm.decode.plain import PlainEngine  # noqa: E402
from hy3d_rocm.decode.torch_backend import TorchBackend  # noqa: E402
from hy3d_rocm.decode.weights import ModuleWeights  # noqa: E402

ALL = 1 << 40

pytestmark = pytest.mark.usefixtures("one_thread", "no_gradients")


@pytest.fixture(scope="module")
def vaes() -> dict[str, Any]:
    return {kind: tiny_vae(kind) for kind in ("hunyuan", "wan")}


def slices_of(vae: Any, z: Any, frames: int) -> int:
    """slice_bytes with which the last layers' slices have so many frames."""
    family = family_for(vae)
    _, _, _, height, width = family.out_shape(tuple(z.shape))
    return 8 * (height + 2) * (width + 2) * 4 * frames


@pytest.mark.parametrize("kind", ["hunyuan", "wan"])
@pytest.mark.parametrize("frames", range(1, 13))
def test_any_slices_give_the_unsplit_decode(vaes: Any, kind: str, frames: int) -> None:
    vae = vaes[kind]
    z = tiny_latents(vae, frames, 2 + frames % 2, 3, seed=frames)
    expected = unsplit(vae, z)
    per_slice = [1, 2, 3, 0] if frames in (1, 3, 5) else [(frames % 3) + 1]
    for count in per_slice:
        engine = make_engine(slices_of(vae, z, count) if count else ALL)
        got = joined(engine, family_for(vae).decode(engine, engine.enter(z)))
        assert relative_error(got, expected) <= 1e-5, f"{count} frames a slice"
        assert engine.keeper.resident == 0, "slices were forgotten"


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("hunyuan", "wan")])
def test_every_other_kind_in_any_slices_gives_the_unsplit_decode(kind: str) -> None:
    vae = tiny_vae(kind)
    for frames in (1,) if kind == "image" else (1, 2, 5):
        z = tiny_latents(vae, frames, 2, 3, seed=frames)
        expected = unsplit(vae, z)
        for slice_bytes in (1, 5000, ALL):
            engine = make_engine(slice_bytes, moments=frames < 5)
            got = joined(engine, family_for(vae).decode(engine, engine.enter(z)))
            assert relative_error(got, expected) <= 1e-5, (frames, slice_bytes)
            assert engine.keeper.resident == 0


def test_a_decoder_with_a_timestep_streams_as_well() -> None:
    """LTX 0.9.5: a norm's scale and shift come from the timestep; residual up-sampling."""
    vae = tiny_vae("ltx095")
    z = tiny_latents(vae, 3, 2, 3)
    expected = unsplit(vae, z, 0.05)
    for slice_bytes in (1, ALL):
        engine = make_engine(slice_bytes)
        got = joined(engine, family_for(vae, timestep=0.05).decode(engine, engine.enter(z)))
        assert relative_error(got, expected) <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_an_encode_in_slices_is_the_unsplit_encode(kind: str) -> None:
    vae = tiny_vae(kind)
    pixels = tiny_pixels(1 if kind == "image" else 9, 32, 32, seed=1)
    expected = unsplit_moments(vae, pixels)
    for slice_bytes in (1, ALL):
        engine = make_engine(slice_bytes)
        got = joined(engine, family_for(vae).encode(engine, engine.enter(pixels)))
        assert relative_error(got, expected) <= 1e-5


def test_what_goes_in_is_only_read(vaes: Any) -> None:
    vae = vaes["hunyuan"]
    z = tiny_latents(vae, 2, 2, 2)
    before = z.clone()
    engine = make_engine(1)
    joined(engine, family_for(vae).decode(engine, engine.enter(z)))
    assert torch.equal(z, before)
    handle, other = engine.enter(z), engine.enter(z)
    assert torch.equal(joined(engine, engine.add(handle, other)), before + before)
    assert torch.equal(z, before)


def engine_layer(rng: random.Random) -> Conv:
    """A random layer with what the engine itself does: frames that pass by, are read again or
    dropped. No norm and no activation: sums of whole numbers are exact."""
    layer = replace(random_layer(rng), norm=None)
    weight = layer.module.weight
    if layer.shuffle is not None and layer.shuffle.first is None and rng.random() < 0.5:
        layer = replace(layer, shuffle=replace(layer.shuffle, drop=layer.shuffle.factor[0] - 1))
    if rng.random() < 0.3:
        c, kernel_t = weight.shape[1], rng.choice([1, 2, 3])
        module = Holder(rng, weight=(2 * c, c, kernel_t, 1, 1), bias=(2 * c,))
        skip = rng.choice([1, 1, 2])
        layer = Conv(
            module,
            before=(kernel_t - 1, 0, 0),
            skip_first=skip,
            reread=rng.randint(0, skip),
            shuffle=Shuffle((2, 1, 1), "time first"),
        )
    return layer


def random_handle(rng: random.Random, engine: LayerEngine, x: Any) -> Any:
    """x in slices of random size that the engine owns."""
    engine.slice_bytes = rng.choice([1, 300, 1000, ALL])
    copied = Local(lambda frames, first: frames.clone(), lambda n: n)
    return engine.local(engine.enter(x), copied)


@pytest.mark.parametrize("seed", range(150))
def test_any_layer_in_any_slices_equals_the_plain_reading(seed: int) -> None:
    """Whole numbers: equal bit for bit. Replay: the seed is the test's number."""
    rng = random.Random(seed)
    layer = engine_layer(rng)
    weight = layer.module.weight
    t = rng.randint(weight.shape[2] if weight.dim() == 5 else 1, 9)
    x = whole_numbers(rng, 1, weight.shape[1], t, rng.randint(3, 5), rng.randint(3, 5))
    expected = PlainEngine().conv(x, layer)
    engine = make_engine(ALL)
    handle = random_handle(rng, engine, x)
    add = None
    if rng.random() < 0.5:
        residual = whole_numbers(rng, *expected.shape)
        expected = expected + residual
        add = random_handle(rng, engine, residual)
    engine.slice_bytes = rng.choice([1, 500, 2000, ALL])
    engine.gather = rng.random() < 0.5
    keep = rng.random() < 0.3
    result = engine.conv(handle, layer, add=add, keep=keep)
    assert result.shape == tuple(expected.shape[1:])
    if engine.gather:
        assert all(p is not None for p in result.parts)
    assert torch.equal(joined(engine, result), expected)
    if keep:
        assert torch.equal(joined(engine, handle), x)
    assert engine.keeper.resident == 0


@pytest.mark.parametrize("seed", range(30))
def test_several_layers_on_the_same_frames_equal_each_alone(seed: int) -> None:
    rng = random.Random(1000 + seed)
    c, t = rng.randint(1, 3), rng.randint(3, 8)
    x = whole_numbers(rng, 1, c, t, 4, 4)
    layers = [
        Conv(
            Holder(rng, weight=(2, c, k, 1, 1)),
            before=(k - 1, 0, 0),
            stride=(rng.choice([1, 2]), 1, 1),
        )
        for k in (1, 3, rng.choice([1, 2, 3]))
    ]
    engine = make_engine(ALL)
    handle = random_handle(rng, engine, x)
    engine.slice_bytes = rng.choice([1, 200, ALL])
    for layer, result in zip(layers, engine.convs(handle, layers), strict=True):
        assert torch.equal(joined(engine, result), PlainEngine().conv(x, layer))
    assert engine.keeper.resident == 0


def test_a_video_may_be_its_own_residual() -> None:
    rng = random.Random(3)
    x = whole_numbers(rng, 1, 2, 5, 3, 3)
    layer = Conv(Holder(rng, weight=(2, 2, 3, 1, 1)), before=(2, 0, 0))
    for slice_bytes in (1, 150, ALL):
        engine = make_engine(slice_bytes)
        handle = engine.local(engine.enter(x), Local(lambda f, first: f.clone(), lambda n: n))
        got = joined(engine, engine.conv(handle, layer, add=handle))
        assert torch.equal(got, PlainEngine().conv(x, layer) + x)
        assert engine.keeper.resident == 0


def test_a_handle_that_was_given_up_is_refused() -> None:
    engine = make_engine(ALL)
    x = engine.enter(torch.zeros(1, 2, 2, 3, 3))
    layer = Conv(Holder(random.Random(0), weight=(2, 2)))
    engine.conv(x, layer, keep=True)
    engine.conv(x, layer)
    with pytest.raises(ValueError, match="given up"):
        engine.conv(x, layer)


def test_group_norm_is_over_the_whole_video_however_it_is_sliced() -> None:
    """One frame is bright: moments of single slices would show."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(1, 4, 6, 5, 5, generator=generator)
    x[:, :, 2] += 50
    module = torch.nn.GroupNorm(2, 4)
    torch.nn.init.normal_(module.weight, generator=generator)
    torch.nn.init.normal_(module.bias, generator=generator)
    layer = Conv(
        torch.nn.Conv3d(4, 4, 3),
        before=(2, 1, 1),
        after=(0, 1, 1),
        norm=Norm("group", module, 1e-5, 2, bias="bias"),
        act="silu",
    )
    expected = PlainEngine().conv(x, layer)
    for slice_bytes in (1, 1000, ALL):
        for gather in (True, False):
            engine = make_engine(slice_bytes, moments=gather)
            got = joined(engine, engine.conv(engine.enter(x), layer))
            assert relative_error(got, expected) <= 1e-5


@pytest.mark.parametrize("span", ["frame", "causal", "video"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_attention_sees_what_its_span_says(
    span: str, fused: bool, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(1, 8, 5, 3, 4, generator=generator)
    norm = Norm("group", torch.nn.GroupNorm(4, 8), 1e-6, 4, bias="bias")
    if fused:
        q, k, v = torch.nn.Conv2d(8, 24, 1), None, None
        norm = Norm("l2", torch.nn.GroupNorm(4, 8), 1e-12)
    else:
        q, k, v = (torch.nn.Linear(8, 8) for _ in range(3))
    out = torch.nn.Conv3d(8, 8, 1)
    layer = Attention(norm, q, k, v, out, span, heads, rescale=1.0 if fused else 2.0)
    expected = PlainEngine().attention(x, layer)
    for slice_bytes in (1, 1000, ALL):
        for scores in (layer_attention.SCORE_BYTES, 200):
            monkeypatch.setattr(layer_attention, "SCORE_BYTES", scores)
            if scores == 200:
                monkeypatch.setattr(layer_attention, "_has_fused_kernel", lambda *_: False)
            engine = make_engine(slice_bytes)
            got = joined(engine, engine.attention(engine.enter(x), layer))
            assert relative_error(got, expected) <= 1e-5
            assert engine.keeper.resident == 0


def test_without_a_fused_kernel_scores_stay_below_their_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The largest product of queries and keys that is asked for."""
    largest = 0
    attend = torch.nn.functional.scaled_dot_product_attention

    def counted(q: Any, k: Any, v: Any, **rest: Any) -> Any:
        nonlocal largest
        largest = max(largest, q.shape[1] * q.shape[2] * k.shape[2] * 4)
        return attend(q, k, v, **rest)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    monkeypatch.setattr(layer_attention, "_has_fused_kernel", lambda *_: False)
    monkeypatch.setattr(layer_attention, "SCORE_BYTES", 4096)
    norm = Norm("l2", torch.nn.Linear(1, 8), 1e-12, weight=None)
    layer = Attention(norm, *(torch.nn.Linear(8, 8) for _ in range(4)), "causal")
    engine = make_engine(ALL)
    engine.attention(engine.enter(torch.randn(1, 8, 6, 4, 4)), layer)
    assert 2048 < largest <= 4096


def test_a_function_of_frames_may_make_fewer_of_the_first() -> None:
    """HunyuanVideo 1.5's shortcut: 1 + 2 (n - 1) frames, the first alone."""
    x = torch.arange(7.0).view(1, 1, 7, 1, 1).expand(1, 1, 7, 4, 4).clone()

    def doubled(frames: Any, first: int) -> Any:
        twice = frames.repeat_interleave(2, 2)
        return twice[:, :, 1:] if first == 0 else twice

    layer = Local(doubled, lambda n: 1 + 2 * (n - 1))
    for slice_bytes in (1, 100, 1000, ALL):
        engine = make_engine(slice_bytes)
        handle = engine.enter(x)
        got = engine.local(handle, layer, keep=True)
        assert got.shape == (1, 13, 4, 4)
        assert torch.equal(joined(engine, got), doubled(x, 0))
        assert torch.equal(joined(engine, handle), x)
    engine = make_engine(ALL)
    wrong = Local(doubled, lambda n: n)
    with pytest.raises(ValueError, match="the 7 frames it had said"):
        engine.local(engine.enter(x), wrong)


@pytest.mark.parametrize("seed", range(20))
def test_videos_in_different_slices_add_up(seed: int) -> None:
    rng = random.Random(seed)
    x, y = (whole_numbers(rng, 1, 2, 7, 3, 3) for _ in range(2))
    engine = make_engine(ALL)
    a, b = (random_handle(rng, engine, v) for v in (x, y))
    assert torch.equal(joined(engine, engine.add(a, b)), x + y)
    assert engine.keeper.resident == 0


def test_slices_are_not_written_while_they_are_kept() -> None:
    rng = random.Random(11)
    x = whole_numbers(rng, 1, 2, 5, 3, 3)
    engine = make_engine(150)
    kept = random_handle(rng, engine, x)
    other = engine.local(kept, Local(lambda frames, first: frames, lambda n: n), keep=True)
    engine.add(other, engine.enter(x))
    assert torch.equal(joined(engine, kept), x)


def test_steps_tell_each_grain_and_shapes_alone_tell_how_many(vaes: Any) -> None:
    vae = vaes["hunyuan"]
    z = tiny_latents(vae, 3, 2, 3)
    counter = Counter()
    engine = make_engine(3000, counter=counter)
    joined(engine, family_for(vae).decode(engine, engine.enter(z)))
    meta = torch.device("meta")
    counted = Counter()
    shapes = LayerEngine(
        TorchBackend(ModuleWeights(torch.float32, meta)), meta, 3000, None, counted
    )
    out = family_for(vae).decode(shapes, shapes.enter(z.to(meta)))
    assert [t.shape[2] for _, t in shapes.leave(out)] == [1] * 9
    assert counter.steps == counted.steps
    assert counter.steps[-1].frames == (8, 9)
    assert {s.kind for s in counter.steps} == {"conv", "attention", "result"}  # moments come along


def test_results_are_watched_as_they_are_made(vaes: Any) -> None:
    """What an executor looks for NaN with; an error in it passes."""
    vae = vaes["hunyuan"]
    z = tiny_latents(vae, 2, 2, 2)
    seen = []
    engine = make_engine(1, watch=lambda step, tensor: seen.append((step.kind, tensor.shape[2])))
    out = family_for(vae).decode(engine, engine.enter(z))
    assert seen[-5:] == [("conv", 1)] * 5
    assert {kind for kind, _ in seen} == {"conv", "attention"}
    assert sum(1 for _ in engine.leave(out)) == 5

    def fail(step: Any, tensor: Any) -> None:
        raise ArithmeticError("NaN")

    engine = make_engine(1, watch=fail)
    with pytest.raises(ArithmeticError):
        family_for(vae).decode(engine, engine.enter(z))


def test_half_precision_is_near_the_unsplit_double_decode_as_the_vaes_own_is(vaes: Any) -> None:
    """bf16: no further from the decode in double precision than diffusers' own bf16 decode, by a
    quarter more at most (both are sums of the same roundings, in another order)."""
    import copy

    vae = vaes["hunyuan"]
    z = tiny_latents(vae, 3, 3, 3).bfloat16()
    exact = unsplit(copy.deepcopy(vae).double(), z.double())
    half = copy.deepcopy(vae).bfloat16()
    theirs = (unsplit(half, z).double() - exact).square().mean()
    engine = LayerEngine(TorchBackend(ModuleWeights(torch.bfloat16, CPU)), CPU, 3000)
    ours = joined(engine, family_for(half).decode(engine, engine.enter(z)))
    assert ours.dtype == torch.bfloat16
    assert float((ours.double() - exact).square().mean()) <= 1.25**2 * float(theirs)
