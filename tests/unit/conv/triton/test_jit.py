"""What a compiled kernel is kept under: nothing that it was compiled for may be missing."""

from __future__ import annotations

import dataclasses
import logging
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from hy3d_rocm.conv.triton import jit
from hy3d_rocm.conv.triton.item import Launch

ITEM = Launch("conv_rows", (1, 1, 1), (("x", 0), ("weight", 0), ("out", 0)), (), (), 4, 2)


def operands(tensors: dict[str, torch.Tensor]) -> jit.Operands:
    addresses = tuple(tensors[n].data_ptr() if n in tensors else 0 for n in jit.NAMES)
    far = {n for n, t in tensors.items() if not jit.is_small(t.numel() * t.element_size())}
    return jit.Operands(addresses, torch.float16, None, far, lambda: tensors)


@pytest.fixture
def key_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    found: list[int] = []
    monkeypatch.setattr(jit, "_first", lambda item, operands, known: found.append(known))

    def key(**tensors: torch.Tensor) -> int:
        half = torch.zeros(64, dtype=torch.float16)
        jit.launch(ITEM, operands({"x": half, "weight": half, "out": half} | tensors))
        return found[-1]

    return key


def test_the_same_call_has_the_same_key(key_of: Any) -> None:
    assert key_of() == key_of()


def test_equal_launches_do_not_share_kernels() -> None:
    # Their operands may be of other types: a narrow convolution stores float32 sums.
    other = dataclasses.replace(ITEM, operands=(*ITEM.operands[:2], ("sums", 0)), compiled={})
    ITEM.compiled[0, None] = object()
    assert not other.compiled
    assert not Launch("conv_rows", (1, 1, 1), ITEM.operands, (), (), 4, 2).compiled
    ITEM.compiled.clear()


def test_the_alignment_of_every_pointer_is_part_of_the_key(key_of: Any) -> None:
    half = torch.zeros(65, dtype=torch.float16)
    keys = {key_of(**{name: half[1:]}) for name in ("x", "weight", "out")}
    assert len(keys | {key_of()}) == 4


def test_calls_that_may_need_other_kernels_do_not_share_what_is_ready() -> None:
    half = torch.zeros(80, dtype=torch.float16)
    ways = [{"x": half, "weight": half, "out": half} | {name: half[first:]}
            for name in ("x", "weight", "out") for first in (1, 4, 8)]  # fmt: skip
    # 8 elements on is aligned like 0: the same kernel serves.
    assert len({operands(tensors).key for tensors in ways}) == 7


def test_tensors_that_need_64_bit_offsets_have_keys_of_their_own(key_of: Any) -> None:
    # Triton's AMD backend addresses tensors below 2 GiB with 32-bit offsets.
    large = torch.empty(2**31, dtype=torch.int8).view(torch.float16)  # never touched
    small = torch.empty(2**31 - 2, dtype=torch.int8).view(torch.float16)
    assert key_of(x=large) != key_of(x=small) == key_of()
    assert key_of(out=large) != key_of(x=large)


# Kernels of a Triton that launches otherwise. No GPU: launchers are doubles that note their calls.


class Launcher:
    """A compiled kernel whose run() raises what it is told to."""

    function, packed_metadata = 5, (4, 1, 0)

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.calls = error, list[tuple[Any, ...]]()

    def run(self, *args: Any) -> None:
        self.calls.append(args)
        if self.error is not None:
            raise self.error


@pytest.fixture
def through_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Launch]]:
    """The launches that went through Triton; a process in which nothing was launched yet."""
    found: list[Launch] = []
    monkeypatch.setattr(jit, "_direct", jit._Direct())
    monkeypatch.setattr(jit, "_first", lambda item, *_: found.append(item))
    ITEM.calls.clear()
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 77, raising=False)
    yield found
    ITEM.compiled.clear()
    ITEM.calls.clear()


def start(compiled: Any) -> None:
    """A launch where `compiled` is known since an earlier one."""
    half = torch.zeros(64, dtype=torch.float16)
    aligned = half.data_ptr() % 16 == 0
    ITEM.compiled[(2 + aligned) * 21, None] = compiled
    ITEM.calls.clear()
    again()


def again() -> None:
    half = torch.zeros(64, dtype=torch.float16)
    jit.launch_all((ITEM,), operands({"x": half, "weight": half, "out": half}))


def test_a_kernel_is_called_with_what_triton_calls_it_with(through_triton: Any) -> None:
    compiled = Launcher()
    start(compiled)
    ((*grid, stream, function, packed, metadata, enter, leave, x, weight, out),) = compiled.calls
    assert (grid, stream, function, packed) == ([1, 1, 1], 77, 5, (4, 1, 0))
    assert metadata is enter is leave is None
    assert x == weight == out
    assert not through_triton


def test_a_call_that_is_ready_looks_at_nothing_of_the_kernel_again(through_triton: Any) -> None:
    compiled = Launcher()
    start(compiled)
    ITEM.compiled.clear()
    again()
    assert len(compiled.calls) == 2
    first, second = ([*args[:9], *args[12:]] for args in compiled.calls)
    assert first == second
    assert not through_triton


@pytest.mark.parametrize("error", [TypeError("takes 7 arguments"), RuntimeError("of a device")])
def test_what_is_ready_and_fails_is_told_apart_too(
    error: Exception, through_triton: list[Any]
) -> None:
    compiled = Launcher()
    start(compiled)
    compiled.error = error
    if isinstance(error, TypeError):
        again()
        assert through_triton == [ITEM]
    else:
        with pytest.raises(RuntimeError):
            again()
        assert not through_triton


def bare() -> Any:
    """A compiled kernel of a Triton without packed_metadata."""
    return types.SimpleNamespace(run=lambda *_: None, function=5)


@pytest.mark.parametrize(
    "make", [lambda: Launcher(TypeError("takes 7 arguments")), bare,
             lambda: Launcher(ValueError("not enough values")), lambda: Launcher(KeyError("x"))],
    ids=["arguments", "attribute", "value", "key"],
)  # fmt: skip
def test_a_triton_that_launches_otherwise_is_left_to_itself_for_good(
    make: Callable[[], Any], through_triton: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "hy3d_rocm"):
        start(make())
        assert through_triton == [ITEM], "the same call is done by Triton"
        healthy = Launcher()
        start(healthy)
    assert through_triton == [ITEM, ITEM]
    assert not healthy.calls
    (line,) = caplog.messages
    assert "launches kernels in another way" in line


def test_a_later_misfit_is_recovered_too(through_triton: list[Any]) -> None:
    start(Launcher())
    start(Launcher(TypeError("takes 7 arguments")))
    assert through_triton == [ITEM]


@pytest.mark.parametrize("error", [RuntimeError("Triton Error [HIP]"), ValueError("of a driver")])
def test_what_a_device_says_is_not_tried_again(error: Exception, through_triton: list[Any]) -> None:
    start(Launcher())
    with pytest.raises(type(error)):
        start(Launcher(error))
    assert not through_triton
    assert jit._direct.usable
