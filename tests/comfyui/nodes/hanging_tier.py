"""Stands for a tier in the child process of a probe: it never comes back."""

from __future__ import annotations

import time
from typing import Any


def run(tier: str, spec: dict[str, Any]) -> None:
    while True:
        time.sleep(3600)


class Bench:
    """What the child asks in place of the probe's child.Bench."""

    loading_s = 0.0

    def __init__(self, devices: list[str], flags: dict[str, bool]) -> None:
        """No device is brought up."""

    def prepare(self, tier: str, spec: dict[str, Any], check: bool) -> tuple[Any, Any]:
        return (lambda: run(tier, spec)), (lambda: None)

    def release(self) -> None:
        """Nothing is held."""
