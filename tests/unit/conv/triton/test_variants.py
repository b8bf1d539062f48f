"""What may be launched is enumerated without a GPU, completely; a share of it compiles for AMD."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import check_gfx
import check_triton_numerics as numerics
import how_much
import pytest

from hy3d_rocm.conv.problem import Problem
from hy3d_rocm.conv.triton import configs, steps, work
from tools.dev import compile as compiling
from tools.dev import variants

pytest.importorskip("triton", reason="no triton in this environment")

COUNT, SEED = how_much.of(150, 1500), 11
TILES = ("128x128x32w8s2g8", "64x64x16w4s2g8", "128x16x32w4s2g8")


def problem_of(config: numerics.Config) -> Problem:
    """The problem of a random configuration, its conv2d as a batch of one with time."""
    batch, size = config.batch, config.size
    if config.ndim == 2:
        batch, size = 1, (config.batch, *config.size[1:])
    return Problem(
        batch=batch, channels=config.channels[0], outputs=config.channels[1],
        groups=config.groups, size=size, kernel=config.kernel, stride=config.stride,  # type: ignore[arg-type]
        dilation=config.dilation, pad_before=config.before, pad_after=config.after,  # type: ignore[arg-type]
        itemsize=4 if config.dtype == "float32" else 2,
    )  # fmt: skip


@pytest.mark.parametrize("text", TILES)
def test_random_problems_launch_only_what_is_enumerated(text: str) -> None:
    """In the gate each tile with one type, in turns."""
    tile, turn = configs.Config.parse(text), variants.DTYPES[TILES.index(text)]
    known = {
        d: {v.generic for v in variants.variants("gfx1100", d, tiles=[tile])}
        for d in how_much.of((turn,), variants.DTYPES)
    }
    names = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
    for index in range(COUNT):
        config = numerics.random_config(SEED, index)
        p, dtype = problem_of(config), names[config.dtype]
        if dtype not in known:
            continue
        for last in (False, True):
            layout = variants._layout(p, config.layouts[0] == "last", last)
            weight = variants._last(p) if config.layouts[1] == "last" else None
            layout = dataclasses.replace(
                layout, aligned=config.layouts[0] != "offset", weight=weight,
                weight_aligned=index % 4 > 0,
            )  # fmt: skip
            target = work.Target("gfx1100", config.units, tile=tile)
            made = steps.make_steps(p, layout, dtype, config.bias, target)
            for item in made.launches:
                found = variants.of_launch(item, dtype)
                assert found.generic in known[dtype], f"seed {SEED}, index {index}: {found}"


@pytest.mark.parametrize(("select", "strength"), [(variants.pairs, 2), (variants.values, 1)])
def test_a_selection_has_every_combination_of_values_that_occurs(
    select: Callable[[list[variants.Variant]], list[variants.Variant]], strength: int
) -> None:
    every = variants.variants("gfx1100", "f16", tiles=[configs.Config.parse(TILES[0])])
    chosen = select(every)
    assert len(chosen) < len(every) / 4
    for function in {v.function for v in every}:
        wanted, covered = (
            {c for v in these if v.function == function for c in variants.combinations(v, strength)}
            for these in (every, chosen)
        )
        assert covered == wanted


def test_one_tile_of_each_architecture_and_dtype_compiles_and_spills_nothing() -> None:
    """Of each architecture a dtype in turn in the gate, of which each is met."""
    offered = [(a, d) for a in compiling.GFX_TARGETS for d in variants.DTYPES
               if configs.offered(a, d)]  # fmt: skip
    in_turn = {
        (arch, dtypes[k % len(dtypes)])
        for k, arch in enumerate(compiling.GFX_TARGETS)
        if (dtypes := [d for a, d in offered if a == arch])
    }
    assert {dtype for _, dtype in in_turn} == {dtype for _, dtype in offered}
    wanted = [pair for pair in offered if pair in how_much.of(in_turn, offered)]
    asked = list(check_gfx.subset(wanted))
    assert {(arch, v.dtype) for arch, v in asked} == set(wanted)
    lines = check_gfx.check(asked, workers=1)
    assert sum(line.count for line in lines) == len(asked)
    assert [words for line in lines for words in line.wrong] == []


def test_a_tile_that_spills_is_a_failed_line() -> None:
    # 128 x 128 f32 sums of four waves alone would fill the registers.
    tile = configs.Config.parse("128x128x16w4s2g8")
    found = variants.variants("gfx1030", "f32", tiles=[tile])
    plain = [v for v in found if v.function == "conv_rows" and v.is_plain][:1]
    (line,) = check_gfx.check([("gfx1030", plain[0])], workers=1)
    assert any("registers spill" in words for words in line.wrong)


def test_memory_is_read_and_written_by_vectors_where_the_layout_allows() -> None:
    tile = configs.Config.parse("64x64x32w4s2g8")
    found = [v for v in variants.variants("gfx942", "f16", tiles=[tile]) if v.form == "small"]

    def first(function: str, **constants: object) -> variants.Variant:
        wanted = constants.items()
        return next(v for v in found if v.function == function and wanted <= v.constexprs.items())

    asked = {
        "points": first("conv_points", EVEN_K=True),
        "copy": first("load_rows", VECTOR=8),
        "rows": first("conv_rows", EVEN_K=True, CHANNELS_LAST=True, VECTOR=8, SPLIT=False),
    }
    jobs = [compiling.make_job(variant, "gfx942") for variant in asked.values()]
    done = {
        done.job.function: done.isa()
        for done in compiling.compile_all(jobs, workers=1, cache_dir=check_gfx.CACHE)
    }
    points, copy, rows = done["conv_points"], done["load_rows"], done["conv_rows"]
    assert points.loop is not None
    assert rows.loop is not None
    assert set(points.loop.loads) == {16}
    assert set(copy.body.loads) == set(copy.body.stores) == {16}
    assert set(rows.loop.loads) == {16}
    # An MFMA leaves four neighbouring outputs in a lane.
    assert set(rows.body.stores) == {8}
