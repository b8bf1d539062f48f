"""Tiles of the fused kernels: which are measured, what is kept, and who goes by it. No GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
from decode_doubles import tiny_vae  # noqa: E402

OutOfResources = pytest.importorskip("triton.runtime.errors").OutOfResources

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.conv.triton import (  # noqa: E402
    configs,
    launch,
    work,
)
from hy3d_rocm.conv.triton.configs import Config  # noqa: E402
from hy3d_rocm.conv.verdict_store.records import Machine as Versions  # noqa: E402
from hy3d_rocm.conv.verdict_store.records import Record  # noqa: E402
from hy3d_rocm.conv.verdict_store.store import Store  # noqa: E402
from hy3d_rocm.decoding.backends.triton import backend as backends  # noqa: E402
from hy3d_rocm.decoding.compile_ahead import OnShapes  # noqa: E402
from hy3d_rocm.decoding.families import family_for, unproven_family  # noqa: E402
from hy3d_rocm.decoding.layers import ModuleWeights  # noqa: E402
from hy3d_rocm.decoding.memory.budget import NO_LIMIT, Budget  # noqa: E402
from hy3d_rocm.decoding.planning.compiled import plan_job  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import Job, MakeBackend  # noqa: E402
from hy3d_rocm.tools import loading  # noqa: E402
from hy3d_rocm.tools.loading import bare_vae, latent_shape  # noqa: E402
from hy3d_rocm.tune import fused, session, shapes  # noqa: E402

pytestmark = pytest.mark.skipif(not _native.available, reason="programs need the C core")
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
VERSIONS = Versions("gfx1100", "driver", "torch", "hip", "ours")


def job_and_plan(vae: str, size: tuple[int, int, int]) -> tuple[Job, Any]:
    family = unproven_family(torch.nn.Module.to(bare_vae(vae), torch.bfloat16))
    shape, dtype = latent_shape(family, *size), torch.bfloat16
    job = Job(family, shape, GPU, dtype, dtype, MakeBackend("gfx1100"))
    return job, plan_job(job, Budget(NO_LIMIT, NO_LIMIT, False, ""))


@pytest.fixture(scope="module")
def wan() -> tuple[Job, Any]:
    return job_and_plan("wan21", (17, 64, 64))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store.open(":memory:")
    for module in (launch, fused):
        monkeypatch.setattr(module, "store", lambda: store)
    monkeypatch.setattr(launch, "this_machine", lambda device: VERSIONS)
    monkeypatch.setattr(launch, "architecture", lambda device: "gfx1100")
    monkeypatch.setattr(launch, "_measured", {})
    return store


@pytest.mark.parametrize(
    ("vae", "size"), [("hunyuan", (9, 304, 320)), ("wan21", (33, 480, 832)), ("ltx", (9, 64, 96))]
)
def test_the_layers_are_all_that_a_decode_launches_and_the_guess_is_first(
    vae: str, size: tuple[int, int, int]
) -> None:
    job, plan = job_and_plan(vae, size)
    layers = fused.layers_of(job, plan)
    backend = backends.TritonBackend(ModuleWeights(job.dtype, "meta"), "meta", machine())
    wanted: Counter[Any] = Counter()

    def launched(part: Any, operands: Any) -> None:
        made = part.work
        if not isinstance(made, work.Work):
            return
        positions = made.phases * sum(product.positions for product in made.products)
        wanted[made.kind] += positions

    backend.on_launch = launched
    on_shapes = OnShapes(plan.compiled.graph, backend, job.dtype)
    for number, section in enumerate(plan.compiled.program.sections):  # every one
        on_shapes.through(plan.compiled.program, number, section)
    assert {one.kind: round(one.runs * one.positions) for one in layers} == dict(wanted)
    work_of_each = [one.operations for one in layers]
    assert work_of_each == sorted(work_of_each, reverse=True)
    for one in layers:
        dtype, outputs, length, _ = one.kind
        assert len(set(one.tiles)) == len(one.tiles) <= 1 + fused.MORE_TILES
        assert set(one.tiles) <= set(
            configs.fitting(configs.offered("gfx1100", dtype), outputs, length)
        )
    heaviest = layers[0]
    if vae != "ltx":  # of many positions the guess is the same for each launch
        assert {p.tile for p in heaviest.part.work.products} == {heaviest.tiles[0]}


@pytest.mark.parametrize("name", [*loading.KINDS, "ltx095"])
def test_every_kind_of_vae_has_layers_to_measure(name: str, tmp_path: Path) -> None:
    if name == "ltx095":  # conditioned on a timestep
        tiny_vae("ltx095").save_config(tmp_path)
        name = str(tmp_path)
    vae = shapes.load_vae(name, torch.bfloat16)
    latent = latent_shape(family_for(vae), 9, 64, 64)
    job, _ = session.plan_decode(vae, latent, torch.bfloat16, CPU)
    job = replace(job, device=GPU, make_backend=MakeBackend("gfx1100"))
    plan = plan_job(job, Budget(NO_LIMIT, NO_LIMIT, False, ""))
    assert fused.is_fused(job, plan)
    assert len(fused.layers_of(job, plan)) > 4
    assert shapes.collect_decode(job, plan)[0]


def machine(**more: Any) -> work.Target:
    return work.Target("gfx1100", 96, **more)


class Gpu:
    """Stands for one: what each tile gives (1 unless told) and how long it takes (1 s). It reads
    nothing: what it is given is zeros, where drawing normal values takes seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **times: float) -> None:
        self.times, self.values, self.failing = times, dict[str, float](), set[str]()
        self.runs, self.wanted, self.last = Counter[str](), list[Any](), ""
        monkeypatch.setattr(backends, "run_launches", self.run)
        monkeypatch.setattr(torch.Tensor, "normal_", lambda made, **_: made.zero_())
        monkeypatch.setattr(fused.ahead, "want", lambda kernel, index: self.wanted.append(kernel))

    def run(self, part: Any, tensors: Sequence[Any], device: Any) -> None:
        made, self.last = part.work, name_of(part.work.products[0].tile)
        self.runs[self.last] += 1
        if self.last in self.failing:
            raise OutOfResources(98304, 65536, "shared memory")
        for number, size in ((fused._ROWS, made.rows_elems), (fused._PARTS, made.parts_elems)):
            assert tensors[number] is None or tensors[number].numel() == size
        tensors[fused._OUT].fill_(self.values.get(self.last, 1.0))

    def seconds(self, function: Any, calls: int) -> float:
        function()
        return self.times.get(self.last, 1.0)

    def watched(self, function: Any) -> tuple[Any, int]:
        return function(), 0


def name_of(tile: Config) -> str:
    """As a keyword."""
    return f"t{tile.block_p}x{tile.block_n}"


def measured(layers: Any, gpu: Any, **more: Any) -> tuple[fused.Outcome, list[str]]:
    said: list[str] = []
    given = {"limit_s": 60.0, "watch": gpu} | more
    return fused.measure_layers(layers, CPU, said.append, **given), said


def rank(kind: configs.Kind, positions: int, **more: Any) -> Config:
    dtype, *others = kind
    return work._tile_of(machine(measured=launch.measured(CPU), **more), dtype, positions, *others)


def test_what_was_measured_is_what_a_decode_takes(
    wan: tuple[Job, Any], known: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = fused.layers_of(*wan)
    of_96 = next(one for one in layers if one.kind[1] == 96 and one.kind[3] == 9)
    assert name_of(of_96.tiles[0]) == "t128x96"
    layers, gpu = [of_96, *layers[-3:]], Gpu(monkeypatch, t64x64=0.25)
    outcome, said = measured(layers, gpu)
    assert outcome.layers == len(layers) == len(said)
    assert 0 < outcome.better <= outcome.layers
    assert outcome.guessed_s == pytest.approx(
        sum(one.runs * gpu.times.get(name_of(one.tiles[0]), 1.0) for one in layers)
    )
    fast = [one for one in layers if "t64x64" in map(name_of, one.tiles)]
    better = [one for one in fast if name_of(one.tiles[0]) != "t64x64"]
    assert outcome.better == len(better)
    assert outcome.best_s == pytest.approx(
        sum(one.runs * (0.25 if one in fast else 1.0) for one in layers)
    )
    assert f"{outcome.better} of {outcome.layers} kinds of layer" in outcome.sentence()
    assert gpu.wanted, "kernels are compiled by other processes meanwhile"
    assert "guessed 128x96x32w8s2g8, 1e+03 ms" in "".join(said)
    # Many positions: the one that was fastest. None of another kind, and not of a job that is told
    # to go by the guess.
    assert of_96 in better
    assert name_of(rank(of_96.kind, 10_000_000)) == "t64x64"
    dtype, outputs, length, taps = of_96.kind
    assert name_of(rank((dtype, outputs, length, taps + 1), 10_000_000)) == "t128x96"
    tuned = backends.TritonBackend(ModuleWeights(torch.bfloat16, "meta"), CPU)
    plain = backends.TritonBackend(ModuleWeights(torch.bfloat16, "meta"), CPU, is_tuned=False)
    monkeypatch.setattr(launch, "_units", lambda device: 96)
    assert tuned.target().measured is launch.measured(CPU) is not None
    assert plain.target().measured is None
    # Known: nothing is measured again, unless it is asked for.
    gpu.runs.clear()
    again, _ = measured(layers, gpu)
    assert (again.better, again.best_s) == (outcome.better, pytest.approx(outcome.best_s))
    assert not gpu.runs
    assert measured(layers[:1], gpu, again=True)[0].layers == 1
    assert gpu.runs


def test_rates_weigh_the_waves_of_few_positions(known: Store) -> None:
    """A large tile that is a little faster leaves most of the card idle where positions are few."""
    kind = ("bf16", 128, 384, 9)
    for tile, seconds in (("128x128x32w8s2g8", 1.0), ("64x64x32w4s2g8", 1.2)):
        known.put(launch.fused_key(kind, CPU), Record(tile, "ok", seconds, measured_by="tune"))
    assert name_of(rank(kind, 10_000_000)) == "t128x128"
    assert name_of(rank(kind, 48 * 64)) == "t64x64"  # 96 tiles for 96 units, or 24


def test_a_tile_that_is_wrong_or_fails_is_never_taken(
    wan: tuple[Job, Any], known: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (layer,) = (one for one in fused.layers_of(*wan) if one.kind[1:] == (96, 288, 9))
    names = [name_of(tile) for tile in layer.tiles]
    wrong, failing, slower = names[1:4]
    gpu = Gpu(monkeypatch, **{wrong: 0.1, failing: 0.1, slower: 0.9})
    gpu.values[wrong], gpu.failing = 1.0625, {failing}  # 8 of bf16's steps
    outcome, _ = measured([layer], gpu)
    (sentence,) = outcome.wrong
    assert sentence in outcome.sentence()
    assert "is never taken: its values are not those of 128x96x32w8s2g8" in sentence
    records = known.records(launch.fused_key(layer.kind, CPU))
    assert [records[str(tile)].verdict for tile in layer.tiles[:4]] == [
        "ok", "wrong", "error", "ok"
    ]  # fmt: skip
    assert "out of resource: shared memory" in records[str(layer.tiles[2])].detail
    assert name_of(rank(layer.kind, 10_000_000)) == slower


@pytest.mark.parametrize("value", [float("nan"), None])
def test_where_the_guess_fails_the_next_is_what_others_are_compared_with(
    wan: tuple[Job, Any], known: Store, monkeypatch: pytest.MonkeyPatch, value: float | None
) -> None:
    (layer,) = (one for one in fused.layers_of(*wan) if one.kind[1:] == (96, 288, 9))
    guess, _, wrong = map(name_of, layer.tiles[:3])
    gpu = Gpu(monkeypatch)
    gpu.values[wrong] = 2.0
    if value is None:
        gpu.failing = {guess}
    else:
        gpu.values[guess] = value
    outcome, _ = measured([layer], gpu)
    assert f"its values are not those of {layer.tiles[1]}" in outcome.wrong[-1]
    assert ("its values are no numbers" in outcome.wrong[0]) is (value is not None)
    records = known.records(launch.fused_key(layer.kind, CPU))
    assert [records[str(t)].verdict for t in layer.tiles[:3]] == [
        "error" if value is None else "wrong", "ok", "wrong"
    ]  # fmt: skip


def test_results_that_differ_by_rounding_agree(
    wan: tuple[Job, Any], known: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (layer,) = (one for one in fused.layers_of(*wan) if one.kind[1:] == (96, 288, 9))
    gpu = Gpu(monkeypatch)
    gpu.values[name_of(layer.tiles[1])] = 1.0 + 2**-7  # bf16's next number
    assert not measured([layer], gpu)[0].wrong


def test_what_there_is_no_time_or_memory_for_is_said(
    wan: tuple[Job, Any], known: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, gpu = fused.layers_of(*wan), Gpu(monkeypatch)
    outcome, said = measured(layers, gpu, limit_s=0.0)
    assert not said
    assert (outcome.layers, outcome.left) == (0, len(layers))
    assert f"{len(layers)} kinds were left out" in outcome.sentence()
    real = torch.empty_strided

    def empty_strided(*given: Any, **more: Any) -> Any:
        if more.get("device") == CPU:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(*given, **more)

    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    assert measured(layers[:2], gpu)[0].left == 2


def test_what_there_was_no_memory_for_is_tried_another_time(
    wan: tuple[Job, Any], known: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (layer,) = (one for one in fused.layers_of(*wan) if one.kind[1:] == (96, 288, 9))
    gpu = Gpu(monkeypatch)
    short, real = {name_of(layer.tiles[1])}, fused._run

    def run(part: Any, *given: Any) -> Any:
        if name_of(part.work.products[0].tile) in short:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(part, *given)

    monkeypatch.setattr(fused, "_run", run)
    assert measured([layer], gpu)[0].layers == 1
    assert str(layer.tiles[1]) not in known.records(launch.fused_key(layer.kind, CPU))
    short.clear()
    measured([layer], gpu)
    assert known.records(launch.fused_key(layer.kind, CPU))[str(layer.tiles[1])].verdict == "ok"


@pytest.mark.parametrize("method", ["clone", "abs"])
def test_no_memory_for_what_results_are_compared_with_ends_nothing(
    wan: tuple[Job, Any], known: Store, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    layers, gpu = fused.layers_of(*wan)[:2], Gpu(monkeypatch)

    def fail(*_: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(torch.Tensor, method, fail)
    outcome, _ = measured(layers, gpu)
    assert outcome.layers + outcome.left == 2


def test_tiles_that_were_measured_at_several_sizes_are_compared_rightly(
    wan: tuple[Job, Any], known: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small decode's tile, whose layer had few positions, is no faster for that."""
    (layer,) = (one for one in fused.layers_of(*wan) if one.kind[1:] == (96, 288, 9))
    small = replace(layer, tiles=layer.tiles[-1:])
    monkeypatch.setattr(fused.Layer, "positions", 1 << 14)
    measured([small], Gpu(monkeypatch, **{name_of(small.tiles[0]): 0.5}))
    monkeypatch.setattr(fused.Layer, "positions", 1 << 20)
    large = replace(layer, tiles=layer.tiles[:-1])
    measured([large], Gpu(monkeypatch, **{name_of(large.tiles[0]): 0.9}))
    assert name_of(rank(layer.kind, 10_000_000)) == name_of(large.tiles[0])
    # What is known is said of this size.
    monkeypatch.setattr(fused.Layer, "positions", 1 << 22)
    outcome, _ = measured([large], Gpu(monkeypatch))
    assert outcome.best_s == pytest.approx(large.runs * 0.9 * 4)


def test_gpus_of_two_kinds_have_records_of_their_own(
    known: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device without a number is the current one, here the second."""
    other, kind = VERSIONS._replace(architecture="gfx1201"), ("bf16", 96, 288, 9)
    mine = {"cuda:0": VERSIONS, "cuda:1": other, "cuda": other}
    monkeypatch.setattr(launch, "this_machine", lambda device: mine[str(device)])
    known.put(launch.fused_key(kind, GPU), Record("64x64x32w4s2g8", "ok", 1.0))
    assert launch.measured(GPU) is not None
    assert launch.measured(torch.device("cuda")) is None
    assert launch.measured(torch.device("cuda", 1)) is None


def test_what_can_not_be_foreseen_ends_nothing(
    wan: tuple[Job, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for compile_ahead(): a function of the VAE's own may want real values."""
    real, parts = fused.dry_run, []

    def dry_run(*given: Any) -> None:
        def launched(alike: int, part: Any, operands: Any) -> None:
            if parts:
                raise ValueError("a number is wanted")
            if isinstance(part.work, work.Work):
                parts.append(part)
            given[-1](alike, part, operands)

        real(*given[:-1], launched)

    monkeypatch.setattr(fused, "dry_run", dry_run)
    assert len(fused.layers_of(*wan)) == 1
    monkeypatch.setattr(fused, "dry_run", lambda *given: None)
    assert fused.tune_decode(*wan, print, limit_s=1.0) == ""  # torch computes all of it


def test_a_cancel_keeps_what_was_measured(
    wan: tuple[Job, Any], known: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, gpu, looks = fused.layers_of(*wan), Gpu(monkeypatch), []

    def look() -> None:
        looks.append(1)
        if len(looks) > len(layers[0].tiles):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(layers, gpu, look=look)
    assert len(launch.measured(CPU).tiles) == 1  # type: ignore[union-attr]


def test_the_same_object_while_nothing_new_is_measured(known: Store) -> None:
    """Launches are kept by it."""
    assert launch.measured(CPU) is None
    kind = ("bf16", 96, 288, 9)
    known.put(launch.fused_key(kind, CPU), Record("64x64x32w4s2g8", "ok", 1.0))
    first = launch.measured(CPU)
    assert first is not None
    known.put(launch.fused_key(kind, CPU), Record("7x7x7w4s2g8", "ok", 0.1))  # not offered
    known.put(launch.fused_key(kind, CPU)._replace(ours="older"), Record("64x64x32w4s2g8", "ok", 9))
    assert launch.measured(CPU) is first
    known.put(launch.fused_key(kind, CPU), Record("64x64x32w4s2g8", "ok", 2.0))
    assert launch.measured(CPU) is not first


def test_a_decode_without_fused_kernels_has_nothing_to_measure(wan: tuple[Job, Any]) -> None:
    job, plan = wan
    assert fused.tune_decode(job, None, print, limit_s=1.0) == ""
    plain = replace(job, make_backend=MakeBackend("torch"))
    assert fused.tune_decode(plain, plan, print, limit_s=1.0) == ""


def test_a_tile_whose_moments_are_wrong_is_never_taken(
    wan: tuple[Job, Any], known: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GroupNorm goes by them; the values themselves may be right."""
    (layer,) = (one for one in fused.layers_of(*wan) if one.kind[1:] == (96, 288, 9))
    moments = torch.empty((2, 96), dtype=torch.float64, device="meta")
    layer.operands = [
        moments if number == fused._MOMENTS else one for number, one in enumerate(layer.operands)
    ]
    gpu, wrong = Gpu(monkeypatch), name_of(layer.tiles[1])

    def run(part: Any, tensors: Any, device: Any) -> None:
        gpu.run(part, tensors, device)
        mean, deviations = tensors[fused._MOMENTS]
        mean.fill_(1.0)
        deviations.fill_(0.5 * tensors[fused._OUT][0, 0].numel() if gpu.last == wrong else 0.0)

    monkeypatch.setattr(backends, "run_launches", run)
    outcome, _ = measured([layer], gpu)
    (sentence,) = outcome.wrong
    assert str(layer.tiles[1]) in sentence


def test_a_tile_that_ends_the_process_is_not_tried_again(
    wan: tuple[Job, Any], known: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a tile is tried the store has a marker, of which the next process makes a "hang"."""
    (layer,) = (one for one in fused.layers_of(*wan) if one.kind[1:] == (96, 288, 9))
    gpu, marked, real = Gpu(monkeypatch), list[str](), known.in_flight

    def in_flight(key: Any, tier: str) -> Any:
        assert key == launch.fused_key(layer.kind, CPU)
        marked.append(tier)
        return real(key, tier)

    monkeypatch.setattr(known, "in_flight", in_flight)
    known.put(launch.fused_key(layer.kind, CPU), Record(str(layer.tiles[1]), "hang"))
    measured([layer], gpu)
    assert marked == [str(tile) for tile in layer.tiles if tile != layer.tiles[1]]
    assert name_of(layer.tiles[1]) not in gpu.runs
