"""Rows of a layer's result, made strip by strip: padded at the picture's border only, cropped at
inner sides, each into its rows of one tensor. Put together they are the whole result."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import how_much  # noqa: E402
from layer_frames import own_frames, strip_of  # noqa: E402
from native_doubles import FusedConv3d  # noqa: E402
from random_layers import Holder, cut, plain, random_layer, seeded, whole_numbers  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding.backends.native import NativeBackend  # noqa: E402
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend  # noqa: E402
from hy3d_rocm.decoding.geometry import kernel_size, own_size, padded_size  # noqa: E402
from hy3d_rocm.decoding.layers import Conv, ModuleWeights, Norm, Pieces, Shuffle  # noqa: E402

CPU = torch.device("cpu")
FILL = 1024.0

pytestmark = pytest.mark.usefixtures("one_thread", "no_gradients")


@pytest.fixture(params=["torch", "double", "core"])
def make(request: pytest.FixtureRequest) -> Any:
    """A backend for a type. double: NativeBackend by its contract in torch."""
    if request.param == "torch":
        return lambda dtype: TorchBackend(ModuleWeights(dtype, CPU))
    if request.param == "core" and not _native.available:
        pytest.skip("the C core is not built here")
    compute = FusedConv3d() if request.param == "double" else None

    def made(dtype: Any) -> NativeBackend:
        backend = NativeBackend(ModuleWeights(dtype, CPU))
        backend.compute = compute
        return backend

    return made


def cuts(rng: random.Random, rows: int) -> list[tuple[int, int]]:
    """The rows in strips, single ones among them."""
    at = sorted({0, rows, *(rng.randrange(rows) for _ in range(rng.randint(1, 3)))})
    if rng.random() < 0.3:
        at = list(range(rows + 1))
    return list(itertools.pairwise(at))


def assembled(
    rng: random.Random, backend: Any, layer: Conv, x: Any, like: Any, **given: Any
) -> Any:
    """The layer's result, each strip into its rows of a larger tensor. like: a result of the size,
    whose type it has. residual: its strips are added, in `out` itself or from beside it."""
    affine, residual = given.get("affine"), given.get("residual")
    kernel, rh = kernel_size(layer.module.weight), 1
    if layer.shuffle is not None:
        rh = layer.shuffle.factor[1]
    n = own_frames(layer, x.shape[2], kernel[0])
    size = list(like.shape)
    size[3] += 3
    form = rng.choice([torch.contiguous_format, torch.channels_last_3d])
    large = torch.full(size, FILL, dtype=like.dtype).contiguous(memory_format=form)
    for a, b in cuts(rng, like.shape[3] // rh):
        strip, (low, high) = strip_of(layer, x.shape[3], kernel[1], (a, b))
        assert own_size(strip, (high - low, x.shape[4]), kernel)[0] == b - a
        out, add = large[:, :, :, 1 + a * rh : 1 + b * rh], None
        if residual is not None:
            add = residual[:, :, :, a * rh : b * rh]
            if rng.random() < 0.5:
                add = out.copy_(add)
            kept = add.clone()
        source = cut(rng, x[:, :, :, low:high], 0, x.shape[2])
        result, _ = backend.convolve(strip, source, (0, n), affine=affine, add=add, out=out)
        assert result is out
        if add is not None and add is not out:
            assert torch.equal(add, kept), "a residual beside the result was written"
    assert torch.equal(large[:, :, :, :1], torch.full_like(large[:, :, :, :1], FILL))
    assert torch.equal(large[:, :, :, -2:], torch.full_like(large[:, :, :, -2:], FILL))
    return large[:, :, :, 1:-2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(how_much.of(40, 200)))
def test_strips_of_any_layer_put_together_are_the_whole_result(
    seed: int, dtype: Any, make: Any
) -> None:
    """Whole numbers: equal bit for bit. Replay: the seed is the test's number."""
    rng = random.Random(seed)
    layer = random_layer(rng)
    kernel = kernel_size(layer.module.weight)
    c, t = layer.module.weight.shape[1], rng.randint(kernel[0], 4)
    x = whole_numbers(rng, 1, c, t, rng.randint(3, 8), rng.randint(3, 6))
    affine = (whole_numbers(rng, c), whole_numbers(rng, c)) if layer.norm is not None else None
    exact = plain(layer, x, affine)
    residual = whole_numbers(rng, *exact.shape) if rng.random() < 0.5 else None
    backend, n = make(dtype), own_frames(layer, t, kernel[0])
    x, given = x.to(dtype), {"affine": affine}
    if residual is not None:
        given["residual"] = residual = residual.to(dtype)
    result = assembled(rng, backend, layer, x, exact.to(dtype), **given)
    if dtype is torch.float32:
        assert torch.equal(result, exact if residual is None else exact + residual)
    whole, _ = backend.convolve(layer, Pieces((x,), 0, t), (0, n), affine=affine, add=residual)
    assert torch.equal(result, whole)
    assert backend.delegated == {}


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("up", [1, 2, 3])
def test_wider_kernels_and_columns_too(size: int, up: int, make: Any) -> None:
    rng = random.Random(size * up)
    layer = Conv(
        Holder(rng, weight=(2, 3, 1, size, size), bias=(2,)), before=(0, 2, 2),
        after=(0, size - 3, size - 3), modes=("zeros", "replicate", "zeros"), up=(1, up, up),
    )  # fmt: skip
    x = whole_numbers(rng, 1, 3, 2, 7, 6)
    exact = plain(layer, x)
    for _ in range(8):
        result = assembled(rng, make(torch.float32), layer, x, exact)
        assert torch.equal(result, exact)
    if up == 1:
        return
    # A corner of the picture, cropped by one row and one column.
    inner = replace(layer, before=(0, 1 - up, -1), after=(0, -1, 1 - up))
    source = x[:, :, :, 2:6, 1:5]
    part, _ = make(torch.float32).convolve(inner, Pieces((source,), 0, 2), (0, 2))
    top, left = 2 * up + up - 1 + 2, up + 1 + 2
    assert part.shape[3:] == own_size(inner, (4, 4), (1, size, size))
    rows, columns = part.shape[3:]
    assert torch.equal(part, exact[:, :, :, top : top + rows, left : left + columns])


@pytest.mark.parametrize("kind", ["frame", "l2", "rms", "layer"])
def test_a_norm_reads_the_rows_that_are_cropped_of_their_copies(kind: str, make: Any) -> None:
    """Of a row all copies are one value: with an identity as the kernel the cropped result is the
    uncropped one's inside, but for the order of sums over the channels, 4 of them."""
    rng = random.Random(3)
    x = torch.randn(1, 4, 2, 5, 6, generator=seeded(rng))
    module = Holder(rng, weight=(4,))
    norm = Norm(kind, module, 1e-6, groups=2)
    holder = Holder(rng, weight=(4, 4, 1, 1, 1))
    holder.weight.data.copy_(torch.eye(4).view(4, 4, 1, 1, 1))
    layer = Conv(holder, norm=norm, act="silu", up=(1, 2, 2))
    backend = make(torch.float32)
    whole, _ = backend.convolve(layer, Pieces((x,), 0, 2), (0, 2))
    inner = replace(layer, before=(0, -1, 0), after=(0, -1, -1))
    part, _ = backend.convolve(inner, Pieces((x,), 0, 2), (0, 2))
    expected = whole[:, :, :, 1:-1, :-1]
    assert part.shape == expected.shape
    bound = 16 * torch.finfo(torch.float32).eps * float(expected.abs().max())
    assert float((part - expected).abs().max()) <= bound


@pytest.mark.skipif(not _native.available, reason="the C core is not built here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strips_of_an_upsampled_layer_are_winograds_and_the_whole_results_bits(dtype: Any) -> None:
    """No constant of Winograd for up-sampled inputs is more than a half: whole numbers are exact
    (docs/numerics.md)."""
    rng = random.Random(5)
    layer = Conv(
        Holder(rng, weight=(32, 32, 1, 3, 3), bias=(32,)), before=(0, 1, 1), after=(0, 1, 1),
        up=(1, 2, 2),
    )  # fmt: skip
    x = whole_numbers(rng, 1, 32, 2, 16, 12)
    exact, backend = plain(layer, x), NativeBackend(ModuleWeights(dtype, CPU))
    for _ in range(4):
        result = assembled(rng, backend, layer, x.to(dtype), exact.to(dtype))
        assert torch.equal(result, exact.to(dtype))
    inner, (low, high) = strip_of(layer, 16, 3, (8, 24))
    assert (inner.before[1], inner.after[1]) == (-1, -1)
    _, name, _ = _native.conv3d_format(
        (2, 2 * (high - low), 24), 32, 32, (1, 3, 3), (1, 1, 1), (1, 1, 1), inner.before,
        inner.after, layer.modes, 1, "f32", "fast", (1, 2, 2),
    )  # fmt: skip
    assert name.startswith("winograd-up")


def test_sizes_count_cropped_rows() -> None:
    layer = Conv(None, before=(0, -1, 1), after=(0, 1, -1), up=(1, 2, 2))
    assert padded_size(layer, (5, 7)) == (10, 14)
    assert own_size(layer, (5, 7), (1, 3, 3)) == (8, 12)


def test_more_than_the_copies_of_a_row_is_refused() -> None:
    layer = Conv(Holder(random.Random(0), weight=(1, 1, 1, 1, 1)), before=(0, -2, 0), up=(1, 2, 2))
    backend = TorchBackend(ModuleWeights(torch.float32, CPU))
    with pytest.raises(ValueError, match="the padding -2 crops rows or columns that are there 2"):
        backend.convolve(layer, Pieces((torch.zeros(1, 1, 1, 4, 4),), 0, 1), (0, 1))


class Failing(TorchDispatchMode):
    """The operator number `after` is the first that finds no memory; none is begun after it."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left < 0:
            raise MemoryError(str(func))
        return func(*args, **(kwargs or {}))


SPLIT = Shuffle((2, 2, 2), "factor first", first=(1, 2, 2))


@pytest.mark.parametrize("shuffle", [None, Shuffle((1, 2, 2), "channel first"), SPLIT])
@pytest.mark.parametrize("is_over", [True, False])
def test_a_call_that_found_no_memory_has_left_the_residual_alone(
    is_over: bool, shuffle: Any, make: Any
) -> None:
    rng = random.Random(9)
    layer = Conv(
        Holder(rng, weight=(16, 3, 1, 3, 3)), before=(0, -1, 1), after=(0, 1, 1), up=(1, 2, 2),
        shuffle=shuffle,
    )  # fmt: skip
    source = Pieces((whole_numbers(rng, 1, 3, 3, 5, 4),), 0, 3)
    backend, failed = make(torch.float32), 0
    whole, _ = backend.convolve(layer, source, (0, 3))
    add = whole_numbers(rng, *whole.shape)
    kept = add.clone()
    out = add if is_over else torch.empty_like(add)
    while True:
        try:
            with Failing(failed):
                result, _ = backend.convolve(layer, source, (0, 3), add=add, out=out)
            break
        except MemoryError:
            failed += 1
            assert torch.equal(add, kept)
    assert failed > 3
    assert result is out
    assert torch.equal(result, whole + kept)


def test_what_is_made_beside_an_out_is_counted() -> None:
    layer = Conv(Holder(random.Random(0), weight=(4, 3, 1, 3, 3)), before=(0, 1, 1), up=(1, 2, 2))
    backend = TorchBackend(ModuleWeights(torch.float32, CPU))
    call = layer, Pieces((torch.empty(1, 3, 2, 8, 8, device="meta"),), 0, 2), (0, 2)
    alone, into = (backend.workspace(*call, into=flag)[0] for flag in (False, True))
    assert into == alone + 4 * 4 * 2 * 15 * 15
