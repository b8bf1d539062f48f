"""Progress and cancel of a decode, between grains, in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hy3d_rocm.decode.report import DecodeCancelled, Step

Progress = Callable[[int, int, Step], object]


def asked_to_stop(cancel: Any) -> bool:
    """`cancel`: None, a callable, an object with `.requested`, or a threading.Event."""
    if cancel is None:
        return False
    requested = getattr(cancel, "requested", None)
    if requested is not None:
        return bool(requested() if callable(requested) else requested)
    if hasattr(cancel, "is_set"):
        return bool(cancel.is_set())
    return bool(cancel())


def native_flag(cancel: Any) -> Any:
    """The C core's CancelFlag of `cancel`, where it is one or has one as `.flag`; else None. A long
    convolution on the CPU ends by it."""
    from hy3d_rocm import _native

    found = getattr(cancel, "flag", cancel)
    return found if isinstance(found, _native.CancelFlag) else None


@dataclass
class Counter:
    """Looks at `cancel` before each grain, reports to `progress` after it. total: 0 where nobody
    knows how many grains there will be."""

    progress: Progress | None
    cancel: Any
    total: int = 0
    done: int = 0

    def check(self) -> None:
        """Raises DecodeCancelled where the caller wants no more."""
        if asked_to_stop(self.cancel):
            of = f" of {self.total}" if self.total else ""
            raise DecodeCancelled(f"the decode was cancelled after {self.done}{of} grains")

    def tick(self, step: Step) -> None:
        """A grain is done."""
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, step)
