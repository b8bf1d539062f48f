"""The short way to Triton's C launcher: the same call as by its CudaLauncher, or not taken.

No GPU: the C function and the encoding of a descriptor are doubles, all between them is Triton's.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hy3d_rocm.conv.triton import cuda, jit
from hy3d_rocm.conv.triton.item import Launch

triton = pytest.importorskip("triton", reason="no triton in this environment")
driver = pytest.importorskip("triton.backends.nvidia.driver", reason="no NVIDIA backend")
if not triton.__version__.startswith("3.6."):
    pytest.skip("the short way is for Triton 3.6", allow_module_level=True)

BLOCKS = (([100, 64], [64, 1], [16, 32]), ([8, 192], [192, 1], [16, 32]))
ITEM = Launch(
    "conv_rows", (5, 1, 2), (("rows", 0), ("weight", 8), ("bias", 0), ("out", 3)),
    (7, 2**40), (True, "ieee"), 4, 2, BLOCKS,
)  # fmt: skip
SIGNATURE = {
    "x": "tensordesc<fp16[16, 32]>", "w": "tensordesc<fp16[16, 32]>", "bias": "*fp16",
    "out": "*fp16", "P": "i32", "s": "i64", "FLAT": "constexpr", "PRECISION": "constexpr",
}  # fmt: skip
ADDRESSES = (0, 64, 128, 256, 512, 1024, 2048)


class World:
    """A compiled kernel; the calls of its C launcher; the addresses that were encoded."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.encoded: list[int] = []
        run = driver.CudaLauncher.__new__(driver.CudaLauncher)
        run.num_ctas = 1
        run.global_scratch_size = run.profile_scratch_size = 0
        run.global_scratch_align = run.profile_scratch_align = 1
        run.launch_cooperative_grid, run.launch_pdl = False, False
        run.launch = driver.wrap_handle_tensordesc(self._launch, SIGNATURE, [{"a": 1}, {"a": 2}])
        self.run = run
        self.compiled = types.SimpleNamespace(run=run, function=99, packed_metadata=(4, 1, 0))

    def _launch(self, *args: Any) -> None:
        self.calls.append(args)

    def encode(self, arg: Any, meta: Any) -> list[Any]:
        self.encoded.append(arg.base.data_ptr())
        return [("map", arg.base.data_ptr(), meta["a"]), *arg.shape, *arg.strides]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    monkeypatch.setattr(driver, "make_tensordesc_arg", found.encode)
    return found


def at() -> list[tuple[int, int]]:
    operands = jit.Operands(ADDRESSES, torch.float16, None, (), dict)
    return operands.at(ITEM)


def test_the_short_way_calls_what_tritons_launcher_calls(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = cuda.bind(ITEM, world.compiled, at())
    assert short is not None
    monkeypatch.setattr(cuda, "bind", lambda *_: None)
    for call in (jit.bind(ITEM, world.compiled, at()), short, short):
        call(ADDRESSES, 77)
    first, *others = world.calls
    assert first[:5] == (5, 1, 2, 77, 99)
    assert ("map", 1024, 1) in first
    assert ("map", 128 + 16, 2) in first
    assert others == [first, first]


def test_a_kernel_without_descriptors_is_launched_alike(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = dataclasses.replace(ITEM, blocks=(), calls={})
    world.run.launch = world._launch
    short = cuda.bind(item, world.compiled, at())
    assert short is not None
    monkeypatch.setattr(cuda, "bind", lambda *_: None)
    for call in (jit.bind(item, world.compiled, at()), short):
        call(ADDRESSES, 77)
    first, second = world.calls
    assert first == second
    assert first[-8:] == (1024, 144, 256, 518, *ITEM.numbers, *ITEM.constants)


def test_a_descriptor_is_encoded_once_for_each_address(world: World) -> None:
    short = cuda.bind(ITEM, world.compiled, at())
    assert short is not None
    for _ in range(3):
        short(ADDRESSES, 77)
    assert sorted(world.encoded) == [144, 1024]
    other = (*ADDRESSES[:5], 4096, ADDRESSES[6])
    short(other, 77)
    short(ADDRESSES, 77)
    assert sorted(world.encoded) == [144, 1024, 4096]
    assert world.calls[0] == world.calls[-1] != world.calls[-2]


def test_only_so_many_addresses_are_kept(world: World) -> None:
    short = cuda.bind(ITEM, world.compiled, at())
    assert short is not None
    for k in range(1000):
        short((*ADDRESSES[:5], 4096 * k, ADDRESSES[6]), 77)
        assert ("map", 4096 * k, 1) in world.calls[-1]
    assert len(world.calls) == 1000


def _without(name: str) -> Callable[[World], None]:
    return lambda world: delattr(world.run, name)


STRANGE: dict[str, Callable[[World], None]] = {
    "another launcher": lambda w: setattr(w.compiled, "run", lambda *_: None),
    "not wrapped": lambda w: setattr(w.run, "launch", w._launch),
    "a callable without code": lambda w: setattr(w.run, "launch", print),
    "no metadata": lambda w: setattr(
        w.run, "launch", driver.wrap_handle_tensordesc(w._launch, SIGNATURE, None)
    ),
    "other descriptors": lambda w: setattr(
        w.run, "launch",
        driver.wrap_handle_tensordesc(w._launch, {"P": "i32", **SIGNATURE}, [{"a": 1}] * 2),
    ),
    "memory for each launch": lambda w: setattr(w.run, "global_scratch_size", 8),
    "no scratch known": _without("profile_scratch_size"),
    "no cooperative launch known": _without("launch_cooperative_grid"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_not_tritons_launcher_as_known_is_not_short_cut(name: str, world: World) -> None:
    STRANGE[name](world)
    assert cuda.bind(ITEM, world.compiled, at()) is None


def test_another_triton_is_not_short_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "3.7.0")
    assert cuda.bind(ITEM, world.compiled, at()) is None
