"""Compiling for AMD without a GPU: real compilations of a small kernel in real child processes.
Triton keeps what it compiled, by source and compiler, in build/triton-gfx: a later run finds it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import check_gfx
import how_much
import pytest

from hy3d_rocm.conv.triton import configs
from tools.dev import compile as compiling
from tools.dev import isa

pytest.importorskip("triton", reason="no triton in this environment")

TYPES = {"f16": "*fp16", "bf16": "*bf16", "f32": "*fp32"}


def job(arch: str, dtype: str, block: int = 32) -> compiling.Job:
    pointer = TYPES[dtype]
    signature = {"a": pointer, "b": pointer, "c": "*fp32", "m": "i32", "n": "i32", "k": "i32",
                 "sa": "i64", "sb": "i64", "sc": "i64", "BM": "constexpr", "BN": "constexpr",
                 "BK": "constexpr"}  # fmt: skip
    sizes = {"BM": block, "BN": block, "BK": 16}
    return compiling.Job(arch, "triton_small_kernel", "matmul", signature, sizes,
                         {"a": "D", "b": "D"}, num_warps=4, num_stages=2)  # fmt: skip


def types_of(arch: str) -> list[str]:
    """In the gate one of each architecture, in turns."""
    every = list(TYPES)
    turn = compiling.GFX_TARGETS.index(arch) % len(every)
    return how_much.of([every[turn]], every)


@pytest.fixture(scope="module")
def kernels() -> dict[tuple[str, str], isa.Isa]:
    jobs = [job(arch, dtype) for arch in compiling.GFX_TARGETS for dtype in types_of(arch)]
    names = {pointer: dtype for dtype, pointer in TYPES.items()}
    return {
        (done.job.arch, names[done.job.signature["a"]]): done.isa()
        for done in compiling.compile_all(jobs, workers=2, cache_dir=check_gfx.CACHE)
    }


@pytest.mark.parametrize("arch", compiling.GFX_TARGETS)
def test_a_matrix_product_uses_what_each_architecture_has(
    arch: str, kernels: dict[tuple[str, str], isa.Isa]
) -> None:
    for dtype in types_of(arch):
        kernel = kernels[arch, dtype]
        assert kernel.arch == arch
        assert kernel.wave_size == configs.wave_size(arch)
        assert isa.problems(kernel, dtype) == []


def test_waves_by_registers_equal_the_compilers_own_figure(
    kernels: dict[tuple[str, str], isa.Isa],
) -> None:
    for key, kernel in kernels.items():
        assert kernel.waves_by_registers == kernel.llvm_occupancy, key


def test_every_inner_loop_is_found(kernels: dict[tuple[str, str], isa.Isa]) -> None:
    for key, kernel in kernels.items():
        assert kernel.loop is not None, key
        assert kernel.loop.macs > 0, key
        assert kernel.loop.total < kernel.body.total, key


def test_a_tile_that_is_too_large_is_seen_to_spill() -> None:
    large = job("gfx1030", "bf16", block=128)
    (done,) = compiling.compile_all([large], workers=1, cache_dir=check_gfx.CACHE)
    assert any("registers spill" in words for words in isa.problems(done.isa(), "bf16"))


def test_a_kernel_that_does_not_compile_is_one_failed_job(tmp_path: Path) -> None:
    signature = {"a": "*fp32", "BM": "constexpr"}
    broken = dataclasses.replace(job("gfx1100", "f16"), function="unknown_name", attributes={},
                                 signature=signature, constexprs={"BM": 16})  # fmt: skip
    good = job("gfx1100", "f16")
    told: list[tuple[int, int]] = []
    jobs = [broken, good, broken]
    results = list(
        compiling.compile_all(
            jobs, workers=1, cache_dir=tmp_path, progress=lambda done, of: told.append((done, of))
        )
    )
    assert [done.error is None for done in results] == [False, True, False]
    assert "no_such_value" in str(results[0].error)
    assert told == [(1, 3), (2, 3), (3, 3)]
    with pytest.raises(compiling.CompileError, match="no_such_value"):
        results[0].isa()


def test_a_compiler_that_takes_too_long_is_cut_off_and_replaced(tmp_path: Path) -> None:
    jobs = [job("gfx1100", "f16"), job("gfx1100", "f16")]
    results = list(compiling.compile_all(jobs, workers=1, limit_seconds=0.05, cache_dir=tmp_path))
    assert [done.error for done in results] == ["cut off after 0.05 s"] * 2


def test_a_compiler_that_ends_its_process_is_one_failed_job(tmp_path: Path) -> None:
    ending = dataclasses.replace(job("gfx1100", "f16"), module="triton_ending_module")
    results = list(
        compiling.compile_all([ending, job("gfx1100", "f16")], workers=1, cache_dir=tmp_path)
    )
    assert results[0].error == "the compiler ended its process (exit status 3)"
    assert results[1].error is None


def test_an_unknown_architecture_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="'sm_90' is no AMD architecture"):
        configs.wave_size("sm_90")
