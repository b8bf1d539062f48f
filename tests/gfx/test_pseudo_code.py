"""Every arithmetic instruction that our kernels use: C made of AMD's pseudo-code against the same
pseudo-code evaluated in Python, bit for bit.

Where a result is a float, any NaN equals any NaN: payloads are the hardware's business. Where the
pseudo-code moves bits (v_mov_b32, v_cndmask_b32, v_perm_b32, shifts, ...) all bits count. v_exp_f32
may differ by one unit in the last place, as hardware may; reciprocals and roots are rounded
correctly by both.
"""

from __future__ import annotations

import random
import re

import gfx_evaluator
import gfx_lanes
import gfx_operands
import how_much
import pytest
from exact_floats import Float

from tools.dev.gfx import alu, opcodes, pcode, translate
from tools.dev.gfx.decode import INSTRUCTION_SETS

DRAWS = how_much.of(gate=128, full=256)
APPROXIMATE = ("v_exp_f32",)
# Instructions that are no arithmetic, by how their names begin: lower.py has each.
OTHERS = ("buffer_", "global_", "ds_", "s_load", "s_branch", "s_cbranch", "s_wait", "s_barrier",
          "s_clause", "s_delay_alu", "s_endpgm", "s_nop", "s_sendmsg", "s_setprio",
          "s_set_inst_prefetch_distance", "v_readlane", "v_readfirstlane",
          "v_writelane", "v_permlane", "v_wmma", "v_mfma", "v_accvgpr")  # fmt: skip
BY_HAND = ("v_perm_b32", "v_fma_mix", "v_pk_mov_b32")  # test_known_arithmetic.py


def cases() -> list[tuple[str, str, str]]:
    """(tables, instruction, pseudo-code), each pseudo-code once: of all instructions that are
    understood, or of those that our kernels use."""
    found: dict[str, tuple[str, str, str]] = {}
    for arch, names in opcodes.listed().items():
        tables = INSTRUCTION_SETS[arch]
        named = how_much.of(names, list(opcodes.pseudo_code(tables)))
        for name, text in sorted(alu.generated(tables, named).items()):
            if how_much.of(True, understood(name, text)):
                found.setdefault(text, (tables, name, text))
    return list(found.values())


def understood(name: str, text: str) -> bool:
    try:
        return bool(translate.translated(name, text))
    except pcode.PcodeError:
        return False


@pytest.mark.parametrize("arch", INSTRUCTION_SETS)
def test_every_listed_instruction_is_covered(arch: str) -> None:
    names = opcodes.listed()[arch]
    generated = alu.generated(INSTRUCTION_SETS[arch], names)
    for name in names:
        computes = opcodes.function_of(name) in generated or name.startswith(BY_HAND)
        assert computes != name.startswith(OTHERS), name
    assert len(names) == len(set(names)) > 150


@pytest.mark.parametrize(
    ("tables", "name", "text"), [pytest.param(*case, id="-".join(case[:2])) for case in cases()]
)
def test_c_equals_the_pseudo_code(tables: str, name: str, text: str) -> None:
    source = random.Random(f"{tables} {name}")
    lanes = 1 if name.startswith("s_") else gfx_lanes.LANES
    tree = pcode.parse(text)
    for _ in range(DRAWS // (1 if lanes == 1 else lanes)):
        drawn = [gfx_operands.sources(source, text) for _ in range(lanes)]
        if "SIMM16" in text or "S0.i16" in text:
            drawn = [(source.getrandbits(16), 0, 0) for _ in drawn]
        old = [gfx_operands.draw(source, destination(text)) for _ in range(lanes)]
        given = gfx_lanes.given(
            *zip(*drawn, strict=True), d=old, vcc=source.getrandbits(64), scc=source.getrandbits(1),
            exec=source.getrandbits(64 if tables == "cdna" else 32), ieee=source.getrandbits(1),
            simm=drawn[0][0] & 0xFFFF,
        )  # fmt: skip
        before = gfx_evaluator.State(
            (0, 0, 0), 0, vcc=given.vcc, exec=given.exec, scc=given.scc, ieee=given.ieee,
            simm=given.simm,
        )  # fmt: skip
        gfx_lanes.call(tables, name, given)
        for lane in range(lanes):
            state = gfx_evaluator.State(
                drawn[lane], old[lane], lane, before.vcc, before.exec, before.scc, before.ieee,
                before.simm,
            )  # fmt: skip
            after = gfx_evaluator.evaluate(tree, state)
            told = f"{name} of {[hex(v) for v in drawn[lane]]}, was {old[lane]:#x}"
            same(name, text, given.d[lane], after.d, told)
            assert given.out >> lane & 1 == after.out, told
            if lanes == 1:
                assert (given.scc, given.exec) == (after.scc, after.exec), told


def destination(text: str) -> tuple[str, int]:
    found = re.search(r"D0\.(f|u|i|b)(\d+)", text)
    return (found[1], int(found[2])) if found else ("u", 32)


def parts(text: str) -> list[tuple[int, int]]:
    """(lowest bit, width) of the floats in a result; none where its bits count."""
    if "[63 : 32].f32" in text:
        return [(0, 32), (32, 32)]
    if re.search(r"(D0|tmp)\[31 : 16\]\.f16 =", text):
        return [(0, 16), (16, 16)]
    letter, width = destination(text)
    return [(0, width)] if letter == "f" else []


def same(name: str, text: str, made: int, wanted: int, told: str) -> None:
    for low, width in parts(text):
        x, y = (Float(v >> low & ((1 << width) - 1), width) for v in (made, wanted))
        if x.is_nan and y.is_nan:
            ones = ((1 << width) - 1) << low
            made, wanted = made & ~ones, wanted & ~ones
    if name in APPROXIMATE and abs(made - wanted) <= 1:
        return
    assert made == wanted, f"{told}: {made:#x}, expected {wanted:#x}"
