"""What a VAE's own code takes, known before it runs."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace
from types import SimpleNamespace as Thing
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiny_vae  # noqa: E402
from planning_jobs import CARD, CPU, F32, GB, MB, family, job  # noqa: E402

from hy3d_rocm.decoding import black_box  # noqa: E402
from hy3d_rocm.decoding.black_box import ENGINE, own_variants  # noqa: E402
from hy3d_rocm.decoding.families import family_for, wan  # noqa: E402
from hy3d_rocm.decoding.families.unknown import UnknownFamily  # noqa: E402
from hy3d_rocm.decoding.memory.dry_run import Live, NoScores, Prediction  # noqa: E402
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import Job, torch_backend  # noqa: E402
from hy3d_rocm.decoding.planning.planner import Need, Variant  # noqa: E402
from hy3d_rocm.decoding.report import DecodeOptions  # noqa: E402

WHOLE, TILED = Variant("whole"), Variant("tiled", parameters={"engine": ENGINE})


def job_of(kind: str, size: tuple[int, int, int], device: Any = CPU) -> Job:
    known = family_for(tiny_vae(kind))
    shape = (1, known.latent_channels, *size)
    return Job(known, shape, device, F32, F32, torch_backend)


def own_job(kind: str, size: tuple[int, int, int]) -> Job:
    """The same VAE, of which nothing but its decode() is known."""
    made = job_of(kind, size)
    unknown = UnknownFamily(made.family.vae, torch.zeros(made.shape), "the test's")
    return replace(made, family=unknown)


@pytest.mark.parametrize("kind", ["hunyuan", "wan", "image"])
def test_predicted_is_what_a_real_run_has_alive(kind: str) -> None:
    made = job_of(kind, (1 if kind == "image" else 2, 4, 3))
    z, vae = torch.randn(made.shape), made.family.vae
    known = [z, *vae.parameters(), *vae.buffers()]
    rules = OperatorWorkspace(CPU)
    with torch.no_grad(), Live(known, rules) as live, NoScores(live):
        made.family.whole(z)
    assert black_box.predicted(made, WHOLE).device_bytes == live.device_peak


def test_a_full_size_decode_is_predicted_from_its_shapes() -> None:
    """HunyuanVideo, 33 frames 640x608: 40.0 GB was measured for the whole decode on an H200."""
    from diffusers import AutoencoderKLHunyuanVideo

    with torch.device("meta"):
        known = family_for(AutoencoderKLHunyuanVideo().to(torch.bfloat16))
    shape = (1, 16, 9, 80, 76)
    made = Job(known, shape, CARD, torch.bfloat16, torch.bfloat16, torch_backend)
    assert 38 * GB < black_box.predicted(made, WHOLE).device_bytes < 42 * GB


def test_a_copy_in_another_type_is_there_throughout() -> None:
    made = job_of("wan", (1, 3, 3))
    half = replace(made, dtype=torch.bfloat16, family=_in(made.family, torch.bfloat16))
    narrow = replace(half, family=made.family)
    more = 2 * sum(p.numel() for p in made.family.vae.parameters())
    found = black_box.predicted(narrow, WHOLE).device_bytes
    assert found == black_box.predicted(half, WHOLE).device_bytes + more


def _in(known: Any, dtype: Any) -> Any:
    return family_for(tiny_vae("wan").to(dtype))


def test_ghosts_have_no_memory_and_the_vae_is_as_it_was() -> None:
    known = family_for(tiny_vae("wan"))
    before = {n: (p.data_ptr(), p.dtype) for n, p in known.vae.named_parameters()}
    ghost = black_box.meta_family(known, torch.bfloat16)
    assert all(p.is_meta and p.dtype == torch.bfloat16 for p in ghost.vae.parameters())
    assert before == {n: (p.data_ptr(), p.dtype) for n, p in known.vae.named_parameters()}


def test_predictions_of_several_shapes_leave_nothing_behind() -> None:
    """Neither the follower of a run nor the storages that it was told to take for given."""
    made = job_of("wan", (1, 2, 3))

    def left() -> tuple[int, int, int]:
        gc.collect()
        kinds = [type(thing) for thing in gc.get_objects()]
        storages = kinds.count(torch.UntypedStorage)
        return kinds.count(Live), storages, len(weakref.finalize._registry)  # type: ignore[attr-defined]

    def predict(columns: range) -> None:
        for column in columns:
            black_box.predicted(replace(made, shape=(*made.shape[:4], column)), WHOLE)

    predict(range(9, 11))  # what is made once
    before = left()
    predict(range(11, 17))
    assert left() == before


def test_several_tiles_take_no_result_where_frames_go_to_a_file() -> None:
    made = own_job("image", (1, 12, 12))
    way = next(w for w in own_variants(made, DecodeOptions()) if w.strategy == "tiled")
    kept = black_box.predicted(made, way)
    to_file = black_box.predicted(replace(made, keeps_result=False), way)
    assert kept.both_bytes - to_file.both_bytes == 4 * math.prod(made.out_shape)


ON_THEIR_WAY = 4 * 16 * 9 * 16 * 16  # all frames of the job, which are few
GUESS = Prediction(1000 * MB, 200 * MB, 1100 * MB, 5)
ON_THEIR_WAY = 16 * 9 * 16 * 16 * 4  # all frames of job(): they fit the pinned memory at once


def given(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    """That prediction, or error."""

    def predicted(made: Job, way: Variant) -> Prediction:
        if isinstance(found, Exception):
            raise found
        guess: Prediction = found
        return guess

    monkeypatch.setattr(black_box, "predicted", predicted)


@pytest.mark.parametrize(
    ("device", "way", "need"),
    [
        (CARD, WHOLE, Need(1050 * MB, 200 * MB + ON_THEIR_WAY, 5)),
        (CPU, WHOLE, Need(1155 * MB, 0, 5)),
    ],
)
def test_what_is_planned_is_the_prediction_with_its_allowance(
    device: Any, way: Variant, need: Need, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, GUESS)
    assert black_box.planned(job(device), way) == need


def test_what_can_not_be_predicted_is_an_error_where_layers_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given(monkeypatch, ValueError("why"))
    with pytest.raises(ValueError, match=r"^why$"):
        black_box.planned(job(), WHOLE)


def opaque(device: Any, **changes: Any) -> Job:
    made = family(is_opaque=True, out_shape=lambda s, encode: (s[0], 3, 10, 20, 30))
    return job(device, **{"family": made, "shape": (2, 16, 9, 16, 16), **changes})


def test_of_an_opaque_vae_the_least_is_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, ValueError("why"))

    def least(made: Job) -> Need:
        return black_box.planned(made, WHOLE)

    one = 3 * 10 * 20 * 30
    half = {"result_dtype": torch.float16}
    assert least(opaque(CARD, **half)) == Need(4 * one, 2 * 2 * one, unknown="why")
    assert least(opaque(CARD, keeps_result=False)) == Need(4 * one, unknown="why")
    assert least(opaque(CPU, **half)) == Need(2 * 2 * one + 4 * one, unknown="why")
    single = {"shape": (1, 16, 9, 16, 16)}
    assert least(opaque(CPU, **half, **single)) == Need(4 * one, unknown="why")
    assert least(opaque(CPU, result_dtype=torch.float64, **single)) == Need(8 * one, unknown="why")


def test_of_opaque_tiles_the_least_is_one_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Thing(extent=(2, 3, 5), tiles=[1] * 6)
    made = opaque(CARD)
    made.family.facts = Thing(frames=lambda latents: 4 * latents + 1, space=8)
    asked: list[Any] = []
    monkeypatch.setattr(black_box, "plan_own_tiles", lambda *more: asked.append(more) or plan)
    given(monkeypatch, ValueError("why"))
    tile = 3 * 9 * 3 * 5 * 64 * 4
    result = 2 * 3 * 10 * 20 * 30 * 4
    assert black_box.planned(made, TILED) == Need(tile, result, unknown="why")
    on_host = replace(made, device=CPU, shape=(1, 16, 9, 16, 16))
    assert black_box.planned(on_host, TILED) == Need(result // 2 + tile, unknown="why")
    assert asked == [(made.family, made.shape, TILED.parameters),
                     (made.family, on_host.shape, TILED.parameters)]  # fmt: skip
    assert black_box.tiles(made, TILED) == 6
    assert black_box.tiles(made, WHOLE) == 1


def test_a_host_that_casts_or_parks_weights_is_said() -> None:
    def refused(asked: Any, **host: Any) -> str:
        with pytest.raises(ValueError, match=r".") as caught:
            black_box.predicted(job(family=family(host=Thing(**host)), dtype=asked), WHOLE)
        return str(caught.value)

    casts = "the VAE's own code computes in the type that its host casts weights to"
    assert refused(torch.float16, dtype=F32, runs_own_code=True) == casts
    parks = refused(F32, dtype=F32, runs_own_code=False, device=CARD)
    assert parks == "the VAE's weights are not on cuda:0"


def test_a_prediction_is_made_once_for_all_that_it_depends_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []

    def counted(*given: Any) -> Prediction:
        calls.append(given)
        return GUESS

    monkeypatch.setattr(black_box, "_on_shapes", counted)
    made = job_of("image", (1, 4, 3))
    for again in (made, made, replace(made, device=CARD), replace(made, keeps_result=False)):
        assert black_box.predicted(again, WHOLE) == GUESS
    black_box.predicted(job_of("image", (1, 4, 3)), WHOLE)
    assert len(calls) == 4
    black_box.predicted(replace(made, encode=True), WHOLE)
    black_box.predicted(replace(made, shape=(1, 4, 1, 5, 3)), WHOLE)
    assert len(calls) == 6


@pytest.mark.parametrize("encode", [False, True])
def test_wans_own_code_is_run_on_three_chunks_and_counts_as_all(
    encode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same peaks and products as a run on every chunk."""
    found = []
    for turns in (wan.in_turn, lambda count, run: [run(i) for i in range(count)]):
        monkeypatch.setattr(wan, "in_turn", turns)
        made = job_of("wan", (6, 4, 3))
        if encode:
            made = replace(made, shape=(1, 3, 25, 32, 32), encode=True)
        found.append([black_box.predicted(replace(made, device=d), WHOLE) for d in (CPU, CARD)])
    assert found[0] == found[1]
