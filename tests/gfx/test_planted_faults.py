"""What the execution of AMD code would miss if it could miss anything: faults put in by hand, each
of which must be found. A convolution of the tier on integers, launched by the tier's own code."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gfx_problems
import how_much
import pytest

from hy3d_rocm.conv.triton import kernel, plan
from hy3d_rocm.conv.triton.configs import Config
from tools.dev import variants
from tools.dev.gfx import driver, machine
from tools.dev.gfx.decode import Instruction, decode

ARCHES = ("gfx1100", "gfx1201", "gfx942")
WAITS = ("s_waitcnt", "s_wait_loadcnt", "s_wait_dscnt", "s_wait_kmcnt", "s_wait_loadcnt_dscnt")
# Of conv_rows' waits, removed one at a time: how many are noticed, and how many there are.
FOUND = {"gfx1100": (15, 17), "gfx1201": (16, 18), "gfx942": (17, 21)}
TILE = Config(64, 64, 32, 4, 2)
NOP = (0xBF800000).to_bytes(4, "little")  # s_nop 0, on all three
KERNEL = Path(kernel.__file__)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@functools.cache
def convolution(arch: str, dtype: str) -> tuple[Any, Any]:
    """A variant of conv_rows and the convolution that launches it."""
    found = variants.sources(arch, dtype, tiles=[TILE], select=variants.values)
    variant, source = next(
        (v, s) for v, s in found.items() if v.function == "conv_rows" and v.form == "small"
    )
    return variant, gfx_problems.wide_enough(variant, source, arch)


def outcome(arch: str, cache: Path, dtype: str = "f16") -> str:
    """What comes of a padded 3x3x3 convolution on integers: "right", "differing", or the kind of a
    fault."""
    variant, source = convolution(arch, dtype)
    with driver.install(arch, cache) as device:
        try:
            result = next(gfx_problems.run(variant, source, arch, 3))
        except machine.Fault as fault:
            return fault.kind
        assert {one.kernel.name for one in device.launches} >= {"conv_rows"}
    return "differing" if result.differing else "right"


Patch = Callable[[Instruction, bytes], bytes]


def patched(monkeypatch: pytest.MonkeyPatch, name: str, patch: Patch) -> list[Instruction]:
    """Changes the machine code of a kernel as it is loaded; the instructions that were changed."""
    load, changed = machine.Program.load.__func__, []  # type: ignore[attr-defined]

    def patched_load(cls: Any, data: bytes, arch: str) -> Any:
        program = load(cls, data, arch)
        if program.name != name:
            return program
        code = bytearray(program.object.code)
        for one in decode(bytes(code), arch):
            before = bytes(code[one.pc : one.pc + one.size])
            after = patch(one, before)
            assert len(after) == len(before)
            if after != before:
                changed.append(one)
                code[one.pc : one.pc + one.size] = after
        return cls(replace(program.object, code=bytes(code)), arch)

    monkeypatch.setattr(machine.Program, "load", classmethod(patched_load))
    return changed


@pytest.mark.parametrize("arch", ARCHES)
def test_without_a_fault_it_is_right(arch: str, cache: Path) -> None:
    assert outcome(arch, cache) == "right"


@pytest.mark.parametrize("arch", ARCHES)
def test_a_wrong_stride_in_packing(arch: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = plan.make_packing

    def wrong(*args: Any) -> Any:
        made = pack(*args)
        assert made is not None
        numbers = list(made.numbers)
        at = [p.name for p in kernel.load_rows.params].index("s_t") - len(made.operands)
        numbers[at] += 1  # from an output to the next
        return replace(made, numbers=tuple(numbers))

    monkeypatch.setattr(plan, "make_packing", wrong)
    assert outcome(arch, cache) in ("differing", "bounds")


@pytest.fixture
def changed_kernels(tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Replaces the tier's kernels by a copy in which some text is another."""
    before = kernel.conv_rows

    def change(old: str, new: str) -> None:
        text = KERNEL.read_text()
        assert text.count(old) >= 1
        path = tmp_path / "changed_kernel.py"
        path.write_text(text.replace(old, new))
        spec = importlib.util.spec_from_file_location("changed_kernel", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["changed_kernel"] = module
        spec.loader.exec_module(module)
        kernel.conv_rows = module.conv_rows

    yield change
    kernel.conv_rows = before
    sys.modules.pop("changed_kernel", None)


WANTED, POSITIONS, CHANNELS = "wanted = ", "stored[:, None]", "(channel < N)[None, :]"
MASKS = {
    "positions": (f"{WANTED}{POSITIONS} & {CHANNELS}", WANTED + CHANNELS),
    "channels": (f"{WANTED}{POSITIONS} & {CHANNELS}", WANTED + POSITIONS),
    "rows that are read": ("row = tl.minimum(p, P - 1)", "row = p"),
}


@pytest.mark.parametrize(("of", "arch"), how_much.in_turns(MASKS, ARCHES))
def test_a_missing_mask(
    of: str, arch: str, cache: Path, changed_kernels: Callable[[str, str], None]
) -> None:
    """In the gate each on one architecture: the mask is one of the kernel's text."""
    changed_kernels(*MASKS[of])
    assert outcome(arch, cache) in ("differing", "bounds")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ARCHES)
def test_removed_waits(arch: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of conv_rows for loads are removed, one at a time: in the gate some, else each. One may
    pass that the next makes needless, or on a path that is not taken (FOUND)."""
    found, tried = 0, 0
    for number in how_much.of((3, 8, 13), range(1, 1000)):
        seen = 0

        def patch(one: Instruction, before: bytes, number: int = number) -> bytes:
            nonlocal seen
            seen += one.name in WAITS
            return NOP if one.name in WAITS and seen == number else before

        with monkeypatch.context() as context:
            changed = patched(context, "conv_rows", patch)
            what = outcome(arch, cache)
        if not changed:
            break
        assert what in ("hazard", "right")
        found, tried = found + (what == "hazard"), tried + 1
    assert tried == how_much.of(3, FOUND[arch][1])
    assert found >= how_much.of(2, FOUND[arch][0])


@pytest.mark.parametrize("arch", ARCHES)
def test_swapped_matrix_operands(arch: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def patch(one: Instruction, before: bytes) -> bytes:
        if not one.name.startswith(("v_wmma", "v_mfma")):
            return before
        raw, a, b = int.from_bytes(before, "little"), one.fields["src0"], one.fields["src1"]
        return (raw ^ ((a ^ b) << 32) ^ ((a ^ b) << 41)).to_bytes(len(before), "little")

    changed = patched(monkeypatch, "conv_rows", patch)
    assert outcome(arch, cache) == "differing"
    assert changed


@pytest.mark.parametrize("arch", ARCHES)
def test_a_removed_barrier(arch: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def patch(one: Instruction, before: bytes) -> bytes:
        return NOP if one.name.startswith("s_barrier") else before

    changed = patched(monkeypatch, "conv_rows", patch)
    assert outcome(arch, cache) == "hazard"
    assert changed
