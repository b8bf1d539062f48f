"""The sentence of a budget says every figure that it came from, and each bound is where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hy3d_rocm.decoding.memory.budget import (
    DEVICE_HEADROOM_BYTES,
    HOST_HEADROOM_BYTES,
    Budget,
    check_share,
    make_budget,
    parse_budget,
)
from hy3d_rocm.memory import Machine

GB = 2**30
CARD = Machine("cuda:0", 10 * GB, 24 * GB, 20 * GB, 32 * GB, device_held=4 * GB)
HOST = Machine("cpu", 18 * GB, 30 * GB, 20 * GB, 32 * GB, device_held=GB)
APU = Machine("cuda:0", 40 * GB, 64 * GB, 30 * GB, 60 * GB, 0, True, 2 * GB)
HOST_RULE = "; host: 15.80 GB = 0.8 of the 20.00 GB available less 256.0 MB headroom"


@pytest.mark.parametrize(
    ("request_", "machine", "options", "rule"),
    [
        ("auto", CARD, {},
         "7.61 GB = 0.8 of the 10.00 GB free on cuda:0 less 500.0 MB headroom" + HOST_RULE),
        ("auto", HOST, {},
         "15.80 GB = 0.8 of the 20.00 GB free on the host less 256.0 MB headroom"),
        ("auto", APU, {"memory_threshold": 0.5},
         "15.76 GB = 0.5 of the 32.00 GB free on cuda:0 (memory shared with the host) less 500.0 MB"
         " headroom; the host's needs come out of it too"),
        ("25%", CARD, {}, "6.00 GB = 0.25 of the 24.00 GB of cuda:0" + HOST_RULE),
        ("12.345%", CARD, {}, "2.96 GB = 0.1235 of the 24.00 GB of cuda:0" + HOST_RULE),
        ("50%", CARD, {},
         "9.51 GB: 0.5 of the 24.00 GB of cuda:0 were asked for, 10.00 GB are free less 500.0 MB"
         " headroom" + HOST_RULE),
        ("50%", HOST, {}, "15.00 GB = 0.5 of the 30.00 GB of the host"),
        ("6GB", CARD, {}, "6.00 GB as given" + HOST_RULE),
        ("12GB", CARD, {}, "12.00 GB as given (10.00 GB are free on cuda:0 now)" + HOST_RULE),
        ("auto", CARD, {"memory_fraction": 0.25},
         "7.61 GB = 0.8 of the 10.00 GB free on cuda:0 less 500.0 MB headroom, capped at 2.00 GB by"
         " memory_fraction 0.25 of 24.00 GB (4.00 GB held)" + HOST_RULE),
    ],
)  # fmt: skip
def test_a_budgets_rule_is_this_sentence(
    request_: str, machine: Machine, options: dict[str, float], rule: str
) -> None:
    assert make_budget(request_, machine, **options).rule == rule  # type: ignore[arg-type]


def test_bytes_that_are_just_free_get_no_warning() -> None:
    assert "are free" not in make_budget(10 * GB, CARD).rule
    assert "are free" in make_budget(10 * GB + 1, CARD).rule


def test_a_share_of_just_what_is_free_is_not_capped() -> None:
    machine = replace(CARD, device_free=12 * GB + DEVICE_HEADROOM_BYTES)
    assert "asked for" not in make_budget("50%", machine).rule
    less = make_budget("50%", replace(machine, device_free=machine.device_free - 1))
    assert less.device_bytes == 12 * GB - 1
    assert "asked for" in less.rule


def test_a_fraction_that_is_just_enough_is_not_mentioned() -> None:
    assert "capped" not in make_budget("2GB", CARD, memory_fraction=0.25).rule
    capped = make_budget(2 * GB + 1, CARD, memory_fraction=0.25)
    assert capped.device_bytes == 2 * GB
    assert "capped" in capped.rule
    nothing = make_budget("2GB", CARD, memory_fraction=0.05)
    assert nothing.device_bytes == 0


def test_whose_memory_is_counted_where() -> None:
    host = make_budget("auto", HOST)
    assert (host.device_bytes, host.host_bytes) == (int((20 * GB - HOST_HEADROOM_BYTES) * 0.8),) * 2
    assert host.is_unified
    apu = make_budget("40GB", APU)
    assert (apu.device_bytes, apu.host_bytes) == (
        40 * GB, int((30 * GB - HOST_HEADROOM_BYTES) * 0.8),
    )  # fmt: skip
    assert apu.is_unified
    small = make_budget("6GB", APU)
    assert (small.device_bytes, small.host_bytes) == (6 * GB, 6 * GB)
    lesser = replace(APU, device_free=8 * GB)
    assert make_budget("auto", lesser).device_bytes == int((8 * GB - DEVICE_HEADROOM_BYTES) * 0.8)
    assert make_budget("1GB", CARD) == Budget(
        GB, int((20 * GB - HOST_HEADROOM_BYTES) * 0.8), False, "1.00 GB as given" + HOST_RULE,
        device_room=CARD.device_free,
    )  # fmt: skip
    assert (host.device_room, apu.device_room) == (0, 0)


def test_a_full_host_gives_nothing() -> None:
    full = replace(CARD, host_free=HOST_HEADROOM_BYTES)
    assert make_budget("1GB", full).host_bytes == 0
    assert make_budget("1GB", replace(full, host_free=HOST_HEADROOM_BYTES + 10)).host_bytes == 8
    assert make_budget("1GB", replace(full, host_free=0)).host_bytes == 0
    assert make_budget("auto", replace(HOST, host_free=0)).device_bytes == 0


def test_a_device_is_the_host_by_the_word_before_the_colon() -> None:
    assert replace(HOST, device="cpu:0").on_cpu
    assert not CARD.on_cpu


def test_shares_are_above_nothing_and_at_most_all() -> None:
    assert check_share("share", 1) == 1.0
    assert isinstance(check_share("share", 1), float)
    assert check_share("share", 1e-9) == 1e-9
    for wrong in (0, 1.0000001, True, "0.5", None):
        with pytest.raises(ValueError, match=rf"^share is {wrong!r}; give a share"):
            check_share("share", wrong)  # type: ignore[arg-type]


def test_a_refusal_ends_with_the_two_other_spellings() -> None:
    with pytest.raises(
        ValueError, match=r'^budget is 0\.5; give whole bytes\. A share is written "80%", what is'
    ):
        parse_budget(0.5)
    with pytest.raises(ValueError, match=r'^budget is \'0%\'; a percentage is of .* or "auto"$'):
        parse_budget("0%")
    with pytest.raises(ValueError, match=r"number of bytes\. A share is written"):
        parse_budget("many")
