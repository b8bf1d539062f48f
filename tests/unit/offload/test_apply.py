"""Carrying the decision out: real (tiny) diffusers pipelines on a simulated accelerator."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from offload_doubles import (
    ACCELERATOR,
    CPU,
    Progress,
    SimulatedAccelerator,
    hooked,
    same_values,
    values_of,
)
from torch import nn

from examples.demo.delight import tiny_pipeline
from hy3d_rocm.offload import apply, components_of, current_mode, estimate

pytestmark = pytest.mark.usefixtures("one_thread")

apply_module = importlib.import_module("hy3d_rocm.offload.placement")
measure = importlib.import_module("hy3d_rocm.offload.memory")
transfer = importlib.import_module("hy3d_rocm.offload.transfer")
GB = 2**30
NAMES = ["vae", "text_encoder", "unet"]


@pytest.fixture(autouse=True)
def _nothing_measured_before() -> Iterator[None]:
    measure._records.clear()
    yield
    measure._records.clear()


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedAccelerator:
    return SimulatedAccelerator().install(monkeypatch)


@pytest.fixture
def pipeline() -> Any:
    return tiny_pipeline()


def places(sim: SimulatedAccelerator, pipeline: Any) -> set[str]:
    """Where the pipeline's tensors are."""
    return {
        "accelerator" if sim.is_on(tensor, ACCELERATOR) else "cpu"
        for module in components_of(pipeline).values()
        for tensor in [*module.parameters(), *module.buffers()]
        if tensor.numel()
    }


def picture(pipeline: Any) -> torch.Tensor:
    result: torch.Tensor = pipeline(
        prompt="", image=torch.linspace(0, 1, 3 * 16 * 16).reshape(1, 3, 16, 16),
        generator=torch.Generator().manual_seed(0), num_inference_steps=1, guidance_scale=1.01,
        output_type="pt",
    ).images  # fmt: skip
    return result


def test_plenty_of_memory_leaves_the_weights_on_the_device(
    simulated: SimulatedAccelerator, pipeline: Any
) -> None:
    decision = apply(pipeline, "auto", ACCELERATOR, 20 * GB, 24 * GB)
    assert not decision.offload
    assert decision.reason.endswith(": resident")
    assert current_mode(pipeline) == "resident"
    assert places(simulated, pipeline) == {"accelerator"}


def test_little_memory_offloads_by_component(
    simulated: SimulatedAccelerator, pipeline: Any
) -> None:
    decision = apply(pipeline, "auto", ACCELERATOR, 0, 24 * GB)
    assert decision.offload
    assert current_mode(pipeline) == "model"
    assert sorted(hooked(pipeline)) == sorted(NAMES)
    assert places(simulated, pipeline) == {"cpu"}
    assert {getattr(pipeline, name)._hf_hook.execution_device for name in NAMES} == {ACCELERATOR}


@pytest.mark.parametrize("first", ["off", "on"])
def test_the_policy_can_be_changed_back_and_forth(
    simulated: SimulatedAccelerator, pipeline: Any, first: Any
) -> None:
    expected, values = picture(pipeline), {n: values_of(getattr(pipeline, n)) for n in NAMES}
    for policy in (first, "on", "off", "off", "on", "on", "off"):
        decision = apply(pipeline, policy, ACCELERATOR, 20 * GB, 24 * GB)
        assert decision.offload == (policy == "on")
        assert current_mode(pipeline) == ("model" if policy == "on" else "resident")
        assert places(simulated, pipeline) == {"cpu" if policy == "on" else "accelerator"}
        assert all(same_values(getattr(pipeline, n), values[n]) for n in NAMES)
    assert torch.equal(picture(pipeline), expected)
    # maybe_free_model_hooks at the end of the call must not have enabled offload again.
    assert current_mode(pipeline) == "resident"


def test_what_is_right_already_is_not_touched(
    simulated: SimulatedAccelerator, pipeline: Any
) -> None:
    for policy in ("on", "off"):
        apply(pipeline, policy, ACCELERATOR, 20 * GB, 24 * GB)  # type: ignore[arg-type]
        hooks = [getattr(getattr(pipeline, name), "_hf_hook", None) for name in NAMES]
        progress = Progress()
        apply(pipeline, policy, ACCELERATOR, 20 * GB, 24 * GB, progress)  # type: ignore[arg-type]
        assert progress.calls == []
        assert [getattr(getattr(pipeline, name), "_hf_hook", None) for name in NAMES] == hooks


def test_what_the_pipeline_has_on_the_device_counts_as_free_for_it(
    simulated: SimulatedAccelerator, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Upstream's loader moves the pipeline there before it asks for offload.
    weights = estimate(pipeline).parameter_bytes
    need = 2 * weights + apply_module.decide.__defaults__[0]
    apply(pipeline, "off", ACCELERATOR, None, None)
    assert not apply(pipeline, "auto", ACCELERATOR, need - weights, 24 * GB).offload
    assert apply(pipeline, "auto", ACCELERATOR, need - weights - 1, 24 * GB).offload
    # Offloaded, nothing of it is there any more.
    assert apply(pipeline, "auto", ACCELERATOR, need - 1, 24 * GB).offload
    assert not apply(pipeline, "auto", ACCELERATOR, need, 24 * GB).offload


def test_each_component_is_reported_when_it_moves(
    simulated: SimulatedAccelerator, pipeline: Any
) -> None:
    progress = Progress()
    apply(pipeline, "off", ACCELERATOR, 20 * GB, 24 * GB, progress)
    assert progress.finished == [f"{name} to cpu:0" for name in NAMES]
    progress.calls.clear()
    apply(pipeline, "on", ACCELERATOR, 20 * GB, 24 * GB, progress)
    assert progress.finished == [f"{name} to cpu" for name in NAMES]


def test_on_a_cpu_nothing_is_done_but_said() -> None:
    pipeline = tiny_pipeline()
    for policy in ("off", "auto", "on"):
        decision = apply(pipeline, policy, "cpu", 0, 0)  # type: ignore[arg-type]
        assert not decision.offload
        assert "there is no accelerator to offload from" in decision.reason
        assert hooked(pipeline) == []


def test_a_compiled_pipeline_is_left_and_the_component_named(
    simulated: SimulatedAccelerator, pipeline: Any
) -> None:
    pipeline.unet = torch.compile(pipeline.unet)
    decision = apply(pipeline, "on", ACCELERATOR, 0, 24 * GB)
    assert not decision.offload
    assert decision.reason.startswith("unet of StableDiffusionInstructPix2PixPipeline is compiled")
    assert hooked(pipeline) == []


def test_pipelines_without_the_method_are_left_and_never_raise(
    simulated: SimulatedAccelerator,
) -> None:
    class Shape:
        def __init__(self) -> None:
            self.model, self.conditioner = nn.Linear(2, 2), nn.Linear(2, 2)

    for strange in (Shape(), object(), 3, nn.Linear(2, 2)):
        decision = apply(strange, "on", ACCELERATOR, 0, 24 * GB)
        assert not decision.offload
        assert "has no enable_model_cpu_offload: left resident" in decision.reason


def test_a_device_map_and_group_offload_are_left(
    simulated: SimulatedAccelerator, pipeline: Any
) -> None:
    pipeline.hf_device_map = {"unet": 0}
    assert "has a device map" in apply(pipeline, "on", ACCELERATOR, 0, 1).reason
    pipeline.hf_device_map = None
    pipeline.unet.enable_group_offload(
        onload_device=CPU, offload_device=CPU, offload_type="leaf_level"
    )
    assert "uses group offload" in apply(pipeline, "on", ACCELERATOR, 0, 1).reason


def test_sequential_offload_is_left_under_auto() -> None:
    pipeline = tiny_pipeline()
    pipeline.enable_sequential_cpu_offload(device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        SimulatedAccelerator().install(patch)
        decision = apply(pipeline, "auto", ACCELERATOR, 20 * GB, 24 * GB)
    assert decision.offload
    assert "uses sequential offload: left as it is" in decision.reason
    assert current_mode(pipeline) == "sequential"


@pytest.mark.parametrize(("policy", "mode"), [("off", "resident"), ("on", "model")])
def test_sequential_offload_gives_way_to_an_explicit_policy(
    simulated: SimulatedAccelerator, pipeline: Any, policy: Any, mode: str
) -> None:
    values = {name: values_of(getattr(pipeline, name)) for name in NAMES}
    pipeline.enable_sequential_cpu_offload(device="cpu")
    assert any(parameter.is_meta for parameter in pipeline.unet.parameters())
    assert apply(pipeline, policy, ACCELERATOR, 20 * GB, 24 * GB).offload == (policy == "on")
    assert current_mode(pipeline) == mode
    assert all(same_values(getattr(pipeline, name), values[name]) for name in NAMES)


def copies_in(action: Any, simulated: SimulatedAccelerator) -> int:
    count = 0

    def tick(tensor: torch.Tensor) -> None:
        nonlocal count
        count += 1

    simulated.before_copy = tick
    action()
    simulated.before_copy = lambda tensor: None
    return count


@pytest.mark.parametrize("policy", ["off", "on"])
def test_a_fault_at_any_step_leaves_a_working_pipeline(
    simulated: SimulatedAccelerator, pipeline: Any, policy: Any
) -> None:
    other = "on" if policy == "off" else "off"
    expected = picture(pipeline)
    apply(pipeline, other, ACCELERATOR, 20 * GB, 24 * GB)
    total = copies_in(lambda: apply(pipeline, policy, ACCELERATOR, None, None), simulated)
    apply(pipeline, other, ACCELERATOR, 20 * GB, 24 * GB)
    assert total > 50
    for at in {1, 2, total // 3, total // 2, total - 1, total}:
        countdown = iter([False] * (at - 1) + [True] + [False] * 10_000)

        def fail(tensor: torch.Tensor, countdown: Any = countdown) -> None:
            if next(countdown):
                raise RuntimeError("HIP error: simulated\nsecond line")

        simulated.before_copy = fail
        decision = apply(pipeline, policy, ACCELERATOR, 20 * GB, 24 * GB)
        simulated.before_copy = lambda tensor: None
        assert "RuntimeError: HIP error: simulated)" in decision.reason, at
        # off: what does not go resident is offloaded, as it was; on: it stays resident.
        assert current_mode(pipeline) == ("model" if other == "on" else "resident"), at
        assert decision.offload == (other == "on")
        assert places(simulated, pipeline) == {"cpu" if other == "on" else "accelerator"}, at
    assert torch.equal(picture(pipeline), expected)
    assert apply(pipeline, policy, ACCELERATOR, None, None).offload == (policy == "on")
    assert torch.equal(picture(pipeline), expected)


@pytest.mark.parametrize("step", ["remove_all_hooks", "enable_model_cpu_offload"])
@pytest.mark.parametrize("policy", ["off", "on"])
def test_a_method_of_diffusers_that_raises_leaves_a_working_pipeline(
    simulated: SimulatedAccelerator, pipeline: Any, policy: Any, step: str
) -> None:
    expected = picture(pipeline)
    other = "on" if policy == "off" else "off"
    apply(pipeline, other, ACCELERATOR, 20 * GB, 24 * GB)
    original, failed = getattr(pipeline, step), []

    def raises(*args: Any, **kwargs: Any) -> Any:
        if not failed:
            failed.append(True)
            raise ValueError("not today")
        return original(*args, **kwargs)

    vars(pipeline)[step] = raises
    decision = apply(pipeline, policy, ACCELERATOR, 20 * GB, 24 * GB)
    del vars(pipeline)[step]
    if failed:
        assert "ValueError: not today" in decision.reason
    assert decision.offload == (current_mode(pipeline) != "resident")
    assert torch.equal(picture(pipeline), expected)


def test_out_of_memory_while_going_resident_ends_offloaded(
    simulated: SimulatedAccelerator, pipeline: Any
) -> None:
    # Free memory was said to be plenty, and was not.
    simulated.capacity = estimate(pipeline).parameter_bytes // 2
    decision = apply(pipeline, "auto", ACCELERATOR, 20 * GB, 24 * GB)
    assert decision.offload
    assert "simulated out of memory" in decision.reason
    assert decision.reason.endswith(": offloaded")
    assert current_mode(pipeline) == "model"
    assert places(simulated, pipeline) == {"cpu"}
    assert simulated.live[ACCELERATOR] == 0


@pytest.mark.parametrize("policy", ["off", "on"])
def test_a_cancel_raised_by_progress_goes_on_and_the_pipeline_is_as_it_was(
    simulated: SimulatedAccelerator, pipeline: Any, policy: Any
) -> None:
    class InterruptProcessingException(Exception):  # noqa: N818  # its base in 0.3.64
        pass

    expected = picture(pipeline)
    other = "on" if policy == "off" else "off"
    apply(pipeline, other, ACCELERATOR, 20 * GB, 24 * GB)
    before = places(simulated, pipeline)
    for at in range(3):
        progress = Progress(InterruptProcessingException(), at)
        with pytest.raises(InterruptProcessingException):
            apply(pipeline, policy, ACCELERATOR, 20 * GB, 24 * GB, progress)
        assert current_mode(pipeline) == ("model" if other == "on" else "resident")
        assert places(simulated, pipeline) == before
    assert torch.equal(picture(pipeline), expected)


class Signature:
    """Stands for a pipeline; keeps what it was called with."""

    def __init__(self) -> None:
        self.unet = nn.Linear(2, 2)
        self.given: list[Any] = []


class Usual(Signature):
    def enable_model_cpu_offload(self, gpu_id: int | None = None, device: Any = "cuda") -> None:
        self.given.append(("both", gpu_id, device))


class Anything(Signature):
    def enable_model_cpu_offload(self, **kwargs: Any) -> None:
        self.given.append(kwargs)


@pytest.mark.parametrize(
    ("kind", "device", "given"),
    [
        (Usual, "cuda:1", ("both", None, torch.device("cuda:1"))),
        (Usual, "xpu:0", ("both", None, torch.device("xpu:0"))),
        (Anything, "cuda:1", {"device": torch.device("cuda:1")}),
    ],
)
def test_any_signature_gets_the_device(kind: Any, device: str, given: Any) -> None:
    pipeline = kind()
    assert apply(pipeline, "on", device, 0, 24 * GB).offload
    assert pipeline.given == [given]


def test_device_zero_is_not_mistaken_for_the_device_used_last(
    simulated: SimulatedAccelerator, pipeline: Any
) -> None:
    # diffusers: gpu_id or device.index or the last one; an index of 0 counts as none.
    pipeline._offload_gpu_id = 1
    apply(pipeline, "on", ACCELERATOR, 0, 24 * GB)
    assert pipeline.unet._hf_hook.execution_device == ACCELERATOR


def test_an_unknown_policy_is_a_sentence(pipeline: Any) -> None:
    with pytest.raises(ValueError, match="offload policy is 'maybe'"):
        apply(pipeline, "maybe", "cpu", 0, 0)  # type: ignore[arg-type]
