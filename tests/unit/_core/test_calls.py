"""KnownCalls: which calls of convolutions are one, and what goes straight to the function."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from dlpack_liar import Described, Exchange
from torch import nn

from hy3d_rocm import _core

READER = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
TYPES = (torch.Tensor, nn.Parameter)
pytestmark = pytest.mark.skipif(READER is None, reason="before PyTorch 2.13 no call has a key")


def no() -> bool:
    return False


def calls(
    flags: tuple[Callable[[], object], ...] = (no,),
    holds: tuple[Callable[[], object], ...] = (no,),
    clock: Callable[[], float] = lambda: 0.0,
) -> _core.KnownCalls:
    return _core.KnownCalls(READER, TYPES, flags, holds, clock)


def noted(*arguments: Any) -> tuple[Any, ...]:
    """Stands for a convolution."""
    return arguments


def arguments(**changes: Any) -> tuple[Any, ...]:
    """Of a conv3d in PyTorch's order."""
    usual: dict[str, Any] = {
        "x": torch.ones(2, 4, 3, 5, 6), "weight": torch.ones(4, 4, 1, 3, 3), "bias": torch.ones(4),
        "stride": (1, 1, 1), "padding": 0, "dilation": [1, 1, 1], "groups": 1,
    }  # fmt: skip
    return (*{**usual, **changes}.values(),)


def key(found: tuple[Any, ...], function: Callable[..., Any] = noted) -> bytes:
    answer = calls().call(function, found)
    assert type(answer) is bytes
    return answer


def test_calls_that_differ_in_values_alone_have_one_key() -> None:
    assert key(arguments()) == key(arguments(x=torch.zeros(2, 4, 3, 5, 6)))
    assert key(arguments()) == key(arguments(weight=nn.Parameter(torch.ones(4, 4, 1, 3, 3))))
    assert key(arguments(dilation=(1, 1, 1))) == key(arguments())
    offset = torch.ones(3, 4, 3, 5, 6)[1:]
    assert key(arguments(x=offset)) == key(arguments()), "where it lies is no matter"
    one = torch.ones(1, 4, 3, 5, 6)
    assert key(arguments(x=one)) == key(
        arguments(x=one.as_strided(one.shape, (7, *one.stride()[1:])))
    )


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.ones(1, 4, 3, 5, 6)}, {"x": torch.ones(2, 4, 3, 6, 5)},
        {"x": torch.ones(2, 4, 3, 5, 6, dtype=torch.float64)},
        {"x": torch.ones(2, 4, 3, 5, 6).to(memory_format=torch.channels_last_3d)},
        {"x": torch.ones(2, 4, 3, 5, 7)[..., :6]}, {"x": torch.ones(4, 3, 5, 6)},
        {"x": torch.ones(2, 4, 3, 5, 6, dtype=torch.float16)},
        {"x": torch.ones(2, 4, 3, 5, 6, dtype=torch.bfloat16)},
        {"weight": torch.ones(4, 4, 3, 1, 3)}, {"bias": None}, {"bias": torch.ones(5)},
        {"stride": 1}, {"stride": (1, 1, 2)}, {"stride": (1,)}, {"padding": (0, 0, 0)},
        {"padding": 1}, {"padding": -1}, {"padding": 128}, {"padding": 1 << 40},
        {"dilation": [2, 1, 1]}, {"groups": 2},
    ],
)  # fmt: skip
def test_what_a_call_is_told_by_is_in_its_key(change: dict[str, Any]) -> None:
    assert key(arguments(**change)) != key(arguments())


def test_the_function_and_the_flags_are_in_the_key() -> None:
    assert key(arguments()) != key(arguments(), print)
    flagged = {calls(flags).call(noted, arguments()) for flags in ((), (no,), (lambda: True,))}
    assert len(flagged) == 3


def test_arguments_that_are_left_out_are_pytorchs_defaults() -> None:
    given = arguments(stride=1, padding=0, dilation=1, groups=1, bias=None)
    assert {key(given[:n]) for n in range(2, 8)} == {key(given)}


class Sub(torch.Tensor):
    """Brings rules of its own."""


@pytest.mark.parametrize(
    "found",
    [
        (), arguments()[:1], (*arguments(), 1), arguments(x=None), arguments(weight=3),
        arguments(x=torch.ones(2, 4, 3, 5, 6).as_subclass(Sub)), arguments(padding="same"),
        arguments(stride=(1.0, 1, 1)), arguments(stride=True), arguments(groups=1 << 64),
        arguments(stride=(1,) * 9), arguments(stride=torch.Size((1, 1, 1))),
        arguments(groups=None), arguments(x=torch.ones(2, 4, 3, 5, 6, device="meta")),
        arguments(x=torch.ones(1, 1, 2, 4, 3, 5)),
        arguments(x=torch.ones(2, 4).to_sparse()),
    ],
)  # fmt: skip
def test_what_no_key_is_made_of_has_none(found: tuple[Any, ...]) -> None:
    assert calls().call(noted, found) is None


def test_a_wrapper_of_a_transform_has_no_key() -> None:
    seen = []
    x, weight = torch.ones(3, 2, 1, 1, 1), torch.ones(2, 1, 1, 1, 1)
    torch.func.vmap(lambda t: (seen.append(calls().call(noted, (t, weight))), t)[1])(x)
    assert seen == [None]


def test_without_a_reader_no_call_has_a_key() -> None:
    blind = _core.KnownCalls(None, TYPES, (no,), (no,), lambda: 0.0)
    assert blind.call(noted, arguments()) is None


@pytest.mark.parametrize(
    ("table", "lie"),
    [
        ({"version": (2, 0)}, {}), ({"describes": False}, {}), ({}, {"ndim": -1}),
        ({}, {"shape": (1,) * 6, "strides": (1,) * 6}), ({}, {"shape": None, "ndim": 2}),
        ({}, {"strides": None}),
    ],
)  # fmt: skip
def test_a_producer_that_says_less_gives_no_key(table: dict[str, Any], lie: dict[str, Any]) -> None:
    exchange, sound = Exchange(**table), Exchange()
    told, honest = (Described(**lie), Described()), (Described(), Described())
    types = (Described,)
    assert _core.KnownCalls(exchange.capsule, types, (), (), no).call(noted, told) is None
    assert _core.KnownCalls(sound.capsule, types, (), (), no).call(noted, honest)


def test_a_known_call_goes_straight_and_is_counted() -> None:
    ticks = count()
    known = calls(clock=lambda: float(next(ticks) ** 2))  # calls of 1, 5, 9 seconds
    found = arguments()
    name = known.call(noted, found)
    assert known.take() == []
    known.add(name, "who")
    for _ in range(3):
        assert known.call(noted, found) == found
    assert known.take() == [("who", 3, 15.0, 9.0)]
    assert known.take() == []
    known.call(noted, found)
    known.add(name, "another")  # keeps what was counted
    assert known.take() == [("who", 1, 13.0, 13.0)]


def test_a_known_call_is_held_back_where_one_function_says_so() -> None:
    held = [False, False]
    known = calls(holds=(lambda: held[0], lambda: held[1]))
    found = arguments()
    name = known.call(noted, found)
    known.add(name, "who")
    assert known.call(noted, found) == found
    for held[:] in ([True, False], [False, True]):
        assert known.call(noted, found) == name
    held[:] = [False, False]
    assert known.call(noted, found) == found
    assert known.take()[0][1] == 2


def test_what_a_function_raises_passes_and_is_not_counted() -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("seven")

    known = calls(clock=lambda: 4.0)
    known.add(known.call(fails, arguments()), "who")
    assert known.failed() is None
    with pytest.raises(ZeroDivisionError, match="seven"):
        known.call(fails, arguments())
    assert known.failed() == ("who", 4.0)
    assert known.failed() is None
    assert known.take() == []


@pytest.mark.parametrize("place", ["flags", "holds", "clock"])
def test_what_a_question_raises_passes(place: str) -> None:
    def fails() -> Any:
        raise LookupError("nine")

    known = calls(**{place: fails if place == "clock" else (fails,)})  # type: ignore[arg-type]
    name = calls().call(noted, arguments())
    known.add(name, "who")
    with pytest.raises(LookupError, match="nine"):
        known.call(noted, arguments())
    assert known.failed() is None, "the function was not called"


def test_wrong_arguments_are_refused_in_words() -> None:
    for wrong in ((), (noted,), (noted, [1]), (noted, (), 1)):
        with pytest.raises(TypeError, match="call takes a function and a tuple"):
            calls().call(*wrong)
    assert calls((no,) * 9).call(noted, arguments()) is None
    with pytest.raises(ValueError, match="PyCapsule_GetPointer"):
        _core.KnownCalls("no capsule", TYPES, (), (), no).call(noted, arguments())


def test_what_it_holds_can_be_collected_in_a_cycle() -> None:
    class Owner:
        known: _core.KnownCalls

    owner = Owner()
    owner.known = calls()
    owner.known.add(b"key", owner)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None
