"""What a compiled kernel is kept under: nothing that it was compiled for may be missing."""

from __future__ import annotations

import ast
import dataclasses
import logging
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from places import ROOT

from hy3d_rocm.conv.triton import ahead, jit
from hy3d_rocm.conv.triton.plan import Launch

NAMES = ("x", "weight", "out")
ITEM = Launch("conv_rows", (1, 1, 1), (("x", 0), ("weight", 0), ("out", 0)), (), (), 4, 2)


def launch_all(item: Launch, given: jit.Operands) -> Any:
    """The calls that are ready then, None if there are none."""
    made = types.SimpleNamespace(launches=(item,), calls={})
    jit.launch_all(made, "a form", given, 0)
    return made.calls.get("a form")


def operands(tensors: dict[str, torch.Tensor]) -> jit.Operands:
    made = [tensors[name] for name in NAMES]
    small = [jit.is_small(t.numel() * t.element_size()) for t in made]
    return jit.Operands(NAMES, [t.data_ptr() for t in made], small, None, made)


@pytest.fixture
def key_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the kernel of a first launch is kept under; the launch itself is a double's."""
    monkeypatch.setattr(jit, "by_triton", lambda *_: lambda: types.SimpleNamespace(metadata=()))
    monkeypatch.setattr(ahead, "note", lambda *_, **options: None)

    def key(item: Launch = ITEM, **tensors: torch.Tensor) -> Any:
        half = torch.zeros(64, dtype=torch.float16)
        monkeypatch.setattr(jit, "_compiled", {})
        given = operands({"x": half, "weight": half, "out": half} | tensors)
        launch_all(item, given)
        (found,) = jit._compiled
        return found

    return key


def test_what_triton_can_not_compile_is_an_error_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A RuntimeError, which the router and decode() know what to do about; others stay."""
    kind = type("CompilationError", (Exception,), {"__module__": "triton.compiler.errors"})
    refused = kind("at 3:7:\n  x\nno such thing")
    for raised, caught in ((refused, RuntimeError), (OSError(), OSError)):

        def compile_it(raised: Exception = raised) -> None:
            raise raised

        monkeypatch.setattr(jit, "by_triton", lambda *_: compile_it)
        half = torch.zeros(64, dtype=torch.float16)
        with pytest.raises(caught) as found:
            launch_all(ITEM, operands({"x": half, "weight": half, "out": half}))
        if caught is RuntimeError:
            assert str(found.value) == "Triton can't compile conv_rows: no such thing"


def test_no_kernel_has_a_chain_of_three_booleans() -> None:
    """Which Triton 3.2 and 3.3 refuse; (a or b) or c is none."""
    files = [
        path for path in (ROOT / "hy3d_rocm").rglob("*.py") if "@triton.jit" in path.read_text()
    ]
    assert len(files) >= 3
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            jitted = isinstance(node, ast.FunctionDef) and any(
                "triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list
            )
            chains = [
                ast.unparse(part) for part in (ast.walk(node) if jitted else ())
                if isinstance(part, ast.BoolOp) and len(part.values) > 2
            ]  # fmt: skip
            assert not chains, (path.name, chains)


def test_the_same_call_has_the_same_key(key_of: Any) -> None:
    assert key_of() == key_of()


def test_operands_of_other_types_have_kernels_of_their_own(key_of: Any) -> None:
    # A narrow convolution stores float32 sums by the same launch.
    assert key_of(out=torch.zeros(64)) != key_of()


@pytest.mark.parametrize(
    "change", [{"constants": (1,)}, {"num_warps": 8}, {"num_stages": 3}, {"kernel": "load_rows"}],
)  # fmt: skip
def test_what_a_launch_fixes_is_part_of_the_key(change: dict[str, Any], key_of: Any) -> None:
    assert key_of(dataclasses.replace(ITEM, **change)) != key_of()
    assert key_of(dataclasses.replace(ITEM, grid=(2, 1, 1), numbers=(5,))) == key_of()


def test_the_alignment_of_every_pointer_is_part_of_the_key(key_of: Any) -> None:
    half = torch.zeros(73, dtype=torch.float16)
    keys = {key_of(**{name: half[1:]}) for name in NAMES}
    assert len(keys | {key_of()}) == 4
    # 8 elements on is aligned like 0: the same kernel serves.
    assert {key_of(**{name: half[8:]}) for name in NAMES} == {key_of()}


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
def through_triton(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches that went through Triton; a process in which nothing was launched yet."""
    found: list[Launch] = []

    def by_triton(item: Launch, given: Any) -> Callable[[], Any]:
        return lambda: found.append(item)

    monkeypatch.setattr(jit, "_direct", jit._Direct())
    monkeypatch.setattr(jit, "_compiled", {})
    monkeypatch.setattr(jit, "by_triton", by_triton)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 77, raising=False)
    return found


def start(compiled: Any) -> Any:
    """A launch where `compiled` is known since an earlier one; the call that is ready then."""
    fact = ahead.Facts(torch.float16, True, True)
    jit._compiled[*ITEM.compiled_for, fact, fact, fact, None] = compiled
    half = torch.zeros(64, dtype=torch.float16)
    assert half.data_ptr() % 16 == 0
    given = operands({"x": half, "weight": half, "out": half})
    return launch_all(ITEM, given)


def again(calls: Any) -> int:
    return jit.launch_ready(calls, [16, 16, 16], None)


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
    calls = start(compiled)
    jit._compiled.clear()
    assert again(calls) == 1
    assert len(compiled.calls) == 2
    first, second = ([*args[:9], *args[12:]] for args in compiled.calls)
    assert first == second
    assert not through_triton


@pytest.mark.parametrize("error", [TypeError("takes 7 arguments"), RuntimeError("of a device")])
def test_what_is_ready_and_fails_is_told_apart_too(
    error: Exception, through_triton: list[Any]
) -> None:
    compiled = Launcher()
    calls = start(compiled)
    compiled.error = error
    if isinstance(error, TypeError):
        assert again(calls) == 0, "nothing was launched: the caller goes through Triton"
        assert start(compiled) is None
        assert through_triton == [ITEM]
    else:
        with pytest.raises(RuntimeError):
            again(calls)
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
