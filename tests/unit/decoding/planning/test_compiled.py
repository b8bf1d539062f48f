"""A job as the C core's request, and what the core found as a plan (planning/compiled.py)."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from places import LONG

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import how_much  # noqa: E402
import warm_start  # noqa: E402
from decode_doubles import tiny_latents, tiny_vae, unsplit  # noqa: E402
from program_doubles import carried_out  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding.black_box import predicted  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.families.proof import rounding_bound  # noqa: E402
from hy3d_rocm.decoding.memory.budget import Budget  # noqa: E402
from hy3d_rocm.decoding.memory.dry_run import CPU_ALLOWANCE_BYTES  # noqa: E402
from hy3d_rocm.decoding.planning import compiled as compiled_module  # noqa: E402
from hy3d_rocm.decoding.planning.compiled import Compiled, plan_job  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import (  # noqa: E402
    Job,
    best_backend,
    host_backend,
    resume_key_of,
    torch_backend,
    unused_sizes,
)
from hy3d_rocm.decoding.planning.planner import DoesNotFitError, Plan, Variant  # noqa: E402
from hy3d_rocm.decoding.report import DecodeOptions  # noqa: E402
from hy3d_rocm.tools.loading import bare_vae  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not _native.available, reason="programs are the C core's"),
]

CHECK = LONG / "check_planned_peak.py"
NO_LIMIT = 1 << 40
GB, MB = 1 << 30, 1 << 20
F32 = torch.float32


def job_of(kind: str, shape: tuple[int, int, int], device: str = "cpu", **changes: Any) -> Job:
    family, place = family_for(tiny_vae(kind)), torch.device(device)
    backend = best_backend(place, F32) if device == "cpu" else host_backend
    job = Job(family, (1, family.latent_channels, *shape), place, F32, F32, backend)
    return replace(job, **changes)


def budget_of(device: int, host: int = NO_LIMIT, unified: bool = True) -> Budget:
    return Budget(device, host, unified, "given")


def chunks_of(job: Job) -> list[int]:
    found = Compiled(job, budget_of(NO_LIMIT), "streamed", compiles_all=True)
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
    for size, chunks in (
        ((200, 16, 16), [64, 1]),
        ((9, 16, 16), [9, 1]),
        ((9, 64, 64), [4, 1]),
        ((9, 64, 128), [2, 1]),
        ((9, 128, 128), [1]),
        ((9, 300, 300), [1]),
    ):
        assert chunks_of(job_of("wan", size, "cuda")) == chunks, size


@pytest.mark.parametrize("name", ["hunyuan", "wan21", "ltx", "image"])
def test_own_code_never_takes_less_than_what_the_core_takes_for_the_least(name: str) -> None:
    """Which is what the core goes by without a question. Of real sizes; run on shapes."""
    family = family_for(bare_vae(name))
    sizes = ((1, 8, 12), (9, 60, 104), (2, 12, 8), (5, 16, 16))
    for frames, rows, columns in how_much.of(sizes[:2], sizes):
        for encode in (False, True):
            factor = family.factor if encode else (1, 1)
            shape = (
                1, 3 if encode else family.latent_channels,
                1 if family.is_image else 1 + (frames - 1) * factor[0],
                rows * factor[1], columns * factor[1],
            )  # fmt: skip
            cuda = torch.device("cuda")
            job = Job(family, shape, cuda, F32, F32, host_backend, encode=encode)
            nothing = Compiled(job, budget_of(1, unified=False))
            least = [c for c in nothing.schedule.candidates if c["strategy"] == "whole"]
            assert [c["is_bound"] for c in least] == [1]
            own = predicted(job, Variant("whole")).device_bytes
            assert 0 < least[0]["device_bytes"] <= own, shape


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_margin_of_a_vaes_own_code_counts_once(device: str) -> None:
    job = job_of("wan", (9, 8, 8), device)
    found = predicted(job, Variant("whole"))
    taken = found.both_bytes if device == "cpu" else found.device_bytes
    compiled = Compiled(job, budget_of(NO_LIMIT), "whole")
    candidate = compiled.program.candidate
    assert candidate["device_bytes"] == taken
    margin = candidate["margin_bytes"]
    assert 0 < margin <= max(2 * CPU_ALLOWANCE_BYTES, taken // 20)
    need = compiled.plan().need
    planned = need.device_bytes
    assert planned == taken + margin
    assert Compiled(job, budget_of(planned + need.host_bytes), "whole").plan()
    with pytest.raises(DoesNotFitError):
        Compiled(job, budget_of(planned - 1), "whole").plan()


@pytest.mark.parametrize("strategy", ["streamed", "tiled", "cpu"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_planned_is_the_cores_peak_with_the_cores_margin(
    device: str, strategy: str
) -> None:
    job = job_of("wan", (5, 8, 8), device)
    compiled = Compiled(job, budget_of(NO_LIMIT, unified=False), strategy)
    candidate, need = compiled.program.candidate, compiled.plan().need
    margin = candidate["margin_bytes"]
    beside = strategy == "cpu" and device != "cpu"
    assert margin > 0
    assert need.device_bytes == candidate["device_bytes"] + (0 if beside else margin)
    assert need.host_bytes == candidate["host_bytes"] + (margin if beside else 0)
    if not beside:
        enough = Compiled(job, budget_of(need.device_bytes, unified=False), strategy).plan()
        assert enough.need.device_bytes <= need.device_bytes


def test_layers_are_recorded_anew_for_another_vae_or_way_and_for_nothing_else() -> None:
    made = job_of("hunyuan", (2, 3, 4))
    graph = made.graph
    assert made.but(dtype=torch.float64, shape=(1, 4, 5, 6, 7), rank=1, ranks=2).graph is graph
    assert made.but(encode=True).graph.nodes != graph.nodes
    other = family_for(tiny_vae("wan"))
    assert made.but(family=other).graph.nodes != graph.nodes


def test_tiles_that_do_not_fit_get_less_halo_and_overlap_never_more() -> None:
    job = job_of("wan", (2, 8, 8))
    for halo, overlap in ((0, 0), (8, 20), (None, 16)):
        options = DecodeOptions(halo_pixels=halo, overlap_pixels=overlap, min_tile_pixels=8)
        first, *others = Compiled(job, budget_of(NO_LIMIT), "tiled", options).halos
        assert first == (-1 if halo is None else halo, overlap, 8)
        most = [24, 16] if halo is None else [min(halo, 24), min(halo, 16)]
        assert others == [(most[0], min(overlap, 12), 8), (most[1], min(overlap, 8), 8)]


def test_of_float64_the_c_convolution_keeps_no_weights() -> None:
    """On the host beside a GPU torch computes it, though the C convolution is there."""
    family = family_for(tiny_vae("wan").double())
    shape = (1, family.latent_channels, 2, 4, 4)
    job = Job(family, shape, torch.device("cuda"), torch.float64, torch.float64, host_backend)
    plan = Compiled(job, Budget(1, 1 << 40, False, "the test's"), "cpu").plan()
    assert plan.prepared_bytes == 0


def test_slices_are_larger_where_the_c_convolution_computes() -> None:
    def slices(made: Job, **options: Any) -> list[int]:
        found = Compiled(
            made, budget_of(1), "streamed", DecodeOptions(cpu_offload=False, **options),
            compiles_all=True,
        )  # fmt: skip
        return [c["slice_bytes"] for c in found.schedule.candidates if c["order"] == "layers"]

    plain = job_of("hunyuan", (2, 4, 4), make_backend=torch_backend)
    native = replace(plain, make_backend=host_backend)
    assert slices(replace(plain, device=torch.device("cuda"))) == [512 * MB]
    assert slices(plain) == [32 * MB]
    assert slices(native) == [512 * MB, 32 * MB]
    assert slices(native, slice_bytes=7) == [7]


def test_a_job_is_planned_in_one_call_and_what_is_wrong_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = job_of("wan", (2, 4, 4), make_backend=torch_backend)
    assert plan_job(made, budget_of(GB)).strategy == "whole"
    wrong = "strategy is 'fast': give one of 'auto', 'whole', 'streamed', 'tiled', 'cpu'"
    with pytest.raises(ValueError, match=f"^{re.escape(wrong)}$"):
        plan_job(made, budget_of(GB), "fast")
    with pytest.raises(DoesNotFitError, match="at least"):
        plan_job(made, budget_of(1))
    monkeypatch.setattr(compiled_module._native, "available", False)
    with pytest.raises(ValueError, match="needs the C core"):
        plan_job(made, budget_of(GB), "cpu")


def tiles(made: Job) -> list[Plan]:
    """What is planned from a large budget down, each time with a byte less than the last one took,
    until nothing fits."""
    found = [plan_job(made, budget_of(1 << 40), "tiled")]
    try:
        while True:
            room = budget_of(found[-1].need.device_bytes - 1)
            found.append(plan_job(made, room, "tiled"))
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
    made = tiles(job_of(kind, size, make_backend=host_backend))
    assert len(made) >= 4, "there is something to choose from"
    for larger, smaller in itertools.pairwise(made):
        assert smaller.need.device_bytes <= smaller.budget.device_bytes
        halos = [plan.variant.parameters["halo_pixels"] for plan in (smaller, larger)]
        assert halos[0] <= halos[1], "the halo is never wider with less"
        if halos[0] == halos[1]:
            assert smaller.need.macs >= larger.need.macs, "less memory, less work, same halo"


def test_one_tile_is_the_work_of_the_decode_in_chunks() -> None:
    made = job_of("wan", (2, 12, 12))
    streamed = plan_job(made, budget_of(GB), "streamed").need.macs
    assert plan_job(made, budget_of(GB), "tiled").need.macs == streamed


def test_measured_peaks_stay_below_the_planned_ones() -> None:
    """Two (the gate: one), each in a process forked from one that has only imported;
    tests/long/check_planned_peak.py has more."""
    seeds = how_much.of(("106",), ("100", "106"))
    done = warm_start.run(str(CHECK), "--replay", *seeds, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(seeds)} within their plan" in done.stdout


def least_of(made: Job, options: DecodeOptions, order: str) -> int:
    """The least device budget under which a program of that order is offered and fits."""
    found = Compiled(
        made, budget_of(1, unified=False), "streamed", options, compiles_all=True
    ).schedule.candidates  # nothing fits, so all are told of
    taken = [c["device_bytes"] + c["margin_bytes"] for c in found if c["order"] == order]
    return min(taken)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", ["wan", "seedvr2"])
def test_what_goes_in_chunks_goes_by_layers_where_none_fits(kind: str, device: str) -> None:
    """With slices on the host, or of a short video; exact, and so before tiles."""
    made = job_of(kind, (2, 8, 8), device, make_backend=torch_backend)
    options = DecodeOptions(slice_bytes=1, chunk_size=1)
    chunks, layers = (least_of(made, options, order) for order in ("chunks", "layers"))
    assert layers < chunks
    for budget, engine in ((chunks, "chunks"), (chunks - 1, "layers"), (layers, "layers")):
        plan = plan_job(made, budget_of(budget, unified=False), "streamed", options)
        assert plan.variant.parameters["engine"] == engine, budget
        assert plan.peak.device_bytes <= budget
    assert plan.variant.name.startswith("streamed layer by layer")
    (said,) = unused_sizes(made, plan.variant, options)
    assert said == (
        "chunk_size=1 is ignored: chunks did not fit or had failed, so it goes layer by layer; "
        "slice_bytes cuts that"
    )


@pytest.mark.parametrize("kind", ["wan", "seedvr2"])
def test_by_layers_the_frames_are_those_of_the_unsplit_decode(kind: str) -> None:
    vae = tiny_vae(kind)
    z = tiny_latents(vae, 2, 8, 8)
    made = job_of(kind, (2, 8, 8), family=family_for(vae), make_backend=torch_backend)
    options = DecodeOptions(slice_bytes=1)
    budget = budget_of(least_of(made, options, "layers"), unified=False)
    compiled = Compiled(made, budget, "auto", options)
    assert compiled.program.candidate["order"] == "layers"
    assert compiled.program.candidate["is_exact"]
    want = unsplit(vae, z)
    got = carried_out(compiled.graph, z, compiled.program)
    assert float((got - want).abs().max()) <= rounding_bound(z.dtype, float(want.abs().max()))


@pytest.mark.parametrize("order", ["chunks", "layers"])
def test_what_was_begun_by_layers_does_not_go_on_in_chunks_nor_the_other_way_round(
    order: str,
) -> None:
    made = job_of("wan", (2, 8, 8), make_backend=torch_backend)
    options = DecodeOptions(slice_bytes=1)
    least = {which: least_of(made, options, which) for which in ("chunks", "layers")}
    begun = plan_job(made, budget_of(least[order], unified=False), "auto", options)
    resume_key = resume_key_of(made, begun.variant)
    assert resume_key["parameters"]["engine"] == order
    plenty = budget_of(NO_LIMIT, unified=False)
    plan = plan_job(made, plenty, "auto", options, resume_key=resume_key)
    assert "as asked for" not in plan.reason
    assert resume_key_of(made, plan.variant) == resume_key
    if order == "chunks":
        less = budget_of(least["layers"], unified=False)
        with pytest.raises(ValueError, match="budget"):
            plan_job(made, less, "auto", options, resume_key=resume_key)
