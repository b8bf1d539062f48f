"""Says why nothing else of this folder is run where something is missing."""

from __future__ import annotations

import importlib.util

import pytest


def test_what_the_other_tests_need_is_here() -> None:
    for name in ("torch", "triton", "tinygrad"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"no {name} in this environment: AMD code is not executed")
