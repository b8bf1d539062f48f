"""What sections of a shape took, kept for the next prompt of this process."""

from __future__ import annotations

from collections.abc import Hashable

from hy3d_rocm.framepack.preservation import Preservation

_MOST = 16
_known: dict[Hashable, Preservation] = {}


def recall(key: Hashable) -> Preservation | None:
    """How the last run of this shape ended; None if there was none."""
    return _known.get(key)


def remember(key: Hashable, state: Preservation) -> None:
    """Keep what a run that measured at least one section has ended with."""
    if not state.need_bytes:
        return
    _known.pop(key, None)
    _known[key] = state
    while len(_known) > _MOST:
        del _known[next(iter(_known))]


def forget() -> None:
    """Begin anew."""
    _known.clear()
