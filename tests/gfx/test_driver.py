"""Launches on the emulator as Triton and conv/triton/jit.py make them: arguments, memory, refusals.
Kernels are compiled; nothing is executed, but noted."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launch_kernels
import pytest
import torch

from hy3d_rocm.conv.problem import Problem
from hy3d_rocm.conv.triton import configs, jit, launch, steps
from hy3d_rocm.conv.triton.plan import Layout
from hy3d_rocm.conv.triton.work import Target
from tools.dev.gfx import driver, host, machine

ARCHES = ("gfx1100", "gfx1201", "gfx942")


class Noted:
    """The calls of Program.run."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.grids: list[tuple[int, int, int]] = []
        self.threads: list[int] = []
        self.programs: list[Any] = []
        self.parts: list[list[tuple[int, int, str, bool]]] = []


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    found = Noted()

    class Memory:
        def __init__(self) -> None:
            self.parts: list[tuple[int, int, str, bool]] = []

        def add(self, address: int, size: int, name: str = "", writable: bool = True) -> None:
            self.parts.append((address, size, name, writable))

    def run(self: Any, grid: Any, threads: int, kernarg: bytes, memory: Any) -> Any:
        found.programs.append(self)
        found.grids.append(grid)
        found.threads.append(threads)
        found.blocks.append(kernarg)
        found.parts.append(memory.parts)
        return machine.Counts(0)

    monkeypatch.setattr(machine.Program, "run", run)
    monkeypatch.setattr(machine, "Memory", Memory)
    return found


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture
def device(noted: Noted, cache: Path) -> Iterator[driver.Device]:
    with driver.install("gfx1100", cache) as found:
        yield found


VALUES = {
    "flag": True, "tiny": -5, "short": -300, "plain": -70_000, "wide": 2**40 + 1, "half": 1.5,
    "brain": -2.0, "single": 0.1, "double": 0.1, "byte": 200, "far": 2**63 + 5,
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHES)
def test_arguments_lie_where_the_code_object_has_them(arch: str, noted: Noted, cache: Path) -> None:
    x, out = torch.zeros(64, dtype=torch.float16), torch.zeros(64, dtype=torch.float64)
    with driver.install(arch, cache) as device:
        launch_kernels.mixed[(2, 3)](x=x, out=out, last=out[32:], BLOCK=32, num_warps=1, **VALUES)
    (block,), (program,), (launched,) = noted.blocks, noted.programs, device.launches
    assert len(block) == program.kernarg_bytes
    names = [n for n, kind in launched.kernel.signature if kind != "constexpr"]
    pointers = {"x": x.data_ptr(), "out": out.data_ptr(), "last": out[32:].data_ptr()}
    found, letters = {}, dict(zip("flag tiny short plain wide half single double byte far".split(),
                                  "bbhiqefdBQ", strict=True))  # fmt: skip
    for name, argument in zip(names, program.arguments, strict=False):
        part = block[argument.offset : argument.offset + argument.size]
        if name == "brain":
            (found[name],) = struct.unpack("<f", b"\0\0" + part)
        else:
            (found[name],) = struct.unpack("<" + letters.get(name, "Q"), part)
    assert found == VALUES | pointers | {"single": struct.unpack("f", struct.pack("f", 0.1))[0]}
    scratch = program.arguments[len(names) :]
    assert [(a.size, a.kind) for a in scratch] == [(8, "global_buffer")] * 2
    assert block[scratch[0].offset :].strip(b"\0") == b""
    assert noted.grids == [(2, 3, 1)]
    assert noted.threads == [configs.wave_size(arch)]


def test_a_layout_other_than_the_code_objects_is_refused(
    device: driver.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.zeros(64)
    plain = driver.kernarg_layout
    monkeypatch.setattr(driver, "kernarg_layout", lambda types: plain([*types, "i64"]))
    with pytest.raises(
        driver.LaunchError, match=r"add: arguments are packed as \(32, 8, 'by_value"
    ):
        launch_kernels.add[(1,)](x, x, x, 64, BLOCK=64)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"plain": 2**31}, "an argument of the type i32"),
        ({"wide": 2**63}, "an argument of the type i64"),
        ({"half": 1e6}, "an argument of the type fp16"),
    ],
)
def test_a_number_that_its_type_does_not_hold_is_refused(
    change: dict[str, Any], words: str, device: driver.Device
) -> None:
    with pytest.raises(driver.LaunchError, match=words):
        driver.pack(["i32", "i64", "fp16"], ({"plain": 1, "wide": 1, "half": 1} | change).values())


def test_a_launch_is_given_its_tensors_from_first_to_last_element(
    device: driver.Device, noted: Noted
) -> None:
    wide = torch.zeros(8, 40)
    x, y = wide[1:3, 4:20], torch.zeros(64)
    launch_kernels.add[(1,)](x, y, y, 32, BLOCK=32)
    assert noted.parts == [
        [(wide.data_ptr() + 44 * 4, (40 + 16) * 4, "x", True), (y.data_ptr(), 256, "y, out", True)]
    ]


def test_lds_is_what_the_launch_asks_for(device: driver.Device, noted: Noted) -> None:
    x = torch.zeros(64, 64, dtype=torch.float16)
    launch_kernels.shared[(1,)](x, x.float(), BM=64)
    assert 0 < noted.programs[0].lds_bytes <= 65536


def problem(**fields: Any) -> Problem:
    """A 3x3x3 with padding, whose weight is packed, in half precision."""
    base: dict[str, Any] = {
        "batch": 1, "channels": 8, "outputs": 16, "groups": 1, "size": (2, 4, 5),
        "kernel": (3, 3, 3), "stride": (1, 1, 1), "dilation": (1, 1, 1), "pad_before": (1, 1, 1),
        "pad_after": (1, 1, 1), "itemsize": 2,
    }  # fmt: skip
    return Problem(**(base | fields))


def convolve(times: int) -> tuple[Any, ...]:
    """The same convolution several times; its tensors and steps."""
    p = problem()
    x, weight = torch.zeros(1, 8, 2, 4, 5).half(), torch.zeros(16, 8, 3, 3, 3).half()
    bias, out = torch.zeros(16).half(), torch.zeros(1, 16, 2, 4, 5).half()
    target = Target("gfx1100", 1, tile=configs.offered("gfx1100", "f16")[-1])
    made = steps.make_steps(p, Layout.of(x, out, weight), "f16", True, target)
    for _ in range(times):
        launch._carry_out(made, x, weight, bias, out)
    return x, weight, bias, out, made


def test_both_ways_to_launch_give_the_same_arguments_and_memory(
    device: driver.Device, noted: Noted
) -> None:
    """By Triton at first, then bound and called, then called from what the steps keep."""
    _, _, _, _, made = convolve(3)
    assert [one.kernel.name for one in device.launches] == ["load_rows_and_weight", "conv_rows"] * 3
    assert [one.direct for one in device.launches] == [False, False] + [True] * 4
    assert made.calls
    assert jit._direct.usable
    for k in (0, 1):  # but for where the workspace lies
        first, *rest = noted.blocks[k::2]
        parts, *others = noted.parts[k::2]
        pointers = (6, 5)[k] * 8
        assert all(block[pointers:] == first[pointers:] for block in rest)
        for other in others:
            assert [part[1:] for part in other] == [part[1:] for part in parts]


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_convolutions_launches_are_given_its_operands_alone(
    number: int, device: driver.Device, noted: Noted
) -> None:
    x, weight, bias, out, made = convolve(3)
    rows, sums, end = made.offsets
    launched = device.launches[number]
    at = launched.values["y"]
    start = at - rows
    assert sorted(noted.parts[number]) == sorted([
        (*host.reach(x), "x", False), (*host.reach(weight), "w", False),
        (at, made.rows_elems * 2, "y", True), (start, made.packed_elems * 2, "packed", True),
    ])  # fmt: skip
    again = device.launches[number + 1].values["x"]
    assert sorted(noted.parts[number + 1]) == sorted([
        (again, made.rows_elems * 2, "x", False), (*host.reach(bias), "bias", False),
        (again - rows, made.packed_elems * 2, "w", False), (*host.reach(out), "out, parts", True),
    ])  # fmt: skip
    assert sums == end  # no sums


def test_what_the_compiler_was_told_of_a_pointer_must_hold(device: driver.Device) -> None:
    x = torch.zeros(65)
    compiled = launch_kernels.add[(1,)](x, x, x, 64, BLOCK=64)
    device.given = [driver.Span(*host.reach(x))] * 3
    packed, at = compiled.packed_metadata, x.data_ptr()
    arguments = (1, 1, 1, 0, compiled.function, packed, None, None, None)
    with pytest.raises(driver.LaunchError, match=r"y is 0x.*4, and was compiled for multiples of"):
        compiled.run(*arguments, at, at + 4, at, 64, 64)
    device.given = [driver.Span(at, 2**31)] * 3
    with pytest.raises(driver.LaunchError, match=r"x has 2147483648 bytes, .* less than 2 GiB"):
        compiled.run(*arguments, at, at, at, 64, 64)
    device.given = [driver.Span(*host.reach(x))] * 3
    with pytest.raises(driver.LaunchError, match="BLOCK is 32, but was compiled as 64"):
        compiled.run(*arguments, at, at, at, 64, 32)
    with pytest.raises(driver.LaunchError, match="x is an address of no known tensor"):
        compiled.run(*arguments, at, at, at, 64, 64)


def test_a_fault_of_any_kind_is_not_taken_for_another_triton(
    device: driver.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any) -> Any:
        raise ValueError("not executed")

    monkeypatch.setattr(machine.Program, "run", run)
    with pytest.raises(driver.LaunchError, match="load_rows_and_weight: ValueError: not executed"):
        convolve(1)
    assert jit._direct.usable


def test_everything_is_as_before_when_the_device_is_left(noted: Noted, cache: Path) -> None:
    from triton.runtime.driver import driver as triton_driver

    before = (torch.empty, jit.launch, jit.bind, launch._carry_out, os.environ.copy(),
              triton_driver._active, torch.cuda.current_device, jit._compiled)  # fmt: skip
    with driver.install("gfx942", cache):
        assert torch.empty(3).isnan().all()
        assert torch.empty(3, dtype=torch.uint8).eq(255).all()
        assert jit.launch is not before[1]
    after = (torch.empty, jit.launch, jit.bind, launch._carry_out, os.environ.copy(),
             triton_driver._active, torch.cuda.current_device, jit._compiled)  # fmt: skip
    assert after == before


def test_the_interpreter_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set"):
        driver.install("gfx1100")
