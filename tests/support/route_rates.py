"""The C core's estimates, asked by a tier's name."""

from __future__ import annotations

from hy3d_rocm import _native
from hy3d_rocm.conv.choice import TIERS, Work


class Rates:
    """`_core.Rates` of what policy.py asks it for."""

    def __init__(self) -> None:
        self._rates = _native.Rates()

    def learn(self, tier: str, work: Work, seconds: float) -> None:
        self._rates.learn(TIERS.index(tier), work.numbers(), seconds)

    def seconds(self, tier: str, work: Work) -> float | None:
        return self._rates.seconds(TIERS.index(tier), work.numbers())
