"""A function is known under decorators, also under one that does not say what it wraps."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from hy3d_rocm.comfy.patches.upstream import names_missing, parameters_missing, written


def apply_forward_hook(method: Callable[..., Any]) -> Callable[..., Any]:
    """As diffusers 0.34 had it: without functools.wraps."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    return wrapper


def kept(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return wrapper


def plain(self: Any, z: Any, return_dict: bool = True) -> Any:
    return self.decoder(z), return_dict


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: f,
        kept,
        apply_forward_hook,
        lambda f: kept(apply_forward_hook(f)),
        lambda f: apply_forward_hook(apply_forward_hook(kept(f))),
    ],
)
def test_parameters_and_names_are_those_of_the_function_inside(
    wrap: Callable[..., Any],
) -> None:
    function = wrap(plain)
    assert written(function) is plain
    assert parameters_missing(function, ("z", "return_dict")) is None
    assert names_missing(function, ("decoder",)) is None
    assert list(inspect.signature(written(function)).parameters) == ["self", "z", "return_dict"]


def test_another_wrapper_that_does_not_say_what_it_wraps_is_taken_as_it_is() -> None:
    def elsewhere(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any) -> Any:
            return method(*args)

        return wrapper

    function = elsewhere(plain)
    assert written(function) is function
    assert parameters_missing(function, ("z",)) is not None
