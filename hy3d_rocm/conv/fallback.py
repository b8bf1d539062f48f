"""The fallback chain: one call, its tiers in order, what each said, and what is remembered."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, TypeVar

import torch

from hy3d_rocm import memory
from hy3d_rocm.conv import errors, faults, learning, policy, releasing
from hy3d_rocm.conv.call import ConvCall, ConvSpec
from hy3d_rocm.conv.errors import Kind, Rule, is_cancel
from hy3d_rocm.conv.learning import ProbeBudget, Watching
from hy3d_rocm.conv.policy import Plan
from hy3d_rocm.conv.recording import recorder
from hy3d_rocm.conv.selfcheck import check_form, check_values
from hy3d_rocm.conv.stats import LOCK, Audience, Named, OnEvent, Row
from hy3d_rocm.conv.tiers import Limits, Tier, base, select_backend
from hy3d_rocm.conv.verdicts import VERDICTS, Verdict, breaks_tier

# How often a self-check that failed itself is tried again.
_CHECKS = 2

_T = TypeVar("_T")


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

    name: str
    found: Rule
    error: Exception


@dataclass
class Entry:
    """What a mode knows about one call signature: read once, used at every call.

    fast: the tier that calls go straight to; None where each call has to be looked at. is_straight:
    it is PyTorch as it is set up, and nothing is measured or expires. is_counted_later: nobody
    has to hear of each call either.
    """

    spec: ConvSpec | None
    what: Named
    config: Hashable
    plan: Plan | None = None
    generation: int = -1
    expires: float = math.inf
    standing: tuple[Verdict | None, ...] = ()
    fast: Tier | None = None
    is_straight: bool = False
    is_counted_later: bool = False
    recovers: bool = False
    rows: tuple[Row, ...] = ()
    watching: Watching | None = None


class Mode(Protocol):
    """What a call, and its backward, need of the mode that sees it (router.py). budget: of the
    outermost protect(), for which out of memory is remembered."""

    settings: Settings
    audience: Audience
    budget: ProbeBudget
    pinned: str | None

    def entry_of(self, values: tuple[Any, ...], ndim: int) -> Entry: ...

    def run(
        self, entry: Entry, values: tuple[Any, ...], func: Callable[..., Any],
        args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Any: ...  # fmt: skip

    def for_backward(self) -> Mode: ...


class Attempts:
    """What forward and backward of a call share: one attempt after the other, booked and told.

    config: what verdicts are keyed by.
    """

    def __init__(self, mode: Mode, call: ConvCall, what: Named, config: Hashable) -> None:
        self.call, self.what, self.config = call, what, config
        self.settings, self.audience, self.budget = mode.settings, mode.audience, mode.budget
        self.failures: list[Failure] = []

    def attempt(self, name: str, compute: Callable[[], _T], predicted: int = 0) -> _T | None:
        """What compute() gives, or None after a failure that may be tried elsewhere."""
        rows = self.audience.rows(self.what, name, predicted)
        failed: list[Exception] = []
        result: _T | None = None
        start = time.perf_counter()
        try:
            result = compute()
        except Exception as error:  # noqa: BLE001  # take() raises again what is not ours
            failed.append(error)
        seconds = time.perf_counter() - start
        self.audience.count(rows, seconds, failed=bool(failed), is_attempt=True)
        if not failed:
            self.audience.tell(start, name, self.what, seconds, "ok")
            return result
        outcome, detail = "raised", errors.first_line(failed[0])
        try:
            self.take(name, failed)
            outcome = "failed"
        finally:
            self.audience.tell(start, name, self.what, seconds, outcome, detail)
        return None

    def take(self, name: str, failed: list[Exception]) -> None:
        """Books a failure, or raises what the caller has to see. Called outside `except`."""
        error = failed.pop()
        try:
            found = self.classify(name, error)
            if found is not None and found.kind in errors.RETRIED:
                for error in ask_device(self.call):  # what lies behind it is worse
                    found = errors.classify(error)
            # A lost device is not asked anything (can_retry would), so its kind comes first.
            if found is not None and found.kind not in errors.RETRIED:
                self.ban(name, found, error)
                places = f"all on {self.call.spec.device} when hy3d_rocm saw them"
                self.raise_(translate(error, found, self.what, places) or error)
            elif found is None or self.is_for_the_caller(name, found):
                if history := self.history():
                    error.add_note(f"hy3d_rocm: raised by {self.label(name)}{history}")
                self.raise_(error)
            else:
                self.failures.append(Failure(name, found, strip(error)))
                self.audience.add("failures")
        finally:
            del error  # a frame that names the exception it raises is a cycle

    def raise_(self, error: Exception) -> NoReturn:
        self.audience.add("raised")
        self.failures.clear()
        try:
            raise error
        finally:
            del error

    def remember(self, needed_bytes: int) -> None:
        """The last failure, for the calls to come."""
        last, device = self.failures[-1], self.call.spec.device
        free = base.free_bytes(device) if last.found.kind is Kind.OUT_OF_MEMORY else None
        verdict = Verdict(last.found.kind, last.found.reason, self.budget, free, needed_bytes)
        VERDICTS.record(last.name, self.config, verdict)

    def verdict_on(self, name: str) -> Verdict | None:
        """Why it is left out now, as far as that is remembered."""
        free = functools.partial(base.free_bytes, self.call.spec.device)
        return VERDICTS.get(name, self.config, self.budget, free)

    def label(self, name: str) -> str:
        """What a user reads for it."""
        return name

    def classify(self, name: str, error: Exception) -> Rule | None:
        return None if is_cancel(error) else errors.classify(error)

    def is_for_the_caller(self, name: str, found: Rule) -> bool:
        """Whether an error that could be retried is raised as it is."""
        return found.kind is Kind.OUT_OF_MEMORY and self.settings.raise_oom

    def ban(self, name: str, found: Rule, error: Exception) -> None:
        """Of a failure that no tier can mend: what the next process shall know."""

    def history(self) -> str:
        """What failed before, for the note of an error that is raised."""
        return ""


class FallbackChain(Attempts):
    """One call on its way down the tiers; `winner` is the tier that computed it."""

    def __init__(
        self, mode: Mode, call: ConvCall, entry: Entry, plan: Plan,
        widen: Callable[[], Plan] | None = None,
    ) -> None:  # fmt: skip
        """widen: the whole plan, for a brief one whose tier has failed."""
        super().__init__(mode, call, entry.what, entry.config)
        self.plan, self.widen = plan, widen
        self.skipped: list[tuple[str, str]] = []  # names and reasons
        self.refused: list[tuple[str, str]] = []  # those of them that said so themselves
        self.postponed: list[Tier] = []
        self.relieved = False
        self.winner: Tier | None = None
        self.broken: set[str] = set()  # tiers given up as a whole by this call

    def run(self, failed: list[Exception]) -> torch.Tensor:
        """The result of the first tier that gives one; else the first tier's own exception.

        `failed` holds what the first tier has already raised, if it was tried; it is emptied, so
        that no frame keeps the exception (and by it the caller's tensors) in a cycle.
        """
        for tier in self._tiers():
            if failed:
                self.take(tier.name, failed)
                result = self._after_failure(tier)
            else:
                result = None if self._is_left_out(tier) else self._try(tier)
            if result is not None:
                return result
        result = self._last_resort()
        if result is not None:
            return result
        raise self._give_up()

    def _tiers(self) -> Iterator[Tier]:
        if not self.plan.tiers:
            return
        first = self.plan.tiers[0]
        yield first
        if self.plan.is_brief and self.widen is not None:
            self.plan = replace(self.widen(), preferred=self.plan.preferred)
        yield from (tier for tier in self.plan.tiers if tier is not first)

    def _last_resort(self) -> torch.Tensor | None:
        """Every tier left was left out because of an earlier call. Rather than give up on what is
        only remembered, they get another chance; so the caller also sees a real exception."""
        tried = {failure.name for failure in self.failures}
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

    def _try(self, tier: Tier) -> torch.Tensor | None:
        """The checked result, or None after a failure that is now booked and remembered."""
        result = self._attempt(tier)
        return self._after_failure(tier) if result is None else result

    def _attempt(self, tier: Tier) -> torch.Tensor | None:
        predicted = base.workspace_of(tier, self.call.spec)
        result = self.attempt(tier.name, functools.partial(self._compute, tier), predicted)
        if result is not None:
            self.winner = tier
            self._announce(tier)
        return result

    def _after_failure(self, tier: Tier) -> torch.Tensor | None:
        """One more try of the same tier if emptying the allocator freed something; the verdict."""
        if self._relieves():
            result = self._attempt(tier)
            if result is not None:
                return result
        self.remember(self.call.spec.out_bytes)
        last = self.failures[-1]
        self._keep(tier.name, last.found, last.error)
        # One that no shape can use is left out as a whole, not tried at each shape in turn.
        if self.plan.is_fixed or faults.active():
            return None
        if breaks_tier(tier.name, self.config, last.found, last.error):
            self.broken.add(tier.name)
            self.audience.say(
                f"{self.label(tier.name)} is left out until the process ends:"
                f" {errors.described(last.error)}"
            )
        return None

    def _relieves(self) -> bool:
        """Empties the allocator after an out of memory, once for each call: whether tensors as
        large as the output died by that."""
        if self.relieved or self.failures[-1].found.kind is not Kind.OUT_OF_MEMORY:
            return False
        self.relieved = True
        return releasing.release(self.call.spec.device) >= self.call.spec.out_bytes > 0

    def _keep(self, name: str, found: Rule, error: Exception) -> None:
        """What holds beyond this process goes into the verdict store; injected faults do not."""
        if not faults.active() and not policy.is_trusted(name, self.plan.setting):
            known = policy.known_as(name, self.plan.setting)
            learning.failed(self.call.spec, known, found, error)

    def classify(self, name: str, error: Exception) -> Rule | None:
        # Every exception of ours is a back-end's failure: PyTorch itself would take the call.
        is_own = name != "current" and not self.plan.is_fixed
        return errors.classify_own(error) if is_own else errors.classify(error)

    def ban(self, name: str, found: Rule, error: Exception) -> None:
        """The next process shall not run into the same wall. The device is not asked anything."""
        if found.kind is Kind.DEVICE_LOST:
            VERDICTS.record(name, self.config, Verdict(found.kind, found.reason))
            self._keep(name, found, error)

    def is_for_the_caller(self, name: str, found: Rule) -> bool:
        if found.kind is Kind.UNSUPPORTED:
            # "Not implemented for this dtype" of PyTorch itself is the caller's to know.
            is_first = name == self.plan.tiers[0].name
            return is_first and (self.plan.is_fixed or name == "current")
        return super().is_for_the_caller(name, found) or not can_retry(self.call)

    def history(self) -> str:
        return "".join(
            f"; before that {self.label(f.name)} failed: {errors.first_line(f.error)}"
            for f in self.failures
        )

    def label(self, name: str) -> str:
        every = (*self.plan.tiers, *self.plan.spare)
        return base.label_of(next(t for t in every if t.name == name), self.call)

    def _is_left_out(self, tier: Tier) -> bool:
        """Whether the tier is not tried now: remembered failure, or it says it can't."""
        verdict = self.verdict_on(tier.name)
        if verdict is not None:
            self.postponed.append(tier)
            self._skip(tier, verdict.reason)
            return True
        return self._refusal(tier) is not None

    def _refusal(self, tier: Tier) -> str | None:
        reason = base.refusal_of(tier, self.call, self.settings.limits)
        if reason is None and tier.name == "native":
            full = any(
                f.name == "current" and f.found.kind is Kind.OUT_OF_MEMORY for f in self.failures
            )
            if full and select_backend(self.call).startswith("Slow"):
                reason = "it is the current back-end, which has just run out of memory"
        if reason is not None:
            self.refused.append((tier.name, reason))
            self._skip(tier, reason)
        return reason

    def _skip(self, tier: Tier, reason: str) -> None:
        self.skipped.append((tier.name, reason))
        predicted = base.workspace_of(tier, self.call.spec)
        with_row = self.audience.rows(self.what, tier.name, predicted)
        with LOCK:
            for row in with_row:
                row.skips += 1
        self.audience.tell(time.perf_counter(), tier.name, self.what, 0.0, "skipped", reason)

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
            if is_verdict or errors.is_lost(error):
                raise
            for lost in ask_device(self.call):
                raise lost from error
            tries = (("unchecked", tier.name, self.config, n) for n in range(_CHECKS))
            if not any(VERDICTS.first_time(event) for event in tries):
                VERDICTS.mark_sound(tier.name, self.config)
            if VERDICTS.first_time(("unchecked", tier.name, self.config)):
                self.audience.say(
                    f"{self.what}: the result of {self.label(tier.name)} was not checked, since the"
                    f" check itself failed ({errors.described(error)})"
                )
            return
        if is_first:
            VERDICTS.mark_sound(tier.name, self.config)
        if said and VERDICTS.first_time(("precision", self.config)):
            self.audience.say(f"{self.what}: not the back-end's fault: {said}")

    @contextlib.contextmanager
    def _around(self, tier: Tier) -> Iterator[None]:
        """A first call of the vendor's library, and of a kernel that is compiled on ROCm: a marker
        in the store says so until the device is done, since a driver's reset or LLVM may end the
        process."""
        setting, spec = self.plan.setting, self.call.spec
        name = policy.known_as(tier.name, setting)
        is_vendor = needs_trying(tier, self.config, self.plan)
        if not (is_vendor or setting.is_rocm) or is_capturing(spec.device):
            yield
        elif is_vendor:
            start = time.perf_counter()
            with _marked(spec, name):
                yield
            took = time.perf_counter() - start
            VERDICTS.mark_sound(f"tried {tier.name}", self.config)
            if not faults.active():
                learning.worked(spec, name, took)
        else:
            before, base.THREAD.around = base.THREAD.around, functools.partial(_marked, spec, name)
            try:
                yield
            finally:
                base.THREAD.around = before

    def _announce(self, tier: Tier) -> None:
        """One line for each new event, after the tier that works is known."""
        if tier.name != self.plan.preferred:
            self.audience.add("recovered")
        for failure in self.failures:
            if failure.name == tier.name or failure.name in self.broken:
                continue  # its line has been written
            kind = failure.found.kind
            if not VERDICTS.first_time((failure.name, self.config, kind)):
                continue
            memory_only = kind is Kind.OUT_OF_MEMORY
            when = "until this protect() ends" if memory_only else "from now on"
            others = "".join(f"; {self.label(t)} left out: {why}" for t, why in self.refused)
            reason = failure.found.reason
            if memory_only:
                reason += f" ({self.label(failure.name)})"
            self.audience.say(f"{self.what}: {reason}; {when}: {self.label(tier.name)}{others}")

    def _give_up(self) -> Exception:
        """The exception of the first tier that failed, with a note on the others."""
        self.audience.add("raised")
        reasons = dict.fromkeys(f"{self.label(t)} was left out: {r}" for t, r in self.skipped)
        reasons |= dict.fromkeys(f"{t} was left out: {r}" for t, r in self.plan.left_out.items())
        if not self.failures:
            return RuntimeError(f"{self.what}: no tier could run it. " + "; ".join(reasons))
        first, *others = self.failures
        said = [f"{self.label(f.name)}: {errors.first_line(f.error)}" for f in others]
        detail = "; ".join((*said, *reasons)) or "there was no other tier"
        first.error.add_note(f"hy3d_rocm tried every tier for {self.what}. {detail}")
        self.failures.clear()  # run() raises it: no cycle through this object
        if VERDICTS.first_time(("all", self.config)):
            self.audience.say(f"{self.what}: {first.found.reason}; nothing else worked: {detail}")
        return first.error


@contextlib.contextmanager
def _marked(spec: ConvSpec, name: str) -> Iterator[None]:
    with policy.memory_for(spec.device).in_flight(spec, name):
        yield
        if spec.device.type == "cuda":
            torch.cuda.synchronize(spec.device)


def needs_check(tier: Tier, config: Hashable, plan: Plan) -> bool:
    """Whether the tier's next result for this configuration is its first one."""
    return not (policy.is_trusted(tier.name, plan.setting) or VERDICTS.is_sound(tier.name, config))


def needs_trying(tier: Tier, config: Hashable, plan: Plan) -> bool:
    """Whether this is the process's first call of the vendor's library for the configuration."""
    if policy.is_trusted(tier.name, plan.setting) or not plan.setting.calls_vendor(tier.name):
        return False
    return not VERDICTS.is_sound(f"tried {tier.name}", config)


# After an exception: whether anything can still be done, and the sentence where nothing can.


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
        if not is_capturing(call.spec.device):
            torch.cuda.synchronize(call.spec.device)
    except RuntimeError as error:
        found = errors.classify(error)
        if found is not None and found.kind is Kind.DEVICE_LOST:
            return [error]
    return []


def is_capturing(device: torch.device) -> bool:
    """Inside the capture of a CUDA or HIP graph on the device's stream: nothing may wait for it."""
    if device.type != "cuda" or not memory.gpu_in_use():
        return False
    with torch.cuda.device(device):  # the current stream is that of the current device
        return torch.cuda.is_current_stream_capturing()


def can_retry(call: ConvCall) -> bool:
    """Not where something is recorded: a plain retry would lose what it records."""
    return not recorder() and not is_capturing(call.spec.device)


def translate(error: Exception, found: Rule, what: Named, places: str) -> Exception | None:
    """The sentence for a device error, chained to the original; None where there is none."""
    sentence: Exception | None = None
    if found.kind is Kind.DEVICE_MISMATCH:
        sentence = errors.mismatch_error(str(what), places, error)
    elif found.kind is Kind.DEVICE_LOST:
        sentence = errors.lost_error(str(what), found.reason, error)
    if sentence is not None:
        sentence.__cause__ = error
    return sentence
