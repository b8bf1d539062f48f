"""Failures, attempts, jobs and backends of a decode, rule by rule."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace as Thing
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from decode_doubles import tiny_vae  # noqa: E402
from planning_jobs import CARD, CPU, F32, META, family, job  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.conv.errors import is_out_of_memory  # noqa: E402
from hy3d_rocm.decoding.backends import native  # noqa: E402
from hy3d_rocm.decoding.backends.triton import backend as fused  # noqa: E402
from hy3d_rocm.decoding.black_box import in_own_tiles, plan_own_tiles  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.faults import (  # noqa: E402
    ATTEMPTS,
    CONVOLUTION,
    NOT_FINITE,
    OUT_OF_MEMORY,
    Failure,
    attempt,
    failure_of,
    retry_out_of_memory,
)
from hy3d_rocm.decoding.memory.budget import Budget  # noqa: E402
from hy3d_rocm.decoding.planning import jobs as backends  # noqa: E402
from hy3d_rocm.decoding.planning.compiled import plan_job  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import Job  # noqa: E402
from hy3d_rocm.decoding.planning.planner import Variant  # noqa: E402
from hy3d_rocm.decoding.report import SIZES, DecodeOptions  # noqa: E402


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (MemoryError(), True), (torch.OutOfMemoryError("x"), True),
        (RuntimeError("HIP out of memory"), True), (RuntimeError("miopenStatusBadParm"), False),
        (RuntimeError("nobody knows"), False), (ValueError("HIP out of memory"), False),
    ],
)  # fmt: skip
def test_out_of_memory_is_told_by_type_or_text(error: Exception, full: bool) -> None:
    assert is_out_of_memory(error) is full


def failing(times: int, error: type[Exception] = MemoryError) -> Any:
    calls: list[int] = []

    def work() -> int:
        calls.append(1)
        if len(calls) <= times:
            raise error("nobody knows")
        return len(calls)

    work.calls = calls  # type: ignore[attr-defined]
    return work


def test_work_is_tried_three_times_with_pressure_between() -> None:
    assert ATTEMPTS == 3
    for times in range(3):
        pressed: list[int] = []
        again = retry_out_of_memory(lambda pressed=pressed: pressed.append(1))
        assert attempt(failing(times), recover=again) == times + 1
        assert len(pressed) == times
    work = failing(9)
    with pytest.raises(MemoryError):
        attempt(work, recover=retry_out_of_memory(lambda: None))
    assert len(work.calls) == 3


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_other_errors_are_not_tried_again(error: type[Exception]) -> None:
    work = failing(1, error)
    with pytest.raises(error):
        attempt(work, recover=retry_out_of_memory(lambda: None))
    assert len(work.calls) == 1


class Counter:
    total = 0

    def __init__(self) -> None:
        self.events: list[object] = []

    def check(self) -> None:
        self.events.append("check")

    def tick(self, step: object) -> None:
        self.events.append(step)


def test_tiles_of_own_code_are_checked_before_each_attempt_and_ticked_once() -> None:
    """Of a VAE whose decode runs out of memory at first."""
    z = torch.ones(1, 3, 1, 4, 4)
    facts = Thing(time=1, first=1, space=1, frames=lambda n: n)
    given = {"halo_pixels": 0, "overlap_pixels": 0, "min_tile_pixels": 1, "chunk_size": None}
    counter, fails = Counter(), failing(1)

    def whole(x: Any) -> Any:
        fails()
        return x * 2

    vae = Thing(name="a VAE", facts=facts, whole=whole)
    job = Thing(family=vae, shape=tuple(z.shape), device=CPU, dtype=F32)
    variant = Thing(parameters={**given, "level": 0})
    assert len(plan_own_tiles(vae, job.shape, variant.parameters).tiles) == 1
    again = retry_out_of_memory(lambda: counter.events.append("pressure"))
    out = torch.empty_like(z)
    in_own_tiles(job, variant, z, out, again, counter)  # type: ignore[arg-type]
    assert torch.equal(out, z * 2)
    *events, step = counter.events
    assert events == ["check", "pressure", "check"]
    assert (step.kind, step.tile, step.rows, step.columns) == ("frames", 0, (0, 4), (0, 4))


@pytest.mark.parametrize(
    ("error", "on_cpu", "failure"),
    [
        (RuntimeError("HIP out of memory\nmore"), False,
         Failure(OUT_OF_MEMORY, "RuntimeError: HIP out of memory")),
        (RuntimeError("HIP out of memory"), True,
         Failure(OUT_OF_MEMORY, "RuntimeError: HIP out of memory", on_host=True)),
        (MemoryError(), False, Failure(OUT_OF_MEMORY, "MemoryError", on_host=True)),
        (RuntimeError("x DefaultCPUAllocator: can't allocate memory"), False,
         Failure(OUT_OF_MEMORY, "RuntimeError: x DefaultCPUAllocator: can't allocate memory",
                 on_host=True)),
        (RuntimeError("miopenStatusUnknownError"), True,
         Failure(CONVOLUTION, "RuntimeError: miopenStatusUnknownError")),
    ],
)  # fmt: skip
def test_what_another_way_may_cure(error: Exception, on_cpu: bool, failure: Failure) -> None:
    assert failure_of(error, on_cpu) == failure


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), RuntimeError("nobody knows"),
     RuntimeError("HIP error: an illegal memory access was encountered")],
)  # fmt: skip
def test_what_no_way_cures_is_raised_again(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        failure_of(error, False)
    assert caught.value is error


@pytest.mark.parametrize(
    ("what", "kind", "advice"),
    [(OUT_OF_MEMORY, MemoryError, "free memory, or decode fewer frames or a smaller picture"),
     (NOT_FINITE, RuntimeError, "look at the VAE's file"),
     (CONVOLUTION, RuntimeError, 'run "hy3d-rocm doctor"')],
)  # fmt: skip
def test_the_last_error_says_what_ended_where_and_what_helps(
    what: str, kind: type[Exception], advice: str
) -> None:
    error = Failure(what, "said").final("the way", ValueError("why"))
    assert type(error) is kind
    assert str(error).startswith(
        f"the decode ended: {what} in the way (said), and nothing is left to try (why): {advice}"
    )


@pytest.mark.parametrize("name", ["chunk_size", "slice_bytes"])
def test_options_are_whole_numbers_from_one_or_none(name: str) -> None:
    assert getattr(DecodeOptions(**{name: None}), name) is None
    assert getattr(DecodeOptions(**{name: 1}), name) == 1
    said = f"^DecodeOptions.{name} is"
    for wrong in (0, -1, 1.0, True, "1"):
        with pytest.raises(ValueError, match=rf"{said} {wrong!r}; give a whole number of 1 or"):
            DecodeOptions(**{name: wrong})
    with pytest.raises(ValueError, match=rf"{said} \d+; give a whole number from 1 to \d+"):
        DecodeOptions(**{name: 1 << 63})


@pytest.mark.skipif(not _native.available, reason="programs are the C core's")
@pytest.mark.parametrize("name", SIZES)
def test_the_largest_option_is_planned_with_and_one_more_gets_a_sentence(name: str) -> None:
    most = SIZES[name][1]
    wan = family_for(tiny_vae("wan"))
    shape = (1, wan.latent_channels, 1, 2, 2)
    made = Job(wan, shape, CPU, torch.float32, torch.float32, backends.torch_backend)
    options = DecodeOptions(**{name: most})
    assert plan_job(made, Budget(1 << 40, 1 << 40, True, ""), "tiled", options).strategy == "tiled"
    with pytest.raises(ValueError, match=rf"{name} is {most + 1}; give a whole .* to {most}\b"):
        DecodeOptions(**{name: most + 1})


@pytest.mark.parametrize(
    ("way", "opaque", "own", "is_native"),
    [(Variant("whole"), False, True, False), (Variant("streamed"), False, False, True),
     (Variant("streamed"), True, True, False)],
)  # fmt: skip
def test_whose_code_runs(way: Variant, opaque: bool, own: bool, is_native: bool) -> None:
    made = job(family=family(is_opaque=opaque), make_backend=backends.host_backend)
    assert made.runs_own_code(way) is own
    assert made.is_native(way) is is_native
    assert not replace(made, make_backend=backends.torch_backend).is_native(way)
    assert not replace(made, device=CARD).is_native(way)


def test_a_job_knows_its_results_shape_and_where_a_way_computes() -> None:
    assert job().out_shape == (1, 16, 9, 16, 16, 1)
    assert job(encode=True).out_shape == (1, 16, 9, 16, 16, 2)
    assert job(CARD).device_of(Variant("cpu")) == CPU
    assert job(CARD).device_of(Variant("whole")) == CARD


def refusing(monkeypatch: pytest.MonkeyPatch, **reasons: str | None) -> None:
    monkeypatch.setattr(native, "refusal", lambda device, dtype: reasons.get("native"))
    monkeypatch.setattr(fused, "refusal", lambda device, dtype: reasons.get("fused"))


@pytest.mark.parametrize(
    ("device", "asked", "reasons", "wanted"),
    [
        (CPU, "auto", {}, "host_backend"),
        (CPU, "auto", {"native": "no"}, "torch_backend"),
        (CPU, "native", {}, "host_backend"),
        (CPU, "torch", {}, "torch_backend"),
        (CARD, "auto", {}, "fused_backend"),
        (CARD, "auto", {"fused": "no"}, "host_backend"),
        (CARD, "auto", {"native": "no"}, "fused_backend"),
        (CARD, "native", {}, "fused_backend"),
        (CARD, "native", {"fused": "no"}, "host_backend"),
        (CARD, "torch", {}, "torch_backend"),
    ],
)
def test_the_best_backend(
    monkeypatch: pytest.MonkeyPatch, device: Any, asked: str, reasons: dict[str, str], wanted: str
) -> None:
    refusing(monkeypatch, **reasons)
    assert backends.best_backend(device, F32, asked) is getattr(backends, wanted)
    if asked == "auto":
        assert backends.best_backend(device, F32) is getattr(backends, wanted)


@pytest.mark.parametrize("device", [CPU, CARD])
def test_a_host_backend_that_can_not_be_had_is_refused(
    monkeypatch: pytest.MonkeyPatch, device: Any
) -> None:
    refusing(monkeypatch, native="no core")
    with pytest.raises(ValueError, match=r'^the backend "native" can\'t be taken: no core\. Use "'):
        backends.best_backend(device, F32, "native")


def test_the_host_and_the_type_are_what_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(native, "refusal", lambda *given: asked.append(given))
    monkeypatch.setattr(fused, "refusal", lambda *given: asked.append(given))
    backends.best_backend(CPU, torch.float16)
    backends.best_backend(CARD, torch.float16)
    assert asked == [(CPU, torch.float16), (CARD, torch.float16)]
    asked.clear()
    _ = backends.host_backend.computes_natively
    backends.host_backend(Thing(), CPU)
    assert asked == [(CPU, F32), (CPU, F32)]


@pytest.mark.parametrize("there", [True, False])
def test_who_computes_natively_and_who_computes_fused(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    refusing(monkeypatch, native=None if there else "no")
    for made, natively, on_gpu in (
        (backends.host_backend, there, False), (backends.fused_backend, there, True),
        (backends.MakeBackend("gfx1100"), there, True), (backends.torch_backend, False, False),
    ):  # fmt: skip
        assert made.computes_natively is natively
        assert job(CPU, make_backend=made).is_fused is natively
        assert job(CARD, make_backend=made).is_fused is on_gpu


def test_who_computes_where(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch)
    weights = Thing()
    for make, kind in ((backends.torch_backend, "TorchBackend"),
                       (backends.host_backend, "NativeBackend")):  # fmt: skip
        real = make(weights, CPU)
        assert type(real).__name__ == kind
        assert real.weights is weights
    assert type(backends.host_backend(weights, CARD)).__name__ == "TorchBackend"
    assert type(backends.fused_backend(weights, CPU)).__name__ == "NativeBackend"
    refusing(monkeypatch, native="no")
    assert type(backends.host_backend(weights, CPU)).__name__ == "TorchBackend"
    assert type(backends.fused_backend(weights, CPU)).__name__ == "TorchBackend"


def test_on_meta_the_fused_backend_stands_for_the_current_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    class Fused:
        def __init__(self, *given: Any, machine: Any = None, is_tuned: bool = True) -> None:
            made.append((*given, machine))

        def target(self) -> str:
            return "the target"

    monkeypatch.setattr(fused, "TritonBackend", Fused)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    weights = Thing()
    backends.fused_backend(weights, CARD)
    assert made == [(weights, CARD, None)]
    made.clear()
    backends.fused_backend(weights, META)
    assert made == [(weights, torch.device("cuda", 1), None), (weights, META, "the target")]
