"""How much a decode may wait for child processes that try the vendor's library.

Shapes come one by one, as the decode reaches them, so each probe is a child of its own; `hy3d-rocm
tune` lets one child try a whole list. What all of them may take is bounded for the outermost
protect().
"""

from __future__ import annotations

import time
from collections.abc import Hashable

from hy3d_rocm.conv import policy
from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.stats import Audience, Named
from hy3d_rocm.conv.verdicts import VERDICTS

# Of a whole decode. A probe is only begun with its full time left: a find that was cut short would
# be on record as a hang.
SCOPE_SECONDS = 60.0


class Scope:
    """The outermost protect() of a thread: one decode. OOM is remembered by its identity."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._asked: set[Hashable] = set()
        self._ended = ""  # why no more children are started
        self._has_said = False

    def probe(
        self, spec: ConvSpec, tier: str, config: Hashable, what: Named, audience: Audience
    ) -> bool:
        """Has a child try the shape, once a scope and while there is time; whether one did."""
        if VERDICTS.is_sound(f"probed {tier}", config) or (tier, config) in self._asked:
            return False
        if not self._ended and self._spent + policy.PROBE_SECONDS > SCOPE_SECONDS:
            self._ended = f"the {SCOPE_SECONDS:.0f} s for them are spent"
        if self._ended:
            if not self._has_said:
                self._has_said = True
                audience.say(f"no more child processes in this decode: {self._ended}")
            return False
        audience.say(
            f"{what}: a child process tries the vendor library first (at most"
            f" {policy.PROBE_SECONDS:.0f} s; hy3d-rocm tune does that ahead)"
        )

        def cancel() -> None:  # what a listener raises ends the probe and the call
            audience.tell(time.perf_counter(), tier, what, 0.0, "probing")

        self._asked.add((tier, config))
        start = time.monotonic()
        try:
            verdict = policy.prove(spec, tier, cancel)
        finally:
            self._spent += time.monotonic() - start
        self._heed(tier, config, verdict)
        return True

    def _heed(self, tier: str, config: Hashable, verdict: str) -> None:
        """Only a verdict holds beyond the scope."""
        # Late: importing the router imports no probe.
        from hy3d_rocm.conv.probe.cases import HANG, NOT_RUN
        from hy3d_rocm.conv.probe.cases import VERDICTS as LASTING

        if verdict in LASTING:
            VERDICTS.mark_sound(f"probed {tier}", config)
        if verdict == HANG:
            self._ended = "one of them hung"
        elif verdict == NOT_RUN:
            self._ended = "none can be started now"
