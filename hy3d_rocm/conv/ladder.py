"""Climbing the ladder: one call, its tiers in order, what each said, and what is remembered."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Hashable
from dataclasses import dataclass, field

import torch

from hy3d_rocm.conv import errors, faults, memory
from hy3d_rocm.conv.call import ConvCall, dtype_name, size_text
from hy3d_rocm.conv.errors import Classified, Kind
from hy3d_rocm.conv.results import check_result
from hy3d_rocm.conv.stats import LOCK, Event, OnEvent, Row, Stats
from hy3d_rocm.conv.tiers import Limits, Tier, select_backend
from hy3d_rocm.conv.verdicts import VERDICTS, Verdict

_LOG = logging.getLogger("hy3d_rocm")


@dataclass(frozen=True)
class Settings:
    """What protect() was asked for."""

    tiers: tuple[Tier, ...]
    limits: Limits
    on_event: OnEvent | None = None
    check_finite: bool = False
    synchronize: bool = False
    raise_oom: bool = False
    tier_names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tier_names", tuple(tier.name for tier in self.tiers))


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
            for listener in self.listeners:
                listener(event)


@dataclass
class Failure:
    """A tier's exception, without the frames that would keep its tensors alive."""

    tier: Tier
    found: Classified
    error: Exception


@dataclass
class Climb:
    """One call on its way down. `config` is what verdicts are keyed by."""

    call: ConvCall
    what: Named
    config: Hashable
    settings: Settings
    audience: Audience
    scope: object
    failures: list[Failure] = field(default_factory=list)
    skipped: list[tuple[Tier, str]] = field(default_factory=list)
    refused: list[tuple[Tier, str]] = field(default_factory=list)
    postponed: list[Tier] = field(default_factory=list)
    relieved: bool = False
    gained: bool = False

    def run(self, failed: list[Exception]) -> torch.Tensor:
        """The result of the first tier that gives one; else the first tier's own exception.

        `failed` holds what the first tier has already raised, if it was tried; it is emptied, so
        that no frame keeps the exception (and by it the caller's tensors) in a cycle.
        """
        first, *others = self.settings.tiers
        result = self._resume(first, failed) if failed else self._try_unless_left_out(first)
        for tier in others:
            if result is not None:
                return result
            result = self._try_unless_left_out(tier)
        # Every tier left was left out because of an earlier call. Rather than give up on what is
        # only remembered, they get another chance; so the caller also sees a real exception.
        for tier in self.postponed:
            if result is not None:
                return result
            if self._refusal(tier) is None:
                result = self._try(tier)
        if result is not None:
            return result
        raise self._give_up()

    def _resume(self, tier: Tier, failed: list[Exception]) -> torch.Tensor | None:
        self.take(tier, failed)
        return self._after_failure(tier)

    def _try_unless_left_out(self, tier: Tier) -> torch.Tensor | None:
        return None if self._is_left_out(tier) else self._try(tier)

    def _try(self, tier: Tier) -> torch.Tensor | None:
        """The checked result, or None after a failure that is now booked and remembered."""
        result = self._attempt(tier)
        if result is None:
            return self._after_failure(tier)
        self._announce(tier)
        return result

    def _after_failure(self, tier: Tier) -> torch.Tensor | None:
        """One more try of the same tier if emptying the allocator freed something; the verdict."""
        if self.gained:
            self.gained = False
            result = self._attempt(tier)
            if result is not None:
                self._announce(tier)
                return result
        last = self.failures[-1].found
        free = self._free() if last.kind is Kind.OUT_OF_MEMORY else None
        needed = self.call.spec.out_bytes
        verdict = Verdict(last.kind, last.reason, self.scope, free, needed)
        VERDICTS.record(tier.name, self.config, verdict)
        return None

    def take(self, tier: Tier, failed: list[Exception]) -> None:
        """Books a failure, or raises what the caller has to see. Called outside `except`."""
        error = failed.pop()
        try:
            found = errors.classify(error)
            if found is not None and found.kind in errors.RETRIED:
                for error in ask_device(self.call):  # what lies behind it is worse
                    found = errors.classify(error)
            # A lost device is not asked anything (can_retry would), so its kind comes first.
            if found is not None and found.kind not in errors.RETRIED:
                self._raise(translate(error, found, self.what, self._places()) or error)
            elif found is None or self._is_for_the_caller(tier, found):
                if self.failures:
                    error.add_note(f"hy3d_rocm: raised by {tier.label(self.call)}{self._history()}")
                self._raise(error)
            else:
                self.failures.append(Failure(tier, found, strip(error)))
                self.audience.add("failures")
                if found.kind is Kind.OUT_OF_MEMORY:
                    self._relieve()
        finally:
            del error  # a frame that names the exception it raises is a cycle

    def _is_for_the_caller(self, tier: Tier, found: Classified) -> bool:
        """Whether an error that could be retried is raised as it is."""
        if found.kind is Kind.UNSUPPORTED and tier is self.settings.tiers[0]:
            return True
        if found.kind is Kind.OUT_OF_MEMORY and self.settings.raise_oom:
            return True
        return not can_retry(self.call)

    def _raise(self, error: Exception) -> None:
        self.audience.add("raised")
        self.failures.clear()
        try:
            raise error
        finally:
            del error

    def _places(self) -> str:
        return f"all on {self.call.spec.device} when hy3d_rocm saw them"

    def _free(self) -> int | None:
        return memory.free_bytes(self.call.spec.device)

    def _relieve(self) -> None:
        """Empties the allocator, once for each call, and notes whether that freed anything."""
        if self.relieved:
            return
        self.relieved = True
        freed = memory.release(self.call.spec.device)
        self.gained = freed >= self.call.spec.out_bytes > 0

    def _is_left_out(self, tier: Tier) -> bool:
        """Whether the tier is not tried now: remembered failure, or it says it can't."""
        verdict = VERDICTS.get(tier.name, self.config, self.scope, self._free)
        if verdict is not None:
            self.postponed.append(tier)
            self._skip(tier, verdict.reason)
            return True
        return self._refusal(tier) is not None

    def _refusal(self, tier: Tier) -> str | None:
        reason = tier.refusal(self.call, self.settings.limits)
        if reason is None and tier.name == "native" and self._is_same_as_failed():
            reason = "it is the current back-end, which has just run out of memory"
        if reason is not None:
            self.refused.append((tier, reason))
            self._skip(tier, reason)
        return reason

    def _is_same_as_failed(self) -> bool:
        full = any(
            f.tier.name == "current" and f.found.kind is Kind.OUT_OF_MEMORY for f in self.failures
        )
        return full and select_backend(self.call).startswith("Slow")

    def _skip(self, tier: Tier, reason: str) -> None:
        self.skipped.append((tier, reason))
        predicted = tier.workspace_bytes(self.call.spec)
        with_row = self.audience.rows(self.what, tier.name, predicted)
        with LOCK:
            for row in with_row:
                row.skips += 1
        self.audience.tell(time.perf_counter(), tier.name, self.what, 0.0, "skipped", reason)

    def _attempt(self, tier: Tier) -> torch.Tensor | None:
        predicted = tier.workspace_bytes(self.call.spec)
        rows = self.audience.rows(self.what, tier.name, predicted)
        failed: list[Exception] = []
        result: torch.Tensor | None = None
        start = time.perf_counter()
        try:
            faults.check(tier.name, self.call)
            result = tier.run(self.call)
            check_result(result, self.call, self.settings.synchronize, self.settings.check_finite)
        except Exception as error:  # noqa: BLE001  # take() raises again what is not ours
            failed.append(error)
            result = None
        seconds = time.perf_counter() - start
        book(rows, seconds, failed=bool(failed))
        if not failed:
            self.audience.tell(start, tier.name, self.what, seconds, "ok")
            return result
        outcome, detail = "raised", errors.first_line(failed[0])
        try:
            self.take(tier, failed)
            outcome = "failed"
        finally:
            self.audience.tell(start, tier.name, self.what, seconds, outcome, detail)
        return None

    def _announce(self, tier: Tier) -> None:
        """One line for each new event, after the tier that works is known."""
        if tier is not self.settings.tiers[0]:
            self.audience.add("recovered")
        for failure in self.failures:
            if failure.tier is tier:
                continue
            kind = failure.found.kind
            if not VERDICTS.first_time((failure.tier.name, self.config, kind)):
                continue
            memory_only = kind is Kind.OUT_OF_MEMORY
            when = "until this protect() ends" if memory_only else "from now on"
            others = "".join(
                f"; {t.label(self.call)} left out: {reason}" for t, reason in self.refused
            )
            reason = failure.found.reason
            if memory_only:
                reason += f" ({failure.tier.label(self.call)})"
            self.audience.say(f"{self.what}: {reason}; {when}: {tier.label(self.call)}{others}")

    def _history(self) -> str:
        return "".join(
            f"; before that {f.tier.label(self.call)} failed: {errors.first_line(f.error)}"
            for f in self.failures
        )

    def _give_up(self) -> Exception:
        """The exception of the first tier that failed, with a note on the others."""
        self.audience.add("raised")
        reasons = dict.fromkeys(f"{t.label(self.call)} was left out: {r}" for t, r in self.skipped)
        if not self.failures:
            return RuntimeError(f"{self.what}: no tier could run it. " + "; ".join(reasons))
        first, *others = self.failures
        said = [f"{f.tier.label(self.call)}: {errors.first_line(f.error)}" for f in others]
        detail = "; ".join((*said, *reasons)) or "there was no other tier"
        first.error.add_note(f"hy3d_rocm tried every tier for {self.what}. {detail}")
        self.failures.clear()  # run() raises it: no cycle through this object
        if VERDICTS.first_time(("all", self.config)):
            self.audience.say(f"{self.what}: {first.found.reason}; nothing else worked: {detail}")
        return first.error


def strip(error: Exception) -> Exception:
    """Drops the frames of an exception that is kept: they hold the call's tensors.

    What the caller was handling before (its context) is the caller's and stays as it is.
    """
    outer = sys.exc_info()[1]
    chain: BaseException | None = error
    while chain is not None and chain is not outer:
        chain.__traceback__ = None
        chain = chain.__cause__ or chain.__context__
    return error


def ask_device(call: ConvCall) -> list[Exception]:
    """The error of a lost device, if it is lost.

    After a kernel has crashed, cuDNN fails first, with a status that says nothing (seen:
    CUDNN_STATUS_*, while the next call of the runtime says "device-side assert triggered").
    """
    if call.spec.device.type != "cuda" or not memory.gpu_in_use():
        return []
    try:
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(call.spec.device)
    except RuntimeError as error:
        found = errors.classify(error)
        if found is not None and found.kind is Kind.DEVICE_LOST:
            return [error]
    return []


def can_retry(call: ConvCall) -> bool:
    """Not inside torch.func transforms, forward AD, tracing or a graph capture: a plain retry
    would lose what they record."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if torch.autograd.forward_ad._current_level >= 0 or torch._C._get_tracing_state() is not None:
        return False
    captures = call.spec.device.type == "cuda" and memory.gpu_in_use()
    return not (captures and torch.cuda.is_current_stream_capturing())


def translate(error: Exception, found: Classified, what: Named, places: str) -> Exception | None:
    """The sentence for a device error, chained to the original; None where there is none."""
    sentence: Exception | None = None
    if found.kind is Kind.DEVICE_MISMATCH:
        sentence = errors.mismatch_error(str(what), places, error)
    elif found.kind is Kind.DEVICE_LOST:
        sentence = errors.lost_error(str(what), found.reason, error)
    if sentence is not None:
        sentence.__cause__ = error
    return sentence


def book(rows: tuple[Row, ...], seconds: float, *, failed: bool = False) -> None:
    """Counts one attempt."""
    with LOCK:
        for row in rows:
            row.calls += 1
            row.failures += failed
            row.seconds += seconds
            if seconds > row.max_seconds:
                row.max_seconds = seconds
