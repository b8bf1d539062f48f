"""Sections of a video on a card of a chosen size: weights make room, a failed one is repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from framepack_doubles import CARD, CPU, FakeCard, Transformer, bytes_of, section
from hypothesis import given, settings
from hypothesis import strategies as st

from hy3d_rocm.conv.errors import is_out_of_memory
from hy3d_rocm.framepack import sections
from hy3d_rocm.framepack.preservation import Preservation, begin
from hy3d_rocm.framepack.sections import Part, SectionRunner, choose, is_on, parts_of
from hy3d_rocm.units import GB, MB


@pytest.fixture(autouse=True)
def weights_are_where_the_card_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doubles' weights never move: the card's own list says where they are."""
    monkeypatch.setattr(sections, "is_on", lambda part, device: part.name in _card[0].on)


_card: list[FakeCard] = []
SCALE = 10 * MB  # the double's 1280 bytes stand for 12.5 GB of weights


def runner(total: int, state: Preservation, held: int = 0) -> tuple[SectionRunner, FakeCard]:
    model = Transformer()
    card = FakeCard(total, held)
    _card[:] = [card]
    parts = [replace(part, size_bytes=part.size_bytes * SCALE) for part in parts_of(model)]
    card.know(parts)
    return SectionRunner(parts, CARD, CPU, card, state, card.move), card


def nothing() -> None:
    """A section that has nothing to put back."""


def test_what_every_step_uses_is_kept_first() -> None:
    names = [part.name for part in parts_of(Transformer())]
    assert names[:3] == ["x_embedder", "transformer_blocks.0.norm1", "proj_out"]
    assert len(names) == 2 + 4 * 2
    assert sum(part.size_bytes for part in parts_of(Transformer())) == bytes_of(Transformer())


def test_weights_fetched_at_use_are_not_fetched_by_being_counted() -> None:
    class Swap(torch.nn.Linear):
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was asked for")

    made = torch.nn.Linear(4, 4)
    made.__class__ = Swap
    assert sum(t.nbytes for t in sections.own_tensors(made)) == 4 * 4 * 4 + 4 * 4


def test_a_part_is_moved_alone_and_keeps_its_parameters() -> None:
    model = Transformer()
    before = model.x_embedder.weight
    (part,) = [p for p in parts_of(model) if p.name == "x_embedder"]
    sections.move(part, torch.device("cpu"))
    assert model.x_embedder.weight is before
    assert is_on(part, CPU)


def test_a_part_is_moved_inside_of_inference_mode_as_a_prompt_is_run() -> None:
    """To another storage, as between devices; the parameter stays the one that others hold."""
    model = Transformer()
    before, values = model.x_embedder.weight, model.x_embedder.weight.detach().clone()
    (part,) = [p for p in parts_of(model) if p.name == "x_embedder"]
    with torch.inference_mode():
        for kind in (torch.float64, torch.float32):
            apply = part.module._apply
            apply(lambda tensor, kind=kind: tensor.to(kind), recurse=False)
    assert model.x_embedder.weight is before
    assert torch.equal(before, values)


@given(sizes=st.lists(st.integers(1, 50), max_size=20), room=st.integers(-5, 500))
def test_more_room_keeps_the_same_parts_and_more(sizes: list[int], room: int) -> None:
    count = choose(sizes, room)
    assert sum(sizes[:count]) <= max(room, 0)
    assert count == len(sizes) or sum(sizes[: count + 1]) > room
    assert choose(sizes, room + 7) >= count


def test_weights_go_before_others_come_and_the_cache_is_emptied_once() -> None:
    state = Preservation(4 * GB, 20 * GB)
    made, card = runner(20 * GB, state)
    made.place()
    resident = set(card.on)
    made.state = Preservation(15 * GB, 20 * GB)
    made.place()
    assert card.on < resident
    assert card.emptied == 1
    made.place()
    assert card.emptied == 1


def test_a_section_that_runs_out_is_run_again_from_its_beginning_and_nothing_done_is_lost() -> None:
    done: list[int] = []
    restored: list[int] = []
    made, card = runner(16 * GB, begin(16 * GB, wanted_bytes=4 * GB))
    assert made.run(section(card, 3 * GB, done), nothing) == 3 * GB
    weights = card.resident
    assert made.run(section(card, 15 * GB, done), lambda: restored.append(card.resident))
    assert done == [3 * GB, 15 * GB]
    assert len(restored) == made.repeats >= 1
    assert restored[0] == weights  # put back before weights are moved for the next attempt
    assert 0 < card.free() - 15 * GB < weights
    assert card.emptied >= made.repeats


def test_weights_that_do_not_fit_where_they_should_are_placed_again_with_less() -> None:
    """A card may refuse what it says is free: its memory is in pieces."""
    made, card = runner(16 * GB, begin(16 * GB, wanted_bytes=4 * GB))
    refused = []

    def move(part: Part, device: torch.device) -> None:
        if device == CARD and card.resident > 4 * GB:
            refused.append(part.name)
            raise torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB.")
        card.move(part, device)

    made.move = move
    assert made.run(section(card, 2 * GB), nothing) == 2 * GB
    assert len(refused) == made.repeats >= 1


def test_when_no_weight_is_left_to_take_away_the_error_goes_on() -> None:
    made, card = runner(1000, Preservation(1000, 1000))
    with pytest.raises(torch.OutOfMemoryError):
        made.run(section(card, 5000), nothing)
    assert made.repeats == 0


def test_another_error_is_not_repeated() -> None:
    made, _ = runner(1000, Preservation(100, 1000))
    calls = []

    def broken() -> None:
        calls.append(1)
        raise ValueError("no such size")

    with pytest.raises(ValueError, match="no such size"):
        made.run(broken, nothing)
    assert calls == [1]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("HIP out of memory. Tried to allocate 8.54 GiB"),
        RuntimeError("HSA exception: MemoryRegion::BlockAllocator::alloc failed."),
        RuntimeError("HIP error: out of memory"),
    ],
)
def test_all_three_ways_of_running_out_are_known(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError("shape '[2]' is invalid"))


def test_the_failed_sections_tensors_are_free_when_it_is_repeated() -> None:
    """The error's traceback must not keep the section's locals alive."""
    import weakref

    made, _ = runner(3 * GB, Preservation(1, 3 * GB, 0))
    kept: list[weakref.ref[torch.Tensor]] = []

    def once_out() -> str:
        activations = torch.zeros(3)
        if not kept:
            kept.append(weakref.ref(activations))
            raise torch.OutOfMemoryError("HIP out of memory")
        return "done"

    alive = []
    assert made.run(once_out, lambda: alive.append(kept[0]() is not None)) == "done"
    assert alive == [False]


@settings(max_examples=60, deadline=None)
@given(
    total=st.integers(1, 40 * GB),
    needs=st.lists(st.integers(0, 40 * GB), min_size=1, max_size=8),
    start=st.integers(0, 40 * GB),
)
def test_every_section_that_fits_beside_no_weights_is_finished(
    total: int, needs: list[int], start: int
) -> None:
    made, card = runner(total, Preservation(min(start, total), total, 0))
    done: list[int] = []
    for need in needs:
        if need <= total:
            made.run(section(card, need, done), nothing)
    assert done == [need for need in needs if need <= total]


def test_sections_module_logs_a_repeat_as_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    made, card = runner(3 * GB, Preservation(1, 3 * GB, 0))
    with caplog.at_level("WARNING", logger=sections.logger.name):
        made.run(section(card, 3 * GB), nothing)
    assert [r.getMessage() for r in caplog.records if "section 1 ran out of memory" in r.message]
