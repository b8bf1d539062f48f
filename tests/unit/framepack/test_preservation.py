"""The memory that FramePack leaves free: from what is free, then from what sections really took."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hy3d_rocm.framepack.preservation import (
    LEAST_BYTES,
    Preservation,
    after,
    begin,
    target_bytes,
    users_choice,
)
from hy3d_rocm.units import GB

SIZES = st.integers(0, 200 * GB)
SECTIONS = st.lists(st.tuples(SIZES, st.integers(0, 3), st.booleans()), min_size=1, max_size=40)


def trace(start: Preservation, sections: list[tuple[int, int, bool]]) -> list[int]:
    """The values before the first section and after each."""
    values, now = [start.preserved_bytes], start
    for section in sections:
        now = after(now, *section)
        values.append(now.preserved_bytes)
    return values


def test_upstreams_default_is_nobodys_choice_and_any_other_value_is_the_users() -> None:
    assert users_choice(6.0) is None
    assert users_choice(5.9) == round(5.9 * GB)
    assert users_choice(0.0) == 0
    assert users_choice(6.0, default_gb=8.0) == 6 * GB


def test_a_24_gb_card_begins_where_the_specification_does() -> None:
    assert begin(24 * GB).preserved_bytes == 18 * GB
    assert begin(80 * GB).preserved_bytes == 18 * GB
    assert begin(16 * GB).preserved_bytes == 12 * GB
    assert begin(0).preserved_bytes <= 1


def test_the_users_value_is_taken_never_undercut_and_grows_only_after_trouble() -> None:
    start = begin(24 * GB, wanted_bytes=10 * GB)
    assert start.preserved_bytes == 10 * GB
    assert trace(start, [(1 * GB, 0, False)] * 3) == [10 * GB] * 4
    assert after(start, 8 * GB, out_of_memory=True).preserved_bytes > 10 * GB
    assert begin(8 * GB, wanted_bytes=10 * GB).preserved_bytes == 8 * GB


def test_it_shrinks_to_what_a_section_took_when_room_is_proven_and_then_stands() -> None:
    values = trace(begin(24 * GB), [(4 * GB, 0, False)] * 6)
    assert values == [18 * GB] + [target_bytes(4 * GB)] * 6


def test_it_grows_after_a_near_miss_and_after_running_out() -> None:
    start = begin(24 * GB, known=Preservation(4 * GB, 24 * GB, need_bytes=4 * GB))
    near = after(start, 4 * GB, retries=1)
    assert near.preserved_bytes > start.preserved_bytes
    out = after(near, 4 * GB, out_of_memory=True)
    assert out.preserved_bytes >= near.preserved_bytes + GB
    assert out.grown


def test_what_an_earlier_run_learned_is_where_the_next_begins() -> None:
    first = after(begin(24 * GB), 4 * GB)
    assert begin(24 * GB, known=first).preserved_bytes == target_bytes(4 * GB)
    grown = after(first, 5 * GB, out_of_memory=True)
    assert begin(24 * GB, known=grown).preserved_bytes == grown.preserved_bytes


def test_running_out_again_and_again_ends_with_no_weight_resident_within_eight_steps() -> None:
    now, steps = begin(24 * GB, wanted_bytes=0), 0
    while not now.exhausted:
        now, steps = after(now, 0, out_of_memory=True), steps + 1
    assert now.preserved_bytes == now.limit_bytes
    assert steps <= 8


@given(free=SIZES, wanted=st.none() | SIZES, sections=SECTIONS)
def test_the_direction_changes_at_most_once_whatever_the_sections_say(
    free: int, wanted: int | None, sections: list[tuple[int, int, bool]]
) -> None:
    values = trace(begin(free, wanted), sections)
    ups = [b > a for a, b in pairwise(values) if a != b]
    assert ups == sorted(ups), values  # all the shrinking comes before all the growing


@given(free=SIZES, wanted=st.none() | SIZES, sections=SECTIONS)
def test_it_stays_between_the_least_and_what_there_is(
    free: int, wanted: int | None, sections: list[tuple[int, int, bool]]
) -> None:
    start = begin(free, wanted)
    least = min(start.limit_bytes, LEAST_BYTES) if wanted is None else min(wanted, max(free, 1))
    assert all(least <= value <= start.limit_bytes for value in trace(start, sections))


@given(free=SIZES, sections=st.lists(SIZES, min_size=1, max_size=20))
def test_what_the_largest_section_took_stays_covered_as_far_as_the_card_goes(
    free: int, sections: list[int]
) -> None:
    now = begin(free)
    for index, need in enumerate(sections):
        now = after(now, need)
        largest = max(sections[: index + 1])
        assert now.preserved_bytes >= min(target_bytes(largest), now.limit_bytes)
