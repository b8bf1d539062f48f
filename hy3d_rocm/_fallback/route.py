"""The order of tiers without the C core: a fixed one. Nothing is estimated, probed or measured.

What is unsafe stays out as in the core (include/hy3d/route.h): what failed, what a record bans, and
the vendor's library of a ROCm build where nothing has proven the shape.
"""

from __future__ import annotations

from collections.abc import Sequence

_AUTO, _SAFE, _VENDOR_FIRST, _PIN = range(4)
_CURRENT, _VENDOR, _CONV2D, _CPU = 0, 1, 5, 6
_OK, _SLOW_FIND, _BANNED = 1, 2, range(3, 7)
_IN_ORDER, _REFUSED, _FAILED, _BAN, _UNPROVEN = range(5)
# On a GPU: vendor, triton, conv2d, gemm, native, current, cpu. On the host: as given, what is for
# GPUs (gemm, conv2d) last.
_ON_GPU = (1, 2, 5, 4, 3, 0, 6)
_ON_HOST = (0, 1, 2, 3, 6, 4, 5)


class Rates:
    """Estimates nothing."""

    def learn(self, tier: int, work: tuple[float, ...], seconds: float) -> None:
        """Not kept."""

    def seconds(self, tier: int, work: tuple[float, ...]) -> float | None:
        """None: nothing is estimated."""


def route(
    setting: tuple[float, ...], candidates: Sequence[tuple[float, ...]]
) -> tuple[tuple[int, ...], tuple[int, ...], int, int, int, tuple[int, ...], tuple[int, ...], bool]:
    """As `_core.route`, with no probe, nothing worth measuring, and no time compared."""
    policy, pinned, current, on_gpu, is_rocm, vendor_on, _ = setting
    trusted = vendor_on and not is_rocm
    pinned = pinned if policy == _PIN else -1

    def is_vendor(tier: float) -> bool:
        return bool(on_gpu) and (
            tier in (_VENDOR, _CONV2D) or (tier == _CURRENT and current == _VENDOR)
        )

    def reason(candidate: tuple[float, ...]) -> int:
        tier, verdict, failure, refused, fits = candidate[:5]
        if refused and fits:
            return _REFUSED
        if failure:
            return _FAILED
        if verdict in _BANNED:
            return _BAN
        is_proven = verdict == _OK or (verdict == _SLOW_FIND and policy == _VENDOR_FIRST)
        if tier == pinned or not is_vendor(tier) or is_proven:
            return _IN_ORDER
        return _IN_ORDER if trusted and policy != _SAFE else _UNPROVEN

    def rank(place: int) -> tuple[float, ...]:
        tier, fits = candidates[place][0], candidates[place][4]
        usual = (_ON_GPU if on_gpu else _ON_HOST).index(int(tier))
        if on_gpu and tier == _CURRENT and not is_rocm and policy != _SAFE:
            usual = -1 if current == _CURRENT or trusted else usual
        return (tier != pinned, bool(on_gpu) and tier == _CPU, not fits, usual)

    def in_order(reasons: Sequence[int]) -> list[int]:
        return sorted((i for i, why in enumerate(reasons) if why == _IN_ORDER), key=rank)

    reasons = tuple(map(reason, candidates))
    order = in_order(reasons)
    spare = [
        i
        for i, (tier, _, failure, *_) in enumerate(candidates)
        if failure == 1 and (trusted or not is_vendor(tier))
    ]
    cramped = not all(candidates[i][4] for i in order)
    # Had nothing failed in this process: records of tiers that failed are of that failure.
    unharmed = in_order([reason((c[0], 0, 0, *c[3:]) if c[2] else c) for c in candidates])
    preferred = next(iter(unharmed or order), -1)
    return tuple(order), reasons, -1, preferred, -1, (), tuple(spare), cramped
