"""What a router did: counters for each tier and shape, and the events that a caller may watch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from hy3d_rocm.conv.call import dtype_name, size_text
from hy3d_rocm.conv.errors import mark_as_callers
from hy3d_rocm.conv.prepared import CacheStats, stats_now
from hy3d_rocm.units import aligned

_LOG = logging.getLogger("hy3d_rocm")

# One lock for every counter: a guard may be entered by several threads, and its parents count too.
LOCK = threading.Lock()


@dataclass(frozen=True)
class Event:
    """One attempt of one tier at one call, or a tier left out.

    `time` is time.perf_counter() at the start; `seconds` is host time: on a GPU the launch, not
    the kernel, unless protect(synchronize=True). `outcome` is "ok", "failed" (the next tier is
    tried), "skipped" (`detail` says why) or "raised" (the caller sees the exception).
    """

    time: float
    tier: str
    op: str
    shape: str
    dtype: str
    seconds: float
    outcome: str
    detail: str = ""


OnEvent = Callable[[Event], None]


@dataclass
class Row:
    """Counters of one (op, shape, dtype, tier).

    `predicted_bytes` is the workspace that the tier was predicted to need, 0 where unknown.
    """

    op: str
    shape: str
    dtype: str
    tier: str
    calls: int = 0
    failures: int = 0
    skips: int = 0
    seconds: float = 0.0
    max_seconds: float = 0.0
    predicted_bytes: int = 0


@dataclass
class Stats:
    """Totals of a guard, and its rows.

    recovered: convolutions that a later tier than the first computed. failures: attempts that
    failed and were followed by another tier. raised: calls that ended in an exception.
    passed_through: calls left to PyTorch unprotected, since something records its operators or
    brings its own; `unprotected` says why, each reason once.
    lines: the log lines, each once. weights_before: the cache of prepared weights at the start.
    booked_calls, booked_rows: `calls` and `rows` without what `sources` have counted themselves
    since they were last asked to book it.
    """

    recovered: int = 0
    failures: int = 0
    raised: int = 0
    passed_through: int = 0
    lines: list[str] = field(default_factory=list)
    unprotected: list[str] = field(default_factory=list)
    booked_calls: int = 0
    booked_rows: dict[tuple[str, str, str, str], Row] = field(default_factory=dict)
    sources: list[Callable[[], None]] = field(default_factory=list, repr=False, compare=False)
    weights_before: CacheStats = field(default_factory=stats_now, repr=False, compare=False)

    @property
    def calls(self) -> int:
        """Convolutions seen and routed."""
        self.collect()
        return self.booked_calls

    @property
    def rows(self) -> dict[tuple[str, str, str, str], Row]:
        """By (op, shape, dtype, tier)."""
        self.collect()
        return self.booked_rows

    def collect(self) -> None:
        """Has everything booked."""
        for source in tuple(self.sources):
            source()

    def prepared_weights(self) -> CacheStats:
        """What the CPU convolution's cache of prepared weights did since: the process's, so with
        what other guards and threads asked of it."""
        return stats_now().since(self.weights_before)

    def row(self, op: str, shape: str, dtype: str, tier: str) -> Row:
        """The row of a configuration and tier, made on first use."""
        key = (op, shape, dtype, tier)
        with LOCK:
            return self.booked_rows.setdefault(key, Row(*key))

    def tier_seconds(self) -> dict[str, float]:
        """Seconds spent in each tier, failed attempts included."""
        total: dict[str, float] = {}
        self.collect()
        with LOCK:
            for row in self.booked_rows.values():
                total[row.tier] = total.get(row.tier, 0.0) + row.seconds
        return total

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values; rows in the order in which they first appeared."""
        self.collect()
        with LOCK:
            rows = [asdict(row) for row in self.booked_rows.values()]
            totals = {"calls": self.booked_calls, **{k: getattr(self, k) for k in _TOTALS[1:]}}
            said = {"lines": list(self.lines), "unprotected": list(self.unprotected)}
            state = {**totals, **said, "rows": rows}
        return {**state, "prepared_weights": asdict(self.prepared_weights())}

    def table(self) -> str:
        """A text table: the totals in one line, then one line for each row; then why calls were
        not protected, and one about prepared weights, where there were any. Columns of zeros are
        left out, so that a line is not wrapped where it is shown."""
        state = self.as_dict()
        head = ("op", "shape", "dtype", "tier", "calls", "failed", "skipped", "seconds", "bytes")
        lines = [[*head]]
        for r in state["rows"]:
            counts = (r["calls"], r["failures"], r["skips"])
            tail = (f"{r['seconds']:.3f}", str(r["predicted_bytes"] or "-"))
            lines.append([r["op"], r["shape"], r["dtype"], r["tier"], *map(str, counts), *tail])
        told = [i for i in range(len(head)) if any(line[i] not in ("0", "-") for line in lines[1:])]
        lines = [[line[i] for i in told] for line in lines if told]
        words = range(sum(i < _WORDS for i in told))
        text = [", ".join(f"{k.replace('_', ' ')} {state[k]}" for k in _TOTALS)]
        text += [*aligned(lines, words), *state["unprotected"]]
        weights = self.prepared_weights()
        if weights.hits + weights.misses:
            text.append(weights.text())
        return "\n".join(text)


_WORDS = 4  # columns of words, before those of numbers
_TOTALS = ("calls", "recovered", "failures", "raised", "passed_through")


@dataclass(frozen=True)
class Named:
    """The words for a call: 'conv3d', '1x128x19x64x64 -> 128', 'bf16'."""

    op: str
    shape: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.op} {self.shape}, {self.dtype}"


def named(x: torch.Tensor, weight: torch.Tensor, ndim: int) -> Named:
    """For any call, well formed or not."""
    shape = f"{size_text(x.shape)} -> {weight.shape[0] if weight.dim() else '?'}"
    return Named(f"conv{ndim}d", shape, dtype_name(x.dtype))


@dataclass(frozen=True)
class Audience:
    """Who is told about a call: the statistics of a guard and of those around it."""

    stats: tuple[Stats, ...]
    listeners: tuple[OnEvent, ...]

    def rows(self, what: Named, tier: str, predicted: int = 0) -> tuple[Row, ...]:
        rows = tuple(s.row(what.op, what.shape, what.dtype, tier) for s in self.stats)
        for row in rows:
            row.predicted_bytes = max(row.predicted_bytes, predicted)
        return rows

    def add(self, counter: str) -> None:
        with LOCK:
            for stats in self.stats:
                setattr(stats, counter, getattr(stats, counter) + 1)

    def count(
        self, rows: tuple[Row, ...], seconds: float, *, calls: int = 1,
        longest: float | None = None, recovered: int = 0, failed: bool = False,
        is_attempt: bool = False,
    ) -> None:  # fmt: skip
        """Counts calls, one as a rule, and an attempt at each; longest: the longest one's seconds
        where there are several. is_attempt: only the attempt, at a call that is counted elsewhere.
        """
        if longest is None:
            longest = seconds
        LOCK.acquire()  # `with` takes twice as long
        try:
            if not is_attempt:
                for stats in self.stats:
                    stats.booked_calls += calls
                    stats.recovered += recovered
            for row in rows:
                row.calls += calls
                row.failures += failed
                row.seconds += seconds
                if longest > row.max_seconds:
                    row.max_seconds = longest
        finally:
            LOCK.release()

    def left(self, reason: str, *, is_new: bool) -> None:
        """A call that is not routed: the scope says so once, the log once a process (is_new)."""
        line = f"convolutions are left to PyTorch, and not protected, where {reason}"
        with LOCK:
            for stats in self.stats:
                stats.passed_through += 1
                if line not in stats.unprotected:
                    stats.unprotected.append(line)
                    stats.lines.append(line)
        if is_new:
            _LOG.warning("%s", line)

    def say(self, line: str) -> None:
        with LOCK:
            for stats in self.stats:
                stats.lines.append(line)
        _LOG.warning("%s", line)

    def tell(
        self, start: float, tier: str, what: Named, seconds: float, outcome: str, detail: str = ""
    ) -> None:
        if self.listeners:
            event = Event(start, tier, what.op, what.shape, what.dtype, seconds, outcome, detail)
            try:
                for listener in self.listeners:
                    listener(event)
            except BaseException as error:
                mark_as_callers(error)  # the caller's, wherever it is caught
                raise
