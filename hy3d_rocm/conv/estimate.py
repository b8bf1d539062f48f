"""How long a tier would take for a shape that nobody measured. Pure: no torch.

A roofline with rough constants of a mid-range card, scaled by what was measured on other shapes
of this machine. Only the order of tiers hangs on it; the first measurement replaces it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass

# Multiply-adds and bytes a second, in the middle of what consumer cards do in practice.
_FLOPS = {"f16": 2.0e13, "bf16": 2.0e13, "f32": 8.0e12, "f64": 3.0e11}
_BYTES = 3.0e11
# The host: our C conv3d on some eight cores, and a copy over PCIe in both directions.
_CPU_FLOPS = 2.0e11
_PCIE_BYTES = 1.2e10
# Kernel launches: gemm and conv2d make one or more a kernel tap.
_LAUNCH = 1.0e-5
# How much longer than the vendor's best kernel each tier's arithmetic takes. conv2d against
# vendor is not known to be either way (faster on gfx1100), hence close to 1.
_SLOWDOWN = {
    "vendor": 1.0, "current": 1.0, "triton": 1.05, "conv2d": 1.5, "gemm": 2.0, "native": 1.6,
    "cpu": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """The size of a convolution: flops (2 a multiply-add); bytes of input, weight and output
    together, of the output, of the im2col matrices (0 where none is needed); kernel taps in all
    and along time; input channels a group."""

    dtype: str
    flops: float
    moved_bytes: float
    out_bytes: float
    column_bytes: float
    taps: int
    time_taps: int
    group_channels: int


def baseline_seconds(tier: str, work: Work) -> float | None:
    """Seconds on the imagined card, or None for a tier that is not known here."""
    slowdown = _SLOWDOWN.get(tier)
    if slowdown is None:
        return None
    if tier == "cpu":
        return work.flops / _CPU_FLOPS + work.moved_bytes / _PCIE_BYTES
    rate = _FLOPS.get(work.dtype, _FLOPS["f32"])
    arithmetic = slowdown * work.flops / rate
    moved = work.moved_bytes
    launches = 1
    if tier == "native":
        # Written once and read once; its matrix product does not overlap with the copying.
        return arithmetic + (moved + 2 * work.column_bytes) / _BYTES + _LAUNCH
    if tier in ("gemm", "conv2d"):
        launches = work.taps if tier == "gemm" else work.time_taps
        # Each partial sum but the first reads and writes the output once more.
        moved += 2 * (launches - 1) * work.out_bytes
        if tier == "gemm":  # a product with few channels is far from a matrix unit's size
            arithmetic *= max(1.0, 32 / max(1, work.group_channels))
    return max(arithmetic, moved / _BYTES) + launches * _LAUNCH


class Rates:
    """What measurements say about the constants: a factor for each (tier, dtype). Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[tuple[str, str], tuple[float, int]] = {}
        self._seen: set[tuple[str, Work, float]] = set()

    def learn(self, tier: str, work: Work, seconds: float) -> None:
        """Adds one measurement, the same one once. Nonsense (no time, unknown tier) is left out."""
        guess = baseline_seconds(tier, work)
        if guess is None or not 0 < seconds < math.inf:
            return
        with self._lock:
            if (tier, work, seconds) in self._seen:
                return
            self._seen.add((tier, work, seconds))
            total, count = self._logs.get((tier, work.dtype), (0.0, 0))
            self._logs[tier, work.dtype] = (total + math.log(seconds / guess), count + 1)

    def seconds(self, tier: str, work: Work) -> float | None:
        """The estimate: the tier's own factor, else the mean of the other GPU tiers'."""
        guess = baseline_seconds(tier, work)
        return None if guess is None else guess * math.exp(self._log_factor(tier, work.dtype))

    def _log_factor(self, tier: str, dtype: str) -> float:
        with self._lock:
            known = self._logs.get((tier, dtype))
            if known is not None:
                return known[0] / known[1]
            if tier == "cpu":
                return 0.0  # a fast GPU says nothing about the host
            others = [v for (t, d), v in self._logs.items() if d == dtype and t != "cpu"]
        return sum(total / count for total, count in others) / len(others) if others else 0.0

    def factors(self) -> Mapping[tuple[str, str], float]:
        """(tier, dtype) -> measured time as a multiple of the imagined card's."""
        with self._lock:
            return {key: math.exp(total / n) for key, (total, n) in self._logs.items()}
