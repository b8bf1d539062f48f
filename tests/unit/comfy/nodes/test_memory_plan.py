"""Protect VAE, Memory Plan and Tune VAE with stand-ins for ComfyUI."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from comfy_doubles import Comfy, FakeBar, Interrupt, comfy, door, execute, nodes_of  # noqa: E402
from comfy_vae_doubles import Flag, ManagedVae, OddDecoder  # noqa: E402
from decode_doubles import relative_error, tiny_latents, tiny_vae  # noqa: E402
from decode_originals import wan_original  # noqa: E402

__all__ = ["comfy", "door", "execute"]  # fixtures

Execute = Callable[..., Any]
SIZE = {"width": 64, "height": 60, "frames": 8}
AUTO = {"budget": "auto", "strategy": "auto", "precision": "auto"}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def loads(comfy: Comfy) -> list[Any]:
    made: list[Any] = []
    comfy.management.load_models_gpu = lambda models, **_: made.extend(models)
    return made


def wan() -> ManagedVae:
    return ManagedVae(wan_original(tiny_vae("wan")))


# Protect VAE


def test_a_protected_vae_decodes_through_failing_convolutions_and_the_source_does_not(
    execute: Execute, loads: list[Any]
) -> None:
    from hy3d_rocm.conv import forget
    from hy3d_rocm.conv.faults import MIOPEN_NO_ALGORITHM, Fault, inject_faults

    vae, z = ManagedVae(OddDecoder().eval(), latent_dim=2), torch.ones(1, 4, 4, 4)
    with torch.no_grad():
        wanted = vae.decode(z)
    made, report = execute("Hy3DRocmProtectVAE", vae=vae, mode="protect", **AUTO).values
    assert isinstance(made, ManagedVae)
    assert made.first_stage_model is vae.first_stage_model
    assert "OddDecoder: decode, decode_tiled, encode run with failing convolutions" in report
    forget()
    fault = Fault("current", "conv2d", MIOPEN_NO_ALGORITHM)
    with torch.no_grad(), inject_faults(fault):
        assert relative_error(made.decode(z), wanted) <= 1e-6
        assert relative_error(made.decode_tiled(z, tile_x=4), wanted) <= 1e-6
    forget()
    assert type(vae) is ManagedVae
    assert vae.calls[-2:] == ["decode", "decode_tiled 4"]


def test_full_decodes_in_parts_and_keeps_the_tiles_of_tiled_methods(
    execute: Execute, loads: list[Any]
) -> None:
    vae = wan()
    z = tiny_latents(vae.first_stage_model, 2, 2, 2)
    given = {**AUTO, "strategy": "streamed"}
    made, report = execute("Hy3DRocmProtectVAE", vae=vae, mode="full", **given).values
    assert "within a budget (auto)" in report
    with torch.no_grad():
        images = made.decode(z)
        assert vae.calls == []
        assert images.shape == (1, 5, 16, 16, 3)
        made.decode_tiled(z, tile_x=3)
    assert vae.calls == ["decode_tiled 3"]


def test_guarding_twice_is_guarding_once_and_a_module_stays_as_it_was(execute: Execute) -> None:
    module = OddDecoder().eval()
    once = execute("Hy3DRocmProtectVAE", vae=module, mode="full", **AUTO).values
    twice = execute("Hy3DRocmProtectVAE", vae=once[0], mode="protect", **AUTO).values[0]
    assert "no budget: this is no VAE of ComfyUI's own" in once[1]
    assert type(twice).__mro__[1] is OddDecoder
    z = torch.ones(1, 4, 2, 2)
    with torch.no_grad():
        assert torch.equal(twice.decode(z), module.decode(z))
    assert sorted(dict(twice.named_modules())) == sorted(dict(module.named_modules()))
    assert type(module) is OddDecoder


def test_what_is_no_vae_or_no_budget_is_a_sentence(execute: Execute) -> None:
    with pytest.raises(TypeError, match=r"vae is a dict without decode.*: connect a VAE loader"):
        execute("Hy3DRocmProtectVAE", vae={}, mode="protect", **AUTO)
    with pytest.raises(ValueError, match="6 parsecs"):
        execute("Hy3DRocmProtectVAE", vae=wan(), mode="full", **{**AUTO, "budget": "6 parsecs"})


# Memory Plan


def test_the_plan_names_the_way_that_the_decode_then_takes(
    execute: Execute, loads: list[Any]
) -> None:
    vae = wan()
    out = execute("Hy3DRocmMemoryPlan", vae=vae, **SIZE, **{**AUTO, "strategy": "streamed"})
    text, image, budget = out.values
    assert loads == []
    assert vae.calls == []
    assert image.shape[3] == 3
    assert set(out.ui) == {"images", "text"}
    taken = text.splitlines()[-1]
    assert taken.startswith("taken: streamed in chunks of ")
    assert taken.count("streamed in chunks of") == 1, "nothing is said twice"
    assert "whole: planned peak" in text
    assert "tiled in" in text
    # 8 frames are 3 latents, 60 rows 8 of them.
    assert "latents 1x4x3x8x8 -> 1x3x9x64x64" in text
    z = tiny_latents(vae.first_stage_model, 3, 8, 8)
    given = {**AUTO, "strategy": "streamed", "budget": budget}
    report = execute("Hy3DRocmVAEDecode", samples={"samples": z}, vae=vae, **given).values[1]
    named = taken.removeprefix("taken: ").partition(".")[0]
    assert f"Wan on cpu in float32: {named}" in report
    assert report.count(named) == 1, "nothing is said twice"


def test_the_plan_says_which_size_means_nothing_to_the_way_that_is_taken(
    execute: Execute,
) -> None:
    for strategy, says in (("whole", True), ("streamed", False)):
        given = {**AUTO, "strategy": strategy, "chunk_size": 2}
        text = execute("Hy3DRocmMemoryPlan", vae=wan(), **SIZE, **given).values[0]
        assert ("chunk_size=2 is ignored: the VAE's own unsplit decode" in text) is says


def explained(candidates: list[Any], taken: Any = None, budget: int = 2**28) -> Any:
    """An Explained of these candidates, on a GPU."""
    from types import SimpleNamespace

    from hy3d_rocm.tools.planning import Explained

    job: Any = SimpleNamespace(
        family=SimpleNamespace(name="Wan"), out_shape=(1, 3, 9, 64, 64), device="cuda"
    )
    room: Any = SimpleNamespace(device_bytes=budget, is_unified=False)
    plan: Any = taken and SimpleNamespace(variant=taken.variant)
    return Explained(job, room, Any, candidates, plan)  # type: ignore[arg-type]


def written(found: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of its picture."""
    from PIL import ImageDraw

    from hy3d_rocm.comfy.nodes import ahead

    texts: list[str] = []
    draw = ImageDraw.ImageDraw.text

    def text(self: Any, at: Any, words: str, *more: Any) -> None:
        texts.append(words)
        draw(self, at, words, *more)

    with monkeypatch.context() as patch:
        patch.setattr(ImageDraw.ImageDraw, "text", text)
        ahead.draw(found)
    return texts


@pytest.mark.usefixtures("comfy")
def test_a_plan_of_many_ways_is_wider_than_tall_and_shows_what_is_taken() -> None:
    from hy3d_rocm.comfy.nodes import ahead
    from hy3d_rocm.decoding.planning.planner import Candidate, Need, Variant

    ways = [
        Candidate(Variant("tiled", f"in {n} tiles"), Need(2**30 // n), True) for n in range(1, 40)
    ]
    for taken in (ways[0], ways[30]):
        found = explained(ways, taken)
        rows = ahead._shown(found)
        assert taken in rows
        assert rows[:-1] == ways[: len(rows) - 1]
        image = ahead.draw(found)
        assert image.shape[1] <= ahead.TALLEST < image.shape[2]
    assert ahead._shown(explained(ways[:3], None)) == ways[:3]


@pytest.mark.usefixtures("comfy")
def test_where_nothing_fits_the_picture_shows_the_least_and_no_bar_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hy3d_rocm.comfy.nodes import ahead
    from hy3d_rocm.decoding.planning.planner import Candidate, Need, Variant

    ways = [
        Candidate(Variant("tiled", f"in {n} tiles"), Need(2**40 // n), False) for n in range(1, 40)
    ]
    on_host = Candidate(Variant("cpu"), Need(0, 2**20), False)
    found = explained([*ways, on_host])
    rows = ahead._shown(found)
    assert rows[-1] is ways[-1]
    assert ahead._edge(found, rows) > 2**40
    texts = written(found, monkeypatch)
    assert f"nothing fits; the least is 26.26 GB; {40 - len(rows)} more are in the text" in texts
    other = explained([*ways[:2], Candidate(Variant("cpu"), Need(0, 2**20), True)])
    assert "what was asked for does not fit" in written(other, monkeypatch)


@pytest.mark.usefixtures("comfy")
def test_a_large_budget_does_not_press_the_bars_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    from hy3d_rocm.comfy.nodes import ahead
    from hy3d_rocm.decoding.planning.planner import Candidate, Need, Variant

    way = Candidate(Variant("whole"), Need(2**20), True)
    for budget, above in ((2**21, False), (2**22, False), (2**23, True)):
        found = explained([way], way, budget)
        assert ahead._edge(found, [way]) == 1.05 * (2**20 if above else budget)
        assert any("above this picture" in t for t in written(found, monkeypatch)) is above


@pytest.mark.usefixtures("comfy")
def test_the_picture_tells_time_as_an_estimate_copies_and_where_the_bytes_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hy3d_rocm.decoding.planning.planner import Candidate, Need, Variant

    spilled = Need(2**27, 2**30, seconds=1.44, stored_bytes=2**30, loaded_bytes=3 * 2**30)
    ways = [
        Candidate(Variant("streamed"), spilled, True),
        Candidate(Variant("cpu"), Need(0, 2**30, seconds=1119.2), True),
        Candidate(Variant("whole"), Need(2**29), False),
    ]
    texts = written(explained(ways, ways[0]), monkeypatch)
    assert texts[1] == "on cuda, beyond the weights; budget 256.00 MB; times are estimates"
    for wanted in ("~1.4 s, copies 4.0 GB", "128.00 MB + host 1.00 GB", "~1119 s", "host 1.00 GB"):
        assert wanted in texts
    assert not any("0 B" in text for text in texts)
    long = Candidate(Variant("streamed", "layer by layer, " * 9), spilled, True)
    (name,) = (t for t in written(explained([long], long), monkeypatch) if t.startswith("streamed"))
    assert name.endswith("...")
    assert not any("estimates" in t for t in written(explained(ways[2:], ways[2]), monkeypatch))


def test_a_plan_moves_a_bar_to_its_end(execute: Execute) -> None:
    for strategy, total in (("auto", 3), ("tiled", 4), ("whole", 3)):
        FakeBar.seen.clear()
        execute("Hy3DRocmMemoryPlan", vae=wan(), **SIZE, **{**AUTO, "strategy": strategy})
        assert FakeBar.seen == [(done, total) for done in range(total + 1)]


def test_a_cancel_ends_a_plan_before_the_next_question_of_a_compilation(
    execute: Execute, comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.decoding.memory.steps import StepWorkspace

    flag, asked = Flag(comfy, monkeypatch), StepWorkspace.__call__
    stages: list[int] = []  # of each question, how many compilations were done

    def counted(self: Any, *given: Any) -> Any:
        stages.append(FakeBar.seen[-1][0])
        flag.up = stages.count(1) == 3
        return asked(self, *given)

    monkeypatch.setattr(StepWorkspace, "__call__", counted)
    with pytest.raises(Interrupt):
        execute("Hy3DRocmMemoryPlan", vae=wan(), **SIZE, **AUTO)
    assert stages.count(1) == 3
    assert FakeBar.seen[-1] == (1, 3)


def test_each_candidate_tells_its_seconds_as_an_estimate(execute: Execute) -> None:
    text = execute("Hy3DRocmMemoryPlan", vae=wan(), **SIZE, **AUTO).values[0]
    lines = text.splitlines()
    assert lines[2].startswith("seconds are estimates with nominal rates")
    candidates = [line for line in lines if line.startswith("  ")]
    assert len(candidates) >= 4
    for line in candidates:
        assert re.search(r": planned peak [\d.]+ [kMG]?B, estimated [\d.e-]+ s, ", line), line
        assert " to the host and " not in line, "on the CPU nothing moves"
    names = [line.split(":")[0].split()[0] for line in candidates]
    assert {"whole", "streamed", "tiled"} == set(names)


def test_a_budget_that_is_too_small_is_a_plan_with_the_least_that_would_do(
    execute: Execute,
) -> None:
    given = {**AUTO, "budget": "1MB"}
    text, _, budget = execute("Hy3DRocmMemoryPlan", vae=wan(), **SIZE, **given).values
    assert "nothing is taken: no strategy fits the budget of 1.00 MB" in text
    assert "does not fit, from a budget of " in text
    assert budget == str(2**20)


def test_a_connected_latent_goes_before_the_sizes_and_must_fit_the_vae(execute: Execute) -> None:
    vae = wan()
    given = {"vae": vae, **SIZE, **AUTO}
    text = execute(
        "Hy3DRocmMemoryPlan", samples={"samples": torch.zeros(2, 4, 1, 3, 2)}, **given
    ).values[0]  # fmt: skip
    assert "latents 2x4x1x3x2" in text
    with pytest.raises(ValueError, match=r"have 5 channels \(shape \(1, 5, 1, 2, 2\)\)"):
        execute("Hy3DRocmMemoryPlan", samples={"samples": torch.zeros(1, 5, 1, 2, 2)}, **given)
    with pytest.raises(ValueError, match="frames is 0; give a whole number of 1 or more"):
        execute("Hy3DRocmMemoryPlan", **{**given, "frames": 0})


def test_the_plan_of_an_unknown_vae_says_that_it_can_not_be_told(execute: Execute) -> None:
    vae = ManagedVae(OddDecoder().eval(), latent_dim=2)
    given = {**AUTO, "budget": "2GB"}
    text, image, budget = execute("Hy3DRocmMemoryPlan", vae=vae, **SIZE, **given).values
    assert text.startswith("the layers of OddDecoder are not known\n")
    assert image.shape[0] == 1
    assert budget == str(2**31)


@pytest.mark.parametrize(
    ("budget", "more", "steady"),
    [
        ("6GB", {}, True),
        ("auto", {}, False),
        ("", {}, False),
        ("80%", {}, False),
        ("6 parsecs", {}, False),
        ("6GB", {"memory_fraction": 0.5}, False),
    ],
)
def test_a_plan_is_cached_only_where_nothing_else_decides(
    comfy: Comfy, door: ModuleType, budget: str, more: dict[str, Any], steady: bool
) -> None:
    nodes = {node.GET_SCHEMA().node_id: node for node in nodes_of(door)}
    found = nodes["Hy3DRocmMemoryPlan"].fingerprint_inputs(vae=None, budget=budget, **more)
    assert (found == "") is steady
    assert steady or math.isnan(found)
    assert math.isnan(nodes["Hy3DRocmTuneVAE"].fingerprint_inputs(vae=None))


def test_room_is_asked_for_by_the_same_door_as_a_decodes_plan(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the C core a decode plans no layers, so no room is asked for by them either."""
    from hy3d_rocm.comfy import vaes
    from hy3d_rocm.comfy.running import Asked
    from hy3d_rocm.decoding.memory.budget import Budget
    from hy3d_rocm.decoding.planning import compiled
    from hy3d_rocm.decoding.report import DecodeOptions

    vae = wan()
    family = vaes.family_of(vae)
    shape = (1, family.latent_channels, 2, 4, 4)
    everything = Budget(1 << 40, 1 << 40, True, "given")
    monkeypatch.setattr(vaes, "largest", lambda *_: everything)

    def room(strategy: str) -> int | None:
        asked = Asked(1 << 40, strategy, "auto", DecodeOptions())
        return vaes._planned_bytes(vae, family, shape, asked, None, False)

    assert (room("cpu") or 0) > 0
    with mock.patch.object(
        compiled._native, "compile_schedule", wraps=compiled._native.compile_schedule
    ) as compiling:
        assert room("streamed") == room("streamed")
    assert compiling.call_count == 1, "what was planned for the room is kept"
    wanted = room("streamed")
    monkeypatch.setattr(vaes, "largest", lambda *_: Budget(1 << 27, 1 << 27, True, "given"))
    assert room("streamed") == wanted
    monkeypatch.setattr(vaes, "largest", lambda *_: Budget(1, 1, True, "given"))
    assert room("streamed") is None, "nothing fits, so nothing that was kept does"
    monkeypatch.setattr(vaes, "largest", lambda *_: everything)
    monkeypatch.setattr(compiled._native, "available", False)
    assert family.seen is not None
    family.seen.plans.clear()
    assert room("cpu") is None
    assert room("streamed") is None


# Tune VAE


def shapes_of(vae: ManagedVae) -> Any:
    from hy3d_rocm.comfy import vaes
    from hy3d_rocm.comfy.nodes import common
    from hy3d_rocm.decoding.planning.jobs import torch_backend
    from hy3d_rocm.tune.shapes import collect_decode

    family = vaes.family_of(vae)
    shape = common.latent_shape(family, common.Wanted(64, 64, 9))
    made = vaes.job_of(family, shape, family.dtype)
    return replace(made, make_backend=torch_backend), collect_decode


@pytest.mark.parametrize("strategy", ["streamed", "tiled"])
def test_the_convolutions_are_those_of_the_plan_that_would_be_taken(
    comfy: Comfy, strategy: str
) -> None:
    from collections import Counter

    from hy3d_rocm.decoding.executor import decode_with_report
    from hy3d_rocm.decoding.memory.budget import Budget
    from hy3d_rocm.decoding.planning.compiled import plan_job
    from hy3d_rocm.decoding.planning.jobs import host_backend
    from hy3d_rocm.decoding.report import DecodeOptions
    from hy3d_rocm.tune.shapes import Notes

    vae = ManagedVae(tiny_vae("wan"))
    job, collect = shapes_of(vae)
    by_core = replace(job, make_backend=host_backend)
    plan = plan_job(by_core, Budget(1 << 40, 1 << 40, True, "given"), strategy)
    found, words = collect(job, plan)
    whole, whole_words = collect(job, None)
    assert words == f"of the decode {plan.variant.name}"
    assert whole_words == "of the decode of all frames at once"
    assert (found == whole) == (strategy == "streamed")  # one chunk is all frames at once
    weights = [shape.weight for shape in found]
    assert weights == sorted(weights, reverse=True)
    with Notes(torch.device("cpu")) as notes:  # what a decode with torch's operators calls
        decode_with_report(
            vae.first_stage_model, tiny_latents(vae.first_stage_model, 3, 8, 8), "1GB", strategy,
            options=DecodeOptions(backend="torch", chunk_size=plan.variant.parameters["chunk"]),
        )  # fmt: skip
    assert {shape.spec for shape in found} == set(notes.specs)
    assert Counter({shape.spec: shape.count for shape in found}) == notes.specs


def test_what_leaves_for_the_host_is_no_other_convolution(comfy: Comfy) -> None:
    from hy3d_rocm.decoding.families import family_for
    from hy3d_rocm.decoding.memory.budget import Budget
    from hy3d_rocm.decoding.planning.compiled import plan_job
    from hy3d_rocm.decoding.planning.jobs import Job, host_backend
    from hy3d_rocm.decoding.planning.planner import DoesNotFitError
    from hy3d_rocm.decoding.report import DecodeOptions
    from hy3d_rocm.tune.shapes import collect_decode

    family, half = family_for(tiny_vae("hunyuan").to(torch.bfloat16)), torch.bfloat16
    place, options = torch.device("cuda"), DecodeOptions(slice_bytes=1 << 16)
    job = Job(family, (1, 4, 3, 16, 16), place, half, half, host_backend)

    def plan(room: int) -> Any:
        return plan_job(job, Budget(room, 1 << 40, False, "given"), "streamed", options)

    full = plan(1 << 40)
    with pytest.raises(DoesNotFitError) as refused:
        plan(1)
    less = plan((full.need.device_bytes + refused.value.smallest) // 2)
    assert full.need.stored_bytes == 0 < less.need.stored_bytes
    found = [collect_decode(job, plan) for plan in (full, less)]
    assert found[0][0] == found[1][0]
    assert "of the decode streamed" in found[1][1]


class Lab:
    """Measures nothing: says what it was asked. cancel: called before the answer."""

    running = ""

    def __init__(self, cancel: Callable[[], None] = lambda: None) -> None:
        self.asked: list[Any] = []
        self.cancel = cancel

    def measure(self, spec: Any, tiers: Any) -> Any:
        from hy3d_rocm.tune.measure import Measured

        self.asked.append(spec)
        self.cancel()
        return {tier: Measured("ok", 0.001, 0.002, 0, "tile 64x64x32") for tier in tiers}


class Knowledge:
    def __init__(self) -> None:
        self.kept: dict[Any, dict[str, Any]] = {}

    def records(self, spec: Any) -> Any:
        return self.kept.get(spec, {})

    def put(self, spec: Any, tier: str, verdict: str, **fields: Any) -> None:
        from hy3d_rocm.conv.verdict_store.records import Record

        self.kept.setdefault(spec, {})[tier] = Record(tier, verdict, **fields)


def measured(comfy: Comfy, lab: Lab, known: Knowledge, seconds: float = 60) -> str:
    from hy3d_rocm.comfy.nodes import ahead
    from hy3d_rocm.tune.session import Wishes

    job, collect = shapes_of(wan())
    wishes = Wishes(limit_s=seconds)
    return ahead.measure(collect(job, None)[0], torch.device("cpu"), wishes, lab=lab, known=known)


def test_all_is_measured_once_and_the_report_is_that_of_the_command(
    comfy: Comfy, loads: list[Any]
) -> None:
    lab, known = Lab(), Knowledge()
    report = measured(comfy, lab, known)
    assert report.startswith("hy3d-rocm tune")
    assert len(lab.asked) == len(known.kept) == len(set(lab.asked))
    again = Lab()
    measured(comfy, again, known)
    assert again.asked == []


def test_a_cancel_between_two_shapes_keeps_what_was_measured(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = Flag(comfy, monkeypatch)
    known = Knowledge()

    def cancel() -> None:
        flag.up = len(lab.asked) == 2

    lab = Lab(cancel)
    with pytest.raises(Interrupt):
        measured(comfy, lab, known)
    assert len(lab.asked) == 2
    assert len(known.kept) == 2
    assert flag.resets == 1


def test_on_the_cpu_the_node_says_that_there_is_nothing_to_measure(execute: Execute) -> None:
    out = execute("Hy3DRocmTuneVAE", vae=wan(), **SIZE, seconds=10)
    assert "Nothing was measured: ComfyUI computes this VAE on the CPU" in out.values[0]
    assert out.ui.as_dict() == {"text": (out.values[0],)}
    odd = ManagedVae(OddDecoder().eval(), latent_dim=2)
    with pytest.raises(ValueError, match=r"layers of OddDecoder are not known\. Its convolutions"):
        execute("Hy3DRocmTuneVAE", vae=odd, **SIZE, seconds=10)
