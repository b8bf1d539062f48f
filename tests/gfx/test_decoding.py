"""What the decoder reads in a code object against the assembly text that LLVM wrote beside it."""

from __future__ import annotations

import re
from typing import Any

import gfx_kernels as kernels
import pytest
from gfx_kernels import ARCHES, compiled

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


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("kernel", "types", "constants"), [
    (kernels.reduce_rows, "*fp32 *fp32 *fp32 i32", {"ROWS": 8, "BLOCK": 64}),
    (kernels.multiply, "*fp16 *fp16 *fp32 i32 i32 i32", {"BM": 32, "BN": 32, "BK": 32}),
    (kernels.divide, "*fp64 *fp64 *fp64", {"BLOCK": 128}),
    (kernels.atomics, "*i32 *i32 *i64 *i64 i32", {"BLOCK": 128}),
], ids=lambda v: getattr(v, "__name__", ""))  # fmt: skip
def test_names_are_those_of_the_assembly(
    arch: str, kernel: Any, types: str, constants: dict[str, int]
) -> None:
    made = compiled(kernel, arch, types, **constants)
    assert decoded(kernels.program_of(made, arch)) == written(made.asm["amdgcn"])
