"""Room is made before weights move: asked once, for what the decision counted on, and no sooner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from offload_doubles import ACCELERATOR, CPU, SimulatedAccelerator

from examples.demo.delight import tiny_pipeline
from hy3d_rocm.offload import (
    HEADROOM_BYTES,
    apply,
    current_mode,
    diffusers_changes,
    estimate,
    needed_bytes,
    offload_scope,
)
from hy3d_rocm.offload import (
    memory as measure,
)

GB = 2**30


@pytest.fixture(autouse=True)
def _nothing_measured_before() -> Iterator[None]:
    measure._records.clear()
    yield
    measure._records.clear()


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedAccelerator:
    for owner, name, make in diffusers_changes():
        monkeypatch.setattr(owner, name, make(getattr(owner, name)))
    return SimulatedAccelerator().install(monkeypatch)


class Room:
    """Notes what it is asked for and answers what is free then."""

    def __init__(self, free: int | None, simulated: SimulatedAccelerator | None = None) -> None:
        self.free, self.simulated = free, simulated
        self.asked: list[int] = []
        self.copied: list[int] = []

    def __call__(self, needed: int) -> int | None:
        self.asked.append(needed)
        if self.simulated is not None:
            self.copied.append(self.simulated.live[ACCELERATOR])
        return self.free


def weights_of(pipeline: Any) -> int:
    return estimate(pipeline).parameter_bytes


def test_a_resident_pipeline_asks_once_before_a_byte_moves(simulated: SimulatedAccelerator) -> None:
    pipeline, room = tiny_pipeline(), Room(20 * GB, simulated)
    weights = weights_of(pipeline)
    decision = apply(pipeline, "auto", ACCELERATOR, 20 * GB, 24 * GB, None, room)
    assert not decision.offload
    assert room.asked == [2 * weights + HEADROOM_BYTES]
    assert room.copied == [0]


def test_what_lies_there_already_is_not_asked_for(simulated: SimulatedAccelerator) -> None:
    pipeline = tiny_pipeline()
    apply(pipeline, "off", ACCELERATOR, 20 * GB, 24 * GB)
    room = Room(20 * GB)
    apply(pipeline, "auto", ACCELERATOR, 20 * GB, 24 * GB, None, room)
    assert room.asked == [weights_of(pipeline) + HEADROOM_BYTES]


@pytest.mark.parametrize("policy", ["auto", "on"])
def test_an_offloaded_pipeline_asks_for_nothing(
    simulated: SimulatedAccelerator, policy: Any
) -> None:
    room = Room(20 * GB)
    free = 0 if policy == "auto" else 20 * GB
    assert apply(tiny_pipeline(), policy, ACCELERATOR, free, 24 * GB, None, room).offload
    assert room.asked == []


def test_on_a_cpu_nothing_is_asked_for() -> None:
    room = Room(20 * GB)
    apply(tiny_pipeline(), "off", "cpu", 20 * GB, 24 * GB, None, room)
    with offload_scope("off", "cpu", lambda: (GB, GB), None, room):
        tiny_pipeline().to("cpu")
    assert room.asked == []


@pytest.mark.parametrize(
    ("policy", "freed", "offload"),
    [
        ("auto", 0, True),  # ComfyUI kept what had been counted
        ("auto", 20 * GB, False),
        ("auto", None, False),  # nobody can tell: what was counted stands
        ("off", 0, False),  # the user's word
    ],
)
def test_where_less_is_freed_than_was_counted_auto_decides_again(
    simulated: SimulatedAccelerator, policy: Any, freed: int | None, offload: bool
) -> None:
    pipeline, room = tiny_pipeline(), Room(freed)
    decision = apply(pipeline, policy, ACCELERATOR, 20 * GB, 24 * GB, None, room)
    assert decision.offload is offload
    assert (current_mode(pipeline) == "model") is offload
    assert len(room.asked) == 1


def test_a_cancel_while_room_is_made_leaves_the_pipeline_as_it_was(
    simulated: SimulatedAccelerator,
) -> None:
    def cancelled(needed: int) -> int:
        raise KeyboardInterrupt

    pipeline = tiny_pipeline()
    with pytest.raises(KeyboardInterrupt):
        apply(pipeline, "auto", ACCELERATOR, 20 * GB, 24 * GB, None, cancelled)
    assert current_mode(pipeline) == "resident"
    assert simulated.live[ACCELERATOR] == 0


def test_a_loader_that_moves_first_has_room_made_first(simulated: SimulatedAccelerator) -> None:
    """As upstream's delight loader: everything to the GPU, then enable_model_cpu_offload()."""
    pipeline, room, said = tiny_pipeline(), Room(20 * GB, simulated), []
    weights = weights_of(pipeline)

    def progress(done: int, total: int, what: str) -> None:
        said.append(what)

    with offload_scope("on", ACCELERATOR, lambda: (20 * GB, 24 * GB), progress, room):
        assert pipeline.to(ACCELERATOR, torch.float32) is pipeline
        assert room.asked == [weights + HEADROOM_BYTES]
        assert room.copied == [0]
        assert simulated.live[ACCELERATOR] == weights
        assert {"unet to cpu:0", "vae to cpu:0", "text_encoder to cpu:0"} <= set(said)
        pipeline.to(ACCELERATOR)  # all there
        pipeline.to(CPU)
        assert len(room.asked) == 1
    pipeline.to(ACCELERATOR)  # no scope, no room
    assert len(room.asked) == 1


def test_the_need_of_a_call_follows_where_the_weights_are(simulated: SimulatedAccelerator) -> None:
    pipeline = tiny_pipeline()
    weights = weights_of(pipeline)
    assert needed_bytes(pipeline, ACCELERATOR) == 2 * weights + HEADROOM_BYTES
    apply(pipeline, "off", ACCELERATOR, 20 * GB, 24 * GB)
    assert needed_bytes(pipeline, ACCELERATOR) == weights + HEADROOM_BYTES
    apply(pipeline, "on", ACCELERATOR, 20 * GB, 24 * GB)
    largest = estimate(pipeline).largest_component[1]
    assert needed_bytes(pipeline, ACCELERATOR) == largest + weights + HEADROOM_BYTES
    measure.record(pipeline, estimate(pipeline).component_bytes, (8, 8), 5)
    assert needed_bytes(pipeline, ACCELERATOR, (8, 8)) == largest + 5 + HEADROOM_BYTES
    assert needed_bytes(pipeline, ACCELERATOR, (9, 8)) == largest + weights + HEADROOM_BYTES


def test_under_sequential_offload_and_without_weights_nothing_is_needed() -> None:
    pipeline = tiny_pipeline()
    pipeline.enable_sequential_cpu_offload(device="cpu")
    assert needed_bytes(pipeline, CPU) == 0
    assert needed_bytes(object(), CPU) == 0
