"""Programs of single layers and small decoders: whatever they slice, the plain reading's result."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import how_much  # noqa: E402
from decode_doubles import relative_error  # noqa: E402
from plain_engine import PlainEngine  # noqa: E402
from program_doubles import (  # noqa: E402
    ALL,
    CPU,
    OverwritingBackend,
    by_layers,
    carried_out,
    compiled,
    graph_of,
    marked,
    programs,
)
from random_layers import Holder, random_layer, whole_numbers  # noqa: E402
from small_decoders import decoders, latent, random_decoder, resnet  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding.backends import attention  # noqa: E402
from hy3d_rocm.decoding.layers import (  # noqa: E402
    Attention,
    Conv,
    Local,
    ModuleWeights,
    Norm,
    Shuffle,
)

pytestmark = [
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
    pytest.mark.usefixtures("one_thread", "no_gradients"),
]
Function = Callable[[Any, Any], Any]
DECODERS = decoders()


def every_result(function: Function, x: Any, **request: Any) -> dict[str, Any]:
    """By layers and by chunks; the marker that brings the one about changes no bit. The backend
    writes over residuals, which shows where one is read again."""
    backend, before = OverwritingBackend(ModuleWeights(x.dtype, CPU)), x.clone()
    mark = marked(x.shape[1])
    plain, layered = graph_of(function, x), graph_of(lambda e, x: function(e, mark(e, x)), x)
    found = {}
    for graph in (plain, layered):
        for program in programs(graph, x, **request):
            found[program.candidate["order"]] = carried_out(graph, x, program, backend=backend)
    assert torch.equal(x, before), "the input was written to"
    return found


def conv_layer(rng: random.Random) -> Conv:
    """A random layer with what the interpreter itself does: frames that pass by, are read again or
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
            module, before=(kernel_t - 1, 0, 0), skip_first=skip, reread=rng.randint(0, skip),
            shuffle=Shuffle((2, 1, 1), "time first"),
        )  # fmt: skip
    return layer


def sliced_otherwise(rng: random.Random, channels: int) -> Function:
    """Whole numbers to whole numbers, by a value of more channels and so of shorter slices."""
    wide = channels * rng.choice([2, 3, 5])
    into, back = (Conv(Holder(rng, weight=shape)) for shape in ((wide, channels), (channels, wide)))
    return lambda e, x: e.conv(e.conv(x, into), back)


@pytest.mark.parametrize("seed", range(how_much.of(50, 150)))
def test_any_layer_in_any_slices_equals_the_plain_reading(seed: int) -> None:
    """Whole numbers: equal bit for bit. Replay: the seed is the test's number."""
    rng = random.Random(seed)
    layer = conv_layer(rng)
    weight = layer.module.weight
    c = int(weight.shape[1])
    t = rng.randint(weight.shape[2] if weight.dim() == 5 else 1, 9)
    x = whole_numbers(rng, 1, c, t, rng.randint(3, 5), rng.randint(3, 5))
    has_residual, made = rng.random() < 0.5, PlainEngine().conv(x, layer)
    source = sliced_otherwise(rng, c) if rng.random() < 0.5 else lambda e, x: x
    behind = marked(made.shape[1]) if rng.random() < 0.5 else lambda e, x: x

    def function(e: Any, x: Any) -> Any:
        add = e.conv(x, layer) if has_residual else None
        return behind(e, e.conv(source(e, x), layer, add=add))

    expected = function(PlainEngine(), x)
    sizes = {"slice_bytes": rng.choice([1, 500, 2000, ALL]), "chunk": rng.randint(1, t)}
    for order, got in every_result(function, x, **sizes).items():
        assert torch.equal(got, expected), (order, sizes)


@pytest.mark.parametrize("seed", range(30))
def test_several_layers_on_the_same_frames_equal_each_alone(seed: int) -> None:
    rng = random.Random(1000 + seed)
    c, t, stride = rng.randint(1, 3), rng.randint(3, 8), rng.choice([1, 2])
    x = whole_numbers(rng, 1, c, t, 4, 4)
    layers = [
        Conv(Holder(rng, weight=(2, c, k, 1, 1)), before=(k - 1, 0, 0), stride=(stride, 1, 1))
        for k in (1, 3, rng.choice([1, 2, 3]))
    ]

    def function(e: Any, x: Any) -> Any:
        a, b, other = (e.conv(x, layer) for layer in layers)
        return e.add(e.add(a, b), other)

    expected = sum(PlainEngine().conv(x, layer) for layer in layers)
    sizes = {"slice_bytes": rng.choice([1, 200, ALL]), "chunk": rng.randint(1, t)}
    for order, got in every_result(function, x, **sizes).items():
        assert torch.equal(got, expected), (order, sizes)


def test_a_video_may_be_its_own_residual_and_is_not_written_while_it_is_read() -> None:
    rng = random.Random(3)
    x = whole_numbers(rng, 1, 2, 5, 3, 3)
    layer = Conv(Holder(rng, weight=(2, 2, 3, 1, 1)), before=(2, 0, 0))
    cloned = Local(lambda frames, first: frames.clone(), lambda n: n)
    same = Local(lambda frames, first: frames, lambda n: n)

    def function(e: Any, x: Any) -> Any:
        x = e.local(x, cloned)
        other = e.local(x, same)
        y = e.conv(x, layer, add=x)
        return e.add(e.add(e.add(other, y), x), x)

    expected = PlainEngine().conv(x, layer) + x + x + x + x
    for slice_bytes in (1, 150, ALL):
        for got in every_result(function, x, slice_bytes=slice_bytes).values():
            assert torch.equal(got, expected)


def test_group_norm_is_over_the_whole_video_however_it_is_sliced() -> None:
    """One frame is bright: moments of single slices would show."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(1, 4, 6, 5, 5, generator=generator)
    x[:, :, 2] += 50
    module = torch.nn.GroupNorm(2, 4)
    torch.nn.init.normal_(module.weight, generator=generator)
    torch.nn.init.normal_(module.bias, generator=generator)
    layer = Conv(
        torch.nn.Conv3d(4, 4, 3), before=(2, 1, 1), after=(0, 1, 1), act="silu",
        norm=Norm("group", module, 1e-5, 2, bias="bias"),
    )  # fmt: skip
    twice = lambda e, x: e.conv(e.conv(x, layer), layer)  # noqa: E731
    graph, expected = graph_of(twice, x), twice(PlainEngine(), x)
    for slice_bytes in (1, 1000, ALL):
        got = carried_out(graph, x, compiled(graph, x, slice_bytes=slice_bytes).program)
        assert relative_error(got, expected) <= 1e-5


@pytest.mark.parametrize("span", ["frame", "causal", "video"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_attention_sees_what_its_span_says(
    span: str, fused: bool, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where a fused kernel takes it, and by blocks of queries where none does."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(1, 8, 5, 3, 4, generator=generator)
    norm = Norm("group", torch.nn.GroupNorm(4, 8), 1e-6, 4, bias="bias")
    if fused:
        q, k, v = torch.nn.Conv2d(8, 24, 1), None, None
        norm = Norm("l2", torch.nn.Linear(1, 8), 1e-12, weight=None)
    else:
        q, k, v = (torch.nn.Linear(8, 8) for _ in range(3))
    out, rescale = torch.nn.Conv3d(8, 8, 1), 1.0 if fused else 2.0
    layer = Attention(norm, q, k, v, out, span, heads, rescale)
    expected = PlainEngine().attention(x, layer)
    graph = graph_of(lambda e, x: e.attention(x, layer), x)
    for scores in (256 << 20, 200):
        if scores == 200:
            monkeypatch.setattr("hy3d_rocm.conv.attention.SCORE_BYTES", scores)
            monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, **__: 0)
        for slice_bytes, chunk in ((1, 1), (1000, 2), (ALL, 5)):
            for one in {graph, by_layers(graph)}:
                for program in programs(one, x, slice_bytes=slice_bytes, chunk=chunk):
                    got = carried_out(one, x, program)
                    assert relative_error(got, expected) <= 1e-5, program.candidate["order"]


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

    counting = SimpleNamespace(scaled_dot_product_attention=counted)
    monkeypatch.setattr(attention, "_nn", counting)
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, **__: 0)
    monkeypatch.setattr("hy3d_rocm.conv.attention.SCORE_BYTES", 4096)
    norm = Norm("l2", torch.nn.Linear(1, 8), 1e-12, weight=None)
    layer = Attention(norm, *(torch.nn.Linear(8, 8) for _ in range(4)), "causal")
    x = torch.randn(1, 8, 6, 4, 4)
    graph = graph_of(lambda e, x: e.attention(x, layer), x)
    carried_out(graph, x, compiled(graph, x).program)
    assert 2048 < largest <= 4096


def test_a_function_of_frames_may_make_fewer_of_the_first() -> None:
    """HunyuanVideo 1.5's shortcut: 1 + 2 (n - 1) frames, the first alone."""
    x = torch.arange(7.0).view(1, 1, 7, 1, 1).expand(1, 1, 7, 4, 4).clone()

    def doubled(frames: Any, first: int) -> Any:
        twice = frames.repeat_interleave(2, 2)
        return twice[:, :, 1:] if first == 0 else twice

    layer = Local(doubled, lambda n: 1 + 2 * (n - 1))
    for slice_bytes, chunk in ((1, 1), (100, 2), (1000, 3), (ALL, 7)):
        sizes = {"slice_bytes": slice_bytes, "chunk": chunk}
        for got in every_result(lambda e, x: e.local(x, layer), x, **sizes).values():
            assert torch.equal(got, doubled(x, 0))
    wrong = Local(doubled, lambda n: n)
    with pytest.raises(ValueError, match="makes 13 of 7, not the 7 it had said"):
        graph_of(lambda e, x: e.local(x, wrong), x)


@pytest.mark.parametrize("kind", DECODERS)
def test_a_small_decoder_of_every_length_is_the_plain_one(kind: str) -> None:
    """In chunks and by layers."""
    for frames in how_much.of((1, 2, 5), range(1, 13)):
        x = latent(frames)
        expected = DECODERS[kind](PlainEngine(), x)
        graph = graph_of(DECODERS[kind], x)
        for one in {graph, by_layers(graph)}:
            for sizes in ((1, 1), (2000, 2), (ALL, 5)):
                request = dict(zip(("slice_bytes", "chunk"), sizes, strict=True))
                for program in programs(one, x, **request):
                    got = carried_out(one, x, program)
                    order = program.candidate["order"]
                    assert relative_error(got, expected) <= 1e-5, (frames, order, sizes)


@pytest.mark.parametrize("seed", range(how_much.of(10, 30)))
def test_a_random_decoder_is_the_plain_one(seed: int) -> None:
    """Replay: random_decoder(seed)."""
    function = random_decoder(seed)
    for frames in how_much.of((1, 4), (1, 2, 6)):
        x = latent(frames, 2, 3)
        expected = function(PlainEngine(), x)
        for chunk, slice_bytes in ((1, 1), (3, 100), (2, ALL)):
            for order, got in every_result(
                function, x, chunk=chunk, slice_bytes=slice_bytes
            ).items():
                assert relative_error(got, expected) <= 1e-5, (frames, order, chunk, slice_bytes)


@pytest.mark.parametrize("frames", [6, 12, 24])
def test_a_residual_block_holds_its_video_and_what_is_made_and_three_frames(frames: int) -> None:
    """With slices of one frame x goes while the result comes; x, h and the result side by side
    would be 3 T. What is held at all is what is stated (test_decode_run)."""
    norm = Norm("group", torch.nn.GroupNorm(2, 4), 1e-6, 2, bias="bias")
    function, x = resnet(4, 4, 1, True, norm), latent(frames)
    graph = graph_of(function, x)
    nothing = {"workspace": lambda *question: (0, 0, 0, 0), "slice_bytes": 1, "input_bytes": 4}
    stated = compiled(graph, x, **nothing).program.candidate["device_bytes"]
    assert stated <= (2 * frames + 3) * x[:, :, :1].nbytes
