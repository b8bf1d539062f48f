"""Where the ticks of an axis are. Pure."""

from __future__ import annotations

import math

__all__ = ["nice_ticks"]


def nice_ticks(top: float, binary: bool = False, about: int = 4) -> list[float]:
    """0 and up to `top`, in round steps, some `about` of them.

    binary: steps that are round in kB, MB or GB of powers of 1024 (as sizes of memory are told).
    ValueError unless top is a number above 0.
    """
    if not (top > 0 and math.isfinite(top)):
        raise ValueError(f"an axis ends at {top!r}; give a number above 0")
    unit = 1024.0 ** math.floor(math.log(top, 1024) + 1e-12) if binary and top >= 1024 else 1.0
    rough = top / unit / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((m * power for m in (1, 2, 5, 10) if m * power >= rough), default=10 * power)
    if binary and step < 1 and unit == 1:
        step = 1.0
    count = math.floor(top / unit / step + 1e-9)
    return [round(i * step, 12) * unit for i in range(count + 1)]
