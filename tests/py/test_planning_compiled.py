"""A job as the C core's request, and what the core found as a plan (planning/compiled.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiny_vae  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decode.families import family_for  # noqa: E402
from hy3d_rocm.decode.memory.budget import Budget  # noqa: E402
from hy3d_rocm.decode.memory.predict import CPU_ALLOWANCE_BYTES  # noqa: E402
from hy3d_rocm.decode.planning.backends import (  # noqa: E402
    best_backend,
    host_backend,
    torch_backend,
)
from hy3d_rocm.decode.planning.compiled import compile_job  # noqa: E402
from hy3d_rocm.decode.planning.jobs import Job  # noqa: E402
from hy3d_rocm.decode.planning.planner import DoesNotFitError, Way  # noqa: E402
from hy3d_rocm.decode.planning.prices import Prices  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not _native.available, reason="programs are the C core's"),
]

NO_LIMIT = 1 << 40
F32 = torch.float32


def job_of(kind: str, shape: tuple[int, int, int], device: str = "cpu", **changes: Any) -> Job:
    family, place = family_for(tiny_vae(kind)), torch.device(device)
    backend = best_backend(place, F32) if device == "cpu" else host_backend
    job = Job(family, (1, family.latent_channels, *shape), place, F32, F32, backend)
    return replace(job, **changes)


def budget_of(device: int, host: int = NO_LIMIT, unified: bool = True) -> Budget:
    return Budget(device, host, unified, "given")


def chunks_of(job: Job) -> list[int]:
    found = compile_job(job, budget_of(NO_LIMIT), "streamed", compiles_all=True)
    return [c["chunk"] for c in found.schedule.candidates if c["order"] == "chunks"]


@pytest.mark.parametrize(("frames", "chunks"), [(1, [1]), (2, [2, 1]), (3, [3, 2, 1]),
                                                (9, [4, 2, 1])])  # fmt: skip
def test_the_c_convolution_is_offered_chunks_of_4_2_and_1_latents(
    frames: int, chunks: list[int]
) -> None:
    assert chunks_of(job_of("wan", (frames, 8, 8))) == chunks


def test_what_is_encoded_by_the_c_convolution_goes_in_chunks_of_as_many_pixel_frames() -> None:
    job = job_of("wan", (33, 64, 64), encode=True)
    time = job.family.factor[0]
    shape = (1, 3, 33, 64, 64)
    assert chunks_of(replace(job, shape=shape)) == [4 * time, 2 * time, time]


def test_torch_is_offered_one_latent_on_the_cpu_and_as_many_as_keep_a_gpu_busy() -> None:
    assert chunks_of(job_of("wan", (9, 8, 8), make_backend=torch_backend)) == [1]
    assert chunks_of(job_of("wan", (9, 64, 64), "cuda")) == [4, 1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_margin_of_a_vaes_own_code_counts_once(device: str) -> None:
    job = job_of("wan", (9, 8, 8), device)
    found = Prices(job).predicted(Way("whole"))
    taken = found.both_bytes if device == "cpu" else found.device_bytes
    compiled = compile_job(job, budget_of(NO_LIMIT), "whole")
    candidate = compiled.program.candidate
    assert candidate["device_bytes"] == taken
    margin = candidate["margin_bytes"]
    assert 0 < margin <= max(2 * CPU_ALLOWANCE_BYTES, taken // 20)
    planned = compiled.plan().need.device_bytes
    assert planned == taken + margin
    assert compile_job(job, budget_of(planned + found.host_bytes), "whole").plan()
    with pytest.raises(DoesNotFitError):
        compile_job(job, budget_of(planned - 1), "whole").plan()


@pytest.mark.parametrize("strategy", ["streamed", "tiled", "cpu"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_planned_is_the_cores_peak_with_the_cores_margin(
    device: str, strategy: str
) -> None:
    job = job_of("wan", (5, 8, 8), device)
    compiled = compile_job(job, budget_of(NO_LIMIT, unified=False), strategy)
    candidate, need = compiled.program.candidate, compiled.plan().need
    margin = candidate["margin_bytes"]
    beside = strategy == "cpu" and device != "cpu"
    assert margin > 0
    assert need.device_bytes == candidate["device_bytes"] + (0 if beside else margin)
    assert need.host_bytes == candidate["host_bytes"] + (margin if beside else 0)
    if not beside:
        assert compiled.schedule.smallest_budget <= need.device_bytes
