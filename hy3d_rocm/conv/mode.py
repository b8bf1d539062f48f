"""What protect() returns, and the TorchFunctionMode of each time that is entered: it reads a call
and sends it to a tier.

What costs time (reading the arguments, asking tiers, store and memory) is done once for each
call signature and kept in an Entry; after that a call goes straight to the chosen tier.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

from hy3d_rocm.conv import asking, errors, faults, gradients, probing
from hy3d_rocm.conv.call import SIGNATURES, ConvCall, ConvSpec, Signature, make_spec, read_arguments
from hy3d_rocm.conv.cancels import is_cancel
from hy3d_rocm.conv.entries import Entry, backend_flags, key_of
from hy3d_rocm.conv.errors import DeviceLostError, Kind
from hy3d_rocm.conv.ladder import Climb, Settings, needs_check, needs_trying
from hy3d_rocm.conv.passing import Purse, Step
from hy3d_rocm.conv.policy import Plan, Planner, fixed_plan
from hy3d_rocm.conv.recording import recorder
from hy3d_rocm.conv.recovery import is_capturing, translate
from hy3d_rocm.conv.selfcheck import check_form
from hy3d_rocm.conv.stats import LOCK, Audience, Named, Stats, book, named
from hy3d_rocm.conv.tiers import CurrentTier, Tier
from hy3d_rocm.conv.verdicts import VERDICTS
from hy3d_rocm.conv.watching import Watching

# Parameters behave like tensors; anything else (FakeTensor, quantised or functorch wrappers)
# brings its own rules and is left alone.
_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
# Entries of one mode: shapes x layouts of a session. Rebuilt from nothing when exceeded.
_MAX_ENTRIES = 4096


class Local(threading.local):
    """What belongs to a thread."""

    def __init__(self) -> None:
        self.modes: list[RouterMode] = []  # innermost last
        self.busy = False  # an inner router handles the call that an outer one sees


LOCAL = Local()


class Guard:
    """What protect() returns: a re-entrant context manager. `stats` may be read at any time.

    It may be entered more than once and by several threads; it acts on the thread that entered.
    """

    def __init__(
        self,
        settings: Settings,
        tiers: tuple[Tier, ...],
        planner: Planner | None,
        *,
        active: bool = True,
    ) -> None:
        """planner: None where `tiers` are the order."""
        self.settings, self.tiers, self.planner = settings, tiers, planner
        self.active = active
        self.is_aside = False
        self.stats = Stats()

    def __enter__(self) -> Self:
        if self.active:
            faults.load_environment()
            mode = RouterMode(self, tuple(LOCAL.modes))
            mode.__enter__()  # type: ignore[no-untyped-call]  # torch has no annotation
            LOCAL.modes.append(mode)
            faults.entered(+1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.active:
            if not LOCAL.modes:
                raise RuntimeError(
                    "protect() is left on another thread than it was entered on; a scope belongs"
                    " to one thread"
                )
            mode = LOCAL.modes.pop()
            faults.entered(-1)
            mode.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]  # as above


class RouterMode(TorchFunctionMode):
    """The mode of one entered guard. Made anew at every entry."""

    def __init__(self, guard: Guard, outer: Sequence[RouterMode]) -> None:
        super().__init__()
        self.settings, self.tiers, self.planner = guard.settings, guard.tiers, guard.planner
        self.around = tuple(outer)
        self.pinned = None if self.planner is None else self.planner.policy.pinned
        around = [g for mode in outer for g in mode.guards]
        self.guards: tuple[Guard, ...] = tuple(dict.fromkeys((guard, *around)))
        listeners = dict.fromkeys(g.settings.on_event for g in self.guards)
        #: Whose statistics have these calls: none around where they are not what was asked for
        self.counting: tuple[Guard, ...] = (guard,)
        if outer and not guard.is_aside:
            self.counting = tuple(dict.fromkeys((guard, *outer[-1].counting)))
        self.audience = Audience(
            tuple(g.stats for g in self.counting), tuple(f for f in listeners if f is not None)
        )
        self.scope: probing.Scope = outer[0].scope if outer else probing.Scope()
        self.is_nested = bool(outer)
        self.entries: dict[Hashable, Entry] = {}
        self.purse = Purse(time.perf_counter)
        self.is_plain = not (self.settings.check_finite or self.settings.synchronize)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # The fast path: every function of torch comes through here.
        try:
            signature = SIGNATURES.get(func)
        except TypeError:  # a callable that can't be hashed is none of ours
            signature = None
        if signature is None or torch.compiler.is_compiling() or LOCAL.busy:
            return func(*args, **kwargs) if kwargs else func(*args)
        if not self.is_nested:
            return self._route(signature, func, args, kwargs or {})
        LOCAL.busy = True  # the modes around this one would route the same call again
        try:
            return self._route(signature, func, args, kwargs or {})
        finally:
            LOCAL.busy = False

    def _route(
        self, signature: Signature, func: Callable[..., Any], args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        values = read_arguments(signature, args, kwargs)
        if values is None:
            return func(*args, **kwargs)
        x, weight, bias = values[:3]
        for tensor in (x, weight, bias):
            if type(tensor) not in _PLAIN_TYPES and tensor is not None:
                if isinstance(tensor, torch.Tensor):
                    self._leave(f"a tensor is a {type(tensor).__name__}")
                return func(*args, **kwargs)
        ndim = signature.ndim or weight.dim() - 2
        if ndim not in (2, 3):
            return func(*args, **kwargs)
        wants_grad = torch.is_grad_enabled() and (
            x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
        )
        if wants_grad and (what := recorder()):
            self._leave(f"{what} records")
            return func(*args, **kwargs)
        try:
            entry = self.entry_of(values, ndim)
        except (TypeError, AttributeError, RuntimeError):
            return func(*args, **kwargs)  # arguments that PyTorch will refuse in its own words
        route = gradients.convolve if wants_grad else RouterMode.run
        return route(self, entry, values, func, args, kwargs)

    def _leave(self, reason: str) -> None:
        self.audience.left(reason, is_new=VERDICTS.first_time(("left", reason)))

    def for_backward(self) -> RouterMode:
        """For what a backward convolves, maybe on another thread: with entries of its own."""
        made = RouterMode(self.guards[0], self.around)
        made.scope = self.scope
        return made

    def entry_of(self, values: tuple[Any, ...], ndim: int) -> Entry:
        """What is known of such calls."""
        key = key_of(values, ndim)
        entry = self.entries.get(key)
        if entry is None:
            if len(self.entries) >= _MAX_ENTRIES:
                self.entries.clear()
            spec = make_spec(values, ndim)
            what = named(values[0], values[1], ndim)
            entry = self.entries[key] = Entry(spec, what, (spec, backend_flags()))
        return entry

    def run(
        self, entry: Entry, values: tuple[Any, ...], func: Callable[..., Any],
        args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        """The result of the best tier that gives one; autograd is the caller's."""
        spec = entry.spec
        if spec is None:
            return self._run_foreign(entry, values, func, args, kwargs)
        is_straight = entry.is_straight and entry.generation == VERDICTS.generation
        if not is_straight or faults.active():
            what = recorder()
            if what:
                self._leave(f"{what} records")
                return func(*args, **kwargs)
            is_old = entry.generation != VERDICTS.generation or entry.expires < time.monotonic()
            if is_old and not self._prepare(entry, self._call(spec, values, func, args, kwargs)):
                return func(*args, **kwargs)
            step = None if faults.active() else self._next_step(entry)
            if step is not None:
                return self._timed(entry, step, self._call(spec, values, func, args, kwargs))
            if entry.fast is None or faults.active():
                return self._climb(entry, self._call(spec, values, func, args, kwargs))
        failed: list[Exception] = []
        start = time.perf_counter()
        try:
            if entry.is_current:
                result = func(*args, **kwargs)
            else:
                call = self._call(spec, values, func, args, kwargs)
                assert entry.fast is not None
                result = entry.fast.run(call)
                check_form(result, call, synchronize=False)
        except Exception as error:  # noqa: BLE001  # the ladder raises again what is not ours
            failed.append(error)
        else:
            self._tell(entry, start, "ok", "")
            return result
        self._tell_failure(entry, start, failed[0])
        return self._climb(entry, self._call(spec, values, func, args, kwargs), failed)

    def _call(
        self, spec: ConvSpec, values: tuple[Any, ...], func: Callable[..., Any],
        args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> ConvCall:  # fmt: skip
        run_current = functools.partial(func, *args, **kwargs)
        return ConvCall(spec, values[0], values[1], values[2], run_current, self.settings.limits)

    def _climb(
        self, entry: Entry, call: ConvCall, failed: list[Exception] | None = None,
        plan: Plan | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """The ladder; `failed` has what the first tier's own attempt has just raised."""
        if failed is None:
            failed = []
            self.audience.add("calls")
        plan = plan or entry.plan
        assert plan is not None
        settings, audience = self.settings, self.audience
        widen = None
        if plan.is_brief and self.planner is not None:
            widen = functools.partial(self.planner.plan, call, entry.config, in_full=True)
        climb = Climb(call, entry.what, entry.config, plan, settings, audience, self.scope, widen)
        try:
            result = climb.run(failed)
        except RuntimeError as error:  # of a question to the device; else it is translated already
            if asking.is_lost(error) and not isinstance(error, DeviceLostError):
                raise errors.lost_error(str(entry.what), asking.words(error), error) from error
            raise
        if entry.fast is None:
            self._look_for_fast(entry)
        if entry.watching is not None and climb.winner is not plan.tiers[0]:
            entry.watching.failed(plan.tiers[0].name)
        return result

    def _prepare(self, entry: Entry, call: ConvCall) -> bool:
        """Makes the plan; False where that failed, so that PyTorch has to take the call."""
        try:
            self._refresh(entry, call)
        except Exception as error:  # noqa: BLE001  # raises again what is not ours
            self._not_planned(entry, error)
            self.audience.add("calls")
            return False
        return True

    def _not_planned(self, entry: Entry, error: Exception) -> None:
        """What planning raises is never a reason to lose a call, unless the device is lost."""
        if is_cancel(error) or isinstance(error, DeviceLostError):
            raise error
        if asking.is_lost(error):
            raise errors.lost_error(str(entry.what), asking.words(error), error) from error
        if VERDICTS.first_time(("planning", asking.words(error))):
            self.audience.say(
                f"{entry.what}: the router failed ({asking.words(error)}); such calls are computed"
                " by PyTorch as it is set up"
            )

    def _refresh(self, entry: Entry, call: ConvCall) -> None:
        """The plan, made anew if anything that it hangs on has changed."""
        generation = VERDICTS.generation
        standing = VERDICTS.standing((t.name for t in self.tiers), entry.config)
        is_late = entry.expires < time.monotonic()
        if entry.plan is None or is_late or standing != entry.standing:
            if self.planner is None:
                entry.plan = entry.plan or fixed_plan(self.tiers, call)
            else:
                entry.plan = self._make_plan(self.planner, entry, call)
            entry.expires = entry.plan.expires
            entry.recovers = bool(
                entry.plan.tiers and entry.plan.tiers[0].name != entry.plan.preferred
            )
            entry.watching = Watching.after(entry.watching, entry.plan, call.spec, self.purse)
        entry.generation, entry.standing = generation, standing
        self._look_for_fast(entry)

    def _make_plan(self, planner: Planner, entry: Entry, call: ConvCall) -> Plan:
        plan = planner.plan(call, entry.config)
        if plan.probe is None or is_capturing(call.spec.device):
            return plan
        is_probed = self.scope.probe(call.spec, plan.probe, entry.config, entry.what, self.audience)
        return planner.plan(call, entry.config) if is_probed else plan

    def _look_for_fast(self, entry: Entry) -> None:
        """Whether calls may go straight to the first tier of the plan."""
        plan, config = entry.plan, entry.config
        entry.fast, entry.is_current, entry.is_straight = None, False, False
        if plan is None or not plan.tiers or not self.is_plain or entry.spec is None:
            return
        first = plan.tiers[0]
        is_current = isinstance(first, CurrentTier)
        if plan.is_fixed and not is_current:
            return
        if any(VERDICTS.standing((first.name,), config)) or first.name == "cpu":
            return
        if needs_check(first, config, plan) or needs_trying(first, config, plan):
            return
        if not (is_current or plan.is_roomy):
            return  # it is asked at each call whether it still fits
        entry.fast, entry.is_current = first, is_current
        entry.is_straight = is_current and entry.watching is None and entry.expires == math.inf
        entry.rows = self.audience.rows(entry.what, first.name, asking.workspace(first, entry.spec))

    def _next_step(self, entry: Entry) -> Step | None:
        """What to time at this call of a layer that is measured in passing; mostly nothing."""
        watching = entry.watching
        if watching is None or entry.spec is None or is_capturing(entry.spec.device):
            return None
        try:
            if watching.collect():
                entry.generation = -1  # better known now: chosen anew at the next call
                entry.standing = ()
            elif watching.is_done:
                entry.watching = None
            step = watching.next_step()
        except Exception as error:  # noqa: BLE001  # as in _prepare
            entry.watching = None
            self._not_planned(entry, error)
            return None
        return step if step.timed else None

    def _timed(self, entry: Entry, step: Step, call: ConvCall) -> torch.Tensor:
        """The call, computed by the tier that is to be measured if that can."""
        watching, plan = entry.watching, entry.plan
        assert watching is not None
        assert plan is not None
        if step.tier != plan.tiers[0].name:
            tier = next(t for t in plan.tiers if t.name == step.tier)  # offered by this plan
            others = tuple(t for t in plan.tiers if t is not tier)
            plan = replace(plan, tiers=(tier, *others), preferred=tier.name)
        with watching.timing(step.tier):
            return self._climb(entry, call, plan=plan)

    def _tell(self, entry: Entry, start: float, outcome: str, detail: str) -> None:
        """Books a call and its first attempt in one go."""
        seconds = time.perf_counter() - start
        audience = self.audience
        with LOCK:
            for stats in audience.stats:
                stats.calls += 1
                stats.recovered += entry.recovers and not detail
            for row in entry.rows:
                row.calls += 1
                row.seconds += seconds
                if seconds > row.max_seconds:
                    row.max_seconds = seconds
                if detail:
                    row.failures += 1
        if audience.listeners:
            tier = "current" if entry.fast is None else entry.fast.name
            audience.tell(start, tier, entry.what, seconds, outcome, detail)

    def _tell_failure(self, entry: Entry, start: float, error: Exception) -> None:
        found = errors.classify(error)
        is_retried = found is not None and found.kind in errors.RETRIED and entry.spec is not None
        self._tell(entry, start, "failed" if is_retried else "raised", errors.first_line(error))

    def computed(self, what: Named, tier: str, seconds: float) -> None:
        """Counts a convolution that somebody has computed without asking this mode."""
        book(self.audience.rows(what, tier), seconds)
        self.audience.add("calls")

    def _run_foreign(
        self, entry: Entry, values: tuple[Any, ...], func: Callable[..., Any],
        args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        """A call that is not for the ladder: PyTorch's result, or PyTorch's words."""
        if not entry.rows and self.tiers[0].name == "current":
            entry.rows = self.audience.rows(entry.what, "current")
        start = time.perf_counter()
        failed: list[Exception] = []
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self._tell_failure(entry, start, error)
            if errors.classify(error) is None:
                self.audience.add("raised")
                raise
            failed.append(error)
        else:
            self._tell(entry, start, "ok", "")
            return result
        self._raise_foreign(entry, values, failed)
        return None

    def _raise_foreign(
        self, entry: Entry, values: tuple[Any, ...], failed: list[Exception]
    ) -> None:
        """The error of a call that is not for the ladder: in a sentence if about devices."""
        error = failed.pop()
        self.audience.add("raised")
        found = errors.classify(error)
        tensors = [t for t in values[:3] if t is not None]
        names = ("input", "weight", "bias")
        places = ", ".join(
            f"{n} on {t.device}" for n, t in zip(names, values, strict=False) if t is not None
        )
        is_spread = len({t.device for t in tensors}) > 1
        if found is not None and found.kind is Kind.UNSUPPORTED and is_spread:
            # With cuDNN or MIOpen off, a CPU input and a GPU weight end as "Could not run
            # 'aten::slow_conv3d_forward' with arguments from the 'CUDA' backend".
            found = errors.Classified(Kind.DEVICE_MISMATCH, found.reason, found.rule)
        try:
            raise (found and translate(error, found, entry.what, places)) or error
        finally:
            del error
