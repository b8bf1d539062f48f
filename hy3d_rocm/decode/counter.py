"""Progress and cancel of a decode, between its steps, in the caller's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.report import DecodeCancelled, Step
from hy3d_rocm.decode.stages import stage_of, synchronize

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("hy3d_rocm")

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
    """Looks at `cancel` before each step, reports to `progress` after it. total: 0 where nobody
    knows how many there will be."""

    progress: Progress | None
    cancel: Any
    total: int = 0
    done: int = 0
    _waits: bool = False

    def watch(self, device: torch.device, always: bool, encode: bool) -> None:
        """From now on, at debug level or with `always`, `device` is waited for before and after
        each step, so that a line about it is true when it is written."""
        self._device, self._stage = device, stage_of(encode)
        self._waits = always or logger.isEnabledFor(logging.DEBUG)

    def check_cancel(self) -> None:
        """Raises DecodeCancelled where the caller wants no more."""
        if asked_to_stop(self.cancel):
            of = f" of {self.total}" if self.total else ""
            raise DecodeCancelled(f"the decode was cancelled after {self.done}{of} grains")

    def check(self) -> None:
        """Before an attempt at a step: check_cancel()."""
        if self.cancel is not None:
            self.check_cancel()
        if self._waits:
            synchronize(self._device)
            logger.debug("[%s] Grain %d begins", self._stage, self.done + 1)

    def tick(self, step: Step) -> None:
        """A step is done."""
        if self._waits:
            synchronize(self._device)
            logger.debug(
                "[%s] Grain %d done: %s, frames %d to %d",
                self._stage, self.done + 1, step.kind, step.frames[0], step.frames[1] - 1,
            )  # fmt: skip
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, step)
