"""First calls of the vendor library that their processes did not survive."""

from __future__ import annotations

import logging
import sqlite3
import time

from hy3d_rocm.conv.knowledge import schema
from hy3d_rocm.conv.knowledge.process import is_gone, myself
from hy3d_rocm.conv.knowledge.records import Trial

_log = logging.getLogger("hy3d_rocm")

# A first call takes seconds, a find step minutes. What another container began longer ago and has
# not finished has hung, whether or not that container still runs.
_LONG_AGO_S = 600.0
_LINES = 5


class Search:
    """found: since the store was opened; unclear: whether there are attempts of processes that
    can't be asked for, so that looking again later makes sense."""

    def __init__(self) -> None:
        self.found: list[Trial] = []
        self.unclear = False

    def run(self, connection: sqlite3.Connection) -> bool:
        """Turns attempts of dead processes into verdicts; whether there were any."""
        me, now = myself(), time.time()
        self.unclear = False
        new: list[Trial] = []
        for attempt in schema.read_trying(connection):
            gone = is_gone(attempt.process, me)
            if gone is None:
                gone = now - attempt.when > _LONG_AGO_S
                self.unclear |= not gone
            if gone and schema.conclude(connection, attempt, _detail(attempt)):
                new.append(Trial(attempt.key, attempt.tier, attempt.when))
        self.found += new
        for trial in new[:_LINES]:
            _log.warning(
                "%s %s, %s: the process that first tried %s for it, at %s, ended during the call;"
                " it is not tried there again (hy3d-rocm db forget --shape ... lets it)",
                trial.key.op, trial.key.shape, trial.key.dtype, trial.tier, _clock(trial.when),
            )  # fmt: skip
        if len(new) > _LINES:
            _log.warning(
                "and %d more such shapes: hy3d-rocm db list --verdict hang", len(new) - _LINES
            )
        return bool(new)


def _detail(attempt: schema.Attempt) -> str:
    return (
        f"process {attempt.process.pid} ended during its first call here, at"
        f" {_clock(attempt.when)}: a driver reset, a crash, or somebody ended it"
    )


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
