"""What stands for the probe's child.Bench in a child without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bench(
    run: Callable[[str, Any], None], start: Callable[[], None] | None = None, loading_s: float = 0.0
) -> type[Any]:
    """A Bench whose tiers are run(tier, spec) and for which start() stands for importing torch."""

    class Bench:
        def __init__(self, devices: list[str], flags: dict[str, bool]) -> None:
            self.loading_s = loading_s
            if start is not None:
                start()

        def prepare(
            self, tier: str, spec: Any, check: bool
        ) -> tuple[Callable[[], None], Callable[[], int | None]]:
            return (lambda: run(tier, spec)), (lambda: None)

        def release(self) -> None:
            """Nothing is held between cases."""

    return Bench
