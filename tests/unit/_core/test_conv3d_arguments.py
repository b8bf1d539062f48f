"""Each argument of the convolution's functions, by keyword and by position: what is wrong with it
is said in a sentence that names it. The functions and their arguments are those of _core.pyi."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_memory import memory

from hy3d_rocm import _core

ONE, NONE = (1, 1, 1), (0, 0, 0)
NAMES = ("conv3d", "conv3d_format", "conv3d_prepare", "conv3d_out_size")
STUB = ast.parse((Path(_core.__file__).parent / "_core.pyi").read_text(encoding="utf-8"))


def signature(name: str) -> tuple[list[str], dict[str, Any]]:
    """The arguments in order, and the defaults of those that have one."""
    (found,) = (n for n in STUB.body if isinstance(n, ast.FunctionDef) and n.name == name)
    names = [a.arg for a in found.args.args]
    defaults = [ast.literal_eval(d) for d in found.args.defaults]
    return names, dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))


def ones(*size: int) -> Any:
    return np.ones(size, np.float32)


def good(function: str) -> dict[str, Any]:
    """A call that is answered, with every argument; frames only in calls without x."""
    answers: dict[str, Callable[[], Any]] = {
        "x": lambda: ones(1, 4, 2, 3, 3),
        "weight": lambda: ones(6, 4, 1, 1, 1),
        "bias": lambda: ones(6),
        "out": lambda: ones(1, 6, 2, 3, 3),
        "pad_modes": lambda: "zeros",
        "groups": lambda: 1,
        "threads": lambda: 1,
        "accuracy": lambda: "exact",
        "scale": lambda: ones(4),
        "shift": lambda: ones(4),
        "activation": lambda: "silu",
        "residual": lambda: ones(1, 6, 2, 3, 3),
        "in_size": lambda: (2, 3, 3),
        "in_channels": lambda: 4,
        "out_channels": lambda: 6,
        "batch": lambda: 1,
        "pairs": lambda: 0,
        "dtype": lambda: "f32",
        "format": lambda: 1,
        **dict.fromkeys(("stride", "dilation", "kernel", "upsample"), lambda: ONE),
        **dict.fromkeys(("pad_before", "pad_after"), lambda: NONE),
        **dict.fromkeys(("cancel", "prepared", "frames", "workspace_limit"), lambda: None),
    }
    return {name: answers[name]() for name in signature(function)[0]}


TRIPLES = ("stride", "dilation", "pad_before", "pad_after", "upsample", "in_size", "kernel")
COUNTS = ("threads", "workspace_limit", "format", "pairs")
ARRAYS = ("x", "weight", "bias", "out", "scale", "shift", "residual")
WRONG_TYPE: dict[str, list[Any]] = {
    **{key: [7, "111", (1, 1, "1"), (1.0, 1, 1), (*ONE, 1), ()] for key in TRIPLES},
    **{
        key: ["1", 1.0, (1,)] for key in (*COUNTS, "groups", "in_channels", "out_channels", "batch")
    },
    **{key: [7, "x", object(), np.ones((1, 1, 1, 1, 1), np.int32)] for key in ARRAYS},
    "pad_modes": [3, None, ("zeros", "zeros"), ("zeros", "zeros", 3), ["zeros"] * 3],
    **{key: [3, None, b"f32"] for key in ("accuracy", "dtype")},
    "activation": [3, ("silu",)],
    "frames": [7, "x", np.ones(3, np.float32)],
    "cancel": [7, object()],
    "prepared": [7, object()],
}
# What is said where the argument's own name is not in it.
SAID = {
    "weight": "Weights",
    "in_channels": "input and",
    "out_channels": "output channels",
    "scale": "scale|one of",
    "shift": "shift|one of",
}
OUT_OF_RANGE: dict[str, list[Any]] = {
    **{key: [(0, 1, 1), (1, 1, -1), (1, 2**63, 1)] for key in TRIPLES},
    **{
        key: [(0, -3, 0), (-(2**63), 0, 0), (-(2**64), 0, 0)] for key in ("pad_before", "pad_after")
    },
    **{key: [-1, 2**32, 2**64] for key in ("threads", "format")},
    "pairs": [-1, 3, 2**32 - 1, 2**32],
    "workspace_limit": [-1, 2**64],
    **{key: [0, -1, 2**63] for key in ("groups", "in_channels", "out_channels")},
    "batch": [-1, 2**63],
    "x": [ones(1, 4, 2, 3), ones(1, 5, 2, 3, 3)],
    "weight": [ones(6, 4, 1, 1), ones(6, 5, 1, 1, 1), ones(6, 4, 1, 1, 1).astype(np.float64)],
    "bias": [ones(6, 1), ones(5), ones(6).astype(np.float16)],
    "out": [ones(1, 6, 2, 3), ones(1, 6, 2, 3, 4), ones(1, 6, 2, 3, 3).astype(np.float16)],
    **{key: [ones(5), ones(4, 1), ones(8)[::2], None] for key in ("scale", "shift")},
    "residual": [ones(1, 6, 2, 3), ones(1, 6, 2, 3, 4), ones(1, 6, 2, 3, 3).astype(np.float16)],
    "pad_modes": ["mirror", ("zeros", "zeros", "mirror")],
    "accuracy": ["slow", ""],
    "dtype": ["f8", "float32", ""],
    "activation": ["relu", ""],
    "frames": [(), (None,), (ones(4, 3),), (ones(4, 3, 3), ones(4, 3, 2))],
    # A flag is a flag; prepared weights of other sizes are test_prepared_weights.py's.
    "cancel": [],
    "prepared": [],
}

EACH = [(f, a, i) for f in NAMES for i, a in enumerate(signature(f)[0])]


def refused(function: str, argument: str, position: int, value: Any) -> None:
    """By keyword, and with all that is before it by position."""
    given = good(function)
    if argument == "frames" and isinstance(value, tuple):
        given["x"] = None
    given[argument] = value
    call, values = getattr(_core, function), list(given.values())
    for here in (0, position + 1):
        live = memory.live()
        with pytest.raises((TypeError, ValueError)) as caught:
            call(*values[:here], **dict(list(given.items())[here:]))
        said = str(caught.value)
        words = SAID.get(argument, argument).split("|")
        assert any(word in said for word in (argument, *words)), said
        assert memory.live() == live


@pytest.mark.parametrize(("function", "argument", "position"), EACH)
def test_each_argument_of_a_wrong_type_is_named(
    function: str, argument: str, position: int
) -> None:
    for value in WRONG_TYPE[argument]:
        refused(function, argument, position, value)


@pytest.mark.parametrize(("function", "argument", "position"), EACH)
def test_each_argument_out_of_its_range_is_named(
    function: str, argument: str, position: int
) -> None:
    for value in OUT_OF_RANGE[argument]:
        refused(function, argument, position, value)


@pytest.mark.parametrize("function", NAMES)
def test_the_arguments_and_which_of_them_may_be_left_out_are_the_declared_ones(
    function: str,
) -> None:
    call, given, defaults = getattr(_core, function), good(function), signature(function)[1]
    with pytest.raises(TypeError):
        call(*given.values(), None)
    with pytest.raises(TypeError):
        call(**given, colour=3)
    for name in given:
        rest = {key: value for key, value in given.items() if key != name}
        if name not in defaults:
            with pytest.raises(TypeError, match=f"'{name}'"):
                call(**rest)


def outcome(function: str, given: dict[str, Any]) -> tuple[str, Any]:
    """The result, or the sentence of a refusal, and what was written."""
    if "out" in given:
        given = {**given, "out": np.zeros((1, 6, 2, 3, 3), np.float32)}
    try:
        result = getattr(_core, function)(**given)
    except ValueError as error:  # conv3d_prepare: weights so small have no layout
        result = error
    return repr(result), given.get("out", NONE)


@pytest.mark.parametrize("function", NAMES)
def test_an_argument_that_is_left_out_has_the_declared_default(function: str) -> None:
    required, defaults = good(function), signature(function)[1]
    for name in defaults:
        del required[name]
    plain = outcome(function, required)
    for name, default in defaults.items():
        again = outcome(function, {**required, name: default})
        assert again[0] == plain[0]
        assert np.array_equal(again[1], plain[1])
