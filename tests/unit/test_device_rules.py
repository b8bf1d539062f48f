"""resolve_device, decision by decision: who is asked, in which order, and what is no answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace as Thing
from typing import Any

import pytest
import torch

from hy3d_rocm import _core
from hy3d_rocm._fallback import device as twin
from hy3d_rocm.device import as_device, default_device, resolve_device

CPU = torch.device("cpu")
CUDA0 = torch.device("cuda:0")
CUDA1 = torch.device("cuda:1")
META = torch.device("meta")
both = pytest.mark.parametrize("resolve", [_core.resolve_device, twin.resolve_device])
Resolver = Callable[..., tuple[Any, str]]


def hook(device: object, **more: object) -> Thing:
    return Thing(_hf_hook=Thing(execution_device=device, **more))


def parameters(*devices: object) -> Callable[[], Any]:
    return lambda: iter([Thing(device=device) for device in devices])


class Counting:
    """Counts how often its hook is asked for."""

    def __init__(self) -> None:
        self.asked = 0
        self._modules: dict[str, object] = {}

    def __getattr__(self, name: str) -> object:
        if name == "_hf_hook":
            self.asked += 1
        raise AttributeError(name)


@both
def test_an_object_met_again_is_not_asked_again(resolve: Resolver) -> None:
    module = Counting()
    module._modules = {"self": module, "other": Thing(_modules={"back": module})}
    assert resolve(module, CPU) == (CPU, "default")
    assert module.asked == 1
    module._modules["last"] = hook(CUDA1)
    assert resolve(module, CPU) == (CUDA1, "accelerate hook")


@both
@pytest.mark.parametrize(("number", "found"), [(0, True), (999, True), (1000, False), (-1, False)])
def test_a_hooks_number_is_an_accelerator_from_0_to_999(
    resolve: Resolver, number: int, found: bool
) -> None:
    wanted = (number, "accelerate hook") if found else (None, "default")
    assert resolve(hook(number)) == wanted
    several = Thing(_hf_hook=Thing(hooks=(Thing(execution_device=number),)))
    assert resolve(several) == wanted


@both
def test_a_number_is_no_device_of_anything_but_a_hook(resolve: Resolver) -> None:
    assert resolve(Thing(_execution_device=1), CPU) == (CPU, "default")
    assert resolve(Thing(device=1), CPU) == (CPU, "default")
    assert resolve(Thing(parameters=parameters(1)), CPU) == (CPU, "default")


@both
def test_a_hook_answers_before_the_hooks_it_holds_and_those_in_turn(resolve: Resolver) -> None:
    first, second = Thing(execution_device=CUDA0), Thing(execution_device=CUDA1)
    assert resolve(hook(CUDA1, hooks=(first,))) == (CUDA1, "accelerate hook")
    assert resolve(hook(None, hooks=(first, second))) == (CUDA0, "accelerate hook")
    assert resolve(hook(None, hooks=(second, first))) == (CUDA1, "accelerate hook")
    assert resolve(hook(None, hooks=[first]), CPU) == (CPU, "default")  # accelerate has a tuple


@both
def test_hooks_are_asked_depth_first_in_their_order(resolve: Resolver) -> None:
    parts = {"a": Thing(_modules={"x": hook(CUDA1)}), "b": hook(CUDA0)}
    assert resolve(Thing(components=parts)) == (CUDA1, "accelerate hook")
    backwards = dict(reversed(parts.items()))
    assert resolve(Thing(components=backwards)) == (CUDA0, "accelerate hook")
    assert resolve(Thing(_modules=parts)) == (CUDA1, "accelerate hook")
    assert resolve(Thing(_modules=backwards)) == (CUDA0, "accelerate hook")
    own = hook(CUDA0)
    own._modules = {"x": hook(CUDA1)}
    assert resolve(own) == (CUDA0, "accelerate hook")


@both
def test_sub_modules_are_asked_before_components(resolve: Resolver) -> None:
    pipeline = Thing(components={"c": hook(CUDA0)}, _modules={"m": hook(CUDA1)})
    assert resolve(pipeline) == (CUDA1, "accelerate hook")


@both
def test_components_of_components_are_not_asked(resolve: Resolver) -> None:
    inner = Thing(components={"inner": hook(CUDA0)})
    assert resolve(Thing(components={"outer": inner}), CPU) == (CPU, "default")
    assert resolve(Thing(_modules={"outer": inner}), CPU) == (CPU, "default")


@both
def test_parameters_are_those_of_the_object_and_its_components_alone(resolve: Resolver) -> None:
    holder = Thing(parameters=parameters(CUDA0))
    assert resolve(Thing(_modules={"m": holder}), CPU) == (CPU, "default")
    assert resolve(Thing(components={"m": holder}), CPU) == (CUDA0, "first parameter")
    both_of_them = Thing(components={"m": holder}, parameters=parameters(CUDA1))
    assert resolve(both_of_them) == (CUDA1, "first parameter")
    parts = {"a": Thing(parameters=parameters(CUDA1)), "b": holder}
    assert resolve(Thing(components=parts)) == (CUDA1, "first parameter")


@both
def test_only_the_first_parameter_answers(resolve: Resolver) -> None:
    assert resolve(Thing(parameters=parameters(META, CUDA0)), CPU) == (CPU, "default")
    assert resolve(Thing(parameters=parameters(CUDA1, CUDA0))) == (CUDA1, "first parameter")


@both
def test_what_is_no_dictionary_has_no_children(resolve: Resolver) -> None:
    assert resolve(Thing(_modules=[hook(CUDA0)], components=[hook(CUDA0)])) == (None, "default")


@both
@pytest.mark.parametrize("index", [None, 0, 7, True])
def test_what_has_a_type_and_a_whole_index_is_a_device(resolve: Resolver, index: object) -> None:
    like = Thing(type="xpu", index=index)
    assert resolve(Thing(device=like)) == (like, "device")


@both
@pytest.mark.parametrize(
    "like",
    [Thing(type="cuda", index="0"), Thing(type=3, index=0), Thing(type="cuda"), Thing(index=0),
     Thing(type="meta", index=0), "cuda:1000", "CUDA", "cuda:", "cuda:0 ", " cpu", "meta"],
)  # fmt: skip
def test_what_only_resembles_a_device_is_none(resolve: Resolver, like: object) -> None:
    assert resolve(Thing(device=like), CPU) == (CPU, "default")


@pytest.mark.parametrize("has_accelerator", [True, False])
def test_the_default_is_the_accelerator_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, has_accelerator: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_accelerator)
    wanted = torch.device("cuda" if has_accelerator else "cpu")
    assert default_device() == wanted
    assert resolve_device(object()) == (wanted, "default")


def test_the_main_device_answers_only_where_nothing_else_does_and_nobody_gave_a_default() -> None:
    assert resolve_device(Thing(main_device="cuda:1")) == (CUDA1, "main_device")
    assert resolve_device(Thing(main_device=CUDA1)) == (CUDA1, "main_device")
    assert resolve_device(Thing(main_device=CUDA1, device=CPU)) == (CPU, "device")
    assert resolve_device(Thing(main_device=CUDA1), CUDA0) == (CUDA0, "default")
    assert resolve_device(Thing(main_device=META)) == (default_device(), "default")


def test_a_main_device_that_raises_is_none() -> None:
    class Raising:
        @property
        def main_device(self) -> torch.device:
            raise RuntimeError("not loaded")

    assert resolve_device(Raising()) == (default_device(), "default")


def test_found_texts_and_numbers_become_torch_devices() -> None:
    assert resolve_device(Thing(device="cuda:1")) == (CUDA1, "device")
    assert resolve_device(hook(1)) == (CUDA1, "accelerate hook")
    assert resolve_device(object(), "cuda:1") == (CUDA1, "default")


@pytest.mark.parametrize(
    ("found", "device"),
    [(CUDA1, CUDA1), ("cuda:1", CUDA1), (0, CUDA0), (1, CUDA1), (-1, CPU), (False, None),
     (META, None), ("meta", None), ("nowhere", None), (None, None), (1.0, None)],
)  # fmt: skip
def test_what_is_found_becomes_a_device_or_nothing(found: object, device: object) -> None:
    assert as_device(found) == device


def test_a_refused_default_is_named() -> None:
    with pytest.raises(ValueError, match=r"^default is 'meta', which is no device to compute on; "):
        resolve_device(object(), "meta")
