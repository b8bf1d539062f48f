"""Loads, stores, atomics, LDS and buffers, in programs of a few instructions that LLVM assembles.

Sources: AMD, "RDNA3", "RDNA4" and "AMD Instinct MI300" Instruction Set Architecture: memory
instructions, buffer resources, LDS.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gfx_assembly import lanes, wave_size

from tools.dev.gfx.lower import UnsupportedError
from tools.dev.gfx.machine import Fault

ALL = ("gfx1100", "gfx1201", "gfx942")
pytestmark = pytest.mark.parametrize("arch", ALL)
# gfx942's words for what the others call otherwise.
_OLD = {
    "load_u8": "load_ubyte", "load_i8": "load_sbyte", "load_u16": "load_ushort",
    "load_i16": "load_sshort", "load_b32": "load_dword", "load_b64": "load_dwordx2",
    "load_b96": "load_dwordx3", "load_b128": "load_dwordx4",
    "load_d16_b16": "load_short_d16", "load_d16_hi_b16": "load_short_d16_hi",
    "load_d16_hi_u8": "load_ubyte_d16_hi", "store_b8": "store_byte", "store_b16": "store_short",
    "store_b32": "store_dword", "store_b64": "store_dwordx2", "store_b96": "store_dwordx3",
    "store_d16_hi_b16": "store_short_d16_hi", "store_d16_hi_b8": "store_byte_d16_hi",
}  # fmt: skip


def spelled(text: str, arch: str) -> str:
    """RDNA's text as each target writes it; {loads}, {stores} and {lds} wait for all."""
    waits = {
        "gfx1100": ("s_waitcnt vmcnt(0)", "s_waitcnt_vscnt null, 0x0", "s_waitcnt lgkmcnt(0)"),
        "gfx1201": ("s_wait_loadcnt 0x0", "s_wait_storecnt 0x0", "s_wait_dscnt 0x0"),
        "gfx942": ("s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(0)", "s_waitcnt lgkmcnt(0)"),
    }[arch]
    text = text.format(**dict(zip(("loads", "stores", "lds"), waits, strict=True)))
    if arch == "gfx942":

        def old(found: Any) -> str:
            return f"{found[1]}_{_OLD[found[2]]} "

        text = re.sub(r"(global|buffer)_((?:load|store)_\w+) ", old, text)
        text = re.sub(r"ds_load_", "ds_read_", re.sub(r"ds_store_", "ds_write_", text))
        text = re.sub(r"(read|write)_2addr_stride64", r"\g<1>2st64", text)
        text = re.sub(r"(read|write)_2addr", r"\g<1>2", text)
    return text


def words(arch: str, seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(0, 1 << 32, (wave_size(arch), 4), dtype=np.uint32)


def parts(x: Any, kind: str) -> Any:
    return np.ascontiguousarray(x).view(kind).reshape(len(x), -1)


def test_narrow_loads(arch: str) -> None:
    """Bytes and halves, with and without their sign; into one half, which keeps the other."""
    x = words(arch)
    memory = words(arch, 2)
    body = spelled("""v_mov_b32_e32 v22, v6
        v_mov_b32_e32 v23, v7
        global_load_i8 v20, v1, s[8:9] offset:3
        global_load_i16 v21, v1, s[8:9] offset:6
        global_load_d16_b16 v22, v1, s[8:9] offset:2
        global_load_d16_hi_u8 v23, v1, s[8:9] offset:15
        {loads}""", arch)  # fmt: skip
    made = lanes(arch, body, x, more=memory)
    assert (made[:, 0].view(np.int32) == parts(memory, "i1")[:, 3]).all()
    assert (made[:, 1].view(np.int32) == parts(memory, "i2")[:, 3]).all()
    assert (made[:, 2] == (x[:, 2] & 0xFFFF0000 | parts(memory, "u2")[:, 1])).all()
    high = parts(memory, "u1")[:, 15].astype(np.uint32) << 16
    assert (made[:, 3] == (x[:, 3] & 0xFFFF | high)).all()


def test_narrow_stores(arch: str) -> None:
    x, memory = words(arch), words(arch, 2)
    wanted = memory.copy()
    parts(wanted, "u1")[:, 1] = parts(x, "u1")[:, 0]
    parts(wanted, "u2")[:, 2] = parts(x, "u2")[:, 2]
    parts(wanted, "u2")[:, 5] = parts(x, "u2")[:, 5]
    parts(wanted, "u1")[:, 15] = parts(x, "u1")[:, 14]
    body = spelled("""global_store_b8 v1, v4, s[8:9] offset:1
        global_store_b16 v1, v5, s[8:9] offset:4
        global_store_d16_hi_b16 v1, v6, s[8:9] offset:10
        global_store_d16_hi_b8 v1, v7, s[8:9] offset:15""", arch)  # fmt: skip
    lanes(arch, body, x, more=memory)
    assert (memory == wanted).all()


def test_addresses(arch: str) -> None:
    """64 bits in two registers, with a negative offset; three words at once."""
    x, memory = words(arch), words(arch, 2)
    sum_of_two = ("v_lshl_add_u64 v[24:25], s[8:9], 0, v[24:25]" if arch == "gfx942" else
                  "v_add_co_u32 v24, vcc_lo, s8, v24\n v_mov_b32_e32 v26, s9\n"
                  "v_add_co_ci_u32_e32 v25, vcc_lo, v26, v25, vcc_lo")  # fmt: skip
    body = spelled(f"""v_add_{"" if arch == "gfx942" else "nc_"}u32_e32 v24, 16, v1
        v_mov_b32_e32 v25, 0
        {sum_of_two}
        global_load_b96 v[20:22], v[24:25], off offset:-12
        {{loads}}
        global_store_b64 v[24:25], v[6:7], off offset:-16""", arch)  # fmt: skip
    before = memory.copy()
    made = lanes(arch, body, x, more=memory)
    assert (made[:, :3] == before[:, 1:]).all()
    assert (memory[:, :2] == x[:, 2:]).all()
    assert (memory[:, 2:] == before[:, 2:]).all()


RESOURCE = """s_mov_b32 s16, s8
    s_mov_b32 s17, s9
    s_mov_b32 s18, {records}
    s_mov_b32 s19, {flags}
    """
FLAGS = {"gfx1100": "0x31004000", "gfx1201": "0x31004000", "gfx942": "0x27000"}


def test_buffers(arch: str) -> None:
    """Beyond the records reads are zeros and nothing is written, although the memory is there."""
    x, memory = words(arch), words(arch, 2)
    before, records = memory.copy(), memory.nbytes // 2
    zero = "null" if arch == "gfx1201" else "0"
    body = RESOURCE.format(records=records, flags=FLAGS[arch]) + spelled(f"""
        v_mov_b32_e32 v22, v7
        s_mov_b32 s20, 8
        buffer_load_b64 v[20:21], v1, s[16:19], {zero} offen offset:4
        buffer_load_d16_b16 v22, v1, s[16:19], s20 offen
        {{loads}}
        buffer_store_b32 v6, v1, s[16:19], {zero} offen""", arch)  # fmt: skip
    made = lanes(arch, body, x, more=memory)
    inside = 16 * np.arange(len(x)) < records
    assert (made[:, :2] == np.where(inside[:, None], before[:, 1:3], 0)).all()
    low = np.where(inside, parts(before, "u2")[:, 4], 0)
    assert (made[:, 2] == (x[:, 3] & 0xFFFF0000 | low)).all()
    assert (memory[:, 0] == np.where(inside, x[:, 2], before[:, 0])).all()
    assert (memory[:, 1:] == before[:, 1:]).all()


def test_a_buffer_may_promise_too_much(arch: str) -> None:
    """Records beyond what the launch was given."""
    x, memory = words(arch), words(arch, 2)
    zero = "null" if arch == "gfx1201" else "0"
    body = RESOURCE.format(records="0x7ffffffe", flags=FLAGS[arch])
    body += spelled(f"buffer_load_b32 v20, v1, s[16:19], {zero} offen offset:2048", arch)
    with pytest.raises(Fault, match=r"out of bounds: lane \d+ reads 4 bytes .* buffer_load"):
        lanes(arch, body, x, more=memory)


def test_lds(arch: str) -> None:
    """Pairs of words, of double words and with a stride of 64; narrow accesses."""
    x = words(arch)
    body = spelled("""v_lshlrev_b32_e32 v24, 3, v0
        ds_store_2addr_b32 v24, v4, v5 offset0:1 offset1:128
        {lds}
        ds_load_2addr_b32 v[20:21], v24 offset0:128 offset1:1
        v_lshlrev_b32_e32 v25, 2, v0
        {lds}
        ds_store_2addr_stride64_b32 v25, v6, v7 offset0:8 offset1:12
        {lds}
        ds_load_b32 v22, v25 offset:3072
        ds_load_b32 v23, v25 offset:2048
        {lds}
        """, arch)  # fmt: skip
    assert (lanes(arch, body, x, lds=4096) == x[:, [1, 0, 3, 2]]).all()
    body = spelled("""v_lshlrev_b32_e32 v24, 4, v0
        ds_store_b128 v24, v[4:7]
        {lds}
        ds_store_b8 v24, v7 offset:1
        ds_store_b16 v24, v6 offset:4
        ds_store_b16_d16_hi v24, v5 offset:6
        v_mov_b32_e32 v22, v7
        {lds}
        ds_load_b32 v20, v24
        ds_load_i8 v21, v24 offset:15
        ds_load_u16_d16_hi v22, v24 offset:10
        ds_load_b32 v23, v24 offset:4
        {lds}""", arch)  # fmt: skip
    made = lanes(arch, body, x, lds=4096)
    bytes_of, low = parts(x, "u1"), parts(x, "u2")
    wanted = x[:, 0] & 0xFFFF00FF | bytes_of[:, 12].astype(np.uint32) << 8
    assert (made[:, 0] == wanted).all()
    assert (made[:, 1].view(np.int32) == parts(x, "i1")[:, 15]).all()
    assert (made[:, 2] == (x[:, 3] & 0xFFFF | low[:, 5].astype(np.uint32) << 16)).all()
    assert (made[:, 3] == low[:, 4] | x[:, 1] & 0xFFFF0000).all()


def test_lds_has_bounds(arch: str) -> None:
    body = spelled("v_lshlrev_b32_e32 v24, 4, v0\n ds_store_b32 v24, v4\n {lds}", arch)
    with pytest.raises(Fault, match=r"out of bounds: lane 8 writes 4 bytes at 128 of 128 bytes"):
        lanes(arch, body, words(arch), lds=128)


@pytest.mark.parametrize("barrier", [True, False])
def test_waves_meet_at_a_barrier(arch: str, barrier: bool) -> None:
    """Each work-item reads what the last but itself wrote, of the other wave."""
    x = np.concatenate([words(arch), words(arch, 2)])
    meet = "s_barrier_signal -1\n s_barrier_wait -1" if arch == "gfx1201" else "s_barrier"
    body = spelled(f"""v_lshlrev_b32_e32 v24, 2, v0
        ds_store_b32 v24, v4
        {{lds}}
        {meet if barrier else ""}
        v_sub_{"" if arch == "gfx942" else "nc_"}u32_e32 v24, {4 * len(x) - 4:#x}, v24
        ds_load_b32 v20, v24
        {{lds}}""", arch)  # fmt: skip
    if barrier:
        assert (lanes(arch, body, x, lds=4 * len(x))[:, 0] == x[::-1, 0]).all()
        return
    with pytest.raises(Fault, match=r"of LDS.*without a barrier at 0x\w+ ds_\w+_b32"):
        lanes(arch, body, x, lds=4 * len(x))


def test_lds_is_waited_for_before_a_barrier(arch: str) -> None:
    meet = "s_barrier_signal -1\n s_barrier_wait -1" if arch == "gfx1201" else "s_barrier"
    body = spelled(f"v_lshlrev_b32_e32 v24, 2, v0\n ds_store_b32 v24, v4\n {meet}\n {{lds}}", arch)
    with pytest.raises(
        Fault, match=r"a barrier while LDS accesses were not waited for at .* s_bar"
    ):
        lanes(arch, body, words(arch), lds=256)
    if arch == "gfx1201":
        with pytest.raises(Fault, match=r"a wait without a signal at .* s_barrier_wait"):
            lanes(arch, "s_barrier_wait -1", words(arch))


@pytest.mark.parametrize("same", [True, False])
def test_waves_may_write_the_same_only(arch: str, same: bool) -> None:
    """Without a barrier between them two waves write to the same words."""
    x = np.concatenate([words(arch), words(arch, 1 if same else 2)])
    body = spelled(f"""v_and_b32_e32 v24, {wave_size(arch) - 1}, v0
        v_lshlrev_b32_e32 v24, 2, v24
        ds_store_b32 v24, v4
        {{lds}}""", arch)  # fmt: skip
    if same:
        lanes(arch, body, x, lds=4 * len(x))
        return
    with pytest.raises(Fault, match=r"written by another wave, without a barrier at .* ds_\w+_b32"):
        lanes(arch, body, x, lds=4 * len(x))


def test_buffers_of_other_kinds(arch: str) -> None:
    """An access that crosses the end of the records, and a resource that swizzles."""
    x, memory = words(arch), words(arch, 2)
    zero = "null" if arch == "gfx1201" else "0"
    load = spelled(f"buffer_load_b64 v[20:21], v1, s[16:19], {zero} offen\n {{loads}}", arch)
    resource = RESOURCE.format(records=36, flags=FLAGS[arch])
    with pytest.raises(Fault, match=r"lane 2 crosses the end of a buffer at .* buffer_load"):
        lanes(arch, resource + load, x, more=memory)
    with pytest.raises(Fault, match=r"a swizzled buffer at .* buffer_load"):
        lanes(arch, resource + "s_or_b32 s17, s17, 0x80000000\n" + load, x, more=memory)


ATOMICS = {
    "add": (np.add, "u32"), "min": (np.minimum, "i32"), "max": (np.maximum, "u32"),
    "and": (np.bitwise_and, "b32"), "or": (np.bitwise_or, "b32"), "xor": (np.bitwise_xor, "b32"),
}  # fmt: skip


@pytest.mark.parametrize("what", ATOMICS)
def test_atomics(arch: str, what: str) -> None:
    """All lanes on one word: what is there in the end; and each alone, with what was there."""
    function, kind = ATOMICS[what]
    x, memory = words(arch), words(arch, 2)
    name = f"global_atomic_{what}_{kind}"
    if arch == "gfx942":
        name = "global_atomic_" + {"min": "smin", "max": "umax"}.get(what, what)
    returns = {"gfx1100": "glc", "gfx1201": "th:TH_ATOMIC_RETURN", "gfx942": "sc0"}[arch]
    body = spelled(
        f"v_mov_b32_e32 v24, 0\n {name} v24, v4, s[8:9] offset:12\n"
        f"{name} v20, v1, v5, s[8:9] {returns}\n {{loads}}\n {{stores}}", arch)  # fmt: skip
    before = memory.copy()
    made = lanes(arch, body, x, more=memory)
    signed = np.int32 if kind == "i32" else np.uint32
    old, one, all_ = (v.astype(np.uint32).view(signed) for v in (before, x[:, 1], x[:, 0]))
    assert (made[:, 0] == before[:, 0]).all()
    assert (memory[:, 0].view(signed) == function(old[:, 0], one)).all()
    assert memory[0, 3].view(signed) == function.reduce(all_, initial=old[0, 3], dtype=signed)
    assert (memory[1:, 1:] == before[1:, 1:]).all()


def test_compare_and_swap(arch: str) -> None:
    """64 bits: the new value comes first, then what is compared."""
    n = wave_size(arch)
    memory = np.arange(2 * n, dtype=np.uint64).reshape(n, 2)
    x = np.zeros((n, 2), np.uint64)
    x[:, 0] = 1000 + np.arange(n)
    x[:, 1] = 2 * np.arange(n) + np.arange(n) % 2  # right for the even ones
    name = "global_atomic_cmpswap_" + ("x2" if arch == "gfx942" else "b64")
    returns = {"gfx1100": "glc", "gfx1201": "th:TH_ATOMIC_RETURN", "gfx942": "sc0"}[arch]
    body = spelled(f"{name} v[20:21], v1, v[4:7], s[8:9] {returns}\n {{loads}}", arch)
    made = lanes(arch, body, x.view(np.uint32), more=memory).view(np.uint64)
    k = np.arange(n)
    assert (made[:, 0] == 2 * k).all()
    assert (memory[:, 0] == np.where(k % 2 == 0, 1000 + k, 2 * k)).all()
    assert (memory[:, 1] == 2 * k + 1).all()


def test_counters_count(arch: str) -> None:
    """Loads return in order: after a wait for all but one only the first may be read."""
    wait = {"gfx1100": "s_waitcnt vmcnt(1)", "gfx1201": "s_wait_loadcnt 0x1",
            "gfx942": "s_waitcnt vmcnt(1)"}[arch]  # fmt: skip
    text = "global_load_b32 v20, v1, s[8:9]\n global_load_b32 v21, v1, s[8:9] offset:4\n" + wait
    memory = words(arch, 2)
    read = "\n v_mov_b32_e32 v22, {0}\n {{loads}}"
    made = lanes(arch, spelled(text + read.format("v20"), arch), words(arch), more=memory)
    assert (made[:, [0, 1, 2]] == memory[:, [0, 1, 0]]).all()
    with pytest.raises(Fault, match=r"v21 is used before its load was waited for at .* v_mov_b32"):
        lanes(arch, spelled(text + read.format("v21"), arch), words(arch), more=memory)


@pytest.mark.parametrize("left", [0, 1])
def test_scalar_loads_return_in_any_order(arch: str, left: int) -> None:
    """A wait for all but one says nothing of the first."""
    load = "s_load_dword" if arch == "gfx942" else "s_load_b32"
    wait = f"s_wait_kmcnt {left}" if arch == "gfx1201" else f"s_waitcnt lgkmcnt({left})"
    body = f"{load} s20, s[8:9], 0x4\n {load} s21, s[8:9], 0x8\n {wait}\n v_mov_b32_e32 v20, s20\n"
    memory = words(arch, 2)
    if left:
        with pytest.raises(Fault, match=r"s20 is used before its load was waited for at .* v_mov"):
            lanes(arch, body, words(arch), more=memory)
        return
    assert (lanes(arch, body, words(arch), more=memory)[:, 0] == memory[0, 1]).all()


def test_a_scalar_load_may_overtake_lds(arch: str) -> None:
    """Before RDNA4 both have one counter: all but one says nothing while a scalar load is out."""
    load = "s_load_dword" if arch == "gfx942" else "s_load_b32"
    wait = "s_wait_dscnt 0x0" if arch == "gfx1201" else "s_waitcnt lgkmcnt(1)"
    text = f"""v_lshlrev_b32_e32 v24, 2, v0
        ds_store_b32 v24, v4
        {{lds}}
        ds_load_b32 v20, v24
        {load} s20, s[8:9], 0x4
        {wait}
        v_mov_b32_e32 v21, v20"""
    memory, x = words(arch, 2), words(arch)
    if arch == "gfx1201":
        made = lanes(arch, spelled(text, arch), x, lds=256, more=memory)
        assert (made[:, 1] == x[:, 0]).all()
        return
    with pytest.raises(Fault, match=r"v20 is used before its load was waited for"):
        lanes(arch, spelled(text, arch), x, lds=256, more=memory)


@pytest.mark.parametrize("access", [
    "global_store_b32 v1, v4, s[8:9] offset:4", "global_atomic_or_b32 v1, v4, s[8:9] offset:4",
], ids=["store", "atomic"])  # fmt: skip
def test_stores_count_with_loads_on_gfx942_only(arch: str, access: str) -> None:
    """A store after a load: a wait for all but one is enough where both count together."""
    if arch == "gfx942":
        access = access.replace("or_b32", "or")
    wait = "s_wait_loadcnt 0x1" if arch == "gfx1201" else "s_waitcnt vmcnt(1)"
    text = f"global_load_b32 v20, v1, s[8:9]\n {access}\n {wait}\n v_mov_b32_e32 v21, v20"
    body = spelled(text, arch)
    memory = words(arch, 2)
    if arch == "gfx942":
        assert (lanes(arch, body, words(arch), more=memory)[:, 1] == memory[:, 0]).all()
        return
    with pytest.raises(Fault, match=r"v20 is used before its load was waited for"):
        lanes(arch, body, words(arch), more=memory)


@pytest.mark.parametrize("used", [0, 1])
def test_many_loads_are_counted(arch: str, used: int) -> None:
    """20 loads, and a wait for all but 19: the first may be used, the second not."""
    wait = "s_wait_loadcnt 19" if arch == "gfx1201" else "s_waitcnt vmcnt(19)"
    loads = "".join(f"global_load_b32 v{40 + k}, v1, s[8:9]\n" for k in range(20))
    body = spelled(f"{loads} {wait}\n v_mov_b32_e32 v20, v{40 + used}\n {{loads}}", arch)
    memory = words(arch, 2)
    if not used:
        assert (lanes(arch, body, words(arch), more=memory)[:, 0] == memory[:, 0]).all()
        return
    with pytest.raises(Fault, match=r"v41 is used before its load was waited for"):
        lanes(arch, body, words(arch), more=memory)


def test_a_wait_for_two_counters(arch: str) -> None:
    """All of LDS and all loads but one."""
    wait = {"gfx1201": "s_wait_loadcnt_dscnt 0x100"}.get(arch, "s_waitcnt vmcnt(1) lgkmcnt(0)")
    text = f"""v_lshlrev_b32_e32 v24, 2, v0
        ds_store_b32 v24, v4
        ds_load_b32 v21, v24
        global_load_b32 v20, v1, s[8:9]
        global_load_b32 v22, v1, s[8:9] offset:4
        {wait}
        v_mov_b32_e32 v23, """
    memory, x = words(arch, 2), words(arch)
    for register, wanted in (("v20", memory[:, 0]), ("v21", x[:, 0])):
        body = spelled(f"{text}{register}\n {{loads}}", arch)
        made = lanes(arch, body, x, lds=256, more=memory)
        assert (made[:, 3] == wanted).all()
    with pytest.raises(Fault, match=r"v22 is used before its load was waited for"):
        lanes(arch, spelled(text + "v22", arch), x, lds=256, more=memory)


def test_what_is_not_modelled_is_refused(arch: str) -> None:
    zero = "null" if arch == "gfx1201" else "0"
    with pytest.raises(UnsupportedError, match="a structured buffer"):
        lanes(arch, spelled(f"buffer_load_b32 v20, v1, s[16:19], {zero} idxen", arch), words(arch))
