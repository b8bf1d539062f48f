"""A budget is what was asked for, and says how it came about."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hy3d_rocm.decoding.memory.budget import (
    DEVICE_HEADROOM_BYTES,
    HOST_HEADROOM_BYTES,
    Budget,
    make_budget,
    parse_budget,
)
from hy3d_rocm.memory import Machine, is_apu

GB = 2**30
CARD = Machine("cuda:0", 10 * GB, 24 * GB, 20 * GB, 32 * GB, device_held=4 * GB)
HOST = Machine("cpu", 20 * GB, 32 * GB, 20 * GB, 32 * GB, device_held=GB)
APU = Machine("cuda:0", 40 * GB, 64 * GB, 30 * GB, 60 * GB, 0, True, 2 * GB)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (None, None),
        ("auto", None),
        (" Auto ", None),
        (6_000_000_000, 6_000_000_000),
        ("6GB", 6 * GB),
        ("6GiB", 6 * GB),
        ("512 mb", 512 * 2**20),
        ("80%", 0.8),
        (" 12.5 % ", 0.125),
        ("100%", 1.0),
    ],
)
def test_budgets_are_read_in_every_spelling(text: str | int | None, value: float | None) -> None:
    assert parse_budget(text) == value


@pytest.mark.parametrize("text", ["0%", "101%", "-3%", "many", "", 0, -1, True, 0.8, "6 XB", "%"])
def test_what_is_no_budget_gets_a_sentence(text: str | int) -> None:
    with pytest.raises(ValueError, match="budget is"):
        parse_budget(text)


def test_auto_is_the_threshold_of_what_is_free_less_headroom() -> None:
    budget = make_budget("auto", CARD)
    assert budget.device_bytes == int((10 * GB - DEVICE_HEADROOM_BYTES) * 0.8)
    assert budget.host_bytes == int((20 * GB - HOST_HEADROOM_BYTES) * 0.8)
    assert not budget.is_unified
    assert "0.8 of the 10.00 GB free on cuda:0 less 500.0 MB headroom" in budget.rule


def test_on_the_cpu_there_is_one_memory() -> None:
    budget = make_budget(None, HOST, memory_threshold=0.5)
    assert budget.device_bytes == budget.host_bytes == (20 * GB - HOST_HEADROOM_BYTES) // 2
    assert budget.is_unified


def test_an_apus_host_needs_come_out_of_the_same_budget() -> None:
    budget = make_budget("auto", APU)
    # The driver says 40 GB are free, but the host has 30 left, and 2 are the GPU's alone.
    assert budget.device_bytes == int((32 * GB - DEVICE_HEADROOM_BYTES) * 0.8)
    assert budget.is_unified
    assert "shared with the host" in budget.rule
    given = make_budget("6GB", APU)
    assert given.fits(4 * GB, 2 * GB)
    assert not given.fits(4 * GB, 2 * GB + 1)
    assert make_budget("6GB", CARD).fits(6 * GB, 2 * GB + 1)


def test_bytes_are_taken_as_given_and_it_is_said_where_less_is_free() -> None:
    assert make_budget("6GB", CARD).device_bytes == 6 * GB
    more = make_budget("12GB", CARD)
    assert more.device_bytes == 12 * GB
    assert "10.00 GB are free" in more.rule


def test_a_percentage_is_of_the_whole_device_and_no_more_than_is_free() -> None:
    assert make_budget("25%", CARD).device_bytes == 6 * GB
    capped = make_budget("50%", CARD)
    assert capped.device_bytes == 10 * GB - DEVICE_HEADROOM_BYTES
    assert "asked for" in capped.rule


def test_memory_fraction_counts_what_the_process_holds() -> None:
    budget = make_budget("auto", CARD, memory_fraction=0.25)
    assert budget.device_bytes == 2 * GB
    assert "memory_fraction 0.25" in budget.rule
    assert make_budget("auto", CARD, memory_fraction=1) == make_budget("auto", CARD)
    assert make_budget("9GB", CARD, memory_fraction=0.1).device_bytes == 0


@pytest.mark.parametrize("share", [0, -0.1, 1.5, True, "0.8", float("nan")])
def test_shares_out_of_range_get_a_sentence(share: float) -> None:
    with pytest.raises(ValueError, match="memory_threshold"):
        make_budget("auto", CARD, memory_threshold=share)
    with pytest.raises(ValueError, match="memory_fraction"):
        make_budget("auto", CARD, memory_fraction=share)


def test_a_full_machine_gives_nothing_and_no_error() -> None:
    full = Machine("cuda:0", 0, 24 * GB, 0, 32 * GB)
    assert make_budget("auto", full).device_bytes == 0
    assert make_budget("80%", full).device_bytes == 0


def test_needs_fit_on_device_and_host_or_in_both_together() -> None:
    assert Budget(100, 50, False, "").fits(100, 50)
    assert not Budget(100, 50, False, "").fits(90, 60)
    assert not Budget(100, 50, False, "").fits(130, 50)
    assert not Budget(100, 50, True, "").fits(90, 20)
    assert not Budget(100, 50, True, "").fits(40, 60)
    assert Budget(100, 50, True, "").fits(60, 40)


def test_apus_are_known_by_name() -> None:
    assert is_apu("gfx1151")
    assert is_apu("gfx1103:sramecc-:xnack-")
    assert not is_apu("gfx1100")
    assert not is_apu("gfx942:sramecc+:xnack-")
    assert not is_apu("")


def group_files(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_a_machine_is_unified_by_torchs_word_or_its_name(tmp_path: Path) -> None:
    from hy3d_rocm import meter

    integrated = SimpleNamespace(is_integrated=1)
    assert meter._is_unified(integrated)
    assert meter._is_unified(SimpleNamespace(is_integrated=0, gcnArchName="gfx1151"))
    assert not meter._is_unified(SimpleNamespace(is_integrated=0, gcnArchName="gfx1100"))
    assert not meter._is_unified(SimpleNamespace())
    where = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC4, pci_device_id=0)
    assert meter._free_carve_out(where, tmp_path) == 0
    sizes = {"mem_info_vram_total": "1000\n", "mem_info_vram_used": "300\n"}
    group_files(tmp_path / "0000:c4:00.0", **sizes)
    assert meter._free_carve_out(where, tmp_path) == 700
    assert meter._free_carve_out(integrated, tmp_path) == 0


def test_this_machines_memory_can_be_asked() -> None:
    torch = pytest.importorskip("torch")
    from hy3d_rocm import meter

    machine = meter.machine_of(torch.device("cpu"))
    assert 0 < machine.host_free <= machine.host_total
    assert machine.on_cpu
    assert 0 < make_budget("auto", machine).device_bytes < machine.host_total
