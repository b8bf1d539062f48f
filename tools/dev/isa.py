"""What a compiled kernel asks of the hardware, read from LLVM's AMDGCN text.

Nothing here needs Triton, torch or a GPU: the input is the assembly that the compiler wrote, which
ends in a table of the kernel's resources (LLVM, "User Guide for AMDGPU Backend", code object V5
metadata). Counts are of instructions in the text, not of executions; `Isa.loop` counts the
innermost loop that holds the arithmetic, which is where the time goes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

LDS_LIMIT_BYTES = 64 * 1024

_FIELD = re.compile(r"^\s+(?:- )?\.(\w+):\s+(\S+)\s*$", re.M)
_LABEL = re.compile(r"^(\.?L?BB\w+):", re.M)
_BRANCH = re.compile(r"^s_(?:c?branch\w*)\s+(\.?L?BB\w+)")
_OPCODE = re.compile(r"^([a-z]\w+)\b")
_MEMORY = re.compile(r"^(global|buffer|flat)_(load|store)_(\w+)$")
_MATRIX_SHAPE = re.compile(r"_(\d+)x(\d+)x(\d+)")
_FMA = re.compile(r"^v_(?:pk_|dual_)?(?:fma|fmac|fmaak|fmamk|mad|mac|fma_mix|fma_mixlo)_")
_MATRIX_STARTS = {
    "v_wmma": "wmma", "v_swmmac": "wmma", "v_mfma": "mfma", "v_smfmac": "mfma",
    "v_dot2": "dot2", "v_dual_dot2": "dot2",
}  # fmt: skip
# Bytes a lane moves, by the last part of the opcode in the names of all generations.
_WIDTHS = {
    "u8": 1, "i8": 1, "ubyte": 1, "sbyte": 1, "d16": 2, "u16": 2, "i16": 2, "b16": 2,
    "ushort": 2, "sshort": 2, "short": 2, "b32": 4, "dword": 4, "b64": 8, "dwordx2": 8,
    "b96": 12, "dwordx3": 12, "b128": 16, "dwordx4": 16,
}  # fmt: skip


@dataclass(frozen=True)
class RegisterFile:
    """What limits the waves of one SIMD.

    `registers` are 32-bit VGPRs for each lane of the SIMD, handed out in multiples of `granule`,
    to at most `waves` waves. `lds_bytes` is shared by `simds` SIMDs.
    """

    registers: int
    granule: int
    waves: int
    lds_bytes: int
    simds: int

    def waves_by_registers(self, vgprs: int) -> int:
        return min(self.waves, self.registers // _round_up(max(vgprs, 1), self.granule))

    def waves_by_lds(self, lds: int, waves_a_group: int) -> int:
        """Waves a SIMD that the LDS lets in; a group's waves spread over all SIMDs."""
        if lds == 0:
            return self.waves
        groups = self.lds_bytes // lds
        return min(self.waves, groups * waves_a_group // self.simds)


# Source: LLVM, AMDGPUBaseInfo.cpp (getTotalNumVGPRs, getVGPRAllocGranule, getMaxWavesPerEU), which
# prints the same number as "; Occupancy:". A compute unit of CDNA has 64 KiB of LDS for four SIMDs;
# a work-group processor of RDNA has 128 KiB for four (two compute units).
_CDNA = RegisterFile(512, 8, 8, 64 * 1024, 4)
_CDNA4 = RegisterFile(512, 8, 8, 160 * 1024, 4)
_RDNA2 = RegisterFile(1024, 16, 16, 128 * 1024, 4)
_RDNA3_LARGE = RegisterFile(1536, 24, 16, 128 * 1024, 4)
_REGISTER_FILES = dict.fromkeys(("gfx90a", "gfx942"), _CDNA)
_REGISTER_FILES["gfx950"] = _CDNA4
_REGISTER_FILES |= {f"gfx103{k}": _RDNA2 for k in range(7)}
_REGISTER_FILES |= dict.fromkeys(("gfx1102", "gfx1103", "gfx1150", "gfx1152", "gfx1153"), _RDNA2)
_REGISTER_FILES |= dict.fromkeys(
    ("gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201"), _RDNA3_LARGE
)


def register_file(arch: str) -> RegisterFile:
    """The limits of an architecture; ValueError for one whose limits are not known here."""
    try:
        return _REGISTER_FILES[arch]
    except KeyError:
        known = ", ".join(sorted(_REGISTER_FILES))
        raise ValueError(f"no register limits for {arch!r}; known are {known}") from None


@dataclass(frozen=True)
class Mix:
    """Instructions of a piece of code, by what they do.

    `matrix` maps "wmma", "mfma" or "dot2" to a count; `macs` are the multiply-adds of one wave in
    matrix instructions and FMAs together; `loads` maps bytes a lane to a count of global loads.
    """

    matrix: Mapping[str, int]
    opcodes: tuple[str, ...]
    fma: int
    macs: int
    loads: Mapping[int, int]
    stores: Mapping[int, int]
    lds: int
    barriers: int
    masks: int
    total: int

    @property
    def matrix_count(self) -> int:
        return sum(self.matrix.values())


@dataclass(frozen=True)
class Isa:
    """One kernel: its resources, all of its instructions, and those of its inner loop."""

    arch: str
    wave_size: int
    vgprs: int
    agprs: int
    sgprs: int
    spilled_vgprs: int
    spilled_sgprs: int
    scratch_bytes: int
    lds_bytes: int
    num_warps: int
    code_bytes: int
    llvm_occupancy: int | None
    body: Mix
    loop: Mix | None

    @property
    def total_vgprs(self) -> int:
        """What the register file is asked for: CDNA appends AGPRs at the next multiple of 4."""
        return _round_up(self.vgprs, 4) + self.agprs if self.agprs else self.vgprs

    @property
    def waves_by_registers(self) -> int:
        return register_file(self.arch).waves_by_registers(self.total_vgprs)

    @property
    def waves(self) -> int:
        """Waves a SIMD holds, by registers and LDS; 0 where the limits of the card aren't known."""
        if self.arch not in _REGISTER_FILES:
            return 0
        limits = register_file(self.arch)
        return min(self.waves_by_registers, limits.waves_by_lds(self.lds_bytes, self.num_warps))


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _instructions(lines: Iterable[str]) -> list[str]:
    """Instructions without comments; both halves of a dual instruction; reloads marked."""
    found = []
    for line in lines:
        text, _, comment = line.strip().partition(";")
        if not text or text[0] in ".#" or text.split()[0].endswith(":"):
            continue
        spill = "Folded" in comment  # LLVM's mark of a spill or reload through scratch
        found += [("scratch " + part.strip()) if spill else part.strip()
                  for part in text.split("::")]  # fmt: skip
    return found


def _bytes_moved(suffix: str) -> int:
    """4 for "dword", 2 for "u16" and "d16_hi_b16": the widest part that names a width."""
    return max((_WIDTHS.get(part, 0) for part in suffix.split("_")), default=0)


def _matrix_kind(opcode: str) -> str | None:
    return next((kind for start, kind in _MATRIX_STARTS.items() if opcode.startswith(start)), None)


def _macs(opcode: str, kind: str | None, wave_size: int) -> int:
    shape = _MATRIX_SHAPE.search(opcode)
    if kind in ("wmma", "mfma") and shape:
        m, n, k = map(int, shape.groups())
        return m * n * k
    if kind == "dot2":
        return 2 * wave_size
    return (2 if opcode.startswith("v_pk_") else 1) * wave_size if _FMA.match(opcode) else 0


def _mix(instructions: Sequence[str], wave_size: int) -> Mix:
    matrix: Counter[str] = Counter()
    memory: dict[str, Counter[int]] = {"load": Counter(), "store": Counter()}
    counts: Counter[str] = Counter()
    names: Counter[str] = Counter()
    macs = 0
    for text in instructions:
        match = _OPCODE.match(text)
        opcode = match.group(1) if match else ""
        if kind := _matrix_kind(opcode):
            matrix[kind] += 1
            names[opcode] += 1
        counts["fma"] += bool(_FMA.match(opcode))
        macs += _macs(opcode, kind, wave_size)
        if moved := _MEMORY.match(opcode):
            memory[moved.group(2)][_bytes_moved(moved.group(3))] += 1
        counts["lds"] += opcode.startswith("ds_") and "permute" not in opcode
        counts["barriers"] += opcode in ("s_barrier", "s_barrier_signal")
        counts["masks"] += "saveexec" in opcode
    return Mix(
        matrix=dict(matrix), opcodes=tuple(name for name, _ in names.most_common()),
        fma=counts["fma"], macs=macs, loads=dict(memory["load"]), stores=dict(memory["store"]),
        lds=counts["lds"], barriers=counts["barriers"], masks=counts["masks"],
        total=len(instructions),
    )  # fmt: skip


def _loops(lines: Sequence[str]) -> list[tuple[int, int]]:
    """Line ranges from a label to a later branch back to it."""
    labels: dict[str, int] = {}
    found = []
    for number, line in enumerate(lines):
        if label := _LABEL.match(line):
            labels[label.group(1)] = number
        branch = _BRANCH.match(line.strip())
        if branch and branch.group(1) in labels:
            found.append((labels[branch.group(1)], number + 1))
    return found


def _inner_loop(lines: Sequence[str], wave_size: int) -> Mix | None:
    """The loop with the most arithmetic an instruction, which is the innermost that has any."""
    mixes = [_mix(_instructions(lines[first:last]), wave_size) for first, last in _loops(lines)]
    busy = [mix for mix in mixes if mix.macs]
    return max(busy, key=lambda mix: mix.macs / mix.total) if busy else None


def _comment_value(asm: str, name: str) -> int | None:
    found = re.search(rf"^; {name}(?::| =) (\d+)", asm, re.M)
    return int(found.group(1)) if found else None


def parse(asm: str, *, shared_bytes: int, num_warps: int) -> Isa:
    """The kernel of an AMDGCN text.

    `shared_bytes` is Triton's own figure (metadata "shared"): its LDS is sized at launch, so that
    ".group_segment_fixed_size" is 0. Raises ValueError where the text has no resource table.
    """
    start, end = asm.find(".amdgpu_metadata"), asm.find(".end_amdgpu_metadata")
    arch = re.search(r"amdgcn-amd-amdhsa--(gfx\w+)", asm)
    if start < 0 or end < start or arch is None:
        raise ValueError("this is no AMDGCN assembly: its resource table is missing")
    fields = dict(_FIELD.findall(asm[start:end]))
    number = {name: int(value) for name, value in fields.items() if value.isdigit()}
    lines = asm[: asm.find(".section", asm.find("s_endpgm"))].splitlines()
    wave_size = number["wavefront_size"]
    accumulators = number.get("agpr_count", 0)
    # On unified register files ".vgpr_count" is the sum; LLVM's comment has the vector part.
    vgprs = _comment_value(asm, "NumVgprs") if accumulators else None
    return Isa(
        arch=arch.group(1), wave_size=wave_size, agprs=accumulators,
        vgprs=number["vgpr_count"] if vgprs is None else vgprs, sgprs=number["sgpr_count"],
        spilled_vgprs=number["vgpr_spill_count"], spilled_sgprs=number["sgpr_spill_count"],
        scratch_bytes=number["private_segment_fixed_size"],
        lds_bytes=max(shared_bytes, number["group_segment_fixed_size"]), num_warps=num_warps,
        code_bytes=_comment_value(asm, "codeLenInByte") or 0,
        llvm_occupancy=_comment_value(asm, "Occupancy"),
        body=_mix(_instructions(lines), wave_size), loop=_inner_loop(lines, wave_size),
    )  # fmt: skip


def expected_kind(arch: str, dtype: str) -> str:
    """What should do the arithmetic of an "f16", "bf16" or "f32" kernel there.

    CDNA has MFMA for all three; RDNA3 and 4 have WMMA for the 16-bit types and plain FMA for f32;
    RDNA2 has a two-product dot for f16 and nothing for bf16.
    """
    if arch.startswith("gfx9"):
        return "mfma"
    if dtype == "f32":
        return "fma"
    if arch.startswith("gfx10"):
        return "dot2" if dtype == "f16" else "fma"
    return "wmma"


def problems(isa: Isa, dtype: str | None) -> list[str]:
    """Why a kernel should not be offered, in words. dtype None: it has no products."""
    found = []
    if isa.spilled_vgprs or isa.spilled_sgprs:
        found.append(f"{isa.spilled_vgprs} vector and {isa.spilled_sgprs} scalar registers spill")
    elif isa.scratch_bytes:
        found.append(f"{isa.scratch_bytes} bytes a lane in scratch memory")
    if isa.lds_bytes > LDS_LIMIT_BYTES:
        found.append(f"{isa.lds_bytes} bytes of LDS, of {LDS_LIMIT_BYTES}")
    if dtype is None:
        return found
    kind = expected_kind(isa.arch, dtype)
    count = isa.body.fma if kind == "fma" else isa.body.matrix.get(kind, 0)
    if not count:
        others = ", ".join(isa.body.matrix) or ("fma" if isa.body.fma else "nothing")
        found.append(f"no {kind} instruction, but {others}")
    if any("xf32" in name for name in isa.body.opcodes):
        found.append("f32 is rounded to xf32 (10 bits): ask tl.dot for input_precision='ieee'")
    return found


COLUMNS = ("VGPR", "AGPR", "SGPR", "spill", "scratch", "LDS", "waves", "matrix", "in loop",
           "loads", "LDS ops", "masks", "barriers", "other/matrix")  # fmt: skip


def _widths(counts: Mapping[int, int]) -> str:
    return " ".join(f"{n}x{8 * width}b" for width, n in sorted(counts.items(), reverse=True))


def row(isa: Isa) -> tuple[str, ...]:
    """One line of a table under COLUMNS; the last six are of the inner loop where there is one."""
    mix = isa.loop or isa.body
    arithmetic = mix.matrix_count or mix.fma
    kinds = ", ".join(isa.body.opcodes[:2]) or ("v_fma" if isa.body.fma else "none")
    return (
        str(isa.vgprs), str(isa.agprs), str(isa.sgprs),
        f"{isa.spilled_vgprs}+{isa.spilled_sgprs}", str(isa.scratch_bytes), str(isa.lds_bytes),
        str(isa.waves), kinds, str(arithmetic), _widths(mix.loads) or "-", str(mix.lds),
        str(mix.masks), str(mix.barriers),
        f"{(mix.total - arithmetic) / arithmetic:.1f}" if arithmetic else "-",
    )  # fmt: skip
