"""Instructions as the steps that wave.c executes.

Each instruction becomes one step (a dual one becomes two). What is not understood raises
UnsupportedError, which names it: nothing is skipped.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.dev.gfx import alu
from tools.dev.gfx.decode import INSTRUCTION_SETS, Instruction
from tools.dev.gfx.opcodes import GENERATIONS, function_of, pseudo_code
from tools.dev.gfx.pcode import PcodeError

NONE = 0xFFFF
VCC, LITERAL, VECTOR, ACC = 106, 255, 256, 512
KINDS = (
    "nop", "vector", "scalar", "branch", "wait", "barrier", "signal", "barrier_wait", "end",
    "scalar_load", "load", "store", "atomic", "lds_load", "lds_store", "lds_lanes", "read_lane",
    "read_first", "write_lane", "permute_16", "matrix", "invalidate",
)  # fmt: skip
FLAGS = (
    "dual", "compare", "exec", "only_exec", "carry", "zero_high", "signed", "high", "low", "return",
    "buffer", "offset_lanes", "pair", "dpp", "sdwa", "clamp",
)  # fmt: skip
_CONDITIONS = ("s_branch", "s_cbranch_scc0", "s_cbranch_scc1", "s_cbranch_vccz",
               "s_cbranch_vccnz", "s_cbranch_execz", "s_cbranch_execnz")  # fmt: skip
_ATOMICS = ("swap", "cmpswap", "add", "smin", "umin", "smax", "umax", "and", "or", "xor")
_NOPS = {
    "s_nop", "s_delay_alu", "s_clause", "s_sendmsg", "s_setprio", "s_set_inst_prefetch_distance",
    "s_waitcnt_depctr", "s_wait_alu", "buffer_gl0_inv", "buffer_gl1_inv", "buffer_inv",
    "buffer_wbl2",
}  # fmt: skip
_LOAD, _STORE, _LDS, _SCALAR = range(4)
# Which registers are read (0: any source) and written.
_ACC_MOVES = {
    "v_accvgpr_write": (0, ACC), "v_accvgpr_read": (ACC, VECTOR), "v_accvgpr_mov_b32": (ACC, ACC),
}  # fmt: skip
_HALF, _PACKED_HALF, _PACKED_FLOAT, _AS_IT_IS = 1, 2, 3, 4


class UnsupportedError(ValueError):
    """An instruction that is not executed here; the text names it."""


class Step(ctypes.Structure):
    """struct step of wave.h."""

    _fields_ = (
        ("alu", ctypes.c_void_p), ("kind", ctypes.c_uint32), ("flags", ctypes.c_uint32),
        ("next", ctypes.c_uint32), ("literal", ctypes.c_uint32),
        ("offset", ctypes.c_int32), ("offset1", ctypes.c_int32), ("wait", ctypes.c_int32 * 4),
        ("source", ctypes.c_uint16 * 4), ("target", ctypes.c_uint16),
        ("mask_in", ctypes.c_uint16), ("mask_out", ctypes.c_uint16), ("dpp", ctypes.c_uint16),
        ("words", ctypes.c_uint8 * 4), ("forms", ctypes.c_uint8 * 4), ("bits", ctypes.c_uint8 * 4),
        ("target_words", ctypes.c_uint8), ("target_bits", ctypes.c_uint8),
        ("is_float", ctypes.c_uint8 * 4), ("negate", ctypes.c_uint8),
        ("absolute", ctypes.c_uint8), ("negate_high", ctypes.c_uint8), ("select", ctypes.c_uint8),
        ("select_high", ctypes.c_uint8), ("row_mask", ctypes.c_uint8),
        ("bank_mask", ctypes.c_uint8), ("bound", ctypes.c_uint8), ("inactive", ctypes.c_uint8),
        ("selected", ctypes.c_uint8 * 2), ("extended", ctypes.c_uint8),
        ("target_selected", ctypes.c_uint8), ("target_unused", ctypes.c_uint8),
        ("what", ctypes.c_uint8), ("rows", ctypes.c_uint8), ("depth", ctypes.c_uint8),
        ("bytes", ctypes.c_uint8),
    )  # fmt: skip

    def set(self, kind: str, *flags: str) -> None:
        self.kind = KINDS.index(kind)
        self.flag(*flags)

    def flag(self, *flags: str) -> None:
        for flag in flags:
            self.flags |= 1 << FLAGS.index(flag)


def lower(code: Sequence[Instruction], arch: str) -> Any:
    """The steps of a program, an array of Step; which instruction each is of; and the number of the
    step at each address in the code."""
    lowering = _Lowering(arch)
    names = {name for one in code for name in lowering.computed(one)}
    try:
        lowering.functions = alu.addresses(
            {name: pseudo_code(lowering.tables)[name] for name in names if not alu.by_hand(name)}
        )
    except (KeyError, PcodeError) as error:
        raise UnsupportedError(f"{arch}: {error}") from error
    steps: list[Step] = []
    origins: list[Instruction] = []
    first: dict[int, int] = {}
    for one in code:
        first[one.pc] = len(steps)
        try:
            made = lowering.steps(one)
        except (KeyError, ValueError) as error:
            reason = error if isinstance(error, ValueError) else f"no field or code {error}"
            raise UnsupportedError(f"{arch}: {one}: {reason}") from error
        steps += made
        origins += [one] * len(made)
    array = (Step * len(steps))(*steps)
    for step, one in zip(array, origins, strict=True):
        if step.kind == KINDS.index("branch"):
            to = one.pc + one.size + 4 * _signed(one.fields["simm16"], 16)
            if to not in first:
                raise UnsupportedError(f"{arch}: {one}: a branch to {to:#x}, where nothing begins")
            step.next = first[to]
    return array, origins, first


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


class _Lowering:
    """For one architecture."""

    def __init__(self, arch: str) -> None:
        self.tables = INSTRUCTION_SETS[arch]
        self.generation = GENERATIONS[self.tables]
        self.functions: Mapping[str, int] = {}

    def computed(self, one: Instruction) -> list[str]:
        """The names of what an instruction computes; none for the others."""
        if one.format.startswith("VOPD"):
            return [function_of(one.name), function_of(one.second)]
        computes = self.handler(one) in (self.scalar, self.vector)
        return [function_of(one.name)] if computes else []

    def steps(self, one: Instruction) -> list[Step]:
        made = self.blank(one)
        if one.format.startswith("VOPD"):
            return self.dual(one)
        handler = self.handler(one)
        handler(one, made)
        return [made]

    @staticmethod
    def blank(one: Instruction) -> Step:
        made = Step(target=NONE, mask_in=NONE, mask_out=NONE)
        made.source[:] = [NONE] * 4
        made.words[:] = [1] * 4
        made.bits[:] = [32] * 4
        made.wait[:] = [-1] * 4
        made.literal = one.fields.get("literal", 0)
        return made

    def handler(self, one: Instruction) -> Callable[[Instruction, Step], None]:
        name, form = one.name, one.format
        if name in _NOPS:
            return self.nothing
        if name == "global_inv":
            return lambda _, made: made.set("invalidate")
        if name in _CONDITIONS:
            return self.branch
        if name == "s_endpgm":
            return lambda _, made: made.set("end")
        if name.startswith("s_wait"):
            return self.wait
        if name.startswith("s_barrier"):
            return self.barrier
        if form == "SMEM":
            return self.scalar_load
        if form == "DS":
            return self.lds
        if form in ("GLOBAL", "VGLOBAL", "BUFFER", "MUBUF"):
            return self.memory
        if alu.is_across(name):
            return self.across
        if form.startswith(("SOP", "VOP")) and function_of(name) in pseudo_code(self.tables):
            return self.scalar if form.startswith("SOP") else self.vector
        return self.unknown

    @staticmethod
    def unknown(one: Instruction, _: Step) -> None:
        raise UnsupportedError(f"{one.name} of {one.format} is not modelled")

    # Control

    @staticmethod
    def nothing(one: Instruction, made: Step) -> None:
        made.set("nop")
        made.offset = one.fields["simm16"] & 15 if one.name == "s_nop" else 0

    def branch(self, one: Instruction, made: Step) -> None:
        made.set("branch")
        made.what = _CONDITIONS.index(one.name)

    def wait(self, one: Instruction, made: Step) -> None:
        made.set("wait")
        name, value = one.name, one.fields["simm16"]
        if name == "s_waitcnt" and self.generation == 9:
            counts = {_LOAD: value & 15 | (value >> 14 & 3) << 4, _LDS: value >> 8 & 15}
            most = {_LOAD: 63, _LDS: 15}
        elif name == "s_waitcnt":
            counts = {_LOAD: value >> 10 & 63, _LDS: value >> 4 & 63}
            most = {_LOAD: 63, _LDS: 63}
        else:
            places = {
                "s_waitcnt_vscnt": {_STORE: 0}, "s_wait_loadcnt": {_LOAD: 0},
                "s_wait_storecnt": {_STORE: 0}, "s_wait_dscnt": {_LDS: 0},
                "s_wait_kmcnt": {_SCALAR: 0}, "s_wait_loadcnt_dscnt": {_LDS: 0, _LOAD: 8},
                "s_wait_storecnt_dscnt": {_LDS: 0, _STORE: 8},
            }  # fmt: skip
            counts = {counter: value >> at & 63 for counter, at in places[name].items()}
            most = {}
        for counter, count in counts.items():
            made.wait[counter] = -1 if count == most.get(counter) else count

    def barrier(self, one: Instruction, made: Step) -> None:
        if one.name == "s_barrier_signal" and one.fields["ssrc0"] == 193:
            made.set("signal")
        elif one.name == "s_barrier_wait" and one.fields["simm16"] == 0xFFFF:
            made.set("barrier_wait")
        elif one.name == "s_barrier":
            made.set("barrier")
        else:
            raise UnsupportedError("a barrier that is not the workgroup's")

    # Memory

    def scalar_load(self, one: Instruction, made: Step) -> None:
        width = re.fullmatch(r"s_load_(?:b(\d+)|dword(?:x(\d+))?)", one.name)
        if width is None:
            raise UnsupportedError("a scalar memory access that is no load")
        made.set("scalar_load")
        f = one.fields
        made.target_words = int(width[1]) // 32 if width[1] else int(width[2] or 1)
        made.target = f["sdata"]
        made.source[0], made.words[0], made.bits[0] = f["sbase"] << 1, 2, 64
        if self.generation == 9:
            made.offset = _signed(f["offset"], 21) if f["imm"] else 0
            if f["soffset_en"]:
                made.source[1] = f["soffset"]
        else:
            made.offset = _signed(f["ioffset"], 24) if "ioffset" in f else _signed(f["offset"], 21)
            if f["soffset"] != 124:
                made.source[1] = f["soffset"]

    def memory(self, one: Instruction, made: Step) -> None:
        f, kind = one.fields, one.name.split("_", 1)[0]
        acc = ACC if f.get("acc") else VECTOR
        if kind == "buffer":
            made.flag("buffer")
            if f.get("idxen") or f.get("tfe") or f.get("lds"):
                raise UnsupportedError("a structured buffer")
            made.source[1] = f["srsrc"] if self.generation == 12 else f["srsrc"] << 2
            made.source[2] = f["soffset"]
            made.offset = f["offset"] if self.generation != 12 else _signed(f["offset"], 24)
            if f["offen"]:
                made.flag("offset_lanes")
                made.source[0] = VECTOR + f["vaddr"]
            data = target = f["vdata"] + acc
        else:
            self.global_address(one, made)
            data = f["data" if "data" in f else "vsrc"] + acc
            target = f["vdst"] + acc
        what = one.name.split("_", 1)[1]
        if what.startswith("atomic_"):
            self.atomic(one, made, what.removeprefix("atomic_"), data, target)
            return
        access, _, width = what.partition("_")
        self.access(made, width)
        if access == "load":
            made.set("load")
            made.target = target
            made.target_words = max(1, made.bytes // 4)
        elif access == "store":
            made.set("store")
            made.source[3] = data
            made.words[3] = max(1, made.bytes // 4)
        else:
            raise UnsupportedError("this access")

    def global_address(self, one: Instruction, made: Step) -> None:
        f = one.fields
        address = VECTOR + f["addr" if "addr" in f else "vaddr"]
        bits = 24 if "ioffset" in f else 13
        made.offset = _signed(f["ioffset" if "ioffset" in f else "offset"], bits)
        made.source[0] = address
        none = 127 if self.generation == 9 else 124
        if f["saddr"] == none:
            made.words[0] = 2
        else:
            made.source[1], made.words[1], made.bits[1] = f["saddr"], 2, 64

    @staticmethod
    def access(made: Step, width: str) -> None:
        """Bytes and flags of "b64", "dwordx2", "u16", "d16_hi_b16", "short_d16_hi", "ushort"."""
        parts = width.split("_")
        if "d16" in parts:
            made.flag("high" if "hi" in parts else "low")
            parts = [part for part in parts if part not in ("d16", "hi")]
        old = {"ubyte": (1, ""), "sbyte": (1, "signed"), "ushort": (2, ""), "sshort": (2, "signed"),
               "short": (2, ""), "byte": (1, ""), "dword": (4, "")}  # fmt: skip
        if len(parts) != 1:
            raise UnsupportedError("this width")
        if parts[0] in old:
            made.bytes, flag = old[parts[0]]
            if flag:
                made.flag(flag)
        elif parts[0].startswith("dwordx"):
            made.bytes = 4 * int(parts[0][6:])
        else:
            if parts[0][0] == "i":
                made.flag("signed")
            made.bytes = int(parts[0][1:]) // 8

    def atomic(self, one: Instruction, made: Step, what: str, data: int, target: int) -> None:
        found = re.fullmatch(r"(\w+?)(?:_([iub])(32|64)|_(x2))?", what)
        if found is None:
            raise UnsupportedError("this atomic")
        name, letter = found[1], found[2]
        if name in ("min", "max"):
            name = ("s" if letter == "i" else "u") + name
        if name not in _ATOMICS:
            raise UnsupportedError("this atomic")
        made.set("atomic")
        made.what = _ATOMICS.index(name)
        made.bytes = 8 if found[3] == "64" or found[4] else 4
        made.source[3] = data
        made.words[3] = made.bytes // 4 * (2 if name == "cmpswap" else 1)
        f = one.fields
        if f.get("glc", 0) or f.get("sc0", 0) or f.get("th", 0) & 1:
            made.flag("return")
            made.target, made.target_words = target, made.bytes // 4

    def lds(self, one: Instruction, made: Step) -> None:
        f = one.fields
        if f.get("gds"):
            raise UnsupportedError("global data share")
        acc = ACC if f.get("acc") else VECTOR
        made.source[0] = VECTOR + f["addr"]
        made.offset = f["offset0"] | f["offset1"] << 8
        exchange = re.fullmatch(r"ds_(bpermute|permute|swizzle)_b32", one.name)
        if exchange:
            made.set("lds_lanes")
            made.what = ("bpermute", "permute", "swizzle").index(exchange[1])
            made.source[1], made.target = VECTOR + f["data0"], VECTOR + f["vdst"]
            return
        found = re.fullmatch(
            r"ds_(load|read|store|write)(?:_?(2)(?:addr)?)?(_stride64|st64)?_(\w+)", one.name
        )
        if found is None:
            raise UnsupportedError("this LDS access")
        self.access(made, found[4])
        if found[2]:
            made.flag("pair")
            unit = made.bytes * (64 if found[3] else 1)
            made.offset, made.offset1 = f["offset0"] * unit, f["offset1"] * unit
        if found[1] in ("load", "read"):
            made.set("lds_load")
            made.target = f["vdst"] + acc
            made.target_words = max(1, made.bytes // 4) * (2 if found[2] else 1)
        else:
            made.set("lds_store")
            made.source[1], made.source[2] = f["data0"] + acc, f["data1"] + acc

    # Arithmetic

    def scalar(self, one: Instruction, made: Step) -> None:
        made.set("scalar")
        f, described = one.fields, one.operands
        made.alu = self.functions[one.name]
        names = [name for name in ("ssrc0", "ssrc1") if name in f]
        if one.format.startswith("SOPK") and one.name.startswith("s_cmpk"):
            names = ["sdst"]
        for k, name in enumerate(names):
            self.source(made, k, f[name], described.get(name, ("B32", 32)))
        made.offset = f.get("simm16", 0)
        if "sdst" in f and not one.name.startswith("s_cmp"):
            made.target = f["sdst"]
            made.target_words = max(1, described.get("sdst", ("B32", 32))[1] // 32)

    @staticmethod
    def source(made: Step, k: int, code: int, described: tuple[str, int]) -> None:
        form, bits = described
        made.source[k] = code
        made.bits[k] = min(bits, 64)
        made.words[k] = min(255, max(1, bits // 32))
        made.is_float[k] = "F" in form
        if bits == 16:
            made.forms[k] = _HALF

    def vector(self, one: Instruction, made: Step) -> None:
        made.set("vector")
        f, described = one.fields, one.operands
        name = function_of(one.name)
        sources = self.sources(one)
        if name not in self.functions:
            made.alu = alu.by_hand(name)
        else:
            made.alu = self.functions[name]
        text = pseudo_code(self.tables)[name]
        if "VCC.u64[laneId]" in re.sub(r"VCC\.u64\[laneId\] =(?!=)", "", text):
            made.mask_in = VCC
            if "src2" in f and not name.startswith("v_div_fmas"):
                made.mask_in = f["src2"]
                sources = sources[:2]
        for k, (field, code) in enumerate(sources):
            self.source(made, k, code, described.get(field, ("B32", 32)))
        self.target(one, made, name, text)
        self.refuse_upper_halves(one, made)
        self.modifiers(one, made, name)
        if "_DPP16" in one.format:
            self.dpp(one, made)
        if "_SDWA" in one.format:
            self.sdwa(one, made)

    def refuse_upper_halves(self, one: Instruction, made: Step) -> None:
        """On RDNA a short encoding names the upper half of a register by 128 more."""
        is_short = one.format.startswith(("VOP1", "VOP2", "VOPC"))
        if self.generation == 9 or not is_short:
            return
        halves = [made.source[k] for k in range(3) if made.bits[k] == 16]
        halves += [made.target] if made.target_bits == 16 else []
        if any(code != NONE and code >= VECTOR + 128 for code in halves):
            raise UnsupportedError("the upper half of a register")

    def sources(self, one: Instruction) -> list[tuple[str, int]]:
        """(field, register) of the sources that the instruction has, in order."""
        f, described = one.fields, one.operands
        found: list[tuple[str, int]] = []
        if "vsrc0" in f:  # DPP, SDWA
            code = f["vsrc0"] if f.get("s0") else VECTOR + f["vsrc0"]
            found.append(("src0", code))
        elif "src0" in f and "src0" in described:
            found.append(("src0", f["src0"]))
        if "vsrc1" in f:
            found.append(("src1", f["vsrc1"] if f.get("s1") else VECTOR + f["vsrc1"]))
        elif "src1" in f and "src1" in described:
            found.append(("src1", f["src1"]))
        if "src2" in f and "src2" in described:
            found.append(("src2", f["src2"]))
        if one.name.startswith("v_fmamk"):
            found.insert(1, ("literal", LITERAL))
        if one.name.startswith("v_fmaak"):
            found.append(("literal", LITERAL))
        return found

    def target(self, one: Instruction, made: Step, name: str, text: str) -> None:
        f, described = one.fields, one.operands
        if name.startswith("v_cmp"):
            made.flag("compare")
            made.mask_out = VCC
            if "vdst" in f:
                made.mask_out = f["vdst"]
            elif f.get("sd"):
                made.mask_out = f["sdst"]
            if name.startswith("v_cmpx"):
                made.flag("exec")
                if self.generation != 9:
                    made.flag("only_exec")
            return
        made.target = VECTOR + f["vdst"]
        bits = described.get("vdst", ("B32", 32))[1]
        made.target_words, made.target_bits = max(1, bits // 32), min(bits, 64)
        if bits == 16:
            if self.generation == 9:
                made.flag("zero_high")
            if "_mixlo_" in name or "_mixhi_" in name:
                made.target_bits = 32  # their functions keep the other half
        if re.search(r"VCC\.u64\[laneId\] =(?!=)|VCC = |D1\.", text):
            made.flag("carry")
            made.mask_out = f.get("sdst", VCC)

    def modifiers(self, one: Instruction, made: Step, name: str) -> None:
        f = one.fields
        if one.format.startswith("VOP3P"):
            made.negate, made.negate_high, made.select = f["neg"], f["neg_hi"], f["opsel"]
            made.select_high = f["opsel_hi"] | f["opsel_hi2"] << 2
            form = _PACKED_FLOAT if name.endswith("_f32") else _PACKED_HALF
            if "_mix" in name or name.startswith("v_pk_mov"):
                form, made.absolute = _AS_IT_IS, f["neg_hi"]
            elif not name.startswith("v_pk_"):
                raise UnsupportedError("a product of packed numbers")
            made.forms[:] = [form] * 4
        else:
            made.negate, made.absolute = f.get("neg", 0), f.get("abs", 0)
            made.select = f.get("opsel", 0)
            for k in range(2):
                made.negate |= f.get(f"src{k}_neg", 0) << k
                made.absolute |= f.get(f"src{k}_abs", 0) << k
        if f.get("omod"):
            raise UnsupportedError("an output modifier, which is none where denormals are kept")
        if f.get("clmp"):
            made.flag("clamp")
            if not re.search(r"_f(16|32|64)$", name) or made.forms[0] > _HALF:
                raise UnsupportedError("an integer result that is to saturate")

    @staticmethod
    def dpp(one: Instruction, made: Step) -> None:
        f = one.fields
        made.flag("dpp")
        made.dpp, made.bound, made.inactive = f["dpp"], f["bc"], f.get("fi", 0)
        made.row_mask, made.bank_mask = f["row_mask"], f["bank_mask"]

    @staticmethod
    def sdwa(one: Instruction, made: Step) -> None:
        f = one.fields
        made.flag("sdwa")
        made.selected[:] = [f["src0_sel"], f["src1_sel"]]
        made.extended = f["src0_sext"] | f["src1_sext"] << 1
        made.target_selected, made.target_unused = f.get("dst_sel", 6), f.get("dst_unused", 0)
        if made.target_selected != 6 and made.target_bits == 16:
            made.target_bits = 32  # the selection says where it goes

    def dual(self, one: Instruction) -> list[Step]:
        f = one.fields
        made = []
        x, y = f["vdstx"], f["vdsty"] << 1 | (f["vdstx"] & 1 ^ 1)
        for name, letter, target in ((one.name, "x", x), (one.second, "y", y)):
            step = self.blank(one)
            step.set("vector")
            single = function_of(name)
            step.alu = self.functions[single]
            codes = [f[f"src{letter}0"], VECTOR + f[f"vsrc{letter}1"]]
            if single == "v_mov_b32":
                codes = codes[:1]
            if name.startswith("v_dual_fmamk"):
                codes.insert(1, LITERAL)
            if name.startswith("v_dual_fmaak"):
                codes.append(LITERAL)
            if single == "v_cndmask_b32":
                step.mask_in = VCC
            for k, code in enumerate(codes):
                self.source(step, k, code, ("B32", 32))
            step.target, step.target_words, step.target_bits = VECTOR + target, 1, 32
            made.append(step)
        made[0].flag("dual")
        return made

    # Across lanes

    def across(self, one: Instruction, made: Step) -> None:
        f, name = one.fields, one.name
        if name.startswith(("v_mfma", "v_wmma")):
            self.matrix(one, made)
            return
        made.target, made.target_words, made.target_bits = f["vdst"], 1, 32
        if name.startswith("v_permlane"):
            made.set("permute_16")
            made.what = int("x16" in name)
            made.select = f["opsel"]
            made.target += VECTOR
            for k in range(3):
                made.source[k] = f[f"src{k}"]
        elif name in _ACC_MOVES:
            made.set("vector")
            move = {"v_mov_b32": pseudo_code(self.tables)["v_mov_b32"]}
            made.alu = alu.addresses(move)["v_mov_b32"]
            source, target = _ACC_MOVES[name]
            made.target += target
            made.source[0] = f["src0"] % VECTOR + source if source else f["src0"]
        else:
            kinds = {"v_readlane_b32": "read_lane", "v_readfirstlane_b32": "read_first",
                     "v_writelane_b32": "write_lane"}  # fmt: skip
            made.set(kinds[name])
            if name == "v_writelane_b32":
                made.target += VECTOR
            made.source[0] = f["src0"]
            if "src1" in f:
                made.source[1] = f["src1"]

    def matrix(self, one: Instruction, made: Step) -> None:
        f = one.fields
        found = re.fullmatch(r"v_(mfma|wmma)_f32_(\d+)x(\d+)x(\d+)_(f16|bf16|f32)", one.name)
        if found is None or found[2] != found[3]:
            raise UnsupportedError("this matrix product")
        rows, depth = int(found[2]), int(found[4])
        if (found[1] == "mfma") != (self.generation == 9) or rows not in (16, 32):
            raise UnsupportedError("this matrix product")
        if depth != (16 if found[1] == "wmma" else {"f32": 64, "f16": 256}.get(
            found[5], 256) // rows):  # fmt: skip
            raise UnsupportedError("a matrix product of several blocks")
        made.set("matrix")
        made.what = ("f16", "bf16", "f32").index(found[5])
        made.rows, made.depth = rows, depth
        plain_bits = ("neg", "neg_hi", "clmp") if found[1] == "wmma" else ("cbsz", "abid", "blgp")
        if any(f[name] for name in plain_bits):
            raise UnsupportedError("a matrix product with modified operands")
        lanes = 64 if found[1] == "mfma" else 32
        each = depth if self.generation == 11 else depth * rows // lanes
        words = each if found[5] == "f32" else each // 2
        acc = f["acc"] if found[1] == "mfma" else 0
        for k in range(2):
            code = f[f"src{k}"]
            made.source[k] = code + (ACC - VECTOR if acc >> k & 1 else 0)
            made.words[k] = words
        to_acc = found[1] == "mfma" and f["acc_cd"]
        made.source[2] = f["src2"]
        if to_acc and f["src2"] >= VECTOR:
            made.source[2] += ACC - VECTOR
        made.target = f["vdst"] + (ACC if to_acc else VECTOR)
        made.target_words = rows * rows // lanes
        made.is_float[2] = 1
