"""The knowledge file under kills, hosts at once and full disks; all of it is longer in
tests/long/check_knowledge.py."""

from __future__ import annotations

import secrets
from pathlib import Path

import check_knowledge
from verdict_store_fixtures import patience  # noqa: F401


def test_two_hosts_at_once_lose_nothing(tmp_path: Path) -> None:
    check_knowledge.check_hosts_at_once(tmp_path / "k.db", 2, 1000)


def test_kills_at_random_moments_leave_a_sound_file_and_all_committed_rows(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    killed, committed, _ = check_knowledge.check_kills(tmp_path / "k.db", 8, seed)
    assert killed == 8
    assert committed > 0


def test_a_disk_that_fills_up_keeps_what_was_flushed(tmp_path: Path) -> None:
    check_knowledge.check_full_disk(tmp_path, range(1, 30, 4))


def test_the_file_does_not_grow_without_bound(tmp_path: Path) -> None:
    check_knowledge.check_growth(tmp_path / "k.db", 6000, 1500)
