"""tests/long/check_gfx_run.py: each variant has a source that launches it, and what is wrong with
one is told. Nothing is executed but by doubles."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

import check_fused
import check_fused_gfx
import check_gfx_run
import gfx_layers
import gfx_problems
import pytest

from hy3d_rocm.conv.triton import configs
from tools.dev import variants
from tools.dev.gfx import driver, machine


@pytest.mark.parametrize(("arch", "dtype"), [("gfx1100", "f16"), ("gfx942", "f32")])
def test_each_variant_of_the_tier_has_a_source_that_launches_it(arch: str, dtype: str) -> None:
    found = variants.sources(arch, dtype)
    assert list(found) == variants.variants(arch, dtype)
    strange = [v for v, source in found.items() if not gfx_problems.launches(v, source, arch)]
    assert not strange


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_each_variant_of_the_fused_decode_has_a_source_that_launches_it(dtype: str) -> None:
    tiles = list(configs.offered("gfx1100", dtype))
    for v, source in check_fused_gfx.sources("gfx1100", dtype, tiles, lambda found: found).items():
        assert gfx_layers.launches(v, source, "gfx1100"), str(v)


@pytest.mark.parametrize(("arch", "dtype"), [("gfx1100", "f16"), ("gfx942", "bf16")])
def test_what_multiplies_has_a_second_tile_of_positions_and_outputs(arch: str, dtype: str) -> None:
    for v, source in variants.sources(arch, dtype, select=variants.pairs).items():
        wider = gfx_problems.wide_enough(v, source, arch)
        if not v.arithmetic:
            assert wider == source
            continue
        small = dataclasses.replace(v, form="small")
        (item,) = (
            item
            for item in wider.steps(arch, dtype).launches
            if variants.of_launch(item, dtype) == small
        )
        p, tile = wider.problem, wider.tile
        positions = item.numbers[0] * (8 if v.function == "conv_points" else 1)
        assert positions > tile.block_p, str(v)
        assert positions % tile.block_p, str(v)
        if p.outputs > 16:  # few outputs have kernels of their own
            assert tile.block_n < p.outputs < 2 * tile.block_n or v.constexprs.get("GROUPED"), str(
                v
            )


def test_so_has_what_the_fused_decode_multiplies() -> None:
    tiles = list(configs.offered("gfx942", "f16"))
    for v, source in check_fused_gfx.sources("gfx942", "f16", tiles, variants.pairs).items():
        if v.arithmetic:
            job = gfx_layers.sized(v, source, "gfx942").job
            assert source.tile.block_n < job.outputs < 2 * source.tile.block_n, str(v)
            work = source.work("gfx942")
            assert max(product.positions for product in work.products) > source.tile.block_p


OPTIONS = {"select": "values", "find": "load_rows 4x", "most": 1, "device": "", "workers": 1,
           "first": 0, "verbose": False, "arch": ["gfx1100"], "dtype": ["f16"]}  # fmt: skip


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[check_gfx_run.Row]]:
    """The rows of a run in which Program.run is this function."""

    def made(run: Any, **changes: Any) -> list[check_gfx_run.Row]:
        monkeypatch.setattr(machine.Program, "run", run)
        options = argparse.Namespace(**(OPTIONS | changes))
        return [check_gfx_run.Row(**fields) for fields in check_gfx_run.run_child(options)]

    return made


def nothing(*_: Any) -> Any:
    return machine.Counts(1)


def test_a_variant_that_writes_nothing_differs(rows: Any) -> None:
    (row,) = rows(nothing)
    assert (row.asked, row.executed, row.differing) == (1, 1, 1)
    assert not row.is_right
    assert row.launches == 4  # packing and product, on integers and on reals
    assert "values differ" in row.wrong[0]


@pytest.mark.parametrize(
    ("kind", "column"),
    [("bounds", "outside"), ("hazard", "hazards"), ("unsupported", "other"), ("end", "other")],
)
def test_faults_are_counted_by_their_kind(kind: str, column: str, rows: Any) -> None:
    def run(*_: Any) -> Any:
        raise machine.Fault("not so", kind)

    (row,) = rows(run)
    assert getattr(row, column) == 1
    assert "not so" in row.wrong[0]
    assert row.executed == 0
    assert not row.is_right


def test_a_variant_that_another_kernel_is_launched_for_is_no_success(
    rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any) -> Any:
        yield gfx_problems.Result(1)

    monkeypatch.setattr(gfx_problems, "run", run)
    (row,) = rows(nothing)
    assert (row.executed, row.other) == (0, 1)
    assert "launches other kernels" in row.wrong[0]


@pytest.mark.parametrize("form", list(check_fused_gfx.FORMS))
def test_a_job_is_launched_with_the_pointers_of_its_form(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.Program, "run", nothing)
    monkeypatch.setattr(check_fused, "wrong_moments", lambda *_: None)
    tiles = [configs.Config.parse("64x64x16w4s2g8")]
    found = check_fused_gfx.sources("gfx1201", "f16", tiles, lambda every: every)
    variant, source = next(
        (v, source)
        for v, source in found.items()
        if v.form == form and (v.function == "load_rows") == ("input" in form)
    )
    with driver.install("gfx1201") as device:
        results = list(gfx_layers.run(variant, source, "gfx1201", 1))
    assert driver.Kernel.of(variant) in {one.kernel for one in device.launches}
    assert results
    assert not results[0].is_right
