"""How far the cache of prepared weights may grow while work with a memory budget runs.

A thread's own: what other threads prepare meanwhile is theirs to answer for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["allows", "within"]

_SCOPE = threading.local()


@contextmanager
def within(most_bytes: int | None) -> Iterator[None]:
    """In this scope, calls of this thread prepare no weights that would make the cache hold more
    than `most_bytes`; what is there is used. None: no limit but the cache's own."""
    outer = getattr(_SCOPE, "most", None)
    _SCOPE.most = most_bytes
    try:
        yield
    finally:
        _SCOPE.most = outer


def allows(held_bytes: int) -> bool:
    """Whether the cache may hold so much for this thread's sake."""
    most = getattr(_SCOPE, "most", None)
    return most is None or held_bytes <= most
