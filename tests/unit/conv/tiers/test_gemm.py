"""The `gemm` tier: its plans, their numerics, alignment, memory, and what the host is asked."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import differential_tiers as differential
import pytest
import torch
import torch.nn.functional as F
from gemm_plans import plans_of
from gemm_steps import plan_text
from places import TESTS
from router_doubles import conv_on_tier, integers, one_thread
from tier_calls import make_call

from hy3d_rocm.conv.call import ConvCall, ConvSpec
from hy3d_rocm.conv.tiers import GemmTier, columns, gemm, im2col, make_tier, products  # fmt: skip

SHAPES = TESTS / "shapes" / "video_vae_layers.json"
SEED = 5


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with one_thread(), torch.inference_mode():
        yield
    forget_plans()


def forget_plans() -> None:
    """Plans are kept by shape: they know nothing of bounds that a test has changed."""
    columns._plan.cache_clear()
    im2col._views.cache_clear()


HALF = (torch.float16, torch.bfloat16)


def wide_sums(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """As on a GPU whose PyTorch has products of half types into f32. The sums that were made."""
    plain, sums = torch.bmm, []

    def wide(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        sums.append(plain(a.float(), b.float(), out=out))
        return sums[-1]

    def add_wide(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        total += plain(a.float(), b.float())

    monkeypatch.setattr(products, "work_dtype", lambda device, dtype: dtype)
    monkeypatch.setattr(products, "can_widen", lambda device, dtype: products.is_half(dtype))
    monkeypatch.setattr(products, "_wide_product", wide)
    monkeypatch.setattr(products, "_add_wide_product", add_wide)
    return sums


def test_gemm_with_half_operands_and_f32_sums_stays_within_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide_sums(monkeypatch)
    result = differential.run("gemm", "cpu", SEED, 0, 300, HALF)
    assert not result["failed"], "\n".join(result["failed"])
    assert result["ran"] >= 80


@pytest.mark.parametrize("layout", ["plain", "last"])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_sums_of_a_1x1x1_are_f32_and_bounded(
    groups: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may round the parts of a product to its result's type: no half result is asked."""

    def narrow(*args: Any, **options: Any) -> None:
        raise AssertionError("a product into a half type")

    sums = wide_sums(monkeypatch)
    forget_plans()
    monkeypatch.setattr(im2col, "_SUM_BYTES", 4 * 24 * 300)
    for name in ("mm", "addmm", "bmm", "baddbmm"):
        monkeypatch.setattr(torch, name, narrow)
    x, weight = integers(2, 32, 3, 20, 17), integers(48, 32 // groups, 1, 1, 1, seed=1)
    bias, half = integers(48, seed=2), torch.bfloat16
    if layout == "last":
        x = x.to(memory_format=torch.channels_last_3d)
    call = make_call(x.to(half), weight.to(half), bias.to(half), groups=groups)
    got = GemmTier().run(call)
    assert torch.equal(got, F.conv3d(x, weight, bias, groups=groups).to(half))
    assert got.is_contiguous(memory_format=call.spec.memory_format)
    assert sum(t.numel() for t in sums) == 48 * 2 * 1020
    assert max(t.numel() for t in sums) * 4 <= im2col._SUM_BYTES


@pytest.mark.parametrize("kernel", [(1, 1, 1), (3, 1, 1)])
def test_groups_of_one_channel_are_found_in_a_part_of_a_tensor(kernel: tuple[int, ...]) -> None:
    """Whose channels lie further apart than the positions of one."""
    x = integers(2, 4, 5, 10, 8)[:, :, :, 1:-3]
    weight, bias = integers(8, 1, *kernel, seed=1), integers(8, seed=2)
    got = GemmTier().run(make_call(x, weight, bias, groups=4))
    assert torch.equal(got, F.conv3d(x, weight, bias, groups=4))


def test_gemm_without_f32_sums_of_half_types_is_exact_on_whole_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU whose PyTorch gives half types only: products with the bias in them."""
    monkeypatch.setattr(products, "work_dtype", lambda device, dtype: dtype)
    monkeypatch.setattr(differential, "is_whole", lambda tier, device: True)
    result = differential.run("gemm", "cpu", SEED, 0, 300, HALF)
    assert not result["failed"], "\n".join(result["failed"])
    assert result["worst"] == 0
    assert result["ran"] >= 80


SMALL: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 5, 9, 8), (6, 5, 3, 3), {"padding": 1}),
    ((1, 5, 9, 8), (6, 5, 3, 2), {"stride": (2, 1), "dilation": (1, 2)}),
    ((4, 16, 7, 6), (1, 16, 1, 1), {"stride": 2}),
    ((1, 7, 3, 9, 8), (4, 7, 3, 3, 3), {}),  # one frame comes out: channels and kT are one
    ((1, 7, 5, 9, 8), (4, 7, 3, 3, 3), {"padding": ((0, 0), (1, 1), (2, 2))}),
    ((1, 7, 6, 9, 8), (4, 7, 2, 3, 3), {"stride": (2, 1, 2), "dilation": (2, 1, 1)}),
    ((1, 3, 3, 4, 4), (2, 3, 1, 4, 4), {}),  # one position
    ((3, 4, 3, 5, 6), (8, 4, 3, 3, 3), {}),
)


@pytest.mark.parametrize("layout", ["plain", "last", "slice"])
@pytest.mark.parametrize("half", [False, True])
def test_small_convolutions_are_exact_on_whole_numbers_by_every_plan(
    layout: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide_sums(monkeypatch)
    for (x_size, w_size, options), has_bias in itertools.product(SMALL, (False, True)):
        x, weight = integers(*x_size, high=2), integers(*w_size, high=2, seed=1)
        bias = integers(w_size[0], seed=2) if has_bias else None
        if layout == "last":
            x, weight = (t.to(memory_format=memory_format_of(t)) for t in (x, weight))
        if layout == "slice":
            x = F.pad(x, (1, 2) * (x.dim() - 1))[(..., *(slice(1, -2),) * (x.dim() - 1))]
        expected = conv_on_tier(make_tier("native"), x, weight, bias, **options)
        operands = [t.bfloat16() if half and t is not None else t for t in (x, weight, bias)]
        call = make_call(*operands, **options)
        small = im2col.plan(call.spec)
        assert small is not None, call.spec
        for plan in (small, *plans_of(call.spec)):
            assert plan_text(plan)
            got = run_plan(plan, call, monkeypatch)
            assert torch.equal(got, expected.to(got.dtype)), (plan, layout)


def test_small_convolutions_with_other_padding_are_no_im2col_of_pytorchs() -> None:
    x, weight = integers(1, 4, 5, 6, 8), integers(4, 4, 3, 3, 3, seed=1)
    for options in (
        {"padding": ((2, 0), (1, 1), (1, 1))}, {"padding": ((0, 0), (1, 0), (1, 1))},
        {"padding": 1},
    ):  # fmt: skip
        assert im2col.plan(make_call(x, weight, None, **options).spec) is None
    assert im2col.plan(make_call(x, integers(4, 2, 3, 3, 3), groups=2).spec) is None


def run_plan(plan: Any, call: ConvCall, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    with monkeypatch.context() as patch:
        patch.setattr(gemm, "plan", lambda spec: plan)
        call.spec.notes.clear()
        return GemmTier().run(call)


def memory_format_of(tensor: torch.Tensor) -> torch.memory_format:
    return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d


def layer_specs() -> Iterator[ConvSpec]:
    """Each layer of the video VAEs, as if on a GPU, without its tensors."""
    one = torch.empty(1)
    for entry in json.loads(SHAPES.read_text(encoding="utf-8")).values():
        for layer in entry["layers"]:
            x, weight = one.expand(layer["input"]), one.expand(layer["weight"])
            spec = make_call(x, weight, None, layer["stride"], layer["padding"]).spec
            for dtype in (torch.bfloat16, torch.float32):
                yield dataclasses.replace(spec, device=torch.device("cuda"), dtype=dtype)


@pytest.mark.parametrize("widens", [True, False])
def test_gemm_needs_less_than_256_mb_for_every_layer_of_the_vaes(
    monkeypatch: pytest.MonkeyPatch, widens: bool
) -> None:
    def half(device: torch.device, dtype: torch.dtype) -> bool:
        return widens and products.is_half(dtype)

    monkeypatch.setattr(products, "can_widen", half)
    for spec in layer_specs():
        assert GemmTier().workspace_bytes(spec) < 256e6, spec
        assert columns.plan(spec) is not None, spec


def test_what_is_in_uninitialised_memory_reaches_no_result() -> None:
    """Buffers have slack that products read; here it is full of NaN. (The public switch imports
    torch._inductor, which takes seconds.)"""
    torch._C._set_deterministic_algorithms(True)
    try:
        assert bool(torch.empty(1000).isnan().all())
        result = differential.run("gemm", "cpu", SEED + 1, 0, 200)
    finally:
        torch._C._set_deterministic_algorithms(False)
    assert not result["failed"], "\n".join(result["failed"])
    assert result["ran"] >= 170


def strides_of(spec: ConvSpec, last: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of input and output as (N, C, T, H, W)."""
    kept = torch.contiguous_format
    if last:
        kept = torch.channels_last_3d if spec.ndim == 3 else torch.channels_last
    pair = []
    for size in (spec.x_size, spec.out_size):
        tensor = torch.empty(size, device="meta").to(memory_format=kept)
        n, c, *rest = tensor.stride()
        folds = spec.ndim == 2 and size[0] > 1
        t, h, w = rest if spec.ndim == 3 else (n if folds else 0, *rest)
        pair.append((0 if folds else n, c, t, h, w))
    return pair[0], pair[1]


@pytest.mark.parametrize("last", [False, True])
def test_every_row_of_a_product_starts_at_16_bytes(
    last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else cuBLAS has slow kernels only. Layers of the VAEs, and ones with odd sizes."""
    wide_sums(monkeypatch)
    odd = [
        make_call(torch.empty(1, 13, 5, 21, 23), torch.empty(9, 13, 3, 3, 3), None, 1, 1).spec,
        make_call(torch.empty(2, 20, 17, 19), torch.empty(7, 20, 3, 3), None, 2, 1).spec,
        make_call(torch.empty(1, 3, 5, 7, 9), torch.empty(8, 3, 2, 1, 4)).spec,
    ]
    halves = [s for s in layer_specs() if s.dtype is torch.bfloat16 and s.flops < 200e9]
    some = [*(dataclasses.replace(s, dtype=torch.bfloat16) for s in odd), *halves[::2]]
    for spec in some:
        x, out = strides_of(spec, last)
        for plan in plans_of(spec):
            if not isinstance(plan, columns.Plan):
                continue
            pieces = list(columns._pieces(plan, x, out))
            for piece in pieces[:2] + pieces[-2:]:
                for _, strides, offset in piece.columns:
                    assert all(s * 2 % 16 == 0 or s == 1 for s in (*strides, offset)), spec
                if not piece.last:
                    assert piece.total[0][-1] * 4 % 64 == 0, spec
            assert plan.depth * 2 % 16 == 0, spec


def test_odd_channels_of_half_types_are_filled_up_with_zeros(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide_sums(monkeypatch)
    x, weight = integers(1, 13, 4, 9, 11, high=2), integers(5, 13, 3, 3, 3, high=2, seed=1)
    call = make_call(x.half(), weight.half(), None, 1, 1)
    expected = F.conv3d(x, weight, padding=1)
    found = plans_of(call.spec)
    assert len(found) == 4
    for plan in found:
        assert isinstance(plan, columns.Plan)
        assert (plan.shape.channels, plan.channels) == (13, 16)
        assert torch.equal(run_plan(plan, call, monkeypatch), expected.half()), plan


class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts what reaches PyTorch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


KERNELS = {"bmm", "add", "copy_", "im2col", "as_strided_copy", "zero_", "zeros", "sum", "baddbmm",
           "_to_copy", "clone", "mul", "fill_"}  # fmt: skip


@pytest.mark.parametrize(
    ("x_size", "w_size", "options", "kind", "most", "kernels"),
    [
        ((1, 8, 8, 8), (8, 8, 1, 1), {}, "im2col", 8, 1),  # f32 sums need no rounding
        ((1, 8, 8, 8), (8, 8, 3, 3), {"padding": 1}, "im2col", 9, 3),
        ((1, 8, 3, 8, 8), (8, 8, 3, 3, 3), {}, "im2col", 9, 3),
        ((1, 8, 4, 8, 8), (8, 8, 3, 3, 3), {}, "im2col", 14, 5),
        ((8, 8, 8, 8), (8, 8, 3, 3), {"padding": 1}, "columns", 21, 6),
        ((1, 8, 3, 8, 8), (8, 8, 3, 1, 1), {}, "im2col", 9, 3),
    ],
)
def test_a_small_layer_asks_the_host_for_few_operators(
    x_size: tuple[int, ...], w_size: tuple[int, ...], options: dict[str, Any], kind: str, most: int,
    kernels: int,
) -> None:  # fmt: skip
    """Each takes the host some 10 us on a machine with a large GPU, views included."""
    call = make_call(torch.randn(x_size), torch.randn(w_size), torch.randn(w_size[0]), **options)
    assert type(gemm.plan(call.spec)).__module__.endswith(kind)
    tier = GemmTier()
    expected = tier.run(call)
    with Operators() as counted:
        got = tier.run(call)
    assert torch.equal(got, expected)
    assert counted.names.total() <= most, counted.names
    assert sum(n for k, n in counted.names.items() if k in KERNELS) <= kernels, counted.names


def peak_bytes(function: Callable[[], torch.Tensor]) -> int:
    """What a call takes beside its result, at most, by PyTorch's own records of allocations."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        out = function()
    live = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most - out.numel() * out.element_size()


PEAKS: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 16, 6, 40, 40), (16, 16, 3, 3, 3), {}),
    ((2, 16, 5, 33, 30), (24, 16, 3, 3, 3), {"padding": ((2, 0), (1, 1), (1, 1))}),
    ((1, 16, 9, 30, 30), (16, 8, 3, 3, 3), {"groups": 2, "stride": 2, "padding": 1}),
    ((1, 16, 5, 30, 28), (16, 16, 3, 3, 3), {"padding": 2, "dilation": 2}),
    ((2, 24, 60, 60), (12, 24, 3, 3), {"padding": 1}),
    ((1, 16, 4, 40, 40), (16, 16, 3, 1, 1), {}),
    ((1, 81, 6, 40, 40), (3, 81, 3, 3, 3), {"padding": ((2, 0), (1, 1), (1, 1))}),
    ((2, 16, 60, 60), (32, 16, 1, 1), {"padding": 1}),
)  # fmt: skip


@pytest.mark.parametrize("layout", ["plain", "last"])
def test_no_plan_takes_more_than_it_predicts(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_plans()
    for module, name, size in (
        (columns, "_PIECE_BYTES", 2 << 20), (columns, "_COPY_BYTES", 1 << 20),
        (im2col, "_MOST_BYTES", 3 << 20), (im2col, "_SUM_BYTES", 1 << 20),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, size)
    for x_size, w_size, options in PEAKS:
        x, weight, bias = torch.randn(x_size), torch.randn(w_size), torch.randn(w_size[0])
        x = x.to(memory_format=memory_format_of(x)) if layout == "last" else x
        call = make_call(x, weight, bias, **options)
        for plan in plans_of(call.spec):
            run_plan(plan, call, monkeypatch)
            peak = peak_bytes(lambda: run_plan(plan, call, monkeypatch))  # noqa: B023
            assert peak <= plan.bytes, plan


def test_boxes_of_the_input_and_of_its_copy_may_take_turns() -> None:
    """Found by differential_tiers.py --seed 21: lines of the copy are longer."""
    case = differential.case_of("gemm", 21, 1354)
    worst, reason = differential.check(case, 21, "gemm", "cpu")
    assert reason is None
    assert worst <= 1
