"""A line before and after each grain at debug level: the last one tells where a decode stopped."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hy3d_rocm.decode.counter import Counter
    from hy3d_rocm.decode.report import Step

logger = logging.getLogger("hy3d_rocm")


def synchronize(device: torch.device) -> None:
    """Waits for what a GPU has been given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class StageLog:
    """A counter's place: passes all on to it. At debug level, or with `always`, the device is
    waited for before and after each grain, so that a line about it is true when it is written."""

    def __init__(self, counter: Counter, device: torch.device, always: bool = False) -> None:
        self.counter = counter
        self.device = device
        self.is_known = False
        self.waits = always or logger.isEnabledFor(logging.DEBUG)

    @property
    def total(self) -> int:
        return self.counter.total

    @total.setter
    def total(self, count: int) -> None:
        if not self.is_known:
            self.counter.total = count

    def expect(self, count: int) -> None:
        """So many grains there will be, whatever an engine says later; 0: that is for it to say."""
        self.counter.total, self.is_known = count, count > 0

    def check(self) -> None:
        """See Counter.check."""
        self.counter.check()
        if self.waits:
            synchronize(self.device)
            logger.debug("[VAE Decode] Grain %d begins", self.counter.done + 1)

    def tick(self, step: Step) -> None:
        """See Counter.tick."""
        if self.waits:
            synchronize(self.device)
            logger.debug(
                "[VAE Decode] Grain %d done: %s, frames %d to %d",
                self.counter.done + 1, step.kind, step.frames[0], step.frames[1] - 1,
            )  # fmt: skip
        self.counter.tick(step)
