"""Reading AMDGCN text: a small one written by hand, so neither Triton nor a GPU is needed."""

from __future__ import annotations

import pytest

from tools.dev import isa

TEXT = """
	.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
kernel:
.Lfunc_begin0:
	s_load_b64 s[0:1], s[4:5], 0x0          ; comment with v_wmma_f32_16x16x16_f16
	global_load_b128 v[0:3], v4, s[0:1]
.LBB0_1:                                ; %.lr.ph
                                        ; =>This Inner Loop Header: Depth=1
	global_load_u16 v5, v4, s[0:1]
	global_load_d16_hi_b16 v5, v4, s[0:1]
	buffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen
	buffer_load_dword v9, off, s[0:3], 0    ; 4-byte Folded Reload
	s_and_saveexec_b32 s2, vcc_lo
	ds_store_b128 v4, v[0:3]
	s_barrier
	{matrix}
	v_dual_fmac_f32 v7, v8, v9 :: v_dual_fmac_f32 v6, v8, v10
	s_cbranch_scc1 .LBB0_1
.LBB0_2:
	global_store_b32 v4, v5, s[0:1]
	s_endpgm
	.section	.rodata,"a",@progbits
; codeLenInByte = 1234
; NumVgprs: 53
; Occupancy: 7
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     {agprs}
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: {scratch}
    .sgpr_count:     40
    .sgpr_spill_count: 0
    .vgpr_count:     72
    .vgpr_spill_count: {spilled}
    .wavefront_size: {wave}
...
	.end_amdgpu_metadata
"""


def kernel(arch: str = "gfx1100", lds: int = 8192, **values: object) -> isa.Isa:
    fields = {"matrix": "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", "agprs": 0,
              "scratch": 0, "spilled": 0, "wave": 32} | values  # fmt: skip
    return isa.parse(TEXT.format(arch=arch, **fields), shared_bytes=lds, num_warps=4)


def test_instructions_are_counted_by_what_they_do() -> None:
    found = kernel()
    assert found.body.matrix == {"wmma": 1}
    assert found.body.fma == 2, "both halves of a dual instruction count"
    assert found.body.loads == {16: 2, 2: 2}, "a reload from scratch is no global load"
    assert found.body.stores == {4: 1}
    assert (found.body.lds, found.body.barriers, found.body.masks) == (1, 1, 1)
    assert found.body.macs == 16 * 16 * 16 + 2 * 32
    assert found.code_bytes == 1234


def test_the_inner_loop_is_counted_apart() -> None:
    found = kernel()
    assert found.loop is not None
    assert found.loop.loads == {16: 1, 2: 2}
    assert not found.loop.stores
    assert found.loop.total == 11


def test_vector_and_accumulation_registers_share_one_file_on_cdna() -> None:
    found = kernel("gfx90a", agprs=16, wave=64, lds=4096, matrix="v_mfma_f32_32x32x8f16 a[0:15]")
    assert (found.vgprs, found.agprs, found.total_vgprs) == (53, 16, 72)
    assert found.waves_by_registers == 512 // 72 == found.llvm_occupancy
    assert found.body.matrix == {"mfma": 1}


@pytest.mark.parametrize(
    ("arch", "vgprs", "waves"),
    [("gfx1100", 96, 16), ("gfx1100", 97, 12), ("gfx1100", 256, 5), ("gfx1030", 256, 4),
     ("gfx1030", 129, 7), ("gfx942", 512, 1), ("gfx942", 64, 8), ("gfx1102", 256, 4)],
)  # fmt: skip
def test_registers_limit_the_waves_of_a_simd(arch: str, vgprs: int, waves: int) -> None:
    assert isa.register_file(arch).waves_by_registers(vgprs) == waves


def test_lds_limits_the_waves_of_a_simd() -> None:
    # 128 KiB for four SIMDs: four groups of 32 KiB, four waves each, are four waves a SIMD.
    assert kernel(lds=32 * 1024).waves == 4
    assert kernel(lds=64 * 1024).waves == 2
    assert kernel("gfx942", lds=64 * 1024, wave=64).waves == 1


@pytest.mark.parametrize(
    ("arch", "dtype", "values", "words"),
    [("gfx1100", "f16", {"spilled": 20, "scratch": 84}, "20 vector and 0 scalar registers spill"),
     ("gfx1100", "f16", {"scratch": 16}, "16 bytes a lane in scratch"),
     ("gfx1100", "f16", {"lds": 65540}, "65540 bytes of LDS"),
     ("gfx1100", "f16", {"matrix": "v_nop"}, "no wmma instruction, but fma"),
     ("gfx942", "f16", {}, "no mfma instruction, but wmma"),
     ("gfx1030", "f16", {}, "no dot2 instruction, but wmma"),
     ("gfx942", "f32", {"matrix": "v_mfma_f32_32x32x4_xf32 a[0:15]"}, "rounded to xf32")],
)  # fmt: skip
def test_what_should_not_be_offered_is_said_in_words(
    arch: str, dtype: str, values: dict[str, object], words: str
) -> None:
    assert words in " ".join(isa.problems(kernel(arch, **values), dtype))  # type: ignore[arg-type]


def test_a_good_kernel_has_no_problems_and_a_row_for_each_column() -> None:
    found = kernel()
    assert isa.problems(found, "f16") == []
    assert isa.problems(kernel(matrix="v_nop"), "f32") == []
    assert len(isa.row(found)) == len(isa.COLUMNS)


def test_other_text_and_other_architectures_are_sentences() -> None:
    with pytest.raises(ValueError, match="no AMDGCN assembly"):
        isa.parse("s_endpgm", shared_bytes=0, num_warps=4)
    with pytest.raises(ValueError, match=r"no register limits for 'gfx803'"):
        isa.register_file("gfx803")


def test_a_card_without_limits_can_be_checked_all_the_same() -> None:
    assert kernel("gfx1250").waves == 0
