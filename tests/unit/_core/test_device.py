"""resolve_device of the C core and of its pure-Python twin: same answers, no strange pipeline."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace as Thing
from typing import Any
from unittest.mock import MagicMock, Mock

import how_much
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hy3d_rocm import _core
from hy3d_rocm._fallback import device as twin

CUDA0 = torch.device("cuda:0")
CUDA1 = torch.device("cuda:1")
CPU = torch.device("cpu")
META = torch.device("meta")
RESOLVERS = {"C": _core.resolve_device, "Python": twin.resolve_device}
both = pytest.mark.parametrize("resolve", RESOLVERS.values(), ids=RESOLVERS.keys())
Resolver = Callable[..., tuple[Any, str]]


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


@both
@pytest.mark.parametrize("case", CASES)
def test_the_first_rule_that_finds_a_device_decides(resolve: Resolver, case: str) -> None:
    pipeline, device, rule = CASES[case]
    found = resolve(pipeline, "DEFAULT")
    assert found == (device, rule)
    assert type(found[0]) is type(device)


@both
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_of_the_pipeline_passes_through(
    resolve: Resolver, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        resolve(Raising(error))


@both
def test_a_module_that_contains_itself_ends(resolve: Resolver) -> None:
    module = Thing()
    module._modules = {"self": module, "other": Thing(_modules={"back": module})}
    module.components = {"self": module}
    assert resolve(module, None) == (None, "default")


@both
def test_children_made_up_without_end_come_to_an_end(resolve: Resolver) -> None:
    class Parent:
        @property
        def _modules(self) -> dict[str, Any]:
            return {"a": Parent(), "b": Parent()}

    assert resolve(Parent(), CPU) == (CPU, "default")


@both
def test_a_real_module_and_its_hook_are_understood(resolve: Resolver) -> None:
    accelerate = pytest.importorskip("accelerate")
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert resolve(module) == (CPU, "first parameter")
    assert resolve(module.to("meta")) == (None, "default")
    offloaded = torch.nn.Sequential(torch.nn.Linear(2, 2))
    accelerate.cpu_offload(offloaded, execution_device=torch.device("cpu", 0))
    assert next(offloaded.parameters()).device.type == "meta"
    assert resolve(offloaded) == (torch.device("cpu", 0), "accelerate hook")


@both
def test_resolving_leaves_no_reference_behind(resolve: Resolver) -> None:
    import sys

    model = Thing(_modules={"a": hooked(META)}, device=CUDA0)
    before = sys.getrefcount(model), sys.getrefcount(CUDA0), sys.getrefcount(model._modules["a"])
    for _ in range(1000):
        resolve(model, CPU)
    after = sys.getrefcount(model), sys.getrefcount(CUDA0), sys.getrefcount(model._modules["a"])
    assert before == after


VALUES = st.one_of(
    st.sampled_from([CUDA0, CUDA1, CPU, META, None, True]),
    st.sampled_from(["cpu", "cuda:3", "meta", "auto", "cuda:"]),
    st.integers(-2, 1200),
    st.text(max_size=4),
    st.builds(lambda t, i: Thing(type=t, index=i),
              st.sampled_from(["cuda", "meta", 3]), st.sampled_from([None, 0, "0", True])),
)  # fmt: skip
THINGS = st.recursive(
    st.dictionaries(st.sampled_from(["_execution_device", "device"]), VALUES, max_size=2).map(
        lambda d: Thing(**d)
    ),
    lambda inner: st.builds(
        lambda own, hook, kids, parts, params: Thing(
            **({"device": own} if own is not None else {}),
            **({"_hf_hook": Thing(execution_device=hook)} if hook is not None else {}),
            _modules=dict(enumerate(kids)),
            components=dict(enumerate(parts)),
            parameters=parameters(*params),
        ),
        VALUES, VALUES, st.lists(inner, max_size=3), st.lists(inner, max_size=2),
        st.lists(VALUES, max_size=2),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=how_much.of(50, 300), deadline=None)
@given(THINGS)
def test_the_twin_gives_the_core_s_answer(pipeline: object) -> None:
    found, rule = _core.resolve_device(pipeline, "DEFAULT")
    other, other_rule = twin.resolve_device(pipeline, "DEFAULT")
    assert rule == other_rule
    assert found is other
