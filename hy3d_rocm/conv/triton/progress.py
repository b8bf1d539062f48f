"""First-use compilation shown: a line before the first kernel of a series, then counts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("hy3d_rocm")

# Kernels come as a decode reaches its layers: a longer pause ends a series.
_PAUSE_SECONDS = 60.0
_LINE_SECONDS = 5.0


class Progress:
    """Counts what is compiled. Any thread; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = self._done = 0
        self._spent = 0.0
        self._last = self._told = float("-inf")

    def before(self) -> int:
        """A kernel is about to be compiled; its number in the series, from 1."""
        with self._lock:
            now = self._clock()
            idle = self._begun == self._done
            if idle and now - self._last > _PAUSE_SECONDS:
                self._begun = self._done = 0
                self._spent, self._told = 0.0, now
            self._begun += 1
            number = self._begun
        if number == 1:
            logger.info(
                "compiling GPU kernels for their first use: some seconds each, kept on disk for the"
                " next time"
            )
        return number

    def after(self, seconds: float) -> None:
        """It is done, in `seconds`, or has failed. A line every 5 seconds at most."""
        with self._lock:
            self._done += 1
            self._spent += seconds
            self._last = self._clock()
            tell = self._last - self._told >= _LINE_SECONDS
            if tell:
                self._told = self._last
            done, spent = self._done, self._spent
        if tell:
            logger.info("%d GPU kernels compiled so far, in %.0f s", done, spent)
