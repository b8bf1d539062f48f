"""The instructions that our kernels use, which opcodes.txt lists, and the pseudo-code of each.

    python -m tools.dev.gfx.opcodes FOLDER... > tools/dev/gfx/opcodes.txt

A folder is one of Triton's caches, which holds compiled kernels (*.hsaco): that of check_gfx.py,
check_fused_gfx.py or check_raster_gfx.py. Kernels that spill into scratch memory are left out: none
of them is launched. The list has a line for each target and instruction: "gfx1100 v_add_f32".
"""

from __future__ import annotations

import functools
import re
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.dev.gfx import code_object
from tools.dev.gfx.decode import INSTRUCTION_SETS, decode, plain, tinygrad

LIST = Path(__file__).with_name("opcodes.txt")
GENERATIONS = {"cdna": 9, "rdna3": 11, "rdna4": 12}
# EF_AMDGPU_MACH of an ELF's flags.
_MACHINES = {0x41: "gfx1100", 0x46: "gfx1101", 0x4A: "gfx1151", 0x48: "gfx1200", 0x4E: "gfx1201",
             0x4C: "gfx942"}  # fmt: skip
_FLAGS_AT = 0x30

# What the printed pseudo-code leaves open, or has wrong: (the instruction, what is printed, what is
# meant). Quotients (tests/gfx/test_kernels.py) and maxima (test_known_arithmetic.py) are right with
# these.
_MENDED = (
    # The result is open where no branch sets it: it is the first source.
    (r"v_div_scale_f32", r"\AVCC = 0x0LL;", r"D0.f32 = S0.f32;\nVCC = 0x0LL;"),
    (r"v_div_scale_f64", r"\AVCC = 0x0LL;", r"D0.f64 = S0.f64;\nVCC = 0x0LL;"),
    # 1 / S1 is asked for in the format of S1; of a binary32 it is never a denormal binary64.
    (r"v_div_scale_f32", r"1\.0 / 64'F\(S1\.f32\) == DENORM\.f64", "1.0F / S1.f32 == DENORM.f32"),
    # A denominator so large that its reciprocal is denormal is made smaller: 64 would overflow.
    (r"v_div_scale_f(32|64)", r"(== DENORM\.f\d+\)\) then\s.*?ldexp\(S0\.f\d+, )", r"\1-"),
    # The scale is undone: what was scaled up by div_scale is large, what was scaled down small.
    (r"v_div_fmas_f32", r"2\.0F \*\* 32 \* (fma\([^)]*\))",
     r"exponent(S2.f32) > 127 ? 2.0F ** 64 * \1 : 2.0F ** -64 * \1"),
    (r"v_div_fmas_f64", r"2\.0 \*\* 64 \* (fma\([^)]*\))",
     r"exponent(S2.f64) > 1023 ? 2.0 ** 128 * \1 : 2.0 ** -128 * \1"),
    # Printed is a question that is never true there. Of a quotient that overflows on the way the
    # last fused multiply-add makes a NaN: no operand is one, so it can have come from there only.
    (r"v_div_fixup_f32", r"exponent\(S1\.f32\) == 255", "isNAN(64'F(S0.f32))"),
    (r"v_div_fixup_f64", r"exponent\(S1\.f64\) == 2047", "isNAN(S0.f64)"),
    # Compared with a signed zero, a number is asked for that zero.
    (r"v_(?:max|min)_f\d+", r"\((64'F\(S\d\.f32\)|S\d\.f64) == \+0\.0\)",
     r"(\1 == 0.0 && !sign(\1))"),
    (r"v_(?:max|min)_f\d+", r"\((64'F\(S\d\.f32\)|S\d\.f64) == -0\.0\)",
     r"(\1 == 0.0 && sign(\1))"),
)  # fmt: skip


def _mended(name: str, text: str) -> str:
    for instruction, printed, meant in _MENDED:
        if re.fullmatch(instruction, name):
            text = re.sub(printed, meant, text, flags=re.S)
    return text


@functools.cache
def pseudo_code(tables: str) -> Mapping[str, str]:
    """Of each instruction that computes its pseudo-code, by its plain name."""
    described = tinygrad(f"runtime.autogen.amd.{tables}.str_pcode").PCODE
    wanted = ("VOP1Op", "VOP2Op", "VOPCOp", "VOP3POp", "VOP3SDOp", "VOP3Op", "SOP1Op", "SOP2Op",
              "SOPCOp", "SOPKOp")  # fmt: skip
    found: dict[str, str] = {}
    for kind in wanted:
        for op, text in described.items():
            if type(op).__name__ == kind:
                found.setdefault(plain(op.name), _mended(plain(op.name), text))
    return found


def function_of(name: str) -> str:
    """The instruction that does the same, of which there is pseudo-code: a dual one alone, and
    fmamk and fmaak as what they are, a fused multiply-add with a literal."""
    return re.sub(r"^v_(fmamk|fmaak)_", "v_fma_", name.replace("v_dual_", "v_"))


def listed() -> dict[str, list[str]]:
    """Of each target the instructions of opcodes.txt."""
    found: dict[str, list[str]] = {arch: [] for arch in INSTRUCTION_SETS}
    for line in LIST.read_text().splitlines():
        arch, name = line.split()
        found[arch].append(name)
    return found


def used(folders: list[Path]) -> set[tuple[str, str]]:
    """(target, instruction) of the compiled kernels in some folders, of our three targets."""
    found = set()
    for path in sorted(one for folder in folders for one in folder.rglob("*.hsaco")):
        data = path.read_bytes()
        arch = _MACHINES.get(struct.unpack_from("<I", data, _FLAGS_AT)[0] & 0xFF)
        if arch is None:
            continue
        kernel = code_object.read(data, GENERATIONS[INSTRUCTION_SETS[arch]])
        for one in decode(kernel.code, arch) if not kernel.scratch_bytes else ():
            found |= {(arch, name) for name in (one.name, one.second) if name}
    return found


def main() -> int:
    for arch, name in sorted(used([Path(folder) for folder in sys.argv[1:]])):
        print(arch, name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
