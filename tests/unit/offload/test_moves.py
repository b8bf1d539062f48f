"""`to(device)` of code that is not ours: what moves is its business, the bytes are said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from offload_doubles import ACCELERATOR, CPU, Progress, SimulatedAccelerator, same_values, values_of
from torch import nn

from hy3d_rocm.offload import reporting_moves
from hy3d_rocm.scopes import cuda_literals


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedAccelerator:
    return SimulatedAccelerator().install(monkeypatch)


class Shape:
    """Has the habits of Hunyuan's shape pipeline: `to` moves its modules and returns nothing."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.conditioner = nn.Linear(4, 4)
        self.vae = nn.Linear(2, 2)  # which its `to` leaves alone

    def to(self, device: Any = None, dtype: Any = None) -> None:
        self.model.to(device)
        self.conditioner.to(device)


def bytes_of(module: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in [*module.parameters(), *module.buffers()])


@pytest.fixture
def shape() -> Iterator[Shape]:
    pipeline = Shape()
    modules = [pipeline.model, pipeline.conditioner, pipeline.vae]
    before = [set(vars(module)) for module in modules]
    yield pipeline
    assert [set(vars(module)) for module in modules] == before


def places(simulated: SimulatedAccelerator, module: nn.Module) -> set[torch.device]:
    return {simulated.device_of(t) for t in [*module.parameters(), *module.buffers()]}


def test_what_the_pipeline_moves_is_said_in_bytes_and_nothing_else_moves(
    simulated: SimulatedAccelerator, shape: Shape
) -> None:
    progress, before = Progress(), values_of(shape.model)
    with reporting_moves(shape, progress):
        shape.to(ACCELERATOR)
    model, conditioner = bytes_of(shape.model), bytes_of(shape.conditioner)
    assert progress.calls == [
        (model, model, "model to cpu:0"), (conditioner, conditioner, "conditioner to cpu:0"),
    ]  # fmt: skip
    assert places(simulated, shape.model) == places(simulated, shape.conditioner) == {ACCELERATOR}
    assert places(simulated, shape.vae) == {CPU}
    assert same_values(shape.model, before)


def test_reported_or_not_the_module_is_the_same_object_by_object(
    simulated: SimulatedAccelerator, shape: Shape
) -> None:
    parameters = [id(parameter) for parameter in shape.model.parameters()]
    with reporting_moves(shape, Progress()):
        assert shape.model.to(ACCELERATOR) is shape.model
    assert [id(parameter) for parameter in shape.model.parameters()] == parameters


def test_every_tensor_is_copied_once(simulated: SimulatedAccelerator, shape: Shape) -> None:
    copied: list[torch.Tensor] = []
    simulated.before_copy = copied.append
    with reporting_moves(shape, Progress()):
        shape.to(ACCELERATOR)
        shape.to(ACCELERATOR)
    assert len(copied) == sum(
        len([*module.parameters(), *module.buffers()])
        for module in (shape.model, shape.conditioner)
    )


@pytest.mark.parametrize("at", [0, 1])
def test_an_exception_goes_through_what_had_moved_goes_back_and_ours_is_gone(
    simulated: SimulatedAccelerator, shape: Shape, at: int
) -> None:
    progress = Progress(KeyboardInterrupt(), at)
    with pytest.raises(KeyboardInterrupt), reporting_moves(shape, progress):
        shape.to(ACCELERATOR)
    assert places(simulated, [shape.model, shape.conditioner][at]) == {CPU}
    shape.to(ACCELERATOR)
    assert places(simulated, shape.model) == places(simulated, shape.conditioner) == {ACCELERATOR}


def test_out_of_memory_on_the_way_is_the_callers_error(
    simulated: SimulatedAccelerator, shape: Shape
) -> None:
    simulated.capacity = bytes_of(shape.model) - 1
    with pytest.raises(torch.OutOfMemoryError), reporting_moves(shape, Progress()):
        shape.to(ACCELERATOR)
    assert simulated.live[ACCELERATOR] == 0


def test_a_module_alone_is_reported_by_its_class(simulated: SimulatedAccelerator) -> None:
    module, progress = nn.Linear(3, 3), Progress()
    with reporting_moves(module, progress):
        module.to(device=ACCELERATOR)
    assert progress.finished == ["Linear to cpu:0"]
    assert set(vars(module)) == set(vars(nn.Linear(3, 3)))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((torch.float16,), {}),
        (("cpu", torch.float16), {}),
        ((), {"device": "cpu", "non_blocking": True}),
        ((), {"memory_format": torch.channels_last}),
        ((torch.zeros(1, dtype=torch.float64),), {}),
    ],
)
def test_a_change_of_more_than_the_place_is_torchs_own(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    module, progress = nn.Conv2d(3, 3, 3), Progress()
    expected = nn.Conv2d(3, 3, 3)
    expected.load_state_dict(module.state_dict())
    expected.to(*args, **kwargs)
    with reporting_moves(module, progress):
        module.to(*args, **kwargs)
    assert progress.calls == []
    assert same_values(module, values_of(expected))
    assert module.weight.dtype == expected.weight.dtype
    assert module.weight.stride() == expected.weight.stride()


def test_a_dtype_that_holds_already_is_no_change(simulated: SimulatedAccelerator) -> None:
    module, progress = nn.Linear(3, 3), Progress()
    with reporting_moves(module, progress):
        module.to(ACCELERATOR, torch.float32)
    assert progress.finished == ["Linear to cpu:0"]


def test_wrong_arguments_are_refused_in_torchs_words() -> None:
    module = nn.Linear(1, 1)
    with reporting_moves(module, Progress()), pytest.raises((RuntimeError, TypeError)):
        module.to("no such device")


def test_cuda_written_out_goes_where_the_scope_says() -> None:
    """Where there is no such device, torch alone would raise."""
    module, kept = nn.Linear(3, 3), nn.Linear(3, 3)
    kept.load_state_dict(module.state_dict())
    with cuda_literals("cpu"), reporting_moves(module, Progress()):
        assert module.to("cuda") is module
    assert {tensor.device for tensor in module.parameters()} == {CPU}
    assert same_values(module, values_of(kept))


def test_a_to_of_its_own_stays_and_scopes_nest(simulated: SimulatedAccelerator) -> None:
    own, outer, inner = nn.Linear(1, 1), Progress(), Progress()
    theirs = vars(own)["to"] = lambda *args, **kwargs: "theirs"
    with reporting_moves(own, outer):
        assert own.to("cpu") == "theirs"
    assert vars(own)["to"] is theirs
    module = nn.Linear(1, 1)
    with reporting_moves(module, outer):
        with reporting_moves(module, inner):
            module.to(ACCELERATOR)
        module.to(CPU)
    assert (outer.finished, inner.finished) == (["Linear to cpu:0", "Linear to cpu"], [])


def test_a_class_with_its_own_to_is_called_once_and_not_by_us() -> None:
    calls: list[Any] = []

    class Own(nn.Linear):
        def to(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            return super().to(*args, **kwargs)

    module = Own(1, 1)
    with reporting_moves(module, Progress()):
        assert module.to("cpu") is module
    assert calls == [("cpu",)]


def test_what_is_no_pipeline_is_left_in_peace() -> None:
    for strange in (None, 3, object(), type("P", (), {"components": {}})()):
        with reporting_moves(strange, Progress()):
            pass


def test_compiled_modules_move_whole(simulated: SimulatedAccelerator) -> None:
    pipeline, progress = Shape(), Progress()
    pipeline.model = torch.compile(pipeline.model, backend="eager")  # type: ignore[assignment]
    with reporting_moves(pipeline, progress):
        pipeline.to(ACCELERATOR)
    assert progress.finished == ["model to cpu:0", "conditioner to cpu:0"]
    assert places(simulated, pipeline.model) == {ACCELERATOR}
