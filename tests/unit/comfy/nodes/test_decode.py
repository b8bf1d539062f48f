"""VAE Decode and Encode with stand-ins for ComfyUI: options, cancels, unknown VAEs, timelines."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from comfy_doubles import Comfy, Interrupt, comfy, door, execute, nodes_of  # noqa: E402
from comfy_vae_doubles import Flag, ManagedVae, OddDecoder  # noqa: E402
from decode_doubles import relative_error, tiny_latents, tiny_vae  # noqa: E402
from decode_originals import latent_diffusion_original, wan_original  # noqa: E402

__all__ = ["comfy", "door", "execute"]  # fixtures

Execute = Callable[..., Any]
AUTO = {"budget": "auto", "strategy": "auto", "precision": "auto"}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def loads(comfy: Comfy) -> list[Any]:
    """What ComfyUI was asked to load."""
    made: list[Any] = []
    comfy.management.load_models_gpu = lambda models, **_: made.extend(models)
    return made


@pytest.fixture
def flag(comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> Flag:
    return Flag(comfy, monkeypatch)


def video_vae() -> ManagedVae:
    return ManagedVae(latent_diffusion_original(tiny_vae("hunyuan")))


def encoding_vae(kind: str, times: float = 1.0) -> ManagedVae:
    """With an encode() of its own, which gives so many times the mean."""
    inner = tiny_vae(kind)
    model = wan_original(inner) if kind == "wan" else latent_diffusion_original(inner)
    model.encode = lambda x: inner.encode(x).latent_dist.mean * times
    return ManagedVae(model, latent_dim=2 if kind == "image" else 3)


# Options


def test_the_options_defaults_are_those_of_decode(comfy: Comfy, door: Any) -> None:
    from hy3d_rocm.comfy.nodes.common import decode_options
    from hy3d_rocm.decoding.report import DecodeOptions

    (schema,) = (s for n in nodes_of(door) if (s := n.GET_SCHEMA()).node_id == "Hy3DRocmVAEDecode")
    others = ("samples", "vae", "budget", "strategy", "precision", "devices")
    offered = {given.id: given.default for given in schema.inputs if given.id not in others}
    assert len(offered) == 12
    assert decode_options({}) == decode_options(offered) == DecodeOptions()


def test_validate_decode_corrects_statistics_as_a_decode_does(comfy: Comfy, door: Any) -> None:
    from hy3d_rocm.decoding.report import DecodeOptions

    (schema,) = (
        s for n in nodes_of(door) if (s := n.GET_SCHEMA()).node_id == "Hy3DRocmValidateDecode"
    )
    (passes,) = (given for given in schema.inputs if given.id == "statistic_passes")
    assert passes.default == DecodeOptions().statistic_passes


@pytest.mark.usefixtures("comfy")
def test_a_number_that_means_none_becomes_none_and_megabytes_bytes() -> None:
    from hy3d_rocm.comfy.nodes.common import decode_options

    made = decode_options({"slice_mb": 3, "halo_pixels": -1, "chunk_size": 0})
    assert made.slice_bytes == 3 * 2**20
    assert made.halo_pixels is None
    assert made.chunk_size is None
    assert decode_options({"cleanup_frequency": 0}).cleanup_frequency == 0
    with pytest.raises(ValueError, match="statistic_passes is -1; give"):
        decode_options({"statistic_passes": -1})


def test_a_prompt_saved_before_the_options_existed_still_runs(
    execute: Execute, loads: list[Any]
) -> None:
    vae, z = video_vae(), tiny_latents(tiny_vae("hunyuan"), 2, 2, 2)
    images, report, timeline = execute(
        "Hy3DRocmVAEDecode", samples={"samples": z}, vae=vae, **AUTO
    ).values  # fmt: skip
    assert loads == [vae.patcher]
    assert images.shape == (5, 16, 16, 3)
    assert "HunyuanVideo on cpu in float32" in report
    assert timeline.shape[0] == 1
    assert timeline.shape[3] == 3
    assert vae.calls == []


def test_options_reach_the_decode(execute: Execute, loads: list[Any]) -> None:
    vae = ManagedVae(wan_original(tiny_vae("wan")))
    z = tiny_latents(vae.first_stage_model, 3, 2, 2)
    given = {**AUTO, "strategy": "streamed", "chunk_size": 2}
    report = execute("Hy3DRocmVAEDecode", samples={"samples": z}, vae=vae, **given).values[1]
    assert "streamed in chunks of 2 latent frames" in report


@pytest.fixture
def shares(comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the processes of further devices are asked; they compute nothing."""
    from hy3d_rocm.comfy import devices
    from hy3d_rocm.decoding import workers

    told: list[Any] = []

    class Alone(workers.Workers):
        def share(
            self, family: Any, source: Any, wishes: Any, work: Any, cancel: Any, encode: bool
        ) -> Any:  # fmt: skip
            told.append((self.others, dict(wishes), encode))
            return work(None)

        def drop(self) -> None:
            told.append("drop")

        def close(self) -> None:
            told.append("close")

    monkeypatch.setattr(workers, "Workers", Alone)
    monkeypatch.setattr(devices, "_workers", None)
    cli_args = SimpleNamespace(args=SimpleNamespace(cpu=True))
    monkeypatch.setitem(sys.modules, "comfy.cli_args", cli_args)
    monkeypatch.delenv("HY3D_ROCM_VAE_DEVICES", raising=False)
    return told


def test_a_decode_is_shared_by_the_devices_of_the_input_or_of_the_settings(
    execute: Execute, loads: list[Any], shares: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    vae = ManagedVae(wan_original(tiny_vae("wan")))
    z = tiny_latents(vae.first_stage_model, 3, 2, 2)

    def decoded(budget: str = "auto", **more: Any) -> list[Any]:
        shares.clear()
        given = {**AUTO, "budget": budget, **more}
        execute("Hy3DRocmVAEDecode", samples={"samples": z}, vae=vae, **given)
        return shares

    assert decoded() == decoded(devices="one") == decoded(devices="all") == []
    ((others, wishes, encode),) = decoded("200MB", devices="cpu,cpu,cpu", chunk_size=2)
    assert (others, encode) == ((cpu, cpu), False)
    assert wishes["budget"] == 200 * 2**20
    assert wishes["options"].chunk_size == 2
    monkeypatch.setenv("HY3D_ROCM_VAE_DEVICES", "cpu,cpu")
    found = decoded()
    assert found[0] == "close"  # other devices than before
    assert found[1][0] == (cpu,)
    assert found[1][1]["budget"] is None  # each says what is free on its own
    assert decoded(devices="one") == []
    with pytest.raises(ValueError, match="devices is 'both': give"):
        decoded(devices="both")


def test_a_device_that_is_not_there_costs_a_line_and_no_budget(
    execute: Execute, loads: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    vae = ManagedVae(wan_original(tiny_vae("wan")))
    z = tiny_latents(vae.first_stage_model, 3, 2, 2)
    given = {**AUTO, "budget": "200MB", "devices": "0,1"}
    report = execute("Hy3DRocmVAEDecode", samples={"samples": z}, vae=vae, **given).values[1]
    assert "budget: 200.00 MB as given" in report
    assert vae.calls == []
    why = "cuda:0 can't decode with cpu: name devices of that kind"
    assert f"[VAE Decode] {why}: decoding on cpu alone" in caplog.messages


def test_processes_give_a_vae_back_with_comfyui_and_end_when_memory_is_freed(
    execute: Execute, loads: list[Any], shares: list[Any]
) -> None:
    from hy3d_rocm.comfy import memory

    vae = ManagedVae(wan_original(tiny_vae("wan")))
    z = tiny_latents(vae.first_stage_model, 3, 2, 2)
    execute("Hy3DRocmVAEDecode", samples={"samples": z}, vae=vae, **AUTO, devices="cpu,cpu")
    shares.clear()
    memory._unloaded()
    assert shares == ["drop"]
    execute("Hy3DRocmFreeMemory", anything=1)
    assert "close" in shares


def test_latents_of_another_model_are_named_with_the_remedy(
    execute: Execute, loads: list[Any]
) -> None:
    vae, z = video_vae(), torch.zeros(1, 5, 2, 2, 2)
    with pytest.raises(ValueError, match=r"have 5 channels .* connect the VAE that belongs"):
        execute("Hy3DRocmVAEDecode", samples={"samples": z}, vae=vae, **AUTO)
    assert vae.calls == []


# Unknown VAEs


def test_an_unknown_vae_is_decoded_in_tiles_of_ours_where_memory_is_short(
    execute: Execute, loads: list[Any]
) -> None:
    vae = ManagedVae(OddDecoder().eval(), latent_dim=2)
    z = torch.randn(1, 4, 96, 96, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = vae.decode(z)
    vae.calls.clear()
    for budget, way in (("4GB", "whole"), ("70MB", "tiled in ")):
        given = {**AUTO, "budget": budget}
        images, report, _ = execute(
            "Hy3DRocmVAEDecode", samples={"samples": z}, vae=vae, **given
        ).values  # fmt: skip
        assert f"OddDecoder on cpu in float32: {way}" in report
        assert relative_error(images, wanted) <= 1e-6  # its whole reach is within the halo
    assert vae.calls == []  # ComfyUI's own decode was not needed
    assert loads == [vae.patcher] * 2


def test_what_makes_no_pictures_is_left_to_comfyuis_own_decode(
    execute: Execute, loads: list[Any]
) -> None:
    vae = ManagedVae(OddDecoder().eval(), latent_dim=2)
    vae.output_channels = 2  # sound
    out = execute(
        "Hy3DRocmVAEDecode", samples={"samples": torch.zeros(1, 4, 4, 4)}, vae=vae, **AUTO
    )
    assert vae.calls == ["decode"]
    assert "OddDecoder makes no pictures" in out.values[1]


def test_a_patch_of_vae_decode_gets_the_images_in_the_cores_shape(loads: list[Any]) -> None:
    from hy3d_rocm.comfy.decode import run_vae

    vae, z = video_vae(), tiny_latents(tiny_vae("hunyuan"), 2, 2, 2)
    images, report = run_vae(vae, z, own=vae.decode, strategy="streamed")
    assert images.shape == (1, 5, 16, 16, 3)
    assert report.strategy == "streamed"
    other: Any = object()
    kept = torch.zeros(1, 2, 2, 3)
    images, report = run_vae(other, torch.zeros(1, 4, 2, 2), own=lambda z: kept)
    assert images is kept
    assert report.strategy == "own"


# Cancels


def test_looking_for_a_cancel_does_not_take_it_from_comfyui(flag: Flag) -> None:
    from hy3d_rocm.comfy.running import INTERVAL_S, Watcher

    def work() -> None:
        with Watcher() as watcher:
            seen.append(watcher.requested)
            flag.up = True
            seen.append(watcher.requested)
            until = time.monotonic() + 100 * INTERVAL_S
            while not watcher.flag.requested and time.monotonic() < until:
                time.sleep(0.01)
            seen.append(watcher.flag.requested)  # the C core's, set by the thread
            seen.append(flag.up and not flag.resets)
            raise RuntimeError("ended by that")

    seen: list[bool] = []
    with pytest.raises(Interrupt):
        work()
    assert seen == [False, True, True, True]
    assert flag.resets == 1


def test_an_error_that_is_no_cancel_stays_what_it_is(flag: Flag) -> None:
    from hy3d_rocm.comfy.running import Watcher

    def fail() -> None:
        with Watcher():
            raise KeyError("mine")

    with pytest.raises(KeyError):
        fail()
    with Watcher() as watcher:
        flag.up = True
    assert flag.up  # a result that was ready is kept, and the executor sees the flag
    assert watcher.requested


@pytest.mark.parametrize("after", [1, 3])
def test_a_cancel_in_the_middle_ends_within_one_step_with_comfyuis_exception(
    execute: Execute, loads: list[Any], flag: Flag, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    from hy3d_rocm.comfy.running import Steps

    ticks: list[int] = []
    tick = Steps.__call__

    def counted(self: Any, done: int, total: int, step: Any) -> None:
        ticks.append(done)
        flag.up = flag.up or done == after
        tick(self, done, total, step)

    monkeypatch.setattr(Steps, "__call__", counted)
    vae, z = video_vae(), tiny_latents(tiny_vae("hunyuan"), 3, 2, 2)
    given = {**AUTO, "strategy": "streamed", "slice_mb": 1}
    with pytest.raises(Interrupt):
        execute("Hy3DRocmVAEDecode", samples={"samples": z}, vae=vae, **given)
    assert ticks == list(range(1, after + 1))
    assert flag.resets == 1
    assert vae.calls == []  # not taken for a failure of ours


# Encode


def test_pixels_are_cropped_and_scaled_and_the_latent_is_the_cores(
    execute: Execute, loads: list[Any]
) -> None:
    vae = encoding_vae("image")
    pixels = torch.rand(2, 35, 34, 4, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = vae.encode(pixels)
    vae.calls.clear()
    latent, report = execute(
        "Hy3DRocmVAEEncode", pixels=pixels, vae=vae, **{**AUTO, "strategy": "streamed"}
    ).values  # fmt: skip
    assert latent["samples"].shape == wanted.shape == (2, 4, 8, 8)
    assert relative_error(latent["samples"], wanted) <= 1e-5
    assert report.startswith("pixels (2, 35, 34, 4) -> latents (2, 4, 8, 8)")
    assert vae.calls == []


def test_frames_of_one_video_are_encoded_as_one(execute: Execute, loads: list[Any]) -> None:
    vae = encoding_vae("wan")
    pixels = torch.rand(7, 16, 16, 3, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = vae.encode(pixels[:5])  # the two that make no latent are left out
    latent = execute("Hy3DRocmVAEEncode", pixels=pixels, vae=vae, **AUTO).values[0]["samples"]
    assert latent.shape == wanted.shape
    assert relative_error(latent, wanted) <= 1e-5


def test_an_encode_is_shared_by_the_devices_of_the_input_or_of_the_settings(
    execute: Execute, loads: list[Any], shares: list[Any], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level("INFO")
    vae, pixels = encoding_vae("wan"), torch.rand(5, 16, 16, 3)
    execute("Hy3DRocmVAEEncode", pixels=pixels, vae=vae, **AUTO)
    execute("Hy3DRocmVAEEncode", pixels=pixels, vae=vae, **AUTO, devices="all")
    assert shares == []
    why = "ComfyUI computes on cpu: no other device can encode with it"
    assert f"[VAE Encode] {why}" in caplog.messages
    given = {**AUTO, "budget": "200MB", "devices": "cpu,cpu"}
    execute("Hy3DRocmVAEEncode", pixels=pixels, vae=vae, **given)
    monkeypatch.setenv("HY3D_ROCM_VAE_DEVICES", "cpu,cpu")
    execute("Hy3DRocmVAEEncode", pixels=pixels, vae=vae, **AUTO)
    assert [encode for _, _, encode in shares] == [True, True]
    assert [others for others, _, _ in shares] == [(torch.device("cpu"),)] * 2
    assert [wishes["budget"] for _, wishes, _ in shares] == [200 * 2**20, None]


def test_an_unknown_encoder_is_left_to_comfyuis_own_encode(
    execute: Execute, loads: list[Any]
) -> None:
    vae = encoding_vae("image", times=2)  # as no layers say
    pixels = torch.rand(1, 16, 16, 3)
    latent, report = execute("Hy3DRocmVAEEncode", pixels=pixels, vae=vae, **AUTO).values
    assert vae.calls == ["encode"]
    assert "encodes otherwise than its layers say" in report
    assert latent["samples"].shape == (1, 4, 4, 4)


def test_what_is_no_image_is_a_sentence(execute: Execute) -> None:
    with pytest.raises(ValueError, match="pixels is str, not an IMAGE"):
        execute("Hy3DRocmVAEEncode", pixels="a", vae=video_vae(), **AUTO)


def test_the_report_says_what_happened_and_what_to_do_next_time() -> None:
    from hy3d_rocm.comfy.reports import report_lines
    from hy3d_rocm.decoding.report import DecodeReport

    report = DecodeReport(
        "Wan", (1, 4, 1, 2, 2), (1, 3, 1, 16, 16), "cpu", "float32", 2**30, "as given",
        strategy="tiled", reason="because.", plan={"way": "tiled in 4 tiles"}, steps=4,
        events=[
            {"event": "not finite", "way": "whole", "next_way": "whole", "without": "MIOpen"},
            {"event": "out of memory", "way": "whole", "next_way": "tiled in 4 tiles"},
        ],
        ignored=["chunk_size=2 is ignored: it has no frames"],
    )  # fmt: skip
    lines = report_lines(report)
    assert "chunk_size=2 is ignored: it has no frames" in lines
    assert lines[0] == "Wan on cpu in float32: tiled in 4 tiles"
    assert "not finite in whole, then whole without MIOpen" in lines
    assert "out of memory in whole, then tiled in 4 tiles" in lines
    assert any(line.startswith("next time: Memory ran out although") for line in lines)


# The timeline


def test_the_timeline_shows_curve_budget_steps_and_restarts() -> None:
    from hy3d_rocm.comfy import picture

    series = [(i / 10, i * 10**6) for i in range(20)]
    made = picture.Timeline(
        "title", "about", 2.0, 19 * 10**6, 30 * 10**6, 25 * 10**6, series,
        steps=[(0.0, 0.5, "conv"), (0.5, 1.0, "attend")], again=[1.5],
    )  # fmt: skip
    image = made.draw()
    assert image.shape == (1, picture.TIMELINE_HEIGHT, picture.WIDTH, 3)
    seen = colours(image)
    assert {picture.ACCENT, picture.WARM, picture._FILL, picture._RED} <= seen
    assert picture._RED not in colours(picture.Timeline("t", "a", 2.0, 5).draw())


def test_each_stretch_of_time_has_the_colour_of_what_took_most_of_it() -> None:
    from hy3d_rocm.comfy import picture

    spans = [(0.0, 1.0, "conv"), (1.0, 1.001, "emit"), (1.001, 2.0, "attend"), (3.0, 4.0, "load")]
    image = picture.Timeline("t", "a", 4.0, 5, steps=spans).draw()
    lane = (image[0, sum(picture._LANE) // 2] * 255).round().to(torch.int64)
    left, wide = picture._LEFT, picture._RIGHT - picture._LEFT
    for share, name in ((0.1, "convolutions"), (0.4, "attention"), (0.9, "copies")):
        assert tuple(lane[left + int(share * wide)].tolist()) == picture._COLOURS[name], name
    seen = {tuple(pixel.tolist()) for pixel in lane[left : left + wide]}
    assert picture._COLOURS["frames in and out"] not in seen, "a thousandth of a second"
    assert tuple(lane[left + int(0.6 * wide)].tolist()) == picture.CARD, "no step was there"


def test_every_operation_of_a_program_has_a_name_and_a_colour() -> None:
    from hy3d_rocm.comfy import picture
    from hy3d_rocm.decoding.run import OPS

    for op in {*OPS, "whole", "frames"} - {"send", "recv"}:
        assert picture._PHASES[op] in picture._COLOURS


def test_a_legend_has_seconds_unless_a_gpu_was_only_given_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hy3d_rocm.comfy import picture

    def said(**more: Any) -> list[str]:
        texts: list[str] = []
        monkeypatch.setattr(picture.Timeline, "text", lambda self, at, text, *_: texts.append(text))
        spans = [(0.0, 1.25, "conv"), (1.25, 1.75, "moments"), (1.75, 2.0, "reduce")]
        picture.Timeline("t", "a", 2.0, 5, steps=spans, **more).draw()
        return texts

    assert {"steps", "convolutions 1.2 s", "norms 0.75 s"} <= set(said())
    assert {"queued", "convolutions", "norms"} <= set(said(is_queued=True))


@pytest.mark.parametrize("planned", [10, 250, 290, 299, 300])
@pytest.mark.parametrize("budget", [300, 301, 1199, 10**6])
def test_the_words_for_plan_and_budget_do_not_meet(
    planned: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import picture

    boxes: list[tuple[int, ...]] = []
    draw = picture.Timeline.text

    def seen(self: Any, at: Any, text: str, colour: Any, anchor: str) -> None:
        if text.startswith(("planned", "budget")):
            boxes.append(tuple(self.pen.textbbox(at, text, self.font, anchor=anchor)))
        draw(self, at, text, colour, anchor)

    monkeypatch.setattr(picture.Timeline, "text", seen)
    mb = 2**20
    picture.Timeline("t", "a", 2.0, 200 * mb, budget * mb, planned * mb).draw()
    assert len(boxes) == 2
    for left, above, right, below in boxes:
        assert picture._LEFT <= left < right <= picture._RIGHT
        assert picture._TOP <= above < below <= picture._LANE[0], "not over the steps"
    first, second = boxes
    assert first[2] < second[0] or second[3] <= first[1] or first[3] <= second[1]


def test_steps_follow_each_other_and_what_failed_is_no_step_of_the_new_beginning(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import running

    clock = iter([0.0, 0.0, 1.0, 2.0, 3.0, 7.0, 8.0])
    monkeypatch.setattr(running.time, "perf_counter", lambda: next(clock))
    steps = running.Steps()
    steps.start()
    for done, kind in enumerate(("enter", "conv", "conv"), 1):
        steps(done, 9, kind)
    steps(1, 9, "enter")
    steps(2, 9, "conv")
    assert steps.seen == [
        (0.0, 1.0, "enter"), (1.0, 3.0, "conv"), (7.0, 7.0, "enter"), (7.0, 8.0, "conv")
    ]  # fmt: skip
    assert steps.again == [7.0]


def test_a_timeline_of_a_decode_tells_planning_and_the_kinds_of_steps(
    execute: Execute, loads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import picture

    shown: list[Any] = []
    draw = picture.Timeline.draw
    monkeypatch.setattr(picture.Timeline, "draw", lambda made: shown.append(made) or draw(made))
    z = tiny_latents(tiny_vae("hunyuan"), 3, 2, 2)
    given = {**AUTO, "strategy": "streamed"}
    execute("Hy3DRocmVAEDecode", samples={"samples": z}, vae=video_vae(), **given)
    (made,) = shown
    kinds = [kind for *_, kind in made.steps]
    assert kinds[:2] == ["planning", "enter"]
    assert kinds[-1] == "emit"
    assert {"conv", "attend"} <= set(kinds)
    assert all(a[1] == b[0] for a, b in pairwise(made.steps))
    assert made.steps[-1][1] <= made.seconds
    assert not made.is_queued


def test_what_a_program_copies_is_in_the_report() -> None:
    from hy3d_rocm.comfy.reports import report_lines
    from hy3d_rocm.decoding.report import DecodeReport

    taken = {"way": "streamed x", "stored_bytes": 3 * 2**30, "loaded_bytes": 5 * 2**29}
    other = {"way": "whole", "stored_bytes": 7, "loaded_bytes": 7}
    for candidates, says in (([other, taken], True), ([other], False)):
        report = DecodeReport(
            "V", (1, 4, 1, 2, 2), (1, 3, 1, 16, 16), "cuda:0", "float16", 2**30, "as given",
            strategy="streamed", plan={"way": "streamed x", "candidates": candidates},
        )  # fmt: skip
        text = "\n".join(report_lines(report))
        assert ("budget 1.00 GB, 3.00 GB to the host and 2.50 GB back" in text) is says


def colours(image: Any) -> set[tuple[int, ...]]:
    pixels = (image[0] * 255).round().to(torch.int64).reshape(-1, 3)
    packed = (pixels @ torch.tensor([65536, 256, 1])).unique().tolist()
    return {(c >> 16, c >> 8 & 255, c & 255) for c in packed}


def test_an_empty_or_very_long_timeline_is_drawn_too() -> None:
    from hy3d_rocm.comfy import picture

    for made in (
        picture.Timeline("", "", 1e-9),
        picture.Timeline("x" * 500, "y" * 500, 1e5, 1, 2**50, 1, [(0.0, -5), (1.0, 2**40)]),
    ):
        image = made.draw()
        assert float(image.min()) >= 0
        assert float(image.max()) <= 1


@pytest.mark.parametrize(
    ("top", "binary"),
    [
        (1.0, False),
        (0.003, False),
        (86400.0, False),
        (1, True),
        (300 * 2**20, True),
        (2**34 + 1, True),
    ],
)
def test_ticks_are_few_round_and_within_the_axis(top: float, binary: bool) -> None:
    from hy3d_rocm.comfy.picture import nice_ticks

    ticks = nice_ticks(top, binary)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 8
    assert ticks[-1] <= top
    assert len({round((b - a) / ticks[1], 6) for a, b in pairwise(ticks)}) == 1


# Prepared weights, which ComfyUI does not count


class Patcher:
    """ComfyUI's ModelPatcher, as far as unloading goes."""

    def __init__(self) -> None:
        self.partial: list[tuple[Any, int]] = []
        self.callbacks: dict[str, dict[str, list[Any]]] = {}

    def add_callback_with_key(self, when: str, key: str, callback: Any) -> None:
        self.callbacks.setdefault(when, {}).setdefault(key, []).append(callback)

    def partially_unload(self, device_to: Any, memory_to_free: int = 0) -> int:
        self.partial.append((device_to, memory_to_free))
        return memory_to_free

    def detach(self) -> None:
        for found in self.callbacks.get("on_detach_after", {}).values():
            for callback in found:
                callback(self, True)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The process's cache of prepared weights, with a weight in it that lives on."""
    from hy3d_rocm.conv import prepared

    cache = prepared.WeightCache(1000, fingerprint=lambda weight, threads: (id(weight), 0))
    monkeypatch.setattr(prepared, "_made", cache)
    cache.weight = torch.zeros(4)
    cache.fill = lambda: cache.get(cache.weight, 1, 300, object)
    cache.fill()
    assert cache.stats().bytes == 300
    return cache


@pytest.fixture
def callbacks(comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of ComfyUI's callbacks."""
    from comfy_doubles import module

    names = type("CallbacksMP", (), {"ON_DETACH": "on_detach_after"})
    extension = module("comfy.patcher_extension", CallbacksMP=names)
    monkeypatch.setitem(sys.modules, "comfy.patcher_extension", extension)


def test_prepared_weights_go_when_comfyui_unloads_the_vae(
    callbacks: None, kept: Any, loads: list[Any]
) -> None:
    from hy3d_rocm.comfy import vaes

    vae = video_vae()
    vae.patcher = Patcher()
    for _ in range(3):
        vaes._load(vae, 0)
    assert len(vae.patcher.callbacks["on_detach_after"]["hy3d_rocm"]) == 1, "asked for once"
    assert kept.stats().bytes == 300, "loading is no reason"
    vae.patcher.detach()
    assert kept.stats().bytes == 0
    vae.patcher = object()  # of a ComfyUI without callbacks
    vaes._load(vae, 0)


def test_prepared_weights_go_when_comfyui_unloads_a_part_of_the_vae(
    callbacks: None, kept: Any, loads: list[Any]
) -> None:
    from hy3d_rocm.comfy import vaes

    vae = video_vae()
    patcher = vae.patcher = Patcher()
    for _ in range(3):
        vaes._load(vae, 0)
    assert patcher.partially_unload("cpu", memory_to_free=7) == 7, "ComfyUI's own answer"
    assert patcher.partial == [("cpu", 7)], "called once"
    assert kept.stats().bytes == 0
    alive = ref(patcher)
    loads.clear()
    del patcher, vae.patcher
    assert alive() is None, "nothing of ours holds it"


def test_prepared_weights_of_a_vaes_own_code_go_with_it_too(callbacks: None, kept: Any) -> None:
    from hy3d_rocm.comfy import running

    vae = video_vae()
    vae.patcher = Patcher()
    running.own_code(vae, lambda: torch.ones(1), torch.ones(1))
    assert kept.stats().bytes == 300, "ComfyUI says when"
    vae.patcher.detach()
    assert kept.stats().bytes == 0
    kept.fill()
    running.own_code(torch.nn.Identity(), lambda: torch.ones(1), torch.ones(1))
    assert kept.stats().bytes == 0, "nobody would say when"


def test_prepared_weights_go_with_the_free_memory_node(execute: Execute, kept: Any) -> None:
    execute("Hy3DRocmFreeMemory")
    assert kept.stats().bytes == 0


def test_prepared_weights_of_a_vae_that_comfyui_does_not_manage_go_with_the_decode(
    comfy: Comfy, kept: Any
) -> None:
    from hy3d_rocm.comfy import memory

    with memory.own_care(video_vae()):
        pass
    assert kept.stats().bytes == 300, "ComfyUI says when"
    with pytest.raises(KeyError), memory.own_care(torch.nn.Identity()):
        raise KeyError
    assert kept.stats().bytes == 0


def test_the_report_and_the_log_have_one_figure_with_the_prepared_weights(
    execute: Execute, loads: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    from hy3d_rocm.conv import prepared
    from hy3d_rocm.units import size_text

    monkeypatch.setattr(prepared, "_made", prepared.WeightCache(1 << 30))
    from diffusers import AutoencoderKLWan

    wide = {"base_dim": 32, "z_dim": 4, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1}
    inner = AutoencoderKLWan(**wide).eval().requires_grad_(False)
    vae, z = ManagedVae(wan_original(inner)), tiny_latents(inner, 2, 6, 6)
    with caplog.at_level("INFO", logger="hy3d_rocm"):
        _, report, _ = execute(
            "Hy3DRocmVAEDecode", samples={"samples": z}, vae=vae, **{**AUTO, "strategy": "streamed"}
        ).values  # fmt: skip
    held = prepared.cache().stats().bytes
    assert held > 0
    told = re.search(r"planned peak ([0-9.]+ .B) of", caplog.text)
    assert told is not None
    assert f"planned peak {told[1]}," in report
    assert f"{size_text(held, 2)} of prepared weights come on top" in report
    assert f": {told[1]} at the peak" in report
