"""What the decoder reads in a code object against the assembly text that LLVM wrote beside it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gfx_kernels as kernels
import how_much
import pytest
from gfx_kernels import ARCHES, compiled

from tools.dev.gfx import opcodes

_ENCODING = re.compile(r"(_e32|_e64|_dpp|_sdwa)+$")


def written(assembly: str) -> list[list[str]]:
    """The mnemonics of a kernel's assembly text, of a dual instruction both; without s_nop, which
    also fills what is aligned."""
    found = []
    for line in assembly.split(".Lfunc_end0")[0].splitlines():
        text = line.split(";")[0].strip()
        if re.match(r"[a-z]\w+(\s|$)", text) and not text.startswith("s_nop"):
            found.append([_ENCODING.sub("", half.split()[0]) for half in text.split("::")])
    return found


def decoded(program: Any) -> list[list[str]]:
    """The same of the decoder."""
    return [
        [re.sub(r"(v_accvgpr_(read|write))$", r"\1_b32", name) for name in (one.name, one.second)
         if name]
        for one in program.instructions
        if one.name != "s_nop"
    ]  # fmt: skip


MATRIX = (kernels.multiply, "*fp16 *fp16 *fp32 i32 i32 i32", {"BM": 32, "BN": 32, "BK": 32})
OTHERS = (
    (kernels.reduce_rows, "*fp32 *fp32 *fp32 i32", {"ROWS": 8, "BLOCK": 64}),
    (kernels.divide, "*fp64 *fp64 *fp64", {"BLOCK": 128}),
    (kernels.atomics, "*i32 *i32 *i64 *i64 i32", {"BLOCK": 128}),
)


@pytest.mark.parametrize(
    ("of", "arch"),
    [*((MATRIX, arch) for arch in ARCHES), *how_much.in_turns(OTHERS, tuple(ARCHES))],
    ids=lambda v: v if isinstance(v, str) else v[0].__name__,
)
def test_names_are_those_of_the_assembly(of: tuple[Any, str, dict[str, int]], arch: str) -> None:
    """In the gate a kernel without matrices on one architecture."""
    kernel, types, constants = of
    made = compiled(kernel, arch, types, **constants)
    assert decoded(kernels.program_of(made, arch)) == written(made.asm["amdgcn"])


def test_the_list_of_instructions_is_made_of_compiled_kernels(tmp_path: Path) -> None:
    """What opcodes.py finds in a folder: names of each target, without their encoding."""
    for arch in ARCHES:
        made = compiled(kernels.masked_add, arch, "*fp32 *fp32 *fp32 i32", BLOCK=128)
        (tmp_path / f"{arch}.hsaco").write_bytes(made.asm["hsaco"])
    found = opcodes.used([tmp_path])
    assert {(arch, "v_add_f32") for arch in ARCHES} <= found
    assert ("gfx942", "global_load_dword") in found
    assert ("gfx1100", "global_load_b32") in found
    assert not {name for _, name in found if name.endswith(("_e32", "_e64"))}


@pytest.mark.parametrize("arch", ARCHES)
def test_the_descriptor_is_that_of_the_assembly(arch: str) -> None:
    """.amdhsa_ directives: what LLVM made the 64 bytes of the descriptor of."""
    types = "*fp16 *fp16 *fp32 i32 i32 i32"
    made = compiled(kernels.multiply, arch, types, BM=32, BN=32, BK=32)
    found = re.findall(r"^\s*\.amdhsa_(\w+) (\d+)$", made.asm["amdgcn"], re.M)
    asked = {name: int(value) for name, value in found}
    read = kernels.program_of(made, arch).object
    assert read.name == "multiply"
    assert read.kernarg_bytes == asked["kernarg_size"]
    assert read.lds_bytes == asked["group_segment_fixed_size"]
    assert read.scratch_bytes == asked["private_segment_fixed_size"]
    assert read.wave_size == (32 if asked.get("wavefront_size32") else 64)
    assert read.round_mode == (asked["float_round_mode_32"], asked["float_round_mode_16_64"])
    assert read.denormal_mode == (asked["float_denorm_mode_32"], asked["float_denorm_mode_16_64"])
    assert read.ieee == asked.get("ieee_mode", 0)
    assert asked["user_sgpr_kernarg_segment_ptr"] == 1
    assert read.kernarg_register == 0
    count = asked.get("user_sgpr_kernarg_preload_length", 0)
    assert read.preload == (2, count, asked.get("user_sgpr_kernarg_preload_offset", 0))
    if arch != "gfx1201":
        first = asked["user_sgpr_count"]
        assert read.group_registers == (first, first + 1, None)
    pointer, number = ("global_buffer", 8), ("by_value", 4)
    assert [(a.kind, a.size) for a in read.arguments][:6] == [pointer] * 3 + [number] * 3
    assert [a.offset for a in read.arguments][:6] == [0, 8, 16, 24, 28, 32]


def test_the_recursion_limit_stays() -> None:
    """tinygrad sets it to what a stack does not hold, for all that runs after it."""
    code = (
        "import sys; from tools.dev.gfx import decode, opcodes; before = sys.getrecursionlimit();"
        "decode._formats('rdna3'); opcodes.pseudo_code('rdna3'); decode._buffer_names('rdna4');"
        "assert 'tinygrad.schedule.rangeify' in sys.modules; "
        "assert sys.getrecursionlimit() == before, sys.getrecursionlimit()"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=120)
