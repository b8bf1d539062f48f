"""Stands for a tier in the child process of a probe: it never comes back."""

from __future__ import annotations

import time
from typing import Any


def run(tier: str, spec: dict[str, Any]) -> None:
    while True:
        time.sleep(3600)
