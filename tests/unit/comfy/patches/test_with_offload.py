"""The loader's and delight's patches with the real offload package: one flow, as in a workflow.

Real: the patches, the engine, the scopes, a tiny diffusers pipeline and accelerate's hooks on it.
Simulated: ComfyUI, upstream's nodes, and the accelerator ("cpu:0", see offload_doubles).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import patches_doubles
import pytest
import torch
from offload_doubles import ACCELERATOR, SimulatedAccelerator, hooked
from patches_doubles import DOUBLE, InterruptAsBase, load_upstream, patched, run, settings_are
from router_doubles import one_thread

from examples.demo.delight import tiny_pipeline
from hy3d_rocm.device import ResolvedDevice
from hy3d_rocm.offload import HEADROOM_BYTES, components_of, current_mode, estimate
from hy3d_rocm.offload import memory as measure

fake_comfy = patches_doubles.fake_comfy

pytestmark = pytest.mark.usefixtures("one_thread")

SIZE, STEPS, GB = 16, 2, 2**30
LOADER, NODE = "DownloadAndLoadHy3DDelightModel", "Hy3DDelightImage"


def callable_by_the_stand_in(pipeline: Any) -> Any:
    """The double of upstream's node leaves out what the real one gives beside the noise."""
    kind = type(pipeline)

    class Delight(kind):  # type: ignore[valid-type,misc]
        fail_at: tuple[int, BaseException] | None = None

        def __call__(
            self, image: Any, generator: Any, num_inference_steps: int,
            callback_on_step_end: Any = None,
        ) -> Any:  # fmt: skip
            def stepped(pipe: Any, step: int, timestep: Any, values: Any) -> Any:
                if self.fail_at is not None and step == self.fail_at[0]:
                    (_, error), self.fail_at = self.fail_at, None
                    raise error
                return callback_on_step_end(pipe, step, timestep, values) or values

            given = {} if callback_on_step_end is None else {"callback_on_step_end": stepped}
            return super().__call__(
                prompt="", image=image[None], generator=generator, guidance_scale=1.01,
                num_inference_steps=num_inference_steps, output_type="pt", **given,
            )  # fmt: skip

    pipeline.__class__ = Delight
    return pipeline


class Flow:
    """A loader and a delight node, patched, with what ComfyUI was asked and told."""

    def __init__(self, comfy: Any, simulated: SimulatedAccelerator) -> None:
        self.comfy, self.simulated = comfy, simulated
        self.upstream = load_upstream(DOUBLE)
        self.free = 20 * GB
        self.asked: list[tuple[int, int]] = []  # bytes, and what lay on the accelerator then

    def room(self, count: int, device: torch.device) -> int:
        assert device == ACCELERATOR
        self.asked.append((count, self.simulated.live[ACCELERATOR]))
        return self.free

    def load(self, **inputs: Any) -> Any:
        table = self.upstream.part("hy3dgen.texgen.hunyuanpaint.pipeline").loaded
        table["m"] = callable_by_the_stand_in(tiny_pipeline())
        (pipeline,) = run(self.upstream, LOADER, model="m", **inputs)
        return pipeline

    def delight(self, pipeline: Any, count: int = 2) -> torch.Tensor:
        (out,) = run(
            self.upstream, NODE, delight_pipe=pipeline, image=IMAGES[:count], steps=STEPS, seed=3,
            width=SIZE, height=SIZE, cfg_image=1.0,
        )  # fmt: skip
        return out


IMAGES = torch.linspace(0, 1, 2 * SIZE * SIZE * 3).reshape(2, SIZE, SIZE, 3)


@pytest.fixture
def flow(fake_comfy: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flow]:
    from hy3d_rocm import offload
    from hy3d_rocm.comfy import memory
    from hy3d_rocm.comfy.patches import common as room

    simulated = SimulatedAccelerator().install(monkeypatch)
    made = Flow(fake_comfy, simulated)
    fake_comfy.management.get_torch_device = lambda: ACCELERATOR
    monkeypatch.setattr(memory, "free_and_total", lambda device: (made.free, 24 * GB))
    monkeypatch.setattr(memory, "make_room", made.room)
    # torch forgets the simulated accelerator's number, and only a CUDA device has counters.
    there = ResolvedDevice(ACCELERATOR, "simulated")
    monkeypatch.setattr(room, "resolve_device", lambda *arguments: there)
    monkeypatch.setattr(
        offload, "measuring", functools.partial(offload.measuring, counters=simulated)
    )
    settings_are(monkeypatch)
    measure._records.clear()
    with patched(made.upstream, "loaders", "delight"):
        yield made
    measure._records.clear()


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    """Pictures of a pipeline that nothing was done to, noise from one generator."""
    pipeline = callable_by_the_stand_in(tiny_pipeline())
    generator = torch.Generator().manual_seed(3)
    with one_thread():
        pictures = [
            pipeline(image.movedim(-1, 0), generator, STEPS).images[0].movedim(0, -1)
            for image in IMAGES
        ]
    return torch.stack(pictures).float()


def untouched(pipeline: Any) -> bool:
    """Whether nothing of ours is left on the pipeline, its modules and their hooks."""
    modules = components_of(pipeline).values()
    hooks = [vars(module._hf_hook) for module in modules if hasattr(module, "_hf_hook")]
    owners = [vars(pipeline), *map(vars, modules), *hooks]
    ours = {"to", "pre_forward", "maybe_free_model_hooks", "_hy3d_offload_watch"}
    return not any(ours & set(own) for own in owners)


def on_accelerator(flow: Flow, pipeline: Any) -> set[bool]:
    tensors = [t for module in components_of(pipeline).values() for t in module.parameters()]
    return {flow.simulated.is_on(tensor, ACCELERATOR) for tensor in tensors}


@pytest.mark.parametrize(
    ("policy", "free", "mode"),
    [("on", 20 * GB, "model"), ("off", 0, "resident"), ("auto", 20 * GB, "resident"),
     ("auto", 0, "model")],
)  # fmt: skip
def test_the_pictures_do_not_depend_on_where_the_weights_are(
    flow: Flow, expected: torch.Tensor, policy: str, free: int, mode: str
) -> None:
    flow.free = free
    pipeline = flow.load(offload=policy)
    assert current_mode(pipeline) == mode
    assert on_accelerator(flow, pipeline) == {mode == "resident"}
    for count in (2, 1):
        assert torch.equal(flow.delight(pipeline, count), expected[:count])
        assert untouched(pipeline)
        assert on_accelerator(flow, pipeline) == {mode == "resident"}


def test_comfyui_is_asked_before_each_move_and_before_each_run(flow: Flow) -> None:
    pipeline = flow.load(offload="auto")
    weights = estimate(pipeline).parameter_bytes
    assert flow.asked == [
        (weights + HEADROOM_BYTES, 0),  # upstream's pipeline.to(device)
        (weights + HEADROOM_BYTES, weights),  # it stays: the activations, as large as the weights
    ]
    flow.asked.clear()
    flow.delight(pipeline, 1)
    assert flow.asked == [(weights + HEADROOM_BYTES, weights)]


def test_offloaded_the_largest_component_is_asked_for_and_none_lies_there(flow: Flow) -> None:
    pipeline = flow.load(offload="on")
    known = estimate(pipeline)
    flow.asked.clear()
    flow.delight(pipeline, 1)
    need = known.largest_component[1] + known.parameter_bytes + HEADROOM_BYTES
    assert flow.asked == [(need, 0)]


def test_a_comfyui_that_keeps_its_memory_makes_the_loader_offload(flow: Flow) -> None:
    """What was counted is not there: the entry claims 20 GB that free_memory does not give."""
    flow.free = 0
    entry = SimpleNamespace(
        device=ACCELERATOR, model=object(), model_loaded_memory=lambda: 20 * GB
    )  # fmt: skip
    flow.comfy.management.current_loaded_models.append(entry)
    pipeline = flow.load(offload="auto")
    assert current_mode(pipeline) == "model"
    assert hooked(pipeline) == ["vae", "text_encoder", "unet"]
    assert on_accelerator(flow, pipeline) == {False}


def test_the_first_call_is_measured_and_the_next_load_decides_by_it(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    flow.delight(flow.load(offload="on"), 1)
    with caplog.at_level("INFO", "hy3d_rocm"):
        flow.load(offload="auto")
    (sentence,) = [line for line in caplog.messages if "of weights" in line]
    assert f"(measured at {SIZE}x{SIZE})" in sentence
    assert sentence.endswith("headroom: resident")


def test_what_moves_is_shown_and_adds_up(flow: Flow, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "hy3d_rocm"):
        pipeline = flow.load(offload="on")
        flow.delight(pipeline, 1)
    weights = estimate(pipeline).parameter_bytes
    moved = [(done, total) for done, total in flow.comfy.bar if total != STEPS]
    finished = sum(total for done, total in moved if done == total)
    assert finished == 2 * weights  # there by upstream's to(), and back for the hooks
    lines = [line for line in caplog.messages if "models moved" in line]
    assert [line.split(":")[0] for line in lines] == [LOADER, NODE]


@pytest.mark.parametrize(("policy", "error"), [("on", InterruptAsBase), ("off", RuntimeError)])
def test_a_failed_call_leaves_the_next_one_working(
    flow: Flow, expected: torch.Tensor, policy: str, error: type[BaseException]
) -> None:
    pipeline = flow.load(offload=policy)
    pipeline.fail_at = (1, error("in the middle"))
    with pytest.raises(error, match="in the middle"):
        flow.delight(pipeline, 1)
    assert untouched(pipeline)
    assert on_accelerator(flow, pipeline) == {policy == "off"}
    assert torch.equal(flow.delight(pipeline, 1), expected[:1])


def test_diffusers_is_diffusers_for_everybody_but_a_loader_that_runs(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers import DiffusionPipeline

    before = DiffusionPipeline.to, DiffusionPipeline.enable_model_cpu_offload
    seen: list[bool] = []

    def asked(*_: Any) -> Any:
        seen.append(DiffusionPipeline.to is not before[0])
        raise RuntimeError("the loader fails")

    monkeypatch.setattr("hy3d_rocm.offload.placement.apply", asked)
    assert (DiffusionPipeline.to, DiffusionPipeline.enable_model_cpu_offload) == before
    with pytest.raises(RuntimeError, match="the loader fails"):
        flow.load(offload="on")
    assert seen == [True]
    assert (DiffusionPipeline.to, DiffusionPipeline.enable_model_cpu_offload) == before
