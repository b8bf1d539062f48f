"""Rasterising on a GPU without one: the kernels in Triton's interpreter against the C core, their
ISA for AMD's architectures, and what is left to the CPU. tests/long/check_raster_gpu.py and
check_raster_gfx.py do the same at length; tests/gpu/test_raster.py needs a GPU."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from typing import Any

import check_gfx
import check_raster_gfx as gfx
import check_raster_gpu as interpreted
import how_much
import interpreted_checks
import pytest
import raster_gpu_scenes as scenes
import torch
import warm_start
from places import ROOT
from triton_device import INTERPRETER

from hy3d_rocm.raster.gpu import dispatch
from tools.dev import compile as compiling

needs_triton = pytest.mark.skipif(
    dispatch._card_refusal("sm_90") is not None, reason="no triton in this environment"
)
# The first scenes of the gate's seed are small, and cover most of their pixels.
COUNT, SEED = how_much.of((4, 77), (8, 5))
ARCHES = ("gfx942", "gfx1100")


@needs_triton
@pytest.mark.timeout(300)
def test_interpreted_kernels_draw_the_c_cores_picture_bit_for_bit() -> None:
    if warm_start.IS_THERE:
        asked = {"seed": SEED, "first": 0, "count": COUNT, "step": 1, "device": INTERPRETER}
        (result,) = interpreted_checks.results(("check_raster_gpu", asked))
    else:
        result = interpreted.spawn(SEED, 0, COUNT, workers=1)
    assert not result["failed"], "\n".join(result["failed"])
    assert result["scenes"] == COUNT
    assert result["covered"] > 100
    assert result["addresses"] > how_much.of(25_000, 50_000)


def test_random_scenes_reach_both_rules_and_every_kind() -> None:
    made = [scenes.scene(SEED, index) for index in range(28)]
    assert {of.rule for of in made} == {"compat", "topleft"}
    assert {of.kind for of in made} == set(scenes.KINDS)
    assert {of.prior is None for of in made} == {True, False}


@pytest.fixture(scope="module")
def compiled() -> list[compiling.Compiled]:
    """Each kernel once, rules in turn, and one that may fuse. In the gate architectures in turn."""
    jobs = []
    for k, arch in enumerate(ARCHES):
        wanted = gfx.jobs_of(arch, (bool(k),), ("DS",))
        once = [
            j
            for j in wanted
            if j.constexprs.get("HAS_PRIOR", True) and j.constexprs.get("CHANNELS", 4) == 4
        ]
        jobs += how_much.of(once[k::2], once)
    fused = {**jobs[0].options, "enable_fp_fusion": True}
    jobs.append(dataclasses.replace(jobs[0], options=fused))
    found = compiling.compile_all(jobs, workers=1, cache_dir=check_gfx.CACHE)
    done = {id(one.job): one for one in found}
    return [done[id(one)] for one in jobs]


@needs_triton
@pytest.mark.timeout(300)
def test_kernels_compile_for_amd_without_spills_and_round_every_operation(
    compiled: list[compiling.Compiled],
) -> None:
    for one in compiled[:-1]:
        assert gfx.problems(one) == [], (one.job.arch, one.job.function)
    assert {one.job.function for one in compiled} >= {*gfx.DRAWING, "read_keys"}


@needs_triton
def test_a_kernel_that_may_fuse_is_seen_to(compiled: list[compiling.Compiled]) -> None:
    assert "fused multiply-adds" in " ".join(gfx.problems(compiled[-1]))


TRIANGLE = torch.tensor([[-1.0, -1, 0, 1], [3, -1, 0, 1], [-1, 3, 0, 1]])
FACE = torch.tensor([[0, 1, 2]])


class Draws:
    """Stands for the module draw; keeps what it was given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.given: list[Any] = []
        self.error = error

    def sizes_for(self, wave: int) -> None:
        return None

    def draw(self, *given: Any, **more: Any) -> Any:
        self.given.append((*given, more))
        if self.error is not None:
            raise self.error
        return torch.ones(2, 3), torch.ones(2, 3, 3), torch.ones(2, 3)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Draws:
    """A process that takes the CPU for a card that is known, with a double of draw.py."""
    draws = Draws()
    monkeypatch.setattr(dispatch, "refusal", lambda device: None)
    monkeypatch.setattr(dispatch.launch, "architecture", lambda device: "gfx1100")
    monkeypatch.setattr(dispatch._State, "told", False)
    monkeypatch.setattr(dispatch._State, "failed", False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    package = sys.modules["hy3d_rocm.raster.gpu"]
    monkeypatch.setattr(package, "draw", draws, raising=False)
    monkeypatch.setitem(sys.modules, "hy3d_rocm.raster.gpu.draw", draws)  # type: ignore[arg-type]
    return draws


def test_any_floats_and_integers_reach_the_kernels_as_float32_and_int32(card: Draws) -> None:
    for floats, integers in ((torch.float64, torch.int64), (torch.float16, torch.uint8)):
        clip = TRIANGLE.to(floats).T.contiguous().T
        found = dispatch.rasterize_on_gpu(clip, FACE.to(integers), (2, 3), rule="compat")
        assert found is not None
        given_clip, given_faces, height, width, more = card.given[-1]
        assert given_clip.dtype is torch.float32
        assert given_clip.is_contiguous()
        assert torch.equal(given_clip, TRIANGLE)
        assert given_faces.dtype is torch.int32
        assert (height, width, more["compat"]) == (2, 3, True)


def test_an_index_beyond_32_bits_stays_one_that_is_out_of_range(card: Draws) -> None:
    dispatch.rasterize_on_gpu(TRIANGLE, FACE + 2**32, (2, 3))
    dispatch.rasterize_on_gpu(TRIANGLE, FACE - 2**32, (2, 3))
    assert [given[1].unique().tolist() for given in card.given] == [[2**31 - 1], [-1]]


@pytest.mark.parametrize(
    "changed",
    [{"clip": TRIANGLE.int()}, {"clip": TRIANGLE[:, :3]}, {"clip": TRIANGLE[None]},
     {"faces": FACE.float()}, {"faces": FACE.bool()}, {"faces": FACE[0]},
     {"prior": torch.zeros(3, 2)}, {"prior": torch.zeros(2, 3, dtype=torch.int32)}],
)  # fmt: skip
def test_arrays_of_another_kind_are_left_to_the_cpu_which_says_what_is_wrong(
    card: Draws, changed: dict[str, torch.Tensor]
) -> None:
    given: dict[str, Any] = {"clip": TRIANGLE, "faces": FACE, "size": (2, 3)}
    assert dispatch.rasterize_on_gpu(**(given | changed)) is None
    assert not card.given


def test_kernels_that_fail_are_said_once_and_not_tried_again(
    card: Draws, caplog: pytest.LogCaptureFixture
) -> None:
    card.error = RuntimeError("ran out of registers")
    with caplog.at_level(logging.WARNING, "hy3d_rocm"):
        for _ in range(2):
            assert dispatch.rasterize_on_gpu(TRIANGLE, FACE, (2, 3)) is None
    assert len(card.given) == 1
    assert [r.getMessage() for r in caplog.records] == [
        "rasterising on the CPU from now on: the GPU's kernels failed (RuntimeError: ran out of"
        " registers)"
    ]


def test_too_little_memory_leaves_one_picture_to_the_cpu(card: Draws) -> None:
    card.error = torch.OutOfMemoryError("no")
    assert dispatch.rasterize_on_gpu(TRIANGLE, FACE, (2, 3)) is None
    card.error = None
    assert dispatch.rasterize_on_gpu(TRIANGLE, FACE, (2, 3)) is not None


def test_a_card_that_was_not_checked_and_the_cpu_are_refused_in_words() -> None:
    assert "never checked for gfx803" in str(dispatch._card_refusal("gfx803"))
    assert "not on cpu" in str(dispatch.refusal(torch.device("cpu")))
    assert dispatch.rasterize_on_gpu(TRIANGLE, FACE, (2, 3)) is None
    assert dispatch.interpolate_on_gpu(TRIANGLE, FACE, FACE[0], TRIANGLE[:, :3]) is None


def test_importing_the_dispatch_does_not_load_triton() -> None:
    code = "import sys, hy3d_rocm.raster.gpu.dispatch; print({'triton'} & {*sys.modules})"
    root = ROOT
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert found.stdout == "set()\n", found.stderr
