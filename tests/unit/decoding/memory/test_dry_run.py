"""The peak of a run is known before it runs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from hy3d_rocm.decoding.layers import ModuleWeights  # noqa: E402
from hy3d_rocm.decoding.memory import dry_run as p  # noqa: E402
from hy3d_rocm.decoding.memory.dry_run import Live, NoScores, _is_plain  # noqa: E402
from hy3d_rocm.decoding.memory.workspace import BLAS_BYTES, OperatorWorkspace  # noqa: E402

CPU = OperatorWorkspace(torch.device("cpu"))
CARD = OperatorWorkspace(torch.device("cuda"))
MB = 2**20


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_prediction_on_shapes_equals_the_real_runs_live_bytes() -> None:
    """The same count over a run with real tensors: shapes alone lose nothing."""
    layers = nn.Sequential(
        nn.Conv3d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv3d(8, 4, 1)
    )

    def run(x: torch.Tensor, stack: nn.Module) -> torch.Tensor:
        y = stack(F.pad(x, (1, 1, 1, 1, 2, 0), mode="replicate"))
        queries = y.flatten(2).transpose(1, 2)[None]
        scored = F.scaled_dot_product_attention(queries, queries, queries)
        return torch.cat([scored, queries], dim=2).sum(1).double() + float(y.isfinite().all())

    x = torch.randn(1, 4, 5, 6, 7)
    with torch.no_grad(), Live([x, *layers.parameters()], CPU) as live, NoScores(live):
        kept = run(x, layers)
    ghost, ghosts = meta(*x.shape), nn.Sequential(*layers).to("meta")
    predicted = p.predict(
        lambda: run(ghost, ghosts), known=[ghost, *ghosts.parameters()], workspace=CPU
    )
    assert predicted == p.Prediction(live.device_peak, 0, live.both_peak, live.macs)
    assert predicted.macs > 0
    assert live.live["device"] == kept.nbytes


def test_storages_count_from_birth_to_death_and_views_never() -> None:
    def run() -> torch.Tensor:
        x = meta(1000)
        views = [x[i:] for i in range(10)]
        y = views[3] + 1
        del x, views
        return y * 2

    assert p.predict(run, workspace=CPU).device_bytes == 4000 + 997 * 4


def test_operators_that_are_called_again_make_what_they_made_without_a_prediction() -> None:
    """Results that are made from what was seen before, of operands that look much alike."""
    whole, halves = meta(1, 4, 5, 6, dtype=torch.int64), meta(1, 4, 5, 6, dtype=torch.float16)
    last = halves.to(memory_format=torch.channels_last)
    weight = meta(8, 4, 3, 3, dtype=torch.float16)
    calls: list[Any] = [
        *(lambda x=x, s=s: x * s for x in (whole, halves, last) for s in (1, 1.0, True)),
        *(lambda x=x: x + meta(dtype=torch.float64) for x in (whole, halves)),
        *(lambda x=x: F.conv2d(x, weight, padding=1) for x in (halves, last)),
        *(lambda x=x, d=d: x.sum(d) for x in (halves, last) for d in (1, (1, 2), None)),
        *(lambda x=x, k=k: x.mean(1, keepdim=k) for x in (halves, last) for k in (True, False)),
        lambda: halves.mT.clone(), lambda: last.contiguous(), lambda: halves[:, :, ::2] + 1,
        *(lambda x=x: F.group_norm(x, 2) for x in (halves, last)),
        *(lambda x=x: F.normalize(x, dim=1) for x in (halves, last)),
        lambda: halves * meta(1, 1, 6, dtype=torch.float16), lambda: halves + last,
        lambda: halves - meta(1, 4, 5, 6), lambda: halves / weight[0, 0, 0, 0],
        lambda: F.silu(last), lambda: torch.cat([halves, last]), lambda: torch.cat([last, halves]),
        lambda: halves.double(), lambda: halves.max(1)[0], lambda: halves.expand(3, 4, 5, 6) * 2,
        lambda: halves[:, :, :, 1:], lambda: halves.unsqueeze(0), lambda: halves.chunk(2, 1)[1],
    ]  # fmt: skip

    def made(call: Any) -> tuple[Any, ...]:
        out = call()
        of_one = out.untyped_storage()._cdata == halves.untyped_storage()._cdata
        held = out.untyped_storage().nbytes()
        return out.shape, out.stride(), out.dtype, out.storage_offset(), held, of_one

    plain = [made(call) for call in calls]
    rules = OperatorWorkspace(CPU.device)
    with torch.no_grad(), Live([whole, halves, last, weight], rules) as live:
        assert [made(call) for _ in range(2) for call in calls] == plain * 2
        assert len(live._made) > len(calls) // 2
    plain_ones = [_is_plain(t) for t in (last, halves[:, 1:], halves[:, :1], halves[0, :, 0, 0])]
    assert plain_ones == [True, False, False, False]


@pytest.mark.parametrize("shape", [(1, 6, 5, 4), (1, 1, 5, 4), (2, 3, 7)])
def test_a_norm_of_channels_takes_what_its_operators_take(shape: tuple[int, ...]) -> None:
    """With one channel the length once more, clamped, is more than the result beside it."""

    def spelled(x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(2.0, 1, keepdim=True).clamp_min(1e-12).expand_as(x)

    x = meta(*shape)
    for last in (x, x.transpose(-1, -2)):
        wanted = p.predict(lambda x=last: spelled(x), known=[x], workspace=CPU)
        assert p.predict(lambda x=last: F.normalize(x), known=[x], workspace=CPU) == wanted
        wanted = p.predict(lambda x=last: spelled(x) * x, known=[x], workspace=CPU)
        assert p.predict(lambda x=last: F.normalize(x) * x, known=[x], workspace=CPU) == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_sums_products_and_clamps_are_as_torchs_own_rules_say(dtype: torch.dtype) -> None:
    x, transposed = meta(2, 3, 4, dtype=dtype), meta(2, 4, 3, dtype=dtype).transpose(1, 2)
    others = [
        x, 2, 0.5, 1j, True, transposed, meta(3, 1, dtype=dtype), meta(1, 4, dtype=dtype),
        meta(5, 2, 3, 4, dtype=dtype), meta(2, 3, 4, dtype=torch.float64), meta(dtype=dtype),
    ]  # fmt: skip
    calls = [lambda a=a, b=b, f=f: f(a, b)
             for f in (torch.add, torch.mul)
             for a in (x, transposed, meta(3, 1, dtype=dtype)) for b in others]  # fmt: skip
    calls += [lambda a=a, b=b: a.clamp(*b) for a in (x, transposed)
              for b in ((-1.0, 1.0), (0,), (None, 1))]  # fmt: skip
    for call in calls:
        wanted = call()
        with Live([], CPU):
            made = call()
        layout = made.shape, made.stride(), made.dtype
        assert layout == (wanted.shape, wanted.stride(), wanted.dtype)


def test_what_was_there_before_does_not_count() -> None:
    x = meta(1000)
    assert p.predict(lambda: x.view(10, 100)[3:], known=[x], workspace=CPU).device_bytes == 0
    assert p.predict(lambda: x.add_(1), known=[x], workspace=CPU).device_bytes == 0


def test_what_lies_on_the_host_counts_there() -> None:
    """A large tensor made on the CPU, pinned or not, and one that is moved there."""

    def run() -> object:
        x = meta(MB)
        slab = torch.empty(2 * MB, pin_memory=True, device="cpu")
        slab[:MB].copy_(x)
        moved = x.to("cpu")
        alike = torch.empty_like(x, device="cpu")
        small = torch.zeros(4, device="cpu")
        small.copy_(x[:4])
        return slab, moved, alike, small

    found = p.predict(run, workspace=CARD)
    assert found.host_bytes == (2 + 1 + 1) * 4 * MB + 16
    assert found.device_bytes == 4 * MB
    assert found.both_bytes == 5 * 4 * MB + 16
    on_cpu = p.predict(run, workspace=CPU)
    assert (on_cpu.device_bytes, on_cpu.host_bytes) == (5 * 4 * MB + 16, 0)


def test_what_comes_back_from_the_host_counts_on_the_device() -> None:
    def run() -> object:
        there = torch.empty(MB, device="cpu")
        back = there[:100].to("meta", torch.float64)
        return there, back, back.to("meta")

    found = p.predict(run, workspace=CARD)
    assert (found.device_bytes, found.host_bytes) == (800, 4 * MB)
    assert found.both_bytes == 4 * MB + 800


def test_a_device_is_stood_for_within_a_dry_run_alone() -> None:
    ghost = torch.device("meta")
    assert p.modelled(ghost) == ghost
    with p.standing_for(CARD):
        assert (p.modelled(ghost), p.modelled(CPU.device)) == (CARD.device, CPU.device)
    assert p.workspace_rules() is None


def test_what_is_done_in_turn_is_run_three_times_and_counts_as_all() -> None:
    """Each part keeps its result and the state that the next one reads."""
    weight, calls = meta(8, 8, 3), SimpleNamespace(count=0)

    def run(count: int, split: bool) -> torch.Tensor:
        state = [meta(1, 8, 1)]

        def part(i: int) -> torch.Tensor:
            calls.count += 1
            state[0] = torch.cat([state[0], meta(1, 8, 50 if i else 20)], 2)[:, :, -40:].clone()
            return F.conv1d(state[0], weight, padding=1).repeat(1, 1, 100 if i else 30)[:, :, :900]

        made = p.in_turn(count, part) if split else [part(i) for i in range(count)]
        return torch.cat(made, 2)

    for count in (1, 2, 3, 4, 9):
        wanted = p.predict(lambda n=count: run(n, False), known=[weight], workspace=CARD)
        calls.count = 0
        assert p.predict(lambda n=count: run(n, True), known=[weight], workspace=CARD) == wanted
        assert calls.count == min(count, 3)


def test_checks_of_values_come_out_well() -> None:
    def run() -> None:
        x = meta(10)
        assert bool(torch.isfinite(x).all())
        assert not bool(torch.isnan(x).any())
        assert float(x.max()) == 1.0

    p.predict(run, workspace=CPU)


def test_what_the_run_raises_is_raised_and_the_callers_modes_stay_out() -> None:
    from torch.overrides import TorchFunctionMode

    class Refusing(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise AssertionError("a mode of the caller's thread was met")

    with torch.inference_mode(), Refusing():
        assert p.predict(lambda: torch.empty(3, device="meta"), workspace=CPU).device_bytes == 12
    with pytest.raises(ZeroDivisionError):
        p.predict(lambda: 1 / 0, workspace=CPU)


def test_the_c_convolution_takes_its_limit_a_thread_and_a_library_its_operands() -> None:
    x, w = meta(1, 32, 5, 40, 40), meta(48, 32, 3, 3, 3)

    def run() -> torch.Tensor:
        return F.conv3d(x, w)

    def peak(workspace: OperatorWorkspace) -> int:
        return p.predict(run, known=[x, w], workspace=workspace).device_bytes

    out = run().nbytes
    pinned = peak(OperatorWorkspace(torch.device("cpu"), is_pinned=True))
    assert pinned == out + 64 * MB * torch.get_num_threads()
    # A library on a card that is not here: input and output once more, the weights twice.
    if not torch.cuda.is_available():
        assert peak(CARD) == 2 * out + x.nbytes + 2 * w.nbytes


def test_composed_attention_keeps_its_scores() -> None:
    q = meta(1, 1, 100, 64)
    flat = p.predict(
        lambda: F.scaled_dot_product_attention(q, q, q), known=[q], workspace=CPU
    ).device_bytes
    assert flat < q.nbytes + 100 * 100 * 4 * torch.get_num_threads() * 4
    three = meta(1, 100, 64)  # without heads torch composes it on the CPU
    composed = p.predict(
        lambda: F.scaled_dot_product_attention(three, three, three), known=[three], workspace=CPU
    ).device_bytes
    assert composed == 3 * q.nbytes + 2 * 100 * 100 * 4


def test_blas_takes_its_workspace_once_on_a_card() -> None:
    a = meta(64, 64)
    found = p.predict(lambda: (a @ a) @ a, known=[a], workspace=CARD)
    assert found.device_bytes == 2 * a.nbytes + BLAS_BYTES
    strided = meta(64, 128)[:, ::2]
    copied = p.predict(lambda: strided @ a, known=[strided, a], workspace=CPU)
    assert copied.device_bytes == 2 * a.nbytes


def test_weights_are_made_once_in_the_type_of_the_computation() -> None:
    module = nn.Linear(100, 10)
    weights = ModuleWeights(torch.bfloat16, "meta")
    found = weights.of(module, "weight")
    assert found is weights.of(module, "weight")
    assert found is not None
    assert (found.shape, found.dtype, found.is_meta) == ((10, 100), torch.bfloat16, True)
    assert weights.of(module, "missing") is None


def test_planned_is_five_percent_more_and_on_the_cpu_at_least_32_mb() -> None:
    assert p.planned_bytes(1000 * MB, False) == 1050 * MB
    assert p.planned_bytes(10 * MB, False) == math.ceil(10.5 * MB)
    assert p.planned_bytes(1000 * MB, True) == 1050 * MB
    assert p.planned_bytes(10 * MB, True) == 42 * MB
