"""Where things of the repository are."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
LONG = TESTS / "long"
ROOT = TESTS.parent
