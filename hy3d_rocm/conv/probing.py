"""How much a decode may wait for child processes that try the vendor's library.

Shapes come one by one, as the decode reaches them, so each probe is a child of its own; `hy3d-rocm
tune` lets one child try a whole list. What all of them may take is bounded for the outermost
protect().
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Hashable, Iterator

from hy3d_rocm.conv import policy
from hy3d_rocm.conv.verdicts import VERDICTS

# Of a whole decode. A probe is only begun with its full time left: a find that was cut short would
# be on record as a hang.
SCOPE_SECONDS = 60.0


class Scope:
    """The outermost protect() of a thread: one decode. OOM is remembered by its identity."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._asked: set[Hashable] = set()
        self._ended = ""
        self._has_said = False

    def why_not(self, tier: str, config: Hashable) -> str | None:
        """Why no child tries the shape now ("" where that needs no words), or None."""
        if VERDICTS.is_sound(f"probed {tier}", config) or (tier, config) in self._asked:
            return ""
        if not self._ended and self._spent + policy.PROBE_SECONDS > SCOPE_SECONDS:
            self._ended = f"the {SCOPE_SECONDS:.0f} s for them are spent"
        return self._ended or None

    def first_no(self) -> bool:
        """True once: that there are no more probes is said once."""
        first, self._has_said = not self._has_said, True
        return first

    @contextlib.contextmanager
    def probing(self, tier: str, config: Hashable) -> Iterator[None]:
        """Around a probe: once a scope, whatever comes of it, and on the scope's account."""
        self._asked.add((tier, config))
        start = time.monotonic()
        try:
            yield
        finally:
            self._spent += time.monotonic() - start

    def told(self, tier: str, config: Hashable, verdict: str) -> None:
        """What the child said. Only a verdict holds beyond the scope."""
        # Late: importing the router imports no probe.
        from hy3d_rocm.conv.probe.cases import HANG, NOT_RUN
        from hy3d_rocm.conv.probe.cases import VERDICTS as LASTING

        if verdict in LASTING:
            VERDICTS.mark_sound(f"probed {tier}", config)
        if verdict == HANG:
            self._ended = "one of them hung"
        elif verdict == NOT_RUN:
            self._ended = "none can be started now"
