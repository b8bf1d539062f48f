"""Climbing the ladder: one call, its tiers in order, what each said, and what is remembered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace

import torch

from hy3d_rocm.conv import asking, blame, errors, faults, learning, policy, releasing
from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.conv.cancels import is_cancel
from hy3d_rocm.conv.errors import Classified, Kind
from hy3d_rocm.conv.policy import Plan
from hy3d_rocm.conv.recovery import ask_device, can_retry, is_capturing, strip, translate
from hy3d_rocm.conv.selfcheck import check_form, check_values
from hy3d_rocm.conv.stats import LOCK, Audience, Named, OnEvent, book
from hy3d_rocm.conv.tiers import Limits, Tier, select_backend
from hy3d_rocm.conv.verdicts import VERDICTS, Verdict

# Tiers whose every exception is a back-end's failure: PyTorch itself would take the call.
_OWN = frozenset({"vendor", "triton", "gemm", "conv2d", "native", "cpu"})
# How often a self-check that failed itself is tried again.
_CHECKS = 2


@dataclass(frozen=True)
class Settings:
    """What protect() was asked for, the order of tiers apart."""

    limits: Limits
    on_event: OnEvent | None = None
    check_finite: bool = False
    synchronize: bool = False
    raise_oom: bool = False


@dataclass
class Failure:
    """A tier's exception, without the frames that would keep its tensors alive."""

    tier: Tier
    found: Classified
    error: Exception


@dataclass
class Climb:
    """One call on its way down. `config` is what verdicts are keyed by; `winner` is the tier that
    computed it."""

    call: ConvCall
    what: Named
    config: Hashable
    plan: Plan
    settings: Settings
    audience: Audience
    scope: object
    widen: Callable[[], Plan] | None = None  # for a brief plan whose tier has failed
    failures: list[Failure] = field(default_factory=list)
    skipped: list[tuple[Tier, str]] = field(default_factory=list)
    refused: list[tuple[Tier, str]] = field(default_factory=list)
    postponed: list[Tier] = field(default_factory=list)
    relieved: bool = False
    gained: bool = False
    winner: Tier | None = None
    broken: set[str] = field(default_factory=set)  # tiers given up as a whole by this call

    def run(self, failed: list[Exception]) -> torch.Tensor:
        """The result of the first tier that gives one; else the first tier's own exception.

        `failed` holds what the first tier has already raised, if it was tried; it is emptied, so
        that no frame keeps the exception (and by it the caller's tensors) in a cycle.
        """
        result: torch.Tensor | None = None
        if self.plan.tiers:
            first, *_ = self.plan.tiers
            result = self._resume(first, failed) if failed else self._try_unless_left_out(first)
            if result is not None:
                return result
            for tier in self._others(first):
                result = self._try_unless_left_out(tier)
                if result is not None:
                    return result
        result = self._last_resort()
        if result is not None:
            return result
        raise self._give_up()

    def _last_resort(self) -> torch.Tensor | None:
        """Every tier left was left out because of an earlier call. Rather than give up on what is
        only remembered, they get another chance; so the caller also sees a real exception."""
        tried = {failure.tier.name for failure in self.failures}
        for tier in dict.fromkeys((*self.postponed, *self.plan.spare)):
            if tier.name in tried or self._refusal(tier) is not None:
                continue
            result = self._try(tier)
            if result is not None:
                if not faults.active():
                    name = policy.known_as(tier.name, self.plan.setting)
                    learning.recovered(self.call.spec, name)
                    VERDICTS.mend_tier(tier.name)
                return result
        return None

    def _others(self, first: Tier) -> list[Tier]:
        if self.plan.is_brief and self.widen is not None:
            self.plan = replace(self.widen(), preferred=self.plan.preferred)
        return [tier for tier in self.plan.tiers if tier is not first]

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
        self._write_down(tier, last, self.failures[-1].error)
        self._look_at_the_tier(tier, last, self.failures[-1].error)
        return None

    def _look_at_the_tier(self, tier: Tier, found: Classified, error: Exception) -> None:
        """One that no shape can use is left out as a whole, not tried at each shape in turn."""
        if self.plan.is_fixed or faults.active():
            return
        if blame.breaks_tier(tier.name, self.config, found, error):
            self.broken.add(tier.name)
            self.audience.say(
                f"{self._label(tier)} is left out until the process ends: {asking.words(error)}"
            )

    def _write_down(self, tier: Tier, found: Classified, error: Exception) -> None:
        """What holds beyond this process goes into the verdict store; injected faults do not."""
        if not faults.active() and not policy.is_trusted(tier.name, self.plan.setting):
            name = policy.known_as(tier.name, self.plan.setting)
            learning.failed(self.call.spec, name, found, error)

    def take(self, tier: Tier, failed: list[Exception]) -> None:
        """Books a failure, or raises what the caller has to see. Called outside `except`."""
        error = failed.pop()
        try:
            found = self._classify(tier, error)
            if found is not None and found.kind in errors.RETRIED:
                for error in ask_device(self.call):  # what lies behind it is worse
                    found = errors.classify(error)
            # A lost device is not asked anything (can_retry would), so its kind comes first.
            if found is not None and found.kind not in errors.RETRIED:
                if found.kind is Kind.DEVICE_LOST:
                    self._ban(tier, found, error)
                self._raise(translate(error, found, self.what, self._places()) or error)
            elif found is None or self._is_for_the_caller(tier, found):
                if self.failures:
                    error.add_note(f"hy3d_rocm: raised by {self._label(tier)}{self._history()}")
                self._raise(error)
            else:
                self.failures.append(Failure(tier, found, strip(error)))
                self.audience.add("failures")
                if found.kind is Kind.OUT_OF_MEMORY:
                    self._relieve()
        finally:
            del error  # a frame that names the exception it raises is a cycle

    def _classify(self, tier: Tier, error: Exception) -> Classified | None:
        is_own = tier.name in _OWN and not self.plan.is_fixed
        return errors.classify_own(error) if is_own else errors.classify(error)

    def _ban(self, tier: Tier, found: Classified, error: Exception) -> None:
        """The next process shall not run into the same wall. The device is not asked anything."""
        VERDICTS.record(tier.name, self.config, Verdict(found.kind, found.reason))
        self._write_down(tier, found, error)

    def _is_for_the_caller(self, tier: Tier, found: Classified) -> bool:
        """Whether an error that could be retried is raised as it is."""
        if found.kind is Kind.UNSUPPORTED:
            # "Not implemented for this dtype" of PyTorch itself is the caller's to know.
            is_first = tier is self.plan.tiers[0]
            return is_first and (self.plan.is_fixed or tier.name == "current")
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

    def _label(self, tier: Tier) -> str:
        return asking.label(tier, self.call)

    def _free(self) -> int | None:
        return asking.free_bytes(self.call.spec.device)

    def _relieve(self) -> None:
        """Empties the allocator, once for each call, and notes whether that freed anything."""
        if self.relieved:
            return
        self.relieved = True
        freed = releasing.release(self.call.spec.device)
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
        reason = asking.refusal(tier, self.call, self.settings.limits)
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
        predicted = asking.workspace(tier, self.call.spec)
        with_row = self.audience.rows(self.what, tier.name, predicted)
        with LOCK:
            for row in with_row:
                row.skips += 1
        self.audience.tell(time.perf_counter(), tier.name, self.what, 0.0, "skipped", reason)

    def _attempt(self, tier: Tier) -> torch.Tensor | None:
        predicted = asking.workspace(tier, self.call.spec)
        rows = self.audience.rows(self.what, tier.name, predicted)
        failed: list[Exception] = []
        result: torch.Tensor | None = None
        start = time.perf_counter()
        try:
            result = self._compute(tier)
        except Exception as error:  # noqa: BLE001  # take() raises again what is not ours
            failed.append(error)
        seconds = time.perf_counter() - start
        book(rows, seconds, failed=bool(failed))
        if not failed:
            self.winner = tier
            self.audience.tell(start, tier.name, self.what, seconds, "ok")
            return result
        outcome, detail = "raised", errors.first_line(failed[0])
        try:
            self.take(tier, failed)
            outcome = "failed"
        finally:
            self.audience.tell(start, tier.name, self.what, seconds, outcome, detail)
        return None

    def _compute(self, tier: Tier) -> torch.Tensor:
        """The result, checked as far as it has to be."""
        with self._around(tier):
            faults.check(tier.name, self.call)
            result = tier.run(self.call)
            result = faults.distort(tier.name, self.call, result) if faults.active() else result
            check_form(result, self.call, self.settings.synchronize)
            is_first = needs_check(tier, self.config, self.plan) and can_retry(self.call)
            if is_first or self.settings.check_finite:
                self._check(tier, result, is_first)
        return result

    def _check(self, tier: Tier, result: torch.Tensor, is_first: bool) -> None:
        """Only BadResultError (and a lost device) is a verdict on the result. The check needs
        memory and operators of its own: where it fails itself, the result stays."""
        try:
            said = check_values(tier.name, result, self.call, is_first=is_first)
        except Exception as error:
            is_verdict = isinstance(error, errors.BadResultError) or is_cancel(error)
            if is_verdict or asking.is_lost(error):
                raise
            for lost in ask_device(self.call):
                raise lost from error
            tries = (("unchecked", tier.name, self.config, n) for n in range(_CHECKS))
            if not any(VERDICTS.first_time(event) for event in tries):
                VERDICTS.mark_sound(tier.name, self.config)
            if VERDICTS.first_time(("unchecked", tier.name, self.config)):
                self.audience.say(
                    f"{self.what}: the result of {self._label(tier)} was not checked, since the"
                    f" check itself failed ({asking.words(error)})"
                )
            return
        if is_first:
            VERDICTS.mark_sound(tier.name, self.config)
        if said and VERDICTS.first_time(("precision", self.config)):
            self.audience.say(f"{self.what}: not the back-end's fault: {said}")

    @contextlib.contextmanager
    def _around(self, tier: Tier) -> Iterator[None]:
        """A first call of the vendor's library, or one that compiles on ROCm: a marker in the store
        says so until the device is done, since a driver's reset or LLVM may end the process."""
        setting, spec = self.plan.setting, self.call.spec
        is_vendor = needs_trying(tier, self.config, self.plan)
        is_risky = is_vendor or asking.compiles(tier, spec, setting)
        if not is_risky or is_capturing(spec.device):
            yield
            return
        name = policy.known_as(tier.name, setting)
        known = policy.memory_for(spec.device)
        start = time.perf_counter()
        with known.in_flight(spec, name):
            yield
            if spec.device.type == "cuda":
                torch.cuda.synchronize(spec.device)
        took = time.perf_counter() - start
        VERDICTS.mark_sound(f"tried {tier.name}", self.config)
        # A kernel's compilation is no slow find: it is kept on disk.
        if is_vendor and not faults.active():
            learning.worked(spec, name, took)

    def _announce(self, tier: Tier) -> None:
        """One line for each new event, after the tier that works is known."""
        if tier.name != self.plan.preferred:
            self.audience.add("recovered")
        for failure in self.failures:
            if failure.tier is tier or failure.tier.name in self.broken:
                continue  # its line has been written
            kind = failure.found.kind
            if not VERDICTS.first_time((failure.tier.name, self.config, kind)):
                continue
            memory_only = kind is Kind.OUT_OF_MEMORY
            when = "until this protect() ends" if memory_only else "from now on"
            others = "".join(f"; {self._label(t)} left out: {reason}" for t, reason in self.refused)
            reason = failure.found.reason
            if memory_only:
                reason += f" ({self._label(failure.tier)})"
            self.audience.say(f"{self.what}: {reason}; {when}: {self._label(tier)}{others}")

    def _history(self) -> str:
        return "".join(
            f"; before that {self._label(f.tier)} failed: {errors.first_line(f.error)}"
            for f in self.failures
        )

    def _give_up(self) -> Exception:
        """The exception of the first tier that failed, with a note on the others."""
        self.audience.add("raised")
        reasons = dict.fromkeys(f"{self._label(t)} was left out: {r}" for t, r in self.skipped)
        reasons |= dict.fromkeys(f"{t} was left out: {r}" for t, r in self.plan.left_out.items())
        if not self.failures:
            return RuntimeError(f"{self.what}: no tier could run it. " + "; ".join(reasons))
        first, *others = self.failures
        said = [f"{self._label(f.tier)}: {errors.first_line(f.error)}" for f in others]
        detail = "; ".join((*said, *reasons)) or "there was no other tier"
        first.error.add_note(f"hy3d_rocm tried every tier for {self.what}. {detail}")
        self.failures.clear()  # run() raises it: no cycle through this object
        if VERDICTS.first_time(("all", self.config)):
            self.audience.say(f"{self.what}: {first.found.reason}; nothing else worked: {detail}")
        return first.error


def needs_check(tier: Tier, config: Hashable, plan: Plan) -> bool:
    """Whether the tier's next result for this configuration is its first one."""
    if policy.is_trusted(tier.name, plan.setting):
        return False
    return not VERDICTS.is_sound(tier.name, config)


def needs_trying(tier: Tier, config: Hashable, plan: Plan) -> bool:
    """Whether this is the process's first call of the vendor's library for the configuration."""
    if policy.is_trusted(tier.name, plan.setting) or not plan.setting.calls_vendor(tier.name):
        return False
    return not VERDICTS.is_sound(f"tried {tier.name}", config)
