"""ComfyUI is asked for memory exactly when it is needed, with the right bytes, never on a CPU.

The card is figures: what is free, what ComfyUI's models hold, what ComfyUI was asked for.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import patches_doubles
import pytest
import torch
from patches_doubles import InterruptAsBase, InterruptAsException, patched, run, settings_are
from torch import nn

from hy3d_rocm.offload import HEADROOM_BYTES

fake_comfy, wrapper = patches_doubles.fake_comfy, patches_doubles.wrapper

GPU, GB = torch.device("cuda", 0), 2**30


class Card:
    """24 GB in all; ComfyUI's models hold some of it and go in whole when ComfyUI is asked."""

    def __init__(self, comfy: Any, free: int, held: int) -> None:
        self.free, self.held, self.comfy = free, held, comfy
        comfy.management.get_free_memory = lambda device: self.free
        comfy.management.free_memory = self.free_memory
        entry = SimpleNamespace(device=GPU, model=self, model_loaded_memory=lambda: self.held)
        comfy.management.current_loaded_models.append(entry)

    def free_memory(self, count: int, device: torch.device) -> None:
        self.comfy.free_memory(count, device)
        if count > self.free:
            self.free, self.held = self.free + self.held, 0

    def free_and_total(self, device: torch.device) -> tuple[int, int]:
        assert device == GPU
        return self.free, 24 * GB


@pytest.fixture
def card(fake_comfy: Any, monkeypatch: pytest.MonkeyPatch) -> Card:
    from hy3d_rocm.comfy import memory

    made = Card(fake_comfy, free=4 * GB, held=10 * GB)
    monkeypatch.setattr(memory, "free_and_total", made.free_and_total)
    return made


class Weights(nn.Module):
    """A model whose weights count and take no memory."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(count, dtype=torch.uint8, device="meta"), requires_grad=False
        )


class Resident:
    """A pipeline on the card: `_execution_device` says so, the weights lie wherever."""

    def __init__(self, count: int) -> None:
        self.components = {"unet": Weights(count)}
        self._execution_device = GPU


def call(device: torch.device = GPU) -> Any:
    return SimpleNamespace(device=device)


def test_what_is_free_already_is_not_asked_for(card: Card, fake_comfy: Any) -> None:
    from hy3d_rocm.comfy import memory

    assert memory.make_room(4 * GB, GPU) == 4 * GB
    assert fake_comfy.freed == []


def test_a_byte_more_is_asked_for_and_the_line_says_what_came_of_it(
    card: Card, fake_comfy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from hy3d_rocm.comfy import memory

    with caplog.at_level("INFO", "hy3d_rocm"):
        assert memory.make_room(4 * GB + 1, GPU) == 14 * GB
    assert fake_comfy.freed == [(4 * GB + 1, GPU)]
    assert caplog.messages == [
        "4.0 GB are needed on cuda:0 and 4.0 GB were free: ComfyUI was asked to free more, 14.0 GB "
        "are free now"
    ]


def test_under_a_cap_comfyui_frees_what_is_short_below_the_cap(card: Card, fake_comfy: Any) -> None:
    """ComfyUI compares with what the driver has free, which a cap does not show."""
    from hy3d_rocm.comfy import memory

    fake_comfy.management.get_free_memory = lambda device: 9 * GB
    memory.make_room(6 * GB, GPU)
    assert fake_comfy.freed == [(9 * GB + 2 * GB, GPU)]


@pytest.mark.parametrize("device", ["cpu", "mps", "meta"])
def test_never_on_anything_but_a_gpu(fake_comfy: Any, device: str) -> None:
    from hy3d_rocm.comfy import memory

    assert memory.make_room(2**60, torch.device(device)) is None
    assert fake_comfy.freed == []


@pytest.mark.parametrize("error", [RuntimeError("HIP error: lost\nmore"), KeyError("x"), OSError()])
def test_a_failure_is_one_line_and_ends_nothing(
    card: Card, fake_comfy: Any, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    from hy3d_rocm.comfy import memory

    fake_comfy.free_error = error
    assert memory.make_room(5 * GB, GPU) is None
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("hy3d_rocm: ComfyUI was asked to free memory on cuda:0")
    assert "\n" not in caplog.messages[0]


def test_a_driver_that_cannot_be_asked_is_one_line_too(
    fake_comfy: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from hy3d_rocm.comfy import memory

    def lost(device: torch.device) -> Any:
        raise RuntimeError("HIP error: the GPU has fallen off")

    monkeypatch.setattr(memory, "free_and_total", lost)
    assert memory.make_room(5 * GB, GPU) is None
    assert (fake_comfy.freed, len(caplog.messages)) == ([], 1)


@pytest.mark.parametrize("kind", [InterruptAsBase, InterruptAsException])
def test_comfyuis_cancel_goes_on(card: Card, fake_comfy: Any, kind: type[BaseException]) -> None:
    from hy3d_rocm.comfy import memory

    fake_comfy.management.InterruptProcessingException = kind
    fake_comfy.free_error = kind("cancelled")
    with pytest.raises(kind):
        memory.make_room(5 * GB, GPU)


@pytest.mark.parametrize(
    ("weights", "asked"),
    [
        # Activations were not measured: they count as much as the weights.
        ((4 * GB - HEADROOM_BYTES) // 2, []),
        ((4 * GB - HEADROOM_BYTES) // 2 + 1, [(4 * GB + 2, GPU)]),
        (5 * GB, [(10 * GB + HEADROOM_BYTES, GPU)]),
    ],
)
def test_a_node_asks_for_weights_activations_and_headroom(
    card: Card, fake_comfy: Any, weights: int, asked: list[Any]
) -> None:
    from hy3d_rocm.comfy.patches.common import make_room

    make_room(call(), Resident(weights))
    assert fake_comfy.freed == asked


def test_measured_activations_replace_the_assumption(card: Card, fake_comfy: Any) -> None:
    from hy3d_rocm.comfy.patches.common import make_room
    from hy3d_rocm.offload import memory

    pipeline = Resident(3 * GB)
    memory.record(pipeline, {"unet": 3 * GB}, (64, 64), GB // 2)
    try:
        make_room(call(), pipeline, (64, 64))
        assert fake_comfy.freed == [(3 * GB + GB // 2 + HEADROOM_BYTES, GPU)]
    finally:
        memory._records.clear()


def test_a_model_on_a_cpu_asks_for_nothing(card: Card, fake_comfy: Any) -> None:
    from hy3d_rocm.comfy.patches.common import make_room

    pipeline = Resident(50 * GB)
    pipeline._execution_device = torch.device("cpu")
    make_room(call(), pipeline)
    assert fake_comfy.freed == []


def test_what_is_no_model_costs_nothing_here(card: Card, fake_comfy: Any) -> None:
    from hy3d_rocm.comfy.patches.common import make_room

    for strange in (None, 3, "text", object(), SimpleNamespace(components=7)):
        make_room(call(), strange)
    assert fake_comfy.freed == []


def test_delight_asks_before_it_runs_and_before_it_is_measured(
    wrapper: Any, fake_comfy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import memory

    settings_are(monkeypatch)
    order: list[Any] = fake_comfy.opened
    monkeypatch.setattr(memory, "make_room", lambda count, device: order.append((count, device)))
    pipe = wrapper.part("hy3dgen.texgen.hunyuanpaint.pipeline").Pipeline()
    pipe.components, pipe._execution_device = {"unet": Weights(GB)}, GPU
    # Without a GPU placing the picture fails, after ComfyUI was asked.
    fails = () if torch.cuda.is_available() else (RuntimeError, AssertionError)
    with patched(wrapper, "delight"), pytest.raises(fails) if fails else nullcontext():
        run(
            wrapper, "Hy3DDelightImage", delight_pipe=pipe, image=torch.zeros(1, 4, 4, 3), width=4,
            height=4, cfg_image=1.0, steps=1, seed=1,
        )  # fmt: skip
    assert order[0] == (2 * GB + HEADROOM_BYTES, GPU)
    assert [entry[0] for entry in order[1:]] == ["reporting_moves", "measuring"]


@pytest.mark.parametrize(("device", "times"), [(GPU, 1), (torch.device("cpu"), 0)])
def test_what_upstream_unloads_is_unloaded_before_it_is_measured(
    fake_comfy: Any, device: torch.device, times: int
) -> None:
    from hy3d_rocm.comfy import memory

    memory.unload_models(device)
    assert fake_comfy.unloaded == times


def test_models_that_will_not_go_cost_one_line(
    fake_comfy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from hy3d_rocm.comfy import memory

    def stuck() -> None:
        raise RuntimeError("HIP error")

    fake_comfy.management.unload_all_models = stuck
    memory.unload_models(GPU)
    assert caplog.messages == ["hy3d_rocm: ComfyUI could not unload its models (RuntimeError: HIP "
                               "error)"]  # fmt: skip
