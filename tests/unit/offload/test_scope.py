"""enable_model_cpu_offload() without a device, called by code that knows nothing of policies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from offload_doubles import ACCELERATOR, SimulatedAccelerator

from examples.demo.delight import tiny_pipeline
from hy3d_rocm.offload import current_mode, diffusers_changes, offload_scope
from hy3d_rocm.offload.placement import current_scope, scoped

GB = 2**30


def plenty() -> tuple[int, int]:
    return 20 * GB, 24 * GB


def nothing() -> tuple[int, int]:
    return 0, 24 * GB


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedAccelerator:
    return SimulatedAccelerator().install(monkeypatch)


@pytest.fixture
def _patched(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, make in diffusers_changes():
        monkeypatch.setattr(owner, name, make(getattr(owner, name)))


@pytest.fixture
def pipeline(_patched: None) -> Iterator[Any]:
    yield tiny_pipeline()
    assert current_scope() is None


def upstream_loader(pipeline: Any) -> None:
    pipeline.enable_model_cpu_offload()


@pytest.mark.parametrize(
    ("policy", "memory", "mode"),
    [
        ("auto", plenty, "resident"), ("auto", nothing, "model"), ("off", nothing, "resident"),
        ("on", plenty, "model"),
    ],
)  # fmt: skip
def test_in_a_scope_the_call_follows_policy_and_device(
    pipeline: Any, simulated: SimulatedAccelerator, caplog: pytest.LogCaptureFixture,
    policy: Any, memory: Any, mode: str,
) -> None:  # fmt: skip
    with (
        caplog.at_level(logging.INFO, "hy3d_rocm"),
        offload_scope(policy, ACCELERATOR, memory) as scope,
    ):
        upstream_loader(pipeline)
    assert current_mode(pipeline) == mode
    assert [decision.offload for decision in scope.decisions] == [mode == "model"]
    line = f"StableDiffusionInstructPix2PixPipeline: {scope.decisions[0].reason}"
    assert line in caplog.messages
    if mode == "model":
        assert pipeline.unet._hf_hook.execution_device == ACCELERATOR
        assert pipeline._offload_device == ACCELERATOR


def test_without_a_scope_the_call_is_diffusers_own(pipeline: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("diffusers finds an accelerator here")
    with pytest.raises(RuntimeError, match="requires accelerator, but not found"):
        upstream_loader(pipeline)


def test_on_a_machine_without_accelerator_the_call_says_so_and_does_nothing(
    pipeline: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hy3d_rocm"), offload_scope("on", "cpu", nothing) as scope:
        upstream_loader(pipeline)
    assert current_mode(pipeline) == "resident"
    assert not scope.decisions[0].offload
    lines = [line for line in caplog.messages if "no accelerator" in line]
    assert len(lines) == len(caplog.messages) == 1


def test_a_device_that_the_caller_names_is_his(
    pipeline: Any, simulated: SimulatedAccelerator
) -> None:
    with offload_scope("off", ACCELERATOR, plenty) as scope:
        pipeline.enable_model_cpu_offload(device="cpu")
        assert current_mode(pipeline) == "model"
        pipeline.enable_model_cpu_offload(0, "cpu")
    assert scope.decisions == []


def test_a_none_that_the_caller_passes_on_is_no_device(
    pipeline: Any, simulated: SimulatedAccelerator
) -> None:
    with offload_scope("on", ACCELERATOR, plenty) as scope:
        pipeline.enable_model_cpu_offload(gpu_id=None, device=None)
    assert len(scope.decisions) == 1


def test_subclasses_that_override_and_call_super_follow_too(
    pipeline: Any, simulated: SimulatedAccelerator
) -> None:
    class Special(type(pipeline)):  # type: ignore[misc]
        def enable_model_cpu_offload(self, gpu_id: Any = None, device: Any = None) -> None:
            super().enable_model_cpu_offload(gpu_id=gpu_id, device=device)

    special = Special(**pipeline.components, requires_safety_checker=False)
    with offload_scope("auto", ACCELERATOR, nothing) as scope:
        upstream_loader(special)
    assert current_mode(special) == "model"
    assert [decision.offload for decision in scope.decisions] == [True]


def test_a_scope_is_of_its_thread_only() -> None:
    seen: list[Any] = []

    def other() -> None:
        seen.append(current_scope())

    with offload_scope("on", "cpu", nothing) as scope:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
        assert current_scope() is scope
    assert seen == [None]


def test_scopes_nest_and_close_after_an_exception() -> None:
    class InterruptProcessingException(BaseException):
        pass

    with offload_scope("on", "cpu", nothing) as outer:
        inner = offload_scope("off", "cpu", nothing)
        assert inner.__enter__() is current_scope() is not outer
        error = InterruptProcessingException()
        assert not inner.__exit__(type(error), error, None)  # not swallowed
        assert current_scope() is outer
    assert current_scope() is None


def test_memory_is_asked_at_each_call_and_not_before() -> None:
    asked: list[int] = []

    def memory() -> tuple[int, int]:
        asked.append(1)
        return nothing()

    calls: list[Any] = []
    enable = scoped(lambda pipeline, *args, **kwargs: calls.append(kwargs))
    with offload_scope("on", "cpu", memory):
        assert asked == []
        enable(object())
        enable(object(), device="cpu")
        enable(object())
    assert len(asked) == 2
    assert calls == [{"device": "cpu"}]


def test_an_unknown_policy_is_refused_when_the_scope_is_opened() -> None:
    with (
        pytest.raises(ValueError, match="give one of off, auto, on"),
        offload_scope("sometimes", "cpu", nothing),  # type: ignore[arg-type]
    ):
        pass


def test_the_change_keeps_name_text_and_result_of_the_original() -> None:
    def original(pipeline: Any, gpu_id: Any = None, device: Any = None) -> str:
        """The original's text."""
        return f"{gpu_id} {device}"

    replacement = scoped(original)
    assert replacement.__doc__ == "The original's text."
    assert replacement.__name__ == "original"
    assert replacement(None) == "None None"
    assert replacement(None, 1) == "1 None"
    with offload_scope("on", "cpu", nothing):
        assert replacement(None, device="cuda:1") == "None cuda:1"
