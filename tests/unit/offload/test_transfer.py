"""Moving weights: bytes, sharing, memory, faults, progress.

A simulated accelerator (offload_doubles) stands for a device; with a GPU one test moves for real.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import logging
import random
from typing import Any

import pytest
import torch
from offload_doubles import (
    ACCELERATOR,
    CPU,
    Progress,
    SimulatedAccelerator,
    all_on,
    same_values,
    values_of,
)
from torch import nn

from examples.demo.delight import tiny_pipeline
from hy3d_rocm.offload import move

transfer = importlib.import_module("hy3d_rocm.offload.transfer")


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedAccelerator:
    return SimulatedAccelerator().install(monkeypatch)


def linear(inputs: int = 4, outputs: int = 8) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Mixed(nn.Module):
    """Parameters, buffers (saved or not), nested, a tied pair and a shared buffer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = nn.Embedding(10, 4)
        self.head = linear(4, 10)
        self.head.weight = self.embedding.weight
        self.norm = nn.BatchNorm1d(4)
        self.small = nn.Linear(4, 4).half()
        table = torch.randn(6, generator=generator)
        self.register_buffer("table", table)
        self.small.register_buffer("table", table, persistent=False)
        self.register_buffer("empty", torch.zeros(0))

    @property
    def bytes(self) -> int:
        tied = 160
        norm = 4 * 4 * 4 + 8  # weight, bias, mean, variance; the batch counter is one int64
        return tied + norm + (16 + 4) * 2 + 24


def test_every_byte_is_moved_once_and_counted(simulated: SimulatedAccelerator) -> None:
    module, progress = Mixed(), Progress()
    before = values_of(module)
    assert move(module, ACCELERATOR, progress, "mixed") == module.bytes
    assert all_on(simulated, module, ACCELERATOR)
    assert same_values(module, before)
    assert simulated.live[ACCELERATOR] == module.bytes
    assert progress.calls[-1] == (module.bytes, module.bytes, "mixed to cpu:0")


def test_moving_to_where_it_is_moves_nothing_and_says_nothing(
    simulated: SimulatedAccelerator,
) -> None:
    module, progress = Mixed(), Progress()
    assert move(module, CPU, progress) == 0
    move(module, ACCELERATOR)
    assert move(module, ACCELERATOR, progress) == 0
    assert progress.calls == []


def test_only_what_lies_elsewhere_is_moved(simulated: SimulatedAccelerator) -> None:
    module = nn.Sequential(linear(4, 8), linear(8, 2))
    move(module[0], ACCELERATOR)
    assert move(module, ACCELERATOR) == 64


def test_tied_parameters_stay_tied_and_the_objects_stay(simulated: SimulatedAccelerator) -> None:
    module = Mixed()
    weight = module.embedding.weight
    move(module, ACCELERATOR)
    assert module.embedding.weight is weight
    assert module.head.weight is weight


def test_two_parameters_on_one_memory_share_it_afterwards(simulated: SimulatedAccelerator) -> None:
    first, second = linear(), linear()
    second.weight = nn.Parameter(first.weight.detach())
    assert move(nn.Sequential(first, second), ACCELERATOR) == 128
    with torch.no_grad():
        first.weight.fill_(7.0)
    assert torch.equal(second.weight, first.weight)


def test_a_shared_buffer_is_one_buffer_afterwards(simulated: SimulatedAccelerator) -> None:
    # module.to() makes two of it.
    module = Mixed()
    move(module, ACCELERATOR)
    assert module.table is module.small.table


def test_a_parameter_that_is_also_a_buffer_moves_once(simulated: SimulatedAccelerator) -> None:
    module = linear()
    module.register_buffer("view", module.weight.detach())
    assert move(module, ACCELERATOR) == 128
    assert module.view.data_ptr() == module.weight.data_ptr()


def test_flags_types_and_strides_stay(simulated: SimulatedAccelerator) -> None:
    module = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    module.weight.requires_grad_(False)
    strides = module.weight.stride()
    move(module, ACCELERATOR)
    assert module.weight.stride() == strides
    assert not module.weight.requires_grad
    assert module.bias is not None
    assert module.bias.requires_grad
    assert isinstance(module.weight, nn.Parameter)


def test_at_most_one_tensor_is_in_both_places(simulated: SimulatedAccelerator) -> None:
    rng = random.Random(0)  # replay: the sizes are all there is
    module = nn.ModuleList([linear(rng.randint(1, 300), rng.randint(1, 300)) for _ in range(20)])
    module.append(copy.deepcopy(module[0]))
    module[-1].weight = module[3].weight
    simulated.track_module(module)
    total = simulated.live[CPU]
    largest = max(p.numel() * 4 for p in module.parameters())
    for device in (ACCELERATOR, CPU, ACCELERATOR):
        simulated.most_together = 0
        assert move(module, device) == total
        assert simulated.most_together <= total + largest
        assert simulated.live[device] == total
        assert sum(simulated.live.values()) == total


def test_an_rnn_computes_after_a_move(simulated: SimulatedAccelerator) -> None:
    # It keeps views of its weights in a list, which its own _apply makes anew.
    module, x = nn.LSTM(4, 4), torch.randn(3, 4)
    before = module(x)[0]
    move(module, ACCELERATOR)
    assert torch.equal(module(x)[0], before)
    flat = {weight.data_ptr() for weight in module._flat_weights}
    assert flat == {weight.data_ptr() for weight in module.parameters()}


def test_a_module_that_moves_more_in_its_apply_gets_to_do_so(
    simulated: SimulatedAccelerator,
) -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.plain, self.applied = linear(), torch.zeros(3), 0

        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            self.plain, self.applied = fn(self.plain), self.applied + 1
            return super()._apply(fn, recurse)

    module = nn.Sequential(Keeps())
    assert move(module, ACCELERATOR) == 128
    assert module[0].applied == 1


@pytest.mark.parametrize("error", [RuntimeError("HIP out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", range(8))
def test_a_fault_at_any_tensor_leaves_all_where_it_was(
    simulated: SimulatedAccelerator, error: BaseException, at: int
) -> None:
    module = Mixed()
    simulated.track_module(module)
    before, copies = values_of(module), 0

    def fail(tensor: torch.Tensor) -> None:
        nonlocal copies
        copies += 1
        if copies == at + 1:
            raise error

    simulated.before_copy = fail
    with pytest.raises(type(error)):
        move(module, ACCELERATOR)
    assert copies > at
    assert all_on(simulated, module, CPU)
    assert same_values(module, before)
    assert module.head.weight is module.embedding.weight
    assert module.table is module.small.table
    assert simulated.live[ACCELERATOR] == 0
    simulated.before_copy = lambda tensor: None
    assert move(module, ACCELERATOR) == module.bytes  # and it can be tried again


def test_there_are_as_many_faults_tried_as_there_are_tensors() -> None:
    # weight (tied), norm's four and its counter, small's two, the shared table: nine pieces, and
    # the parametrized test above breaks off before each of the first eight.
    assert len(transfer.components.distinct_tensors([Mixed()])) == 9 + 1  # and "empty"


def test_a_cancel_raised_by_progress_goes_through_and_the_weights_go_back(
    simulated: SimulatedAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InterruptProcessingException(BaseException):
        pass

    monkeypatch.setattr(transfer, "PROGRESS_SECONDS", 0.0)
    module = Mixed()
    for at in range(5):
        progress = Progress(InterruptProcessingException(), at)
        with pytest.raises(InterruptProcessingException):
            move(module, ACCELERATOR, progress)
        assert len(progress.calls) == at
        assert all_on(simulated, module, CPU)


def test_a_move_that_cannot_be_undone_leaves_each_tensor_whole_and_says_so(
    simulated: SimulatedAccelerator, caplog: pytest.LogCaptureFixture
) -> None:
    module = Mixed()
    before, copies = values_of(module), 0

    def fail(tensor: torch.Tensor) -> None:
        nonlocal copies
        copies += 1
        if copies > 3:
            raise RuntimeError("HIP out of memory")

    simulated.before_copy = fail
    with pytest.raises(RuntimeError, match="HIP out of memory"):
        move(module, ACCELERATOR, what="unet")
    assert same_values(module, before)
    assert "unet: the move was broken off and could not be undone in full" in caplog.text
    simulated.before_copy = lambda tensor: None
    move(module, CPU)
    assert all_on(simulated, module, CPU)


def test_a_real_second_device_without_data_shared_buffers_and_flags_kept() -> None:
    module = Mixed()
    assert move(module, "meta") == module.bytes
    assert all(t.is_meta for t in [*module.parameters(), *module.buffers()])
    assert module.table is module.small.table
    assert all(parameter.requires_grad for parameter in module.parameters())


class OwnIdea(nn.Linear):
    """Moves in its own way, as quantised models do; raises on request."""

    def __init__(self) -> None:
        super().__init__(4, 8, bias=False)
        self.asked: list[str] = []
        self.fails_for: torch.device | None = None

    def to(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(str(args[0]))
        if args[0] == self.fails_for:
            raise ValueError("`.to` is not supported for 4-bit models")
        return super().to(*args, **kwargs)


def test_a_module_with_its_own_to_is_moved_by_it_in_one_step(
    simulated: SimulatedAccelerator,
) -> None:
    module, progress = OwnIdea(), Progress()
    assert move(module, ACCELERATOR, progress, "unet") == 128
    assert module.asked == ["cpu:0"]
    assert progress.calls == [(128, 128, "unet to cpu:0")]


def test_its_own_to_that_raises_is_asked_to_go_back(simulated: SimulatedAccelerator) -> None:
    module = OwnIdea()
    module.fails_for = ACCELERATOR
    with pytest.raises(ValueError, match="4-bit"):
        move(module, ACCELERATOR)
    assert module.asked == ["cpu:0", "cpu"]


@pytest.mark.parametrize("mark", ["hf_quantizer", "is_loaded_in_8bit", "is_quantized"])
def test_quantised_modules_are_moved_by_their_own_to(
    simulated: SimulatedAccelerator, mark: str
) -> None:
    module = linear()
    asked: list[Any] = []
    setattr(module, mark, True)
    object.__setattr__(module, "to", asked.append)
    move(module, ACCELERATOR)
    assert asked == [ACCELERATOR]


def test_gradients_and_tensor_subclasses_are_left_to_torch() -> None:
    plain, with_gradient, strange = linear(), linear(), linear()
    with_gradient(torch.zeros(1, 4)).sum().backward()
    strange.weight = nn.Parameter(torch.zeros(8, 4).as_subclass(Subclass))
    assert transfer.is_plain(plain)
    assert not transfer.is_plain(with_gradient)
    assert not transfer.is_plain(strange)
    assert not transfer.is_plain(nn.Sequential(plain, nn.Sequential(strange)))


class Subclass(torch.Tensor):
    pass


def test_every_component_of_a_real_pipeline_is_moved_tensor_by_tensor() -> None:
    for module in tiny_pipeline().components.values():
        if isinstance(module, nn.Module):
            assert transfer.is_plain(module), type(module)


def test_progress_comes_ten_times_a_second_rises_and_ends_at_the_total() -> None:
    calls: list[tuple[float, int]] = []
    now = 0.0
    reporter = transfer.Reporter(
        lambda done, total, what: calls.append((now, done)), 1000, "x", CPU, lambda: now
    )
    for step in range(1000):  # 10 s, one byte each hundredth of a second
        now = step / 100
        reporter.add(1)
    reporter.finish()
    times = [time for time, _ in calls]
    assert all(b - a >= 0.1 for a, b in itertools.pairwise(times[:-1]))
    assert 90 <= len(calls) <= 101
    assert [done for _, done in calls] == sorted({done for _, done in calls})
    assert calls[-1][1] == 1000


def test_the_last_line_has_name_size_device_time_and_rate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = iter([10.0, 10.9])
    with caplog.at_level(logging.INFO, "hy3d_rocm"):
        gpu = torch.device("cuda:0")
        transfer.Reporter(None, round(1.73 * 2**30), "unet", gpu, lambda: next(times)).finish()
    assert caplog.messages == ["unet: 1.73 GB to cuda:0 in 0.9 s (1.9 GB/s)"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or HIP device")
def test_on_a_gpu_the_allocator_holds_exactly_one_copy() -> None:
    module = nn.Sequential(*[linear(1024, 1024) for _ in range(8)])
    before, start = values_of(module), torch.cuda.memory_allocated()
    assert move(module, "cuda") == 8 * 4 * 2**20
    assert torch.cuda.memory_allocated() - start == 8 * 4 * 2**20
    assert move(module, "cpu") == 8 * 4 * 2**20
    assert torch.cuda.memory_allocated() == start
    assert same_values(module, before)
