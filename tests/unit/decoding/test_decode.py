"""decode(): exact where it says so, within its budget, and whole again after every failure."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import logging
import math
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import how_much
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import torch.nn.functional as F  # noqa: E402
from decode_doubles import KINDS, relative_error, tiny_latents, tiny_vae, unsplit  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from hy3d_rocm import decode  # noqa: E402
from hy3d_rocm.decoding import (  # noqa: E402
    DecodeCancelled,
    DecodeOptions,
    decode_with_report,
    encode,
    executor,
)
from hy3d_rocm.decoding.backends.native import NativeBackend  # noqa: E402
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend  # noqa: E402
from hy3d_rocm.decoding.execution import Execution  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.plan import BudgetTooSmallError  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import Job, fused_backend, torch_backend  # noqa: E402
from hy3d_rocm.decoding.planning.planner import Variant  # noqa: E402
from hy3d_rocm.decoding.run import Run  # noqa: E402
from hy3d_rocm.meter import PeakMeter, give_back  # noqa: E402

PARTS = ("streamed", "tiled", "cpu")
BACKENDS = (TorchBackend, NativeBackend)  # that a decode on the CPU may take

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def hunyuan() -> Any:
    return tiny_vae("hunyuan")


@pytest.fixture(scope="module")
def wan() -> Any:
    return tiny_vae("wan")


@pytest.fixture(params=["hunyuan", "wan"])
def vae(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def latents_of(vae: Any, frames: int = 2, batch: int = 1) -> Any:
    return torch.cat([tiny_latents(vae, frames, 4, 5, seed) for seed in range(batch)])


def snapshot(vae: Any) -> dict[str, Any]:
    """Everything of a VAE that a decode might leave changed."""
    state = {name: getattr(vae, name) for name in vars(vae) if not name.startswith("_modules")}
    state["parameters"] = {n: (p.data_ptr(), p.dtype) for n, p in vae.named_parameters()}
    state["hooks"] = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in vae.modules()
    ]
    return {k: v if isinstance(v, (dict, list)) else repr(v) for k, v in state.items()}


class Always(dict[int, Exception]):
    """Every number, with an error of its own."""

    def __init__(self, make: Callable[[], Exception]) -> None:
        self.make = make

    def __contains__(self, number: object) -> bool:
        return True

    def __missing__(self, number: int) -> Exception:
        return self.make()


class FailingConvolutions:
    """Makes some convolution calls, by number, raise; others compute. calls: how many so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: dict[int, Exception]) -> None:
        self.calls = 0

        def failing_at_times(real: Callable[..., Any]) -> Callable[..., Any]:
            def convolve(backend: Any, *arguments: Any, **options: Any) -> Any:
                number, self.calls = self.calls, self.calls + 1
                if number in failing:
                    raise copy.copy(failing[number])  # what is raised holds frames
                return real(backend, *arguments, **options)

            return convolve

        for kind in BACKENDS:
            monkeypatch.setattr(kind, "convolve", failing_at_times(kind.convolve))


def test_whole_is_the_vaes_own_decode_bit_for_bit(vae: Any) -> None:
    z = latents_of(vae)
    assert torch.equal(decode(vae, z, strategy="whole"), unsplit(vae, z))


@pytest.mark.parametrize("kind", KINDS)
def test_every_exact_strategy_is_the_unsplit_decode(kind: str) -> None:
    vae = tiny_vae(kind)
    z = latents_of(vae, 1 if kind == "image" else 2)
    want = unsplit(vae, z)
    for strategy in ("streamed", "cpu"):
        assert relative_error(decode(vae, z, strategy=strategy), want) <= 1e-4, strategy


@pytest.mark.parametrize(("lies", "wanted"), [("cuda:1", "cuda:1"), ("cpu", "cuda:0")])
def test_a_decode_is_where_the_weights_are_or_where_an_offload_hook_brings_them(
    lies: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, found = family_for(tiny_vae("wan")), list[torch.device]()
    family.vae._hf_hook = SimpleNamespace(execution_device=torch.device("cuda:0"))
    monkeypatch.setattr(type(family), "device", torch.device(lies))
    monkeypatch.setattr(executor, "check_unchanged", lambda *_: None)

    def prepare(family: Any, source: Any, device: torch.device, asked: Any) -> None:
        found.append(device)
        raise InterruptedError

    monkeypatch.setattr(executor, "_prepare", prepare)
    with pytest.raises(InterruptedError):
        decode(family, tiny_latents(family.vae, 2, 3, 4))
    assert found == [torch.device(wanted)]


def test_an_image_has_no_time_axis() -> None:
    vae = tiny_vae("image")
    z = latents_of(vae, 1)
    image = decode(vae, z[:, :, 0], strategy="streamed")
    assert torch.equal(image, decode(vae, z, strategy="streamed")[:, :, 0])


def test_encode_gives_the_mean_or_both_moments(vae: Any) -> None:
    pixels = torch.rand(1, 3, 5, 16, 24) * 2 - 1
    latents = encode(vae, pixels, strategy="streamed")
    moments = encode(vae, pixels, strategy="streamed", moments=True)
    assert torch.equal(latents, moments[:, : moments.shape[1] // 2])
    for name in ("use_framewise_encoding", "use_tiling"):
        if hasattr(vae, name):
            setattr(vae, name, False)
    want = vae.encode(pixels).latent_dist.parameters
    assert relative_error(moments, want) <= 1e-4


def test_batch_items_decode_as_if_alone(vae: Any) -> None:
    z = latents_of(vae, 2, batch=2)
    for strategy in PARTS:
        both = decode(vae, z, strategy=strategy)
        alone = [decode(vae, z[i : i + 1], strategy=strategy) for i in range(2)]
        assert torch.equal(both, torch.cat(alone)), strategy


@pytest.mark.parametrize("inference", [False, True])
def test_grad_state_does_not_matter(vae: Any, inference: bool) -> None:
    z = latents_of(vae, 2)
    plain = decode(vae, z, strategy="streamed")
    with torch.inference_mode(inference):
        other = decode(vae, z.clone(), strategy="streamed")
        assert torch.is_inference_mode_enabled() is inference
    assert torch.equal(plain, other)
    assert not plain.requires_grad


@pytest.mark.parametrize(
    ("strategy", "precision"), how_much.in_turns(("whole", *PARTS), ("bf16", "fp16", "fp32"))
)
def test_the_vae_is_as_before(vae: Any, strategy: str, precision: str) -> None:
    z = latents_of(vae, 2)
    before = snapshot(vae)
    out = decode(vae, z, strategy=strategy, precision=precision)
    assert out.dtype == torch.float32
    assert snapshot(vae) == before


class Boom(BaseException):
    """As ComfyUI's InterruptProcessingException in 0.33."""


@pytest.mark.parametrize("strategy", PARTS)
def test_an_exception_at_a_step_passes_through_and_leaves_no_trace(vae: Any, strategy: str) -> None:
    z = latents_of(vae)
    before = snapshot(vae)
    _, report = decode_with_report(vae, z, strategy=strategy)
    for failing in range(1, report.steps + 1, how_much.of(29, 3)):

        def progress(done: int, total: int, step: object, failing: int = failing) -> None:
            if done == failing:
                raise Boom

        with pytest.raises(Boom):
            decode(vae, z, strategy=strategy, progress=progress)
        assert snapshot(vae) == before


OUT_OF_MEMORY = (
    lambda: torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB"),
    lambda: RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 68719476736 bytes. Error code 12"
    ),
    MemoryError,
)


@pytest.mark.parametrize("strategy", ["streamed", "tiled"])
def test_an_allocation_that_fails_once_or_twice_changes_no_bit(
    vae: Any, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate takes every 97th place and every 401st pair, `make test-long` every 5th and 23rd;
    tests/long/check_decode_oom.py takes every allocation."""
    step, apart = how_much.of((97, 401), (5, 23))
    z = latents_of(vae, 2)
    want = decode(vae, z, strategy=strategy)
    with monkeypatch.context() as patch:
        count = FailingConvolutions(patch, {})
        decode(vae, z, strategy=strategy)
    errors = itertools.cycle(OUT_OF_MEMORY)
    single: list[set[int]] = [{i} for i in range(0, count.calls, step)]
    pairs: list[set[int]] = [{i, j} for i in range(0, count.calls, apart) for j in (i + 1, i + 40)]
    for places in (*single, *pairs):
        with monkeypatch.context() as patch:
            FailingConvolutions(patch, {n: next(errors)() for n in places})
            out, report = decode_with_report(vae, z, strategy=strategy)
        assert torch.equal(out, want), places
        assert not report.events


def test_memory_that_is_not_there_ends_in_the_next_way_and_says_so(
    hunyuan: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    z = latents_of(hunyuan)
    FailingConvolutions(monkeypatch, {n: MemoryError() for n in range(5, 8)})
    with caplog.at_level(logging.WARNING, "hy3d_rocm"):
        out, report = decode_with_report(hunyuan, z, budget="400MB", strategy="auto")
        monkeypatch.undo()
    if report.events:
        assert report.events[0]["event"] == "out of memory"
        assert "Out of memory in step" in caplog.text
    assert relative_error(out, unsplit(hunyuan, z)) <= 0.2


def test_memory_that_is_nowhere_is_a_sentence(
    hunyuan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    FailingConvolutions(monkeypatch, Always(MemoryError))
    with pytest.raises(MemoryError, match="nothing is left to try"):
        decode(hunyuan, latents_of(hunyuan), strategy="streamed")


def test_other_errors_are_not_taken_for_out_of_memory(
    hunyuan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    FailingConvolutions(monkeypatch, {3: RuntimeError("shape mismatch")})
    with pytest.raises(RuntimeError, match="shape mismatch"):
        decode(hunyuan, latents_of(hunyuan), strategy="streamed")


def test_a_convolution_that_no_tier_could_do_ends_in_the_next_way(
    hunyuan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    z = latents_of(hunyuan)
    error = RuntimeError("miopenStatusUnknownError")
    FailingConvolutions(monkeypatch, {0: error})
    out, report = decode_with_report(hunyuan, z, budget="300MB")
    if report.events:
        assert report.events[0]["event"] == "a convolution that failed"
    assert relative_error(out, unsplit(hunyuan, z)) <= 0.2


def test_what_overflows_in_half_is_decoded_again_in_single(
    vae: Any, caplog: pytest.LogCaptureFixture
) -> None:
    z = latents_of(vae)
    want = decode(vae, z * 3e4, strategy="streamed", precision="fp32")
    with caplog.at_level(logging.WARNING, "hy3d_rocm"):
        out, report = decode_with_report(vae, z * 3e4, strategy="streamed", precision="fp16")
    assert [e["event"] for e in report.events] == ["not finite"]
    assert report.dtype == "float32"
    assert torch.equal(out, want)
    assert "float32" in caplog.text


def test_what_is_not_finite_in_single_either_is_a_sentence(
    wan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(real: Callable[..., Any]) -> Callable[..., Any]:
        def convolve(*arguments: Any, **options: Any) -> Any:
            out, moments = real(*arguments, **options)
            return out * math.nan, moments

        return convolve

    for kind in BACKENDS:
        monkeypatch.setattr(kind, "convolve", broken(kind.convolve))
    with pytest.raises(RuntimeError, match="no wider type"):
        decode(wan, latents_of(wan), strategy="streamed")


class Library(TorchFunctionMode):
    """In the place of MIOpen: whatever asks for a convolution as PyTorch does gets what a faulty
    one gives. calls: how many asked."""

    def __init__(self, gives: float | Exception) -> None:
        super().__init__()
        self.gives, self.calls = gives, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (F.conv2d, F.conv3d):
            return func(*args, **(kwargs or {}))
        self.calls += 1
        if isinstance(self.gives, Exception):
            raise copy.copy(self.gives)
        return func(*args, **(kwargs or {})) * self.gives


@pytest.fixture
def on_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions of this CPU count as those of a GPU that MIOpen computes."""
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(Job, "asks_library", lambda job, variant: variant.strategy != "cpu")


BY_TORCH = DecodeOptions(backend="torch")


@pytest.mark.usefixtures("on_amd")
@pytest.mark.parametrize("strategy", ["streamed", "whole"])
@pytest.mark.parametrize("gives", [math.nan, RuntimeError("miopenStatusUnknownError")])
def test_what_a_library_fails_at_is_made_again_without_it(
    gives: float | Exception, strategy: str, wan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    z = latents_of(wan)
    with Library(gives) as library, caplog.at_level(logging.WARNING, "hy3d_rocm"):
        out, report = decode_with_report(wan, z, strategy=strategy, options=BY_TORCH)
    assert library.calls > 0
    assert relative_error(out, unsplit(wan, z)) <= 1e-4
    (event,) = report.events
    assert (event["without"], report.dtype) == ("MIOpen", "float32")
    assert f"starting again {event['way']}, without MIOpen" in caplog.text
    assert any(said.startswith("MIOpen was to blame") for said in report.recommendations)


@pytest.mark.usefixtures("on_amd")
def test_a_library_that_is_not_to_blame_is_left_out_once(
    wan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, found = latents_of(wan), list[Any]()
    real = Execution._attempt

    def attempt(execution: Execution) -> Any:
        found.append((execution.report.dtype, execution.job.without_library))
        return real(execution)

    monkeypatch.setattr(Execution, "_attempt", attempt)
    asked = {"strategy": "streamed", "options": BY_TORCH}
    out, report = decode_with_report(wan, z * 3e4, precision="fp16", **asked)
    assert found == [("float16", False), ("float16", True), ("float32", False)]
    assert [e["event"] for e in report.events] == ["not finite"] * 2
    assert "without" not in report.events[1]
    assert torch.equal(out, decode_with_report(wan, z * 3e4, precision="fp32", **asked)[0])


def test_a_library_is_asked_where_a_gpu_has_no_fused_kernels_or_a_vaes_own_code_runs() -> None:
    shape = (1, 4, 3, 8, 8)
    for device, make_backend, strategy, wanted in (
        ("cuda", torch_backend, "streamed", True),
        ("cuda", fused_backend, "streamed", False),
        ("cuda", fused_backend, "whole", True),
        ("cuda", torch_backend, "cpu", False),
        ("cpu", torch_backend, "streamed", False),
    ):
        job = Job(family_for(tiny_vae("wan")), shape, torch.device(device), torch.float16,
                  torch.float16, make_backend)  # fmt: skip
        assert job.asks_library(Variant(strategy, strategy)) is wanted, (device, strategy)


@pytest.mark.parametrize("kind", ["callable", "event", "requested", "method"])
def test_cancel_stops_before_the_next_step(vae: Any, kind: str) -> None:
    event = threading.Event()
    cancels: dict[str, Any] = {
        "callable": event.is_set,
        "event": event,
        "requested": type("Flag", (), {"requested": property(lambda _: event.is_set())})(),
        "method": type("Flag", (), {"requested": lambda _: event.is_set()})(),
    }
    done = []

    def progress(number: int, total: int, step: object) -> None:
        done.append(number)
        event.set()

    with pytest.raises(DecodeCancelled, match="after 1"):
        decode_with_report(
            vae, latents_of(vae), strategy="streamed", progress=progress, cancel=cancels[kind],
            options=DecodeOptions(chunk_size=1),
        )  # fmt: skip
    assert done == [1]


def test_cancel_is_looked_at_within_the_vaes_own_code(vae: Any) -> None:
    calls = itertools.count()
    with pytest.raises(DecodeCancelled):
        decode(vae, latents_of(vae), strategy="whole", cancel=lambda: next(calls) >= 5)
    assert next(calls) == 6


@pytest.mark.parametrize("strategy", ["streamed", "tiled"])
def test_progress_counts_every_step_once_and_knows_how_many(vae: Any, strategy: str) -> None:
    seen: list[tuple[int, int, Any]] = []
    _, report = decode_with_report(
        vae, latents_of(vae), strategy=strategy, progress=lambda *step: seen.append(step)
    )
    assert [s[0] for s in seen] == list(range(1, report.steps + 1))
    assert {s[1] for s in seen} == {report.steps}


def test_nothing_of_a_way_that_failed_is_left_when_the_next_begins(
    vae: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor of a decode when it has ended: without waiting for the garbage collector."""
    made: list[Any] = []
    left: list[int] = []
    begin = Run.__init__

    def seen(self: Any, *args: Any, **options: Any) -> None:
        left.append(sum(run() is not None for run in made))
        begin(self, *args, **options)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Run, "__init__", seen)
    FailingConvolutions(monkeypatch, {n: MemoryError() for n in range(5, 8)})
    gc.collect()
    gc.disable()
    try:
        _, report = decode_with_report(vae, latents_of(vae), strategy="cpu")
        assert [run() for run in made] == [None] * len(made)
    finally:
        gc.enable()
    assert report.events
    assert left == [0] * len(made)
    assert len(made) > 1


def test_report_is_json(vae: Any) -> None:
    _, report = decode_with_report(vae, latents_of(vae), strategy="tiled")
    again = json.loads(json.dumps(report.as_dict()))
    assert again["strategy"] == "tiled"
    assert again["predicted_peak_bytes"] == report.predicted_peak_bytes
    assert again["plan"]["candidates"]


def test_log_says_where_a_hang_sits(vae: Any, caplog: pytest.LogCaptureFixture) -> None:
    z = latents_of(vae, 1)
    with caplog.at_level(logging.DEBUG, "hy3d_rocm"):
        decode(vae, z, strategy="streamed")
    for line in (
        f"[VAE Decode] Starting - latents shape {tuple(z.shape)}, device cpu",
        "[VAE Decode] VAE device cpu, VAE dtype torch.float32",
        "[VAE Decode] Attempting CPU decode on cpu",
        "[VAE Decode] CPU decode SUCCESS - result device cpu, shape",
    ):
        assert line in caplog.text
    begun = [r.message for r in caplog.records if r.message.endswith("begins")]
    ended = [r.message for r in caplog.records if " done: " in r.message]
    assert begun
    assert ended


def test_the_callers_tensor_is_filled(vae: Any) -> None:
    z = latents_of(vae)
    want = decode(vae, z, strategy="streamed")
    own = torch.full_like(want, math.nan)
    for strategy in PARTS:
        assert decode(vae, z, strategy=strategy, out=own.fill_(math.nan)) is own
        assert torch.isfinite(own).all()


def test_a_refusal_names_the_smallest_budget_and_that_one_is_accepted(vae: Any) -> None:
    z = latents_of(vae, 2)
    with pytest.raises(BudgetTooSmallError) as refused:
        decode(vae, z, budget=1)
    out, report = decode_with_report(vae, z, budget=refused.value.smallest)
    assert report.predicted_peak_bytes <= refused.value.smallest
    assert torch.isfinite(out).all()


def test_meter_sees_a_peak_that_is_gone_at_the_end() -> None:
    size = 64 << 20
    with PeakMeter(interval=0.005) as meter:
        block = torch.ones(size, dtype=torch.uint8)
        del block
        give_back()
    if not meter.exact:
        pytest.skip("the kernel does not let this process reset its high-water mark")
    # The kernel adds resident pages up in batches of at least 32 per CPU, and pages that were in
    # use at the start may go: a sixteenth either way, far from the 0 of a meter that saw nothing.
    assert abs(meter.peak_bytes - size) <= size // 16


@pytest.mark.parametrize(("strategy", "batch"), how_much.in_turns(("whole", *PARTS), (1, 2)))
def test_progress_knows_its_total_from_the_first_step(vae: Any, strategy: str, batch: int) -> None:
    seen: list[tuple[int, int]] = []
    z = latents_of(vae, batch=batch)
    decode(vae, z, strategy=strategy, progress=lambda done, total, step: seen.append((done, total)))
    assert seen == [(n + 1, len(seen)) for n in range(len(seen))]


def test_progress_counts_slices_of_a_long_video_right(hunyuan: Any) -> None:
    seen: list[tuple[int, int]] = []
    decode_with_report(
        hunyuan, latents_of(hunyuan, frames=12), strategy="streamed",
        options=DecodeOptions(slice_bytes=1 << 16),
        progress=lambda done, total, step: seen.append((done, total)),
    )  # fmt: skip
    assert seen == [(n + 1, len(seen)) for n in range(len(seen))]


def test_progress_begins_again_with_the_next_way(vae: Any) -> None:
    seen: list[tuple[int, int]] = []
    _, report = decode_with_report(
        vae, latents_of(vae) * 3e4, strategy="streamed", precision="fp16",
        progress=lambda done, total, step: seen.append((done, total)),
    )  # fmt: skip
    assert report.events
    last = seen[-1][1]
    assert len(seen) >= last
    assert seen[-last:] == [(n + 1, last) for n in range(last)]
