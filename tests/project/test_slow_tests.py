"""tests/slow.txt names tests that there are."""

from __future__ import annotations

from places import TESTS
from slow_tests import listed


def test_every_slow_test_is_there() -> None:
    for name in listed():
        path, _, function = name.partition("::")
        assert f"def {function}(" in (TESTS / path).read_text(encoding="utf-8"), name
