"""A job of known layers as the C core's request, and what a budget buys."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiny_vae  # noqa: E402
from planning_jobs import CARD, CPU, F32, GB, MB, job  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decode.families import family_for  # noqa: E402
from hy3d_rocm.decode.memory.black_box import predicted  # noqa: E402
from hy3d_rocm.decode.memory.budget import Budget  # noqa: E402
from hy3d_rocm.decode.planning import compiled  # noqa: E402
from hy3d_rocm.decode.planning.backends import native_backend, torch_backend  # noqa: E402
from hy3d_rocm.decode.planning.jobs import Job, WayOptions  # noqa: E402
from hy3d_rocm.decode.planning.planner import (  # noqa: E402
    DoesNotFitError,
    Plan,
    Way,
)

CHECK = Path(__file__).parents[1] / "checks" / "check_planned_peak.py"

pytestmark = pytest.mark.skipif(not _native.available, reason="programs are the C core's")


def job_of(kind: str, size: tuple[int, int, int], device: Any = CPU, **changes: Any) -> Job:
    family = family_for(tiny_vae(kind))
    made: dict[str, Any] = {
        "shape": (1, family.latent_channels, *size), "device": device, "dtype": F32,
        "result_dtype": F32, "make_backend": torch_backend,
    }  # fmt: skip
    return Job(family, **(made | changes))


def given(size: int) -> Budget:
    return Budget(size, size, True, "given")


def test_chunks_keep_a_gpu_busy_and_end_with_one_latent() -> None:
    def chunks(frames: int, height: int, width: int, device: Any = CARD, **changes: Any) -> Any:
        made = job(device, shape=(1, 16, frames, height, width), **changes)
        return [n for n in compiled._chunks(made, WayOptions(), device) if n]

    assert chunks(200, 16, 16) == [64, 1]
    assert chunks(9, 16, 16) == [9, 1]
    assert chunks(9, 128, 128) == [1]
    assert chunks(9, 64, 128) == [2, 1]
    assert chunks(9, 300, 300) == [1]
    assert chunks(9, 16, 16, CPU) == [1]
    native = {"make_backend": native_backend}
    assert chunks(9, 16, 16, CPU, **native) == [4, 2, 1]
    assert chunks(3, 16, 16, CPU, **native) == [3, 2, 1]
    assert chunks(1, 16, 16, CPU, **native) == [1]
    assert chunks(33, 512, 1024, encode=True) == [8, 4]
    assert chunks(3, 512, 1024, encode=True) == [4]
    assert chunks(5, 4, 4, encode=True) == [8, 4]
    five = compiled._chunks(job(CARD), WayOptions(chunk_size=5), CARD)
    assert [n for n in five if n] == [5]


def test_slices_are_larger_where_the_c_convolution_computes() -> None:
    def slices(made: Job, device: Any, **options: Any) -> list[int]:
        return [n for n in compiled.slice_sizes(made, WayOptions(**options), device) if n]

    assert slices(job(CARD), CARD) == [512 * MB]
    assert slices(job(), CPU) == [32 * MB]
    assert slices(job(make_backend=native_backend), CPU) == [512 * MB, 32 * MB]
    assert slices(job(make_backend=native_backend), CPU, slice_bytes=7) == [7]


def test_a_job_is_planned_in_one_call_and_what_is_wrong_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = job_of("wan", (2, 4, 4))
    assert compiled.plan_job(made, given(GB)).strategy == "whole"
    wrong = "strategy is 'fast': give one of 'auto', 'whole', 'streamed', 'tiled', 'cpu'"
    with pytest.raises(ValueError, match=f"^{re.escape(wrong)}$"):
        compiled.plan_job(made, given(GB), "fast")
    with pytest.raises(DoesNotFitError, match="at least"):
        compiled.plan_job(made, given(1))
    monkeypatch.setattr(compiled._native, "available", False)
    with pytest.raises(ValueError, match="needs the C core"):
        compiled.plan_job(made, given(GB), "cpu")


def test_of_the_vaes_own_code_the_margin_is_planned_once() -> None:
    """On the CPU it is the larger of 32 MB and a twentieth, here a twentieth."""
    made = job_of("wan", (2, 96, 96))
    found = predicted(made, Way("whole")).both_bytes
    assert found > 640 * MB
    planned = compiled.plan_job(made, given(8 * GB), "whole").need.device_bytes
    assert planned == found + found * 50 // 1000


def tiles(made: Job) -> list[Plan]:
    """What is planned from a large budget down, each time with a byte less than the last one took,
    until nothing fits."""
    found = [compiled.plan_job(made, given(1 << 40), "tiled")]
    try:
        while True:
            room = given(found[-1].need.device_bytes - 1)
            found.append(compiled.plan_job(made, room, "tiled"))
    except DoesNotFitError as refused:
        least = refused.smallest
    assert least == found[-1].need.device_bytes
    return found


@pytest.mark.parametrize(
    ("kind", "size"),
    [("wan", (2, 16, 16)), ("wan", (1, 30, 24)), ("hunyuan", (1, 16, 20)), ("ltx", (2, 14, 10)),
     ("image", (1, 40, 40))],
)  # fmt: skip
def test_less_budget_costs_more_work_or_less_halo(kind: str, size: tuple[int, int, int]) -> None:
    made = tiles(job_of(kind, size, make_backend=native_backend))
    assert len(made) >= 4, "there is something to choose from"
    for larger, smaller in itertools.pairwise(made):
        assert smaller.need.device_bytes <= smaller.budget.device_bytes
        halos = [plan.way.parameters["halo_pixels"] for plan in (smaller, larger)]
        assert halos[0] <= halos[1], "the halo is never wider with less"
        if halos[0] == halos[1]:
            assert smaller.need.macs >= larger.need.macs, "less memory, less work, same halo"


def test_one_tile_is_the_work_of_the_decode_in_chunks() -> None:
    made = job_of("wan", (2, 12, 12))
    streamed = compiled.plan_job(made, given(GB), "streamed").need.macs
    assert compiled.plan_job(made, given(GB), "tiled").need.macs == streamed


def test_measured_peaks_stay_below_the_planned_ones() -> None:
    """Two, each in a fresh process; tests/checks/check_planned_peak.py has more."""
    done: Any = subprocess.run(
        [sys.executable, str(CHECK), "--replay", "100", "106"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 within their plan" in done.stdout
