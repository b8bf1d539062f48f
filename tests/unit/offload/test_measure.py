"""The activations' peak: exact by stretches, bounded without; against a simulated allocator."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_doubles import ACCELERATOR, SimulatedAccelerator
from torch import nn

from examples.demo.delight import tiny_pipeline
from hy3d_rocm.offload import decide, estimate, measuring, move

measure = importlib.import_module("hy3d_rocm.offload.memory")
transfer = importlib.import_module("hy3d_rocm.offload.transfer")


@pytest.fixture(autouse=True)
def _nothing_measured_before() -> Iterator[None]:
    measure._records.clear()
    yield
    measure._records.clear()


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedAccelerator:
    return SimulatedAccelerator().install(monkeypatch)


class Allocator:
    """Counts as an allocator does: live bytes, and the most since the last reset."""

    def __init__(self, others: int = 0) -> None:
        self.live = self.most = others

    def take(self, count: int) -> None:
        self.live += count
        self.most = max(self.most, self.live)

    def memory_allocated(self, device: Any) -> int:
        return self.live

    def max_memory_allocated(self, device: Any) -> int:
        return self.most

    def reset_peak_memory_stats(self, device: Any) -> None:
        self.most = self.live


# A run under model offload: the components in the order in which they run, and for each the
# activations' sizes while it computes. Activations stay or go as the numbers say.
RUNS = st.tuples(
    st.lists(st.integers(1, 1000), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 3000), max_size=4)), min_size=1),
    st.integers(0, 500),
)


def simulate(run: Any) -> tuple[int, int, list[int]]:
    """(peak without what others hold, largest activations, bytes of the components that ran).

    As accelerate: a component stays after it ran; before the next one comes, the one before it in
    the chain goes. So several may be there at once.
    """
    sizes, steps, others = run
    allocator, there, largest, ran = Allocator(others), set(), 0, set()
    activations = 0
    for number, live_sizes in steps:
        component = number % len(sizes)
        if component - 1 in there:
            there.remove(component - 1)
            allocator.take(-sizes[component - 1])
        if component not in there:
            there.add(component)
            allocator.take(sizes[component])
        ran.add(component)
        for live in live_sizes:
            allocator.take(live - activations)
            activations = live
            largest = max(largest, live)
    return allocator.most - others, largest, [sizes[component] for component in ran]


@given(RUNS)
def test_the_bound_from_an_offloaded_peak_is_never_below_the_activations(run: Any) -> None:
    peak, largest, ran = simulate(run)
    assert largest <= measure.activation_bound(peak, ran)


@given(RUNS)
def test_counting_components_that_did_not_run_only_loosens_the_bound(run: Any) -> None:
    peak, _, ran = simulate(run)
    bound = measure.activation_bound(peak, ran)
    assert measure.activation_bound(peak, run[0]) >= bound
    assert measure.activation_bound(peak, [*ran, 0]) == bound


def test_the_bound_is_reached_where_the_smallest_component_has_the_largest_activations() -> None:
    peak, largest, ran = simulate(([10, 30], [(0, [100, 0]), (1, [5])], 7))
    assert (peak, largest, ran) == (110, 100, [10, 30])
    assert measure.activation_bound(peak, ran) == 100


class Working(nn.Module):
    """Holds `weights` floats; its forward holds `works` floats at once on the accelerator."""

    def __init__(self, weights: int, works: int, simulated: SimulatedAccelerator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(weights))
        self.works, self.simulated = works, simulated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = torch.zeros(self.works)
        self.simulated.track(held, ACCELERATOR)
        return x


class Chain:
    """A pipeline of Working components under accelerate's model offload, in `order`."""

    def __init__(self, components: dict[str, Working]) -> None:
        import accelerate

        self.components = components
        self.hooks, hook = [], None
        for module in components.values():
            _, hook = accelerate.cpu_offload_with_hook(module, ACCELERATOR, hook)
            self.hooks.append(hook)

    def __call__(self, order: list[str]) -> None:
        for name in order:
            self.components[name](torch.zeros(1))


def chain(simulated: SimulatedAccelerator, **sizes: tuple[int, int]) -> Chain:
    return Chain({name: Working(*size, simulated) for name, size in sizes.items()})


def test_under_offload_the_stretches_give_the_activations_exactly(
    simulated: SimulatedAccelerator,
) -> None:
    # b computes while a third component lies there too, as diffusers' VAE does beside the U-Net.
    pipeline = chain(simulated, a=(100, 10), b=(500, 700), c=(50, 30))
    with measuring(pipeline, ACCELERATOR, counters=simulated):
        pipeline(["a", "c", "b", "b", "c"])
    found = estimate(pipeline)
    assert found.activation_bytes == 700 * 4
    assert found.parameter_bytes == 650 * 4
    # The bound alone would be looser by b's companion: b and c there, c the smallest.
    assert measure.activation_bound((550 + 700) * 4, [400, 2000, 200]) == (500 + 700) * 4


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_random_chains_are_measured_exactly(seed: int) -> None:
    rng = random.Random(seed)  # replay: the seed that hypothesis prints
    with pytest.MonkeyPatch.context() as patch:
        simulated = SimulatedAccelerator().install(patch)
        names = "abcd"[: rng.randint(1, 4)]
        sizes = {name: (rng.randint(1, 99), rng.randint(0, 300)) for name in names}
        pipeline = chain(simulated, **sizes)
        order = [rng.choice(names) for _ in range(rng.randint(1, 6))]
        with measuring(pipeline, ACCELERATOR, counters=simulated):
            pipeline(order)
        assert estimate(pipeline).activation_bytes == 4 * max(sizes[name][1] for name in order)
        measure._records.clear()


def test_what_others_hold_does_not_count(simulated: SimulatedAccelerator) -> None:
    other = torch.zeros(5000)
    simulated.track(other, ACCELERATOR)
    pipeline = chain(simulated, a=(100, 10), b=(10, 20))
    with measuring(pipeline, ACCELERATOR, counters=simulated):
        pipeline(["a", "b"])
    assert estimate(pipeline).activation_bytes == 80


class Shape:
    """As Hunyuan's: no hooks; the call itself moves the conditioner there and back."""

    def __init__(self, simulated: SimulatedAccelerator) -> None:
        self.model = Working(500, 300, simulated)
        self.conditioner = Working(200, 700, simulated)

    def __call__(self) -> None:
        self.conditioner.to(ACCELERATOR)
        self.conditioner(torch.zeros(1))
        self.conditioner.to("cpu")
        self.model(torch.zeros(1))


def test_resident_weights_give_the_activations_exactly(simulated: SimulatedAccelerator) -> None:
    pipeline = Shape(simulated)
    move(pipeline.model, ACCELERATOR)
    with measuring(pipeline, ACCELERATOR, counters=simulated):
        pipeline.model(torch.zeros(1))
    assert estimate(pipeline).activation_bytes == 1200


@pytest.mark.parametrize("conditioner_there_first", [False, True])
def test_weights_that_a_call_moves_itself_give_a_bound(
    simulated: SimulatedAccelerator, conditioner_there_first: bool
) -> None:
    pipeline = Shape(simulated)
    move(pipeline.model, ACCELERATOR)
    if conditioner_there_first:
        move(pipeline.conditioner, ACCELERATOR)
    with measuring(pipeline, ACCELERATOR, counters=simulated):
        pipeline()
    found = estimate(pipeline).activation_bytes
    assert found is not None
    assert 2800 <= found <= 2800 + 4 * (500 + 200)


def test_weights_that_move_unseen_give_the_bound(simulated: SimulatedAccelerator) -> None:
    pipeline = chain(simulated, a=(100, 10), b=(500, 700))
    for module in pipeline.components.values():
        hook = module._hf_hook
        hook.__class__ = type("CpuOffload", (type(hook),), {"pre_forward": _moves_unseen})
    with measuring(pipeline, ACCELERATOR, counters=simulated):
        pipeline(["a", "b"])
    found = estimate(pipeline).activation_bytes
    assert found == 4 * measure.activation_bound(100 + 500 + 700, [100, 500])


def _moves_unseen(hook: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    module._apply(lambda tensor: transfer._copy(tensor, ACCELERATOR))
    return args, kwargs


def test_after_the_first_call_the_decision_uses_what_was_measured(
    simulated: SimulatedAccelerator,
) -> None:
    pipeline = chain(simulated, a=(1000, 10), b=(5000, 10))
    free = 6000 * 4 + 500
    before = decide("auto", estimate(pipeline), free, None, headroom_bytes=0)
    with measuring(pipeline, ACCELERATOR, (512, 512), simulated):
        pipeline(["a", "b"])
    after = decide("auto", estimate(pipeline), free, None, headroom_bytes=0)
    assert before.offload
    assert "not measured yet" in before.reason
    assert not after.offload
    assert "40 B of activations (measured at 512x512)" in after.reason


def test_a_failed_call_records_nothing_and_a_lower_peak_replaces_nothing(
    simulated: SimulatedAccelerator,
) -> None:
    pipeline = chain(simulated, a=(10, 50))
    with (
        pytest.raises(RuntimeError, match="HIP out of memory"),
        measuring(pipeline, ACCELERATOR, counters=simulated),
    ):
        raise RuntimeError("HIP out of memory")
    assert estimate(pipeline).activation_bytes is None
    for works in (50, 20):
        pipeline.components["a"].works = works
        with measuring(pipeline, ACCELERATOR, counters=simulated):
            pipeline(["a"])
    assert estimate(pipeline).activation_bytes == 200


def test_a_size_is_known_by_itself_or_a_larger_one_never_by_a_smaller() -> None:
    pipeline, weights = object(), {"unet": 1}
    for size, peak in (((512, 512), 5), ((1024, 512), 9), ((6, 512, 512), 7), (None, 8)):
        measure.record(pipeline, weights, size, peak)
    known = {
        size: measure.recorded(pipeline, weights, size)
        for size in [(512, 512), (512, 256), (768, 512), (512, 1024), (4, 512, 512), (7, 1, 1)]
    }
    assert {size: peak for size, (peak, _) in known.items()} == {
        (512, 512): 5, (512, 256): 5, (768, 512): 9, (512, 1024): None, (4, 512, 512): 7,
        (7, 1, 1): None,
    }  # fmt: skip
    assert known[(768, 512)][1] == "measured at 1024x512"
    assert measure.recorded(pipeline, weights)[0] == 9


def test_another_class_or_other_weights_are_another_pipeline() -> None:
    class Other:
        pass

    measure.record(object(), {"unet": 1}, None, 5)
    assert measure.recorded(object(), {"unet": 1}) == (5, "measured")
    for kind, weights in ((object, {"unet": 2}), (object, {"vae": 1}), (Other, {"unet": 1})):
        assert measure.recorded(kind(), weights) == (None, "not measured")


def test_on_a_cpu_and_under_sequential_offload_nothing_is_measured_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = tiny_pipeline()
    with caplog.at_level("DEBUG", "hy3d_rocm"), measuring(pipeline, "cpu"):
        pass
    pipeline.enable_sequential_cpu_offload(device="cpu")
    with caplog.at_level("DEBUG", "hy3d_rocm"), measuring(pipeline, "cpu", counters=Allocator()):
        pass
    # Others may say something, too: of the first pipeline in a process they do.
    ours = [row.getMessage() for row in caplog.records if row.name.startswith("hy3d_rocm")]
    assert ours == [
        "activations are not measured: the device is cpu",
        "activations are not measured: sequential offload is active",
    ]
    assert estimate(pipeline).activation_bytes is None


@pytest.mark.parametrize("reporting_first", [False, True])
def test_measuring_and_reporting_work_together_in_either_order(
    simulated: SimulatedAccelerator, reporting_first: bool
) -> None:
    from contextlib import ExitStack

    from offload_doubles import Progress

    pipeline, progress = chain(simulated, a=(100, 10), b=(500, 700)), Progress()
    scopes = [
        lambda: transfer.reporting_moves(pipeline, progress),
        lambda: measuring(pipeline, ACCELERATOR, counters=simulated),
    ]
    with ExitStack() as stack:
        for scope in scopes if reporting_first else reversed(scopes):
            stack.enter_context(scope())
        pipeline(["a", "b"])
    assert progress.finished == ["a to cpu:0", "a to cpu", "b to cpu:0"]
    assert estimate(pipeline).activation_bytes == 2800
    assert "to" not in vars(pipeline.components["a"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or HIP device")
def test_on_a_gpu_an_offloaded_run_measures_activations_without_weights() -> None:
    class Block(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.empty(1 << 22, device=x.device)[:1].zero_()

    pipeline = Chain({"a": Block(4096, 4096), "b": Block(4096, 4096)})  # type: ignore[arg-type]
    for module in pipeline.components.values():
        module._hf_hook.execution_device = torch.device("cuda", 0)
    x = torch.zeros(8, 4096, device="cuda")
    with torch.no_grad():  # a BLAS workspace is made once, and stays
        pipeline.components["a"](x)
    with torch.no_grad(), measuring(pipeline, "cuda:0", (1, 1)):
        pipeline.components["b"](pipeline.components["a"](x))
    offloaded = estimate(pipeline, (1, 1)).activation_bytes
    assert offloaded is not None
    # The block's 16 MiB are in it, none of the components' 64 MiB of weights is.
    assert 4 << 22 <= offloaded < (4 << 22) + 4 * 4096 * 4096
