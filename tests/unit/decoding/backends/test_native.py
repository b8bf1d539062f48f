"""NativeBackend: any layer, any frames, any pieces, as the plain reading of the layer has them."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import how_much  # noqa: E402
from layer_frames import own_frames, source_range  # noqa: E402
from live_storages import LiveStorages  # noqa: E402
from native_doubles import FusedConv3d  # noqa: E402
from random_layers import (  # noqa: E402
    Holder,
    cut,
    plain,
    random_layer,
    seeded,
    whole_numbers,
)

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.conv import functional  # noqa: E402
from hy3d_rocm.decoding.backends.native import NativeBackend, refusal  # noqa: E402
from hy3d_rocm.decoding.backends.statistics import channel_moments  # noqa: E402
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend  # noqa: E402
from hy3d_rocm.decoding.geometry import kernel_size, shuffled_frames  # noqa: E402
from hy3d_rocm.decoding.graph import graph_of  # noqa: E402
from hy3d_rocm.decoding.layers import (  # noqa: E402
    Conv,
    ModuleWeights,
    Norm,
    Pieces,
)
from hy3d_rocm.decoding.memory.steps import StepWorkspace  # noqa: E402
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace  # noqa: E402
from hy3d_rocm.decoding.run import OPS, ProgramStep  # noqa: E402

CPU = torch.device("cpu")
IS_THERE = _native.available and hasattr(functional, "fused_conv3d")

pytestmark = pytest.mark.usefixtures("one_thread", "no_gradients")


@pytest.fixture(params=["double", "core"])
def compute(request: pytest.FixtureRequest) -> Any:
    """What NativeBackend calls: its contract in torch, and the C core's."""
    if request.param == "double":
        return FusedConv3d()
    if not IS_THERE:
        pytest.skip("the C core with the fused convolution is not built here")
    return None


def backend_of(compute: Any, dtype: Any = torch.float32) -> NativeBackend:
    backend = NativeBackend(ModuleWeights(dtype, CPU))
    backend.compute = compute
    return backend


@pytest.mark.parametrize("seed", range(how_much.of(40, 120)))
def test_any_frames_of_any_layer_equal_the_whole_layers(seed: int, compute: Any) -> None:
    """Whole numbers: equal bit for bit. Replay: the seed is the test's number."""
    rng = random.Random(seed)
    layer = random_layer(rng)
    kernel = kernel_size(layer.module.weight)
    c = layer.module.weight.shape[1]
    t, h, w = rng.randint(kernel[0], 7), rng.randint(3, 6), rng.randint(3, 6)
    n = own_frames(layer, t, kernel[0])
    x = whole_numbers(rng, 1, c, t, h, w)
    affine = None
    if layer.norm is not None:
        affine = (whole_numbers(rng, c), whole_numbers(rng, c))
    a = rng.randrange(n)
    b = rng.randint(a + 1, n)

    def made(own: int) -> int:
        return own if layer.shuffle is None else shuffled_frames(layer.shuffle, (0, own))

    pieces = cut(rng, x, *source_range(layer, (a, b), kernel[0], t))
    before = x.clone()
    part = plain(layer, x, affine)[:, :, made(a) if a else 0 : made(b)]
    add = whole_numbers(rng, *part.shape) if rng.random() < 0.5 else None
    part = part if add is None else part + add
    backend = backend_of(compute)
    result, _ = backend.convolve(layer, pieces, (a, b), affine=affine, add=add)
    assert torch.equal(result, part)
    assert torch.equal(x, before)
    assert backend.delegated == {}


def decoder_layer(rng: random.Random, channels: int, **more: Any) -> Conv:
    """As HunyuanVideo's: causal in time, borders repeated."""
    given = {
        "before": (2, 1, 1), "after": (0, 1, 1), "modes": ("replicate",) * 3, "act": "silu",
        "norm": Norm("group", None, 1e-6),
    } | more  # fmt: skip
    return Conv(Holder(rng, weight=(channels, channels, 3, 3, 3), bias=(channels,)), **given)


def normal(rng: random.Random, *shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=seeded(rng)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("up", [(1, 1, 1), (2, 2, 2)])
def test_pieces_cut_anywhere_give_the_bits_of_the_whole(dtype: Any, up: Any, compute: Any) -> None:
    rng = random.Random(7)
    c = 8 if compute is None else 16  # of 16 the core's strategy, so its bits, may follow frames
    layer = decoder_layer(rng, c, up=up, keep_first=True)
    x = normal(rng, 1, c, 5, 9, 11, dtype=dtype)
    affine = (normal(rng, c), normal(rng, c))
    backend = backend_of(compute, dtype)
    n = own_frames(layer, 5, 3)
    add = normal(rng, 1, c, n, 9 * up[1], 11 * up[2], dtype=dtype)
    whole, _ = backend.convolve(layer, Pieces((x,), 0, 5), (0, n), affine=affine, add=add.clone())
    for at in range(1, 5):
        pieces = Pieces((x[:, :, :at].clone(), x[:, :, at:].clone()), 0, 5)
        cut_there, _ = backend.convolve(layer, pieces, (0, n), affine=affine, add=add.clone())
        assert torch.equal(cut_there, whole), at
    for at in range(1, n):
        both = [
            backend.convolve(
                layer, Pieces((x,), 0, 5), part, affine=affine,
                add=add[:, :, part[0] : part[1]].clone(),
            )[0]
            for part in ((0, at), (at, n))
        ]  # fmt: skip
        assert torch.equal(torch.cat(both, 2), whole), at


@pytest.mark.parametrize("kind", ["frame", "l2", "rms", "layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_frames_alone_are_torchs_and_then_convolved(
    kind: str, dtype: Any, compute: Any
) -> None:
    """An identity as the kernel: the result is the norm's and the activation's, in torch's bits but
    for the activation's own roundings."""
    rng = random.Random(8)
    layer = decoder_layer(rng, 6, act=None)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(normal(rng, 6, 1, 1, 1, dtype=dtype))
    layer = Conv(
        layer.module, before=(2, 1, 1), after=(0, 1, 1), modes=("replicate",) * 3,
        norm=Norm(kind, module, 1e-3),
    )  # fmt: skip
    delta = torch.zeros(6, 6, 3, 3, 3)
    delta[range(6), range(6), 2, 1, 1] = 1.0
    layer.module.weight.data.copy_(delta)
    layer.module.bias.data.zero_()
    x = normal(rng, 1, 6, 4, 5, 7, dtype=dtype)
    source, frames = Pieces((x[:, :, :3], x[:, :, 3:]), 0, 4), (0, 4)
    wanted, _ = TorchBackend(ModuleWeights(dtype, CPU)).convolve(layer, source, frames)
    before = x.clone()
    backend = backend_of(compute, dtype)
    result, _ = backend.convolve(layer, source, frames)
    assert torch.equal(x, before)
    assert backend.delegated == {}
    # Ones and zeros only: a faster algorithm's error is relative to max|x| * sum|w| = max|y|.
    largest = float(wanted.float().abs().max())
    bound = 2e-5 * largest + torch.finfo(dtype).eps * largest
    assert float((result.float() - wanted.float()).abs().max()) <= bound


def test_the_residual_is_written_over_and_never_the_source(compute: Any) -> None:
    rng = random.Random(9)
    layer = decoder_layer(rng, 8, norm=None, act=None)
    x = whole_numbers(rng, 1, 8, 3, 6, 6)
    add = whole_numbers(rng, 1, 8, 3, 6, 6)
    wanted = plain(layer, x) + add
    result, _ = backend_of(compute).convolve(layer, Pieces((x,), 0, 3), (0, 3), add=add)
    assert result.data_ptr() == add.data_ptr()
    assert torch.equal(result, wanted)
    spread = whole_numbers(rng, 1, 8, 1, 6, 6).expand(1, 8, 3, 6, 6)  # one frame three times
    wanted = plain(layer, x) + spread
    result, _ = backend_of(compute).convolve(layer, Pieces((x,), 0, 3), (0, 3), add=spread)
    assert torch.equal(result, wanted)


def test_a_nan_stays_where_it_is_read(compute: Any) -> None:
    rng = random.Random(10)
    layer = decoder_layer(rng, 4)
    x = normal(rng, 1, 4, 4, 8, 8)
    x[0, 1, 2, 3, 3] = float("nan")
    affine = (torch.ones(4), torch.zeros(4))
    result, _ = backend_of(compute).convolve(layer, Pieces((x,), 0, 4), (0, 4), affine=affine)
    assert torch.isnan(result[:, :, 2:, 2:5, 2:5]).all(), "a NaN got lost"
    assert torch.isfinite(result[:, :, :2]).all(), "a NaN went back in time"
    assert torch.isnan(channel_moments(result).mean).all()


def test_missing_frames_are_named(compute: Any) -> None:
    rng = random.Random(0)
    layer = Conv(Holder(rng, weight=(2, 2, 3, 1, 1)), before=(2, 0, 0))
    x = whole_numbers(rng, 1, 2, 3, 4, 4)
    for pieces in (Pieces((x,), 2, 9), Pieces((x,), 0, 9)):
        with pytest.raises(ValueError, match="the source holds frames"):
            backend_of(compute).convolve(layer, pieces, (3, 5))


def test_a_group_norm_without_moments_is_refused(compute: Any) -> None:
    layer = Conv(Holder(random.Random(0), weight=(2, 2)), norm=Norm("group", None, 1e-6))
    with pytest.raises(ValueError, match="without the moments"):
        backend_of(compute).convolve(layer, Pieces((torch.zeros(1, 2, 1, 2, 2),), 0, 1), (0, 1))


def test_what_it_cannot_do_goes_to_torch_and_is_counted_by_reason(compute: Any) -> None:
    rng = random.Random(11)
    layer = Conv(Holder(rng, weight=(2, 2, 1, 3, 3)))
    x = whole_numbers(rng, 1, 2, 2, 6, 6).double()
    backend = backend_of(compute, torch.float64)
    for _ in range(2):
        result, _ = backend.convolve(layer, Pieces((x,), 0, 2), (0, 2))
        assert torch.equal(result, plain(layer, x.float()).double())
    assert backend.delegated == {"the C convolution has no fused torch.float64": 2}


def test_a_weight_is_the_same_tensor_each_time_and_the_parameter_itself_where_it_can_be() -> None:
    """What is prepared of a weight is kept by the tensor: it must outlive the decode."""
    compute, rng = FusedConv3d(), random.Random(12)
    deep = Conv(Holder(rng, weight=(2, 2, 3, 1, 1)), before=(2, 0, 0))
    flat = Conv(Holder(rng, weight=(2, 2, 3, 3)))
    x = whole_numbers(rng, 1, 2, 3, 4, 4)
    backend = backend_of(compute)
    for layer in (deep, flat, deep, flat):
        backend.convolve(layer, Pieces((x,), 0, 3), (0, 3))
    assert compute.weights[0] is compute.weights[2] is deep.module.weight
    assert compute.weights[1] is compute.weights[3]
    assert compute.weights[1].data_ptr() == flat.module.weight.data_ptr()


def test_the_cancel_flag_reaches_the_convolution() -> None:
    compute, rng = FusedConv3d(), random.Random(13)
    layer = Conv(Holder(rng, weight=(2, 2, 1, 1, 1)))
    flag = object()
    backend = backend_of(compute)
    backend.cancel = flag
    backend.convolve(layer, Pieces((whole_numbers(rng, 1, 2, 1, 3, 3),), 0, 1), (0, 1))
    assert compute.cancels == [flag]


def test_refusals_are_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not on cuda" in str(refusal(torch.device("cuda"), torch.float32))
    assert "float64" in str(refusal(CPU, torch.float64))
    monkeypatch.setattr(functional, "fused_conv3d", FusedConv3d(), raising=False)
    if _native.available:
        assert refusal(CPU, torch.bfloat16) is None
    monkeypatch.setattr(_native, "available", False)
    monkeypatch.setattr(_native, "missing", "no compiler")
    assert refusal(CPU, torch.float32) == "the C core is not there (no compiler)"


def workspace_in_program(layer: Conv, x: Any) -> int:
    """Of the layer's only step, where all of x is there."""
    graph = graph_of(lambda engine, value: engine.conv(value, layer), x.shape[1:])
    rules = OperatorWorkspace(CPU)
    asked = StepWorkspace(graph, backend_of(None, x.dtype), rules, x.dtype)
    machine = ((1 << 40, 0), (64, 0, 0), 1e9, 1e9, 1e-6, 1.0)
    found = _native.compile_schedule(
        graph.nodes, workspace=lambda *step: (0, 0, 0, 0), **asked.request, size=x.shape[2:],
        element_bytes=x.element_size(), is_host=1, strategies=2, host=machine, device=machine,
        copy_bytes_per_second=1e9, halos=((-1, 0, 1),),
    )  # fmt: skip
    assert found.program is not None
    steps = map(ProgramStep._make, found.program.steps(0))
    (convolution,) = (step for step in steps if OPS[step.op] == "conv")
    assert asked._known == {}, "nothing is asked of what the core knows"
    return convolution.workspace_bytes


@pytest.mark.skipif(not IS_THERE, reason="the C core with the fused convolution is not built here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["group", "frame", "rms"])
@pytest.mark.parametrize("up", [(1, 1, 1), (2, 2, 2)])
def test_beside_operands_and_result_there_is_only_the_predicted_workspace(
    dtype: Any, kind: str, up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live storages of torch's, and what the core says it took, against what a program says of the
    step."""
    rng = random.Random(5)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.ones(64))
    layer = decoder_layer(rng, 64, up=up, keep_first=True, norm=Norm(kind, module, 1e-6))
    weights = ModuleWeights(dtype, CPU)
    beside: list[int] = []
    inside: list[int] = []
    convolve = _native.conv3d

    def convolved(*given: Any, **more: Any) -> Any:
        inside.append(convolve(*given, **more)[2])

    monkeypatch.setattr(_native, "conv3d", convolved)

    def watched(*given: Any, **more: Any) -> Any:
        beside.append(live.live)
        return functional.fused_conv3d(*given, **more)

    backend = NativeBackend(weights)
    backend.compute = watched
    x = normal(rng, 1, 64, 6, 24, 24, dtype=dtype)
    pieces, frames = Pieces((x[:, :, :3], x[:, :, 3:]), 0, 6), (0, 11 if up[0] == 2 else 6)
    affine = (torch.ones(64), torch.zeros(64)) if kind == "group" else None
    predicted = workspace_in_program(layer, x)
    names = [weights.of(layer.module, "weight"), weights.of(layer.module, "bias")]
    known = [x, *names, *(affine or ()), weights.of(module, "weight"), *module.parameters()]
    with LiveStorages(known, CPU) as live:
        result, _ = backend.convolve(layer, pieces, frames, affine=affine, moments=True)
    assert backend.delegated == {}
    assert live.peak - result.nbytes <= predicted
    assert beside[0] - result.nbytes + inside[0] <= predicted
    assert predicted <= 64 << 20, "more than the convolution's own limit for a thread"


@pytest.mark.skipif(not IS_THERE, reason="the C core with the fused convolution is not built here")
def test_what_a_convolution_takes_inside_is_what_the_core_says_when_it_runs() -> None:
    rng = random.Random(15)
    for threads in (1, 2):
        for channels in (4, 64):
            layer = decoder_layer(rng, channels, norm=None, act=None)
            torch.set_num_threads(threads)
            size = (30, 26)
            x = torch.zeros(1, channels, 6, *size)
            said = workspace_in_program(layer, x)
            x, out = torch.zeros(1, channels, 8, *size), torch.empty_like(x)
            weight = layer.module.weight.detach()
            geometry = (
                (1, 1, 1), (1, 1, 1), (0, 1, 1), (0, 1, 1), ("zeros", "replicate", "replicate"), 1,
            )  # fmt: skip
            number, _, nbytes = _native.conv3d_format(
                (8, *size), channels, channels, (3, 3, 3), *geometry, "f32", "fast"
            )
            ways = [None, _native.conv3d_prepare(weight, number, threads)] if number else [None]
            workspace = max(
                _native.conv3d(x, weight, None, out, *geometry, threads, None, None, "fast", way)[2]
                for way in ways
            )
            block = 8 * out.numel()  # the floats of a norm or of moments
            # Without prepared weights a plan may prepare its own, beside its workspace.
            assert workspace <= said, (threads, channels)
            assert said <= max(workspace + nbytes + (1 << 16), block), (threads, channels)
