"""FramePack's preservation, value by value: what each rule gives, and what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hy3d_rocm.framepack.preservation import (
    BAND_BYTES,
    LEAST_BYTES,
    Preservation,
    after,
    begin,
    target_bytes,
    users_choice,
)
from hy3d_rocm.units import GB, MB

NOW = Preservation(8 * GB, 20 * GB, LEAST_BYTES, 2 * GB, False, "before")


def test_a_users_choice_is_never_below_nothing() -> None:
    assert users_choice(-1.0) == 0
    assert users_choice(1e-9) == 1


def test_a_target_is_an_eighth_and_a_band_above_the_need_and_never_below_the_least() -> None:
    assert target_bytes(8 * GB) == 9 * GB + BAND_BYTES
    assert target_bytes(0) == LEAST_BYTES
    assert target_bytes(454 * MB) == LEAST_BYTES
    assert target_bytes(456 * MB) == 456 * MB + 57 * MB + BAND_BYTES


@pytest.mark.parametrize(
    ("free", "wanted"), [(20 * GB, 10 * GB), (20 * GB, 20 * GB), (20 * GB, 30 * GB), (0, 5)]
)
def test_the_users_own_value_is_also_the_least(free: int, wanted: int) -> None:
    limit = max(free, 1)
    kept = min(wanted, limit)
    assert begin(free, wanted) == Preservation(kept, limit, kept, reason="the node's own value")


def test_a_first_run_begins_with_a_share_and_says_of_what() -> None:
    assert begin(16 * GB) == Preservation(
        12 * GB, 16 * GB, LEAST_BYTES, reason="75% of the 16.0 GB that are free"
    )
    assert begin(24 * GB) == Preservation(
        18 * GB, 24 * GB, LEAST_BYTES, reason="no section has been measured yet"
    )
    assert begin(GB) == Preservation(GB, GB, LEAST_BYTES, reason="75% of the 1.0 GB that are free")
    assert begin(MB).preserved_bytes == MB
    assert begin(0).limit_bytes == begin(-5).limit_bytes == 1


def test_a_known_run_begins_with_what_it_took() -> None:
    known = replace(NOW, preserved_bytes=7 * GB, need_bytes=4 * GB)
    what = "earlier sections took 4.0 GB"
    kept = target_bytes(4 * GB)
    assert begin(20 * GB, known=known) == Preservation(
        kept, 20 * GB, LEAST_BYTES, 4 * GB, False, what
    )
    grown = replace(known, grown=True)
    assert begin(20 * GB, known=grown) == Preservation(
        7 * GB, 20 * GB, LEAST_BYTES, 4 * GB, True, what
    )
    assert begin(3 * GB, known=grown).preserved_bytes == 3 * GB
    lower = replace(grown, preserved_bytes=2 * GB)
    assert begin(20 * GB, known=lower).preserved_bytes == kept
    unmeasured = replace(known, need_bytes=0)
    assert begin(20 * GB, known=unmeasured) == begin(20 * GB)
    assert begin(20 * GB, 3 * GB, known).preserved_bytes == 3 * GB


def test_running_out_of_memory_adds_half_or_at_least_2_gb_or_what_was_needed() -> None:
    why = "the section ran out of memory"
    out = (GB, 0, True)
    assert after(NOW, *out) == replace(NOW, preserved_bytes=12 * GB, grown=True, reason=why)
    small = replace(NOW, preserved_bytes=2 * GB)
    assert after(small, *out) == replace(small, preserved_bytes=4 * GB, grown=True, reason=why)
    large = after(NOW, 13 * GB, out_of_memory=True)
    assert large.preserved_bytes == target_bytes(13 * GB)
    assert large.need_bytes == 13 * GB
    assert after(NOW, 30 * GB, out_of_memory=True).preserved_bytes == 20 * GB
    both = after(NOW, GB, retries=1, out_of_memory=True)
    assert (both.preserved_bytes, both.reason) == (12 * GB, why)


def test_a_near_miss_adds_an_eighth_or_at_least_a_band_or_what_was_needed() -> None:
    why = "memory was nearly used up"
    near = (GB, 1)
    assert after(NOW, *near) == replace(NOW, preserved_bytes=9 * GB, grown=True, reason=why)
    small = replace(NOW, preserved_bytes=3 * GB)
    assert after(small, *near).preserved_bytes == 3 * GB + BAND_BYTES
    assert after(NOW, 13 * GB, retries=2).preserved_bytes == target_bytes(13 * GB)


def test_a_section_that_took_more_than_is_kept_makes_it_grow() -> None:
    grown = after(NOW, 12 * GB)
    assert grown == replace(
        NOW, preserved_bytes=target_bytes(12 * GB), need_bytes=12 * GB, grown=True,
        reason="a section took 12.0 GB",
    )  # fmt: skip


def test_nothing_grows_beyond_what_there_is_and_then_nothing_is_said() -> None:
    full = replace(NOW, preserved_bytes=20 * GB)
    assert after(full, GB, out_of_memory=True) == full
    assert after(full, 30 * GB) == replace(full, need_bytes=30 * GB)


def test_it_shrinks_by_more_than_a_band_and_only_while_it_never_grew() -> None:
    wanted = target_bytes(4 * GB)
    section = (4 * GB,)
    seen = replace(NOW, need_bytes=4 * GB)
    shrunk = after(NOW, *section)
    assert shrunk == replace(seen, preserved_bytes=wanted, reason="a section took 4.0 GB")
    just = replace(NOW, preserved_bytes=wanted + BAND_BYTES)
    assert after(just, *section) == replace(just, need_bytes=4 * GB)
    more = replace(NOW, preserved_bytes=wanted + BAND_BYTES + 1)
    assert after(more, *section).preserved_bytes == wanted
    equal = replace(NOW, preserved_bytes=wanted)
    assert after(equal, *section) == replace(equal, need_bytes=4 * GB)
    assert after(replace(NOW, grown=True), *section) == replace(seen, grown=True)
    users = replace(NOW, least_bytes=6 * GB)
    assert after(users, *section).preserved_bytes == 6 * GB
    above = replace(NOW, least_bytes=9 * GB)
    assert after(above, *section).preserved_bytes == 8 * GB


def test_the_largest_need_is_remembered() -> None:
    assert after(NOW, GB).need_bytes == 2 * GB
    assert after(NOW, 3 * GB).need_bytes == 3 * GB


def test_it_is_exhausted_where_no_weight_stays() -> None:
    assert replace(NOW, preserved_bytes=20 * GB).exhausted
    assert replace(NOW, preserved_bytes=20 * GB + 1).exhausted
    assert not replace(NOW, preserved_bytes=20 * GB - 1).exhausted


def test_the_line_for_the_log() -> None:
    assert NOW.line() == "FramePack keeps 8.0 GB free: before"
