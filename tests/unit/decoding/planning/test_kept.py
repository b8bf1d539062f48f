"""A plan that no budget had a part in serves the next decode by the same VAE (Compiled.keep)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import how_much  # noqa: E402
from decode_doubles import EVERY_KIND, TIMESTEP, tiny_latents, tiny_vae  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding import DecodeOptions, decode_with_report, encode_with_report  # noqa: E402
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.faults import ATTEMPTS  # noqa: E402
from hy3d_rocm.decoding.memory.budget import NO_LIMIT, Budget  # noqa: E402
from hy3d_rocm.decoding.planning.compiled import plan_job  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import Job, host_backend  # noqa: E402
from hy3d_rocm.decoding.report import DecodeCancelled  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not _native.available, reason="programs are the C core's"),
]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A request for each time that the core compiles."""
    found, real = [], _native.compile_schedule

    def compile_schedule(*given: Any, **request: Any) -> Any:
        found.append(request)
        return real(*given, **request)

    monkeypatch.setattr(_native, "compile_schedule", compile_schedule)
    return found


def frames_of(vae: Any, z: Any, *given: Any, **more: Any) -> Any:
    return decode_with_report(vae, z, *given, **more)[0]


@pytest.mark.parametrize("kind", how_much.dealt(EVERY_KIND, 0, 2))
def test_a_second_decode_is_not_compiled_and_makes_the_same_frames(
    kind: str, compiled: list[Any]
) -> None:
    vae = tiny_vae(kind)
    family = family_for(vae, timestep=TIMESTEP[kind]) if kind in TIMESTEP else vae
    z = tiny_latents(vae, 1 if kind in ("image", "image16") else 3, 4, 5)
    first, report = decode_with_report(family, z)
    assert report.strategy in ("whole", "streamed")
    count = len(compiled)
    assert count
    again, report_again = decode_with_report(family, z)
    assert len(compiled) == count
    assert torch.equal(again, first)
    for name in ("vae", "out_shape", "strategy", "dtype", "precision_reason", "steps", "ignored"):
        assert getattr(report_again, name) == getattr(report, name)
    assert report_again.plan["candidates"] == report.plan["candidates"]


def test_other_weights_are_read_anew(compiled: list[Any]) -> None:
    """Modules of the same form in the same places: the plan is the same, the frames are not."""
    vae, other, z = tiny_vae("wan"), tiny_vae("wan", seed=1), tiny_latents(tiny_vae("wan"), 3, 4, 5)
    frames_of(vae, z)
    count, wanted = len(compiled), frames_of(other, z)
    vae.decoder, vae.post_quant_conv = other.decoder, other.post_quant_conv
    compiled.clear()
    assert torch.equal(frames_of(vae, z), wanted)
    assert count
    with torch.no_grad():
        vae.decoder.conv_in.weight.mul_(2)
    assert not torch.equal(frames_of(vae, z), wanted)
    assert len(compiled) <= 1


@pytest.mark.parametrize(
    "change",
    [
        lambda vae, z: (vae, z[:, :, :2]),
        lambda vae, z: (vae, torch.cat([z, z], -1)),
        lambda vae, z: (vae.to(torch.float64), z.double()),
        lambda vae, z: (vae, z, None, "streamed"),
        lambda vae, z: (vae, z, None, "auto", "fp32", None, None, DecodeOptions(chunk_size=1)),
        lambda vae, z: (vae, z, None, "auto", "auto", None, None, DecodeOptions(backend="torch")),
    ],
    ids=["frames", "columns", "dtype", "strategy", "chunk", "backend"],
)
def test_what_a_plan_depends_on_makes_another(
    change: Callable[[Any, Any], Any], compiled: list[Any]
) -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 3, 4, 5)
    frames_of(vae, z)
    compiled.clear()
    frames_of(*change(vae, z))
    assert len(compiled) == 1


def test_without_torchs_fused_attention_it_is_planned_anew(compiled: list[Any]) -> None:
    """Scores are made then, which take memory."""
    vae, z = tiny_vae("image"), tiny_latents(tiny_vae("image"), 1, 24, 24)
    _, fused = decode_with_report(vae, z)
    compiled.clear()
    with sdpa_kernel(SDPBackend.MATH):
        _, composed = decode_with_report(vae, z)
    assert len(compiled) == 1
    assert composed.predicted_peak_bytes > fused.predicted_peak_bytes
    compiled.clear()
    assert decode_with_report(vae, z)[1].predicted_peak_bytes == fused.predicted_peak_bytes
    assert not compiled


def test_a_budget_that_has_a_part_in_it_makes_another(compiled: list[Any]) -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 5, 8, 8)
    _, report = decode_with_report(vae, z, "4GB")
    needed = report.plan["device_bytes"] + report.plan["host_bytes"]
    compiled.clear()
    frames_of(vae, z, "3GB")
    frames_of(vae, z, needed)
    assert not compiled
    _, less = decode_with_report(vae, z, needed - 1)  # prepared weights do not count
    assert len(compiled) == 1
    kept = len(compiled)
    _, same = decode_with_report(vae, z, needed - 1)
    hindered = not all(c["fits"] for c in less.plan["candidates"])
    assert len(compiled) == kept + hindered
    assert same.plan["way"] == less.plan["way"]


def test_a_decode_within_a_decode_has_a_plan_of_its_own(compiled: list[Any]) -> None:
    """Nobody else may carry out what is being carried out: a failure changes it."""
    vae, inner = tiny_vae("wan"), list[Any]()
    z = tiny_latents(vae, 3, 4, 5)
    wanted = frames_of(vae, z)
    compiled.clear()

    def progress(*_: Any) -> None:
        if not inner:
            inner.append(None)
            inner[0] = frames_of(vae, z)

    assert torch.equal(frames_of(vae, z, progress=progress), wanted)
    assert torch.equal(inner[0], wanted)
    assert len(compiled) == 1


def test_after_a_failure_it_is_planned_anew(
    compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 3, 4, 5)
    more: Any = {"strategy": "streamed", "options": DecodeOptions(backend="torch")}
    wanted = frames_of(vae, z, **more)
    real, left = TorchBackend.convolve, [ATTEMPTS]

    def convolve(self: Any, *given: Any, **more: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(self, *given, **more)

    monkeypatch.setattr(TorchBackend, "convolve", convolve)
    compiled.clear()
    _, report = decode_with_report(vae, z, **more)
    assert report.events
    assert not compiled, "it went on with the plan that was kept"
    assert torch.equal(frames_of(vae, z, **more), wanted)
    assert len(compiled) == 1


def test_a_cancel_is_that_of_the_decode_that_runs(compiled: list[Any]) -> None:
    vae, cancelled = tiny_vae("wan"), [False]
    z = tiny_latents(vae, 3, 4, 5)
    wanted = frames_of(vae, z, cancel=lambda: cancelled[0])
    cancelled[0] = True
    assert torch.equal(frames_of(vae, z), wanted)
    with pytest.raises(DecodeCancelled):
        frames_of(vae, z, cancel=lambda: True)
    compiled.clear()
    assert torch.equal(frames_of(vae, z), wanted)  # what a cancelled decode had is gone
    assert len(compiled) <= 1


def test_an_encode_has_plans_of_its_own(compiled: list[Any]) -> None:
    vae = tiny_vae("wan")
    frames = frames_of(vae, tiny_latents(vae, 3, 4, 5)).clamp(-1, 1)
    compiled.clear()
    first = encode_with_report(vae, frames)[0]
    assert len(compiled) == 1
    assert torch.equal(encode_with_report(vae, frames)[0], first)
    assert len(compiled) == 1


def test_a_vae_is_not_held_by_what_is_kept() -> None:
    vae = tiny_vae("hunyuan")
    z = tiny_latents(vae, 2, 4, 4)
    for _ in range(2):
        frames_of(vae, z)
    held = [weakref.ref(vae), weakref.ref(vae.decoder.conv_in), weakref.ref(vae.decoder)]
    del vae
    gc.collect()
    assert [ref() for ref in held] == [None] * 3


@pytest.mark.parametrize("kind", ["wan", "hunyuan"])
def test_modules_that_were_replaced_are_not_held(kind: str) -> None:
    vae, other, z = tiny_vae(kind), tiny_vae(kind, seed=1), tiny_latents(tiny_vae(kind), 3, 4, 5)
    frames_of(vae, z)
    held = [weakref.ref(module) for module in vae.decoder.modules()]
    vae.decoder, vae.post_quant_conv = other.decoder, other.post_quant_conv
    frames_of(vae, z)
    gc.collect()
    assert [ref() for ref in held] == [None] * len(held)


def test_unequal_shares_are_not_kept() -> None:
    """Equal ones did not fit one rank's budget; a rank that plans anew would share otherwise."""
    family, float32 = family_for(tiny_vae("wan")), torch.float32
    shape = (1, family.latent_channels, 3, 64, 64)
    job = Job(family, shape, torch.device("cpu"), float32, float32, host_backend, ranks=2)
    free = Budget(NO_LIMIT, NO_LIMIT, False, "", of_ranks=(NO_LIMIT, NO_LIMIT))
    equal = plan_job(job, free)
    assert equal.compiled is not None
    assert len(set(equal.compiled.program.weights)) == 1
    less = equal.need.device_bytes * 9 // 10
    unequal = plan_job(job, replace(free, device_bytes=less, of_ranks=(NO_LIMIT >> 3, less)))
    assert unequal.compiled is not None
    assert len(set(unequal.compiled.program.weights)) == 2
    unequal.compiled.keep()
    again = plan_job(job, free)
    assert again.compiled is not None
    assert again.compiled.program.weights == equal.compiled.program.weights


def test_threads_that_keep_many_at_once_do_not_meet() -> None:
    """Each drops the oldest, which the other may have dropped or taken meanwhile."""

    class Plans(dict[Any, Any]):
        def __iter__(self) -> Any:
            found = list(super().__iter__())
            if len(found) > 4:
                self.pop(found[0], None)  # the other thread
            return iter(found)

    vae = tiny_vae("wan")
    family = family_for(vae)
    assert family.seen is not None
    family.seen.plans = Plans()
    for columns in range(3, 10):
        frames_of(vae, tiny_latents(vae, 1, 3, columns))
    assert len(family.seen.plans) <= 4


def test_few_are_kept(compiled: list[Any]) -> None:
    vae = tiny_vae("wan")
    family = family_for(vae)
    for columns in range(3, 10):
        frames_of(vae, tiny_latents(vae, 1, 3, columns))
    assert family.seen is not None
    assert len(family.seen.plans) == 4
    compiled.clear()
    frames_of(vae, tiny_latents(vae, 1, 3, 9))
    assert not compiled
    frames_of(vae, tiny_latents(vae, 1, 3, 3))
    assert len(compiled) == 1
