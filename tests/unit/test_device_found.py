"""find_device: what is found on a pipeline, however strange, and by which rule."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace as Thing
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch

from hy3d_rocm.device import find_device

CUDA0 = torch.device("cuda:0")
CUDA1 = torch.device("cuda:1")
CPU = torch.device("cpu")
META = torch.device("meta")


def hooked(device: object, /, **attributes: object) -> Thing:
    return Thing(_hf_hook=Thing(execution_device=device), **attributes)


def parameters(*devices: object) -> Callable[[], Any]:
    return lambda: iter([Thing(device=d) for d in devices])


class Raising:
    """Every attribute raises."""

    def __init__(self, error: type[BaseException]) -> None:
        object.__setattr__(self, "error", error)

    def __getattribute__(self, name: str) -> Any:
        raise object.__getattribute__(self, "error")(name)


class Poor:
    """No memory for any attribute."""

    def __getattr__(self, name: str) -> Any:
        raise MemoryError(name)


class Endless:
    """Has every attribute, each another one of its kind."""

    def __getattr__(self, name: str) -> Endless:
        return Endless()


class Recursing:
    def __getattr__(self, name: str) -> Any:
        return getattr(self, name + "_")


CASES: dict[str, tuple[object, object, str]] = {
    "execution device first": (
        hooked(CUDA1, _execution_device=CUDA0, device=CPU), CUDA0, "_execution_device"),
    "offloaded, diffusers before #14383": (
        Thing(_execution_device=CUDA0, device=CPU), CUDA0, "_execution_device"),
    "hook before device": (hooked(CUDA1, device=CPU), CUDA1, "accelerate hook"),
    "hook with a number": (hooked(1, device=CPU), 1, "accelerate hook"),
    "hook that knows nothing": (hooked(None, device=CPU), CPU, "device"),
    "hook on meta": (hooked(META, device=CPU), CPU, "device"),
    "one of several hooks": (
        Thing(_hf_hook=Thing(hooks=(Thing(execution_device=None), Thing(execution_device=CUDA1)))),
        CUDA1, "accelerate hook"),
    "hook of a component": (
        Thing(components={"a": None, "b": hooked(CUDA1)}, device=CPU), CUDA1, "accelerate hook"),
    "hook of a sub-module": (
        Thing(_modules={"a": None, "b": Thing(_modules={"c": hooked(CUDA0)})}, device=CPU),
        CUDA0, "accelerate hook"),
    "the first sub-module's hook": (
        Thing(_modules={"a": Thing(_modules={"c": hooked(CUDA1)}), "b": hooked(CUDA0)}),
        CUDA1, "accelerate hook"),
    "device": (Thing(device=CUDA0, parameters=parameters(CUDA1)), CUDA0, "device"),
    "device as text": (Thing(device="cuda:1"), "cuda:1", "device"),
    "text that is no device": (Thing(device="auto", parameters=parameters(CPU)), CPU,
                               "first parameter"),
    "text with a NUL": (Thing(device="cpu\0:1"), "DEFAULT", "default"),
    "a number as device": (Thing(device=0), "DEFAULT", "default"),
    "truth as device": (hooked(True), "DEFAULT", "default"),
    "device on meta": (Thing(device=META, parameters=parameters(CUDA1)), CUDA1, "first parameter"),
    "parameters on meta": (Thing(device=META, parameters=parameters(META)), "DEFAULT", "default"),
    "a component's parameter": (
        Thing(components={"t": "text", "m": Thing(parameters=parameters(CUDA0))}), CUDA0,
        "first parameter"),
    "no parameters": (Thing(parameters=parameters()), "DEFAULT", "default"),
    "parameters that raise": (Thing(parameters=lambda: 1 / 0), "DEFAULT", "default"),
    "nothing": (object(), "DEFAULT", "default"),
    "None": (None, "DEFAULT", "default"),
    "a class": (Thing, "DEFAULT", "default"),
    "Mock": (Mock(), "DEFAULT", "default"),
    "MagicMock": (MagicMock(), "DEFAULT", "default"),
    "MagicMock with a device": (MagicMock(device=CUDA0), CUDA0, "device"),
    "endless attributes": (Endless(), "DEFAULT", "default"),
    "recursion": (Recursing(), "DEFAULT", "default"),
    "every attribute raises": (Raising(ValueError), "DEFAULT", "default"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_first_rule_that_finds_a_device_decides(case: str) -> None:
    pipeline, device, rule = CASES[case]
    found = find_device(pipeline, "DEFAULT")
    assert found == (device, rule)
    assert type(found[0]) is type(device)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_of_the_pipeline_passes_through(error: type[BaseException]) -> None:
    with pytest.raises(error):
        find_device(Raising(error))


def test_no_memory_is_not_taken_for_a_pipeline_without_a_device() -> None:
    """It gave the default, and the pipeline ran elsewhere than its weights were."""
    with pytest.raises(MemoryError):
        find_device(Poor(), "cpu")


def test_a_module_that_contains_itself_ends() -> None:
    module = Thing()
    module._modules = {"self": module, "other": Thing(_modules={"back": module})}
    module.components = {"self": module}
    assert find_device(module, None) == (None, "default")


def test_children_made_up_without_end_come_to_an_end() -> None:
    class Parent:
        @property
        def _modules(self) -> dict[str, Any]:
            return {"a": Parent(), "b": Parent()}

    assert find_device(Parent(), CPU) == (CPU, "default")


def test_a_real_module_and_its_hook_are_understood() -> None:
    accelerate = pytest.importorskip("accelerate")
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert find_device(module) == (CPU, "first parameter")
    assert find_device(module.to("meta")) == (None, "default")
    offloaded = torch.nn.Sequential(torch.nn.Linear(2, 2))
    accelerate.cpu_offload(offloaded, execution_device=torch.device("cpu", 0))
    assert next(offloaded.parameters()).device.type == "meta"
    assert find_device(offloaded) == (torch.device("cpu", 0), "accelerate hook")
