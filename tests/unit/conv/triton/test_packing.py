"""The packed weight: what the kernels read is the permuted weight, made once, in one allocation."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from hy3d_rocm.conv.problem import Problem
from hy3d_rocm.conv.triton import jit, launch, plan, steps, work
from hy3d_rocm.conv.triton.plan import Layout
from tools.dev import variants

pytest.importorskip("triton", reason="no triton in this environment")

TARGET = work.Target("gfx1100", 1)


def problem(**changes: Any) -> Problem:
    return dataclasses.replace(variants._base("bf16"), **changes)


def kernels(p: Problem, **layout: Any) -> list[str]:
    lies = dataclasses.replace(variants._layout(p, False, False), **layout)
    return [item.kernel for item in steps.make_steps(p, lies, "bf16", True, TARGET).launches]


POINT: Any = {"kernel": (1, 1, 1), "size": (4, 8, 8)}


def test_a_weight_that_lies_as_it_is_read_is_not_copied() -> None:
    assert kernels(problem(**POINT)) == ["conv_points"]
    p = problem()
    last = variants._last(p)
    assert kernels(p, weight=last) == ["load_rows", "conv_rows"]
    assert kernels(p) == ["load_rows_and_weight", "conv_rows"]
    # Padded channels make it another order.
    assert kernels(problem(channels=20, **POINT)) == ["load_rows_and_weight", "conv_rows"]


def test_a_weight_that_is_not_aligned_is_copied_even_so() -> None:
    assert kernels(problem(**POINT), weight_aligned=False) == ["load_rows", "conv_points"]
    p = problem()
    last = variants._last(p)
    found = kernels(p, weight=last, weight_aligned=False)
    assert found == ["load_rows_and_weight", "conv_rows"]


def test_a_first_box_packs_and_no_other() -> None:
    p = problem(size=(9, 40, 40), pad_before=(1, 1, 1), pad_after=(1, 1, 1))
    lies = variants._layout(p, False, False)
    made = steps.make_steps(p, lies, "bf16", True, TARGET, p.weight_bytes + 400_000)
    found = [item.kernel for item in made.launches if item.kernel.startswith("load_rows")]
    assert len(found) > 2
    assert found == ["load_rows_and_weight"] + ["load_rows"] * (len(found) - 1)


def test_parts_of_the_workspace_do_not_overlap_and_begin_at_whole_lines() -> None:
    p = problem(channels=1024, outputs=8, size=(3, 5, 5))
    in_parts = work.Target("gfx1100", 96)
    made = steps.make_steps(p, variants._layout(p, False, False), "bf16", True, in_parts)
    assert min(made.packed_elems, made.rows_elems, made.sums_elems) > 0
    rows, sums, end = made.offsets
    assert made.packed_elems * 2 <= rows
    assert rows + made.rows_elems * 2 <= sums
    assert sums + made.sums_elems * 4 <= end
    assert rows % 256 == sums % 256 == end % 256 == 0


def test_a_weight_that_reaches_beyond_2_gib_is_known_to() -> None:
    p = problem()
    plain = plan.plain_strides(p)
    for strides, small in ((plain, True), ((2**25, *plain[1:]), False)):
        size = p.outputs, p.channels, *p.kernel
        weight = torch.empty_strided(size, strides, dtype=torch.bfloat16, device="meta")
        assert jit.is_small(launch._reach_bytes(weight)) is small


def test_a_weight_whose_taps_do_not_lie_evenly_is_packed_by_torch() -> None:
    p = problem()
    o, c, t, h, w = plan.plain_strides(p)
    lies = variants._layout(p, False, False)
    for strides, uneven in (((o, c, t, h, w), False), ((o, c, w, h, t), True)):
        layout = dataclasses.replace(lies, weight=strides)
        made = steps.make_steps(p, layout, "bf16", True, TARGET)
        assert made.is_uneven is uneven
        first = "load_rows" if uneven else "load_rows_and_weight"
        assert [item.kernel for item in made.launches] == [first, "conv_rows"]
        assert made.packed_elems == p.outputs * p.channels * 27


def test_the_strides_of_a_two_dimensional_weight_have_no_time() -> None:
    x, out = torch.zeros(1, 8, 9, 9), torch.zeros(1, 16, 7, 7)
    found = Layout.of(x, out, torch.zeros(16, 8, 3, 3))
    assert found.weight == (72, 9, 0, 3, 1)
    assert found.weight_aligned
