"""The scope that protect() opens: each convolution is computed by the tier that does it best.

The scope is a TorchFunctionMode: PyTorch keeps those per thread, so nothing is patched, no flag
of the process is flipped, and other threads never notice. What it sees: docs/router.md.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NoReturn, Self

import torch
from torch import is_grad_enabled as _is_grad_enabled
from torch._C import _get_cudnn_enabled, _get_mkldnn_enabled, _is_any_autocast_enabled
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from hy3d_rocm import _native
from hy3d_rocm.conv import attention, errors, fallback, faults, gradients
from hy3d_rocm.conv.call import (
    PLAIN,
    PLAIN_DEFAULTS,
    SIGNATURES,
    ConvCall,
    ConvSpec,
    Signature,
    make_spec,
    read_arguments,
)
from hy3d_rocm.conv.errors import DeviceLostError, Kind, described, is_cancel, is_lost
from hy3d_rocm.conv.fallback import Entry, Settings
from hy3d_rocm.conv.faults import LOCAL
from hy3d_rocm.conv.learning import OverheadBudget, ProbeBudget, Watching
from hy3d_rocm.conv.policy import Plan, Planner
from hy3d_rocm.conv.recording import recorder
from hy3d_rocm.conv.selfcheck import check_form
from hy3d_rocm.conv.stats import Audience, Stats, named
from hy3d_rocm.conv.tiers import CurrentTier, base
from hy3d_rocm.conv.verdicts import VERDICTS

__all__ = ["LOCAL", "Guard"]

# Parameters behave like tensors; anything else (FakeTensor, quantised or functorch wrappers)
# brings its own rules and is left alone.
_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
# Has C read a tensor; PyTorch has it since 2.13.
_READER = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


def _known_calls() -> _native.KnownCalls | None:
    """For the calls of a mode that go straight to PyTorch; None where C can't read tensors."""
    if _READER is None or not _native.available:
        return None
    return _native.KnownCalls(
        _READER, tuple(_PLAIN_TYPES), (_get_cudnn_enabled, _get_mkldnn_enabled),
        (_is_grad_enabled, _is_any_autocast_enabled, faults.SOURCES.__len__), perf_counter,
    )  # fmt: skip


# Entries of one mode: shapes x layouts of a session. Rebuilt from nothing when exceeded.
_MAX_ENTRIES = 4096


def _requires_grad(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)


class Guard:
    """What protect() returns: a re-entrant context manager. `stats` may be read at any time.

    It may be entered more than once and by several threads; it acts on the thread that entered.
    """

    def __init__(
        self, settings: Settings, planner: Planner, *, active: bool = True, is_aside: bool = False
    ) -> None:
        """is_aside: as aside() makes it."""
        self.settings, self.planner = settings, planner
        self.active, self.is_aside = active, is_aside
        self.stats = Stats()

    def __enter__(self) -> Self:
        if self.active:
            faults.load_environment()
            mode = RouterMode(self, tuple(LOCAL.modes))
            for stats in mode.audience.stats:
                stats.sources.append(mode.collect)
            mode.__enter__()  # type: ignore[no-untyped-call]  # torch has no annotation
            LOCAL.modes.append(mode)
        return self

    def __exit__(self, *raised: Any) -> None:
        if self.active:
            if not LOCAL.modes:
                raise RuntimeError(
                    "protect() is left on another thread than it was entered on; a scope belongs"
                    " to one thread"
                )
            mode = LOCAL.modes.pop()
            mode.collect()
            for stats in mode.audience.stats:
                stats.sources.remove(mode.collect)
            mode.__exit__(*raised)


_ATTENTION = Signature(0, ())
_SEEN = {**SIGNATURES, torch.nn.functional.scaled_dot_product_attention: _ATTENTION}


class RouterMode(TorchFunctionMode):
    """The mode of one entered guard, made anew at every entry: reads a call, sends it to a tier.

    What costs time (reading the arguments, asking tiers, store and memory) is done once for each
    call signature and kept in an Entry; after that a call goes straight to the chosen tier.
    """

    def __init__(self, guard: Guard, outer: Sequence[RouterMode]) -> None:
        super().__init__()
        self.settings, self.planner = guard.settings, guard.planner
        self.around = tuple(outer)
        policy = self.planner.policy
        self.pinned = None if policy is None else policy.pinned
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
        self.budget: ProbeBudget = outer[0].budget if outer else ProbeBudget()
        self.is_nested = bool(outer)
        # Of the thread: an inner router handles the call that an outer one sees
        self.busy: list[bool] = outer[0].busy if outer else [False]
        self.entries: dict[Hashable, Entry] = {}  # some by two keys
        self.known = _known_calls()
        self.known_since = -1  # VERDICTS.generation
        self.overhead = OverheadBudget(perf_counter)
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
            signature = _SEEN.get(func)
        except TypeError:  # a callable that can't be hashed is none of ours
            signature = None
        busy = self.busy
        if signature is _ATTENTION:  # while dynamo traces, too: what it calls is compiled
            return attention.call(func, args, kwargs or {})
        if signature is None or busy[0] or is_dynamo_compiling():
            return func(*args, **kwargs) if kwargs else func(*args)
        key: bytes | None = None
        busy[0] = self.is_nested  # the modes around this one would route the same call again
        try:
            if signature.names is PLAIN and not kwargs and self.known is not None:
                if self.known_since != VERDICTS.generation:
                    self._forget()
                failed = None
                try:
                    found = self.known.call(func, args)
                except Exception as error:  # noqa: BLE001  # the chain raises again what is not ours
                    failed = [error]
                else:
                    if found is not None and type(found) is not bytes:
                        return found
                    key = found
                if failed is not None:
                    return self._after_straight(failed, func, args)
            return self._look(key, signature, func, args, kwargs or {})
        finally:
            busy[0] = False

    def _look(
        self, key: bytes | None, signature: Signature, func: Callable[..., Any],
        args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        """A call that does not go straight to PyTorch, or is not known to. key: what C read."""
        if is_compiling():
            return func(*args, **kwargs)
        if key is not None and _is_any_autocast_enabled():
            key = None  # it has no dtype of autocast
        entry = None if key is None else self.entries.get(key)
        if entry is None:
            values = self._read(signature, args, kwargs)
            if values is None:
                return func(*args, **kwargs)
        else:
            values = args + PLAIN_DEFAULTS[len(args) :]
        wants_grad = _is_grad_enabled() and _requires_grad(values[0], values[1], values[2])
        if wants_grad and (what := recorder()):
            self._leave(f"{what} records")
            return func(*args, **kwargs)
        if entry is None:
            try:
                entry = self.entry_of(values, signature.ndim or values[1].dim() - 2)
            except (TypeError, AttributeError, RuntimeError):
                return func(*args, **kwargs)  # arguments that PyTorch will refuse in its own words
            if key is not None:
                self.entries[key] = entry
        if wants_grad:
            return gradients.convolve(self, entry, values, func, args, kwargs)
        if key is not None and entry.is_counted_later and entry.generation == self.known_since:
            assert self.known is not None  # it gave the key
            self.known.add(key, entry)
        return self.run(entry, values, func, args, kwargs)

    def _after_straight(
        self, failed: list[Exception], func: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        """The result of a call that went straight to PyTorch, and was not computed there."""
        assert self.known is not None
        known = self.known.failed()
        if known is None:  # it did not get there
            raise failed.pop()
        entry, start = known
        self._tell_failure(entry, start, failed[0])
        values = args + PLAIN_DEFAULTS[len(args) :]
        return self._fall_back(entry, self._call(entry.spec, values, func, args, {}), failed)

    def collect(self) -> None:
        """Books the calls that went straight to PyTorch since the last time."""
        for entry, calls, seconds, longest in [] if self.known is None else self.known.take():
            self.audience.count(entry.rows, seconds, calls=calls, longest=longest)

    def _forget(self) -> None:
        """Has every call looked at again."""
        self.collect()
        self.known_since = VERDICTS.generation
        self.known = _known_calls()

    def _read(
        self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        """The values of PLAIN; None where PyTorch alone knows what is asked."""
        values = read_arguments(signature, args, kwargs)
        if values is None:
            return None
        for tensor in values[:2] if values[2] is None else values[:3]:
            if type(tensor) not in _PLAIN_TYPES:
                if isinstance(tensor, torch.Tensor):
                    self._leave(f"a tensor is a {type(tensor).__name__}")
                return None
        return values if (signature.ndim or values[1].dim() - 2) in (2, 3) else None

    def _leave(self, reason: str) -> None:
        self.audience.left(reason, is_new=VERDICTS.first_time(("left", reason)))

    def for_backward(self) -> RouterMode:
        """For what a backward convolves, maybe on another thread: with entries of its own."""
        made = RouterMode(self.guards[0], self.around)
        made.budget = self.budget
        return made

    def entry_of(self, values: tuple[Any, ...], ndim: int) -> Entry:
        """What is known of such calls."""
        x, weight, bias, stride, padding, dilation, groups = values
        autocast: Hashable = None
        if _is_any_autocast_enabled() and torch.is_autocast_enabled(x.device.type):
            autocast = torch.get_autocast_dtype(x.device.type)
        cudnn, mkldnn = _get_cudnn_enabled(), _get_mkldnn_enabled()  # what "current" means
        key = (
            ndim, x.shape, x.is_contiguous() or x.stride(), x.dtype, x.device, weight.shape,
            weight.is_contiguous() or weight.stride(), weight.dtype, weight.device,
            None if bias is None else (bias.shape, bias.dtype, bias.device),
            tuple(stride) if type(stride) is list else stride,
            tuple(padding) if type(padding) is list else padding,
            tuple(dilation) if type(dilation) is list else dilation, groups, cudnn, mkldnn,
            autocast,
        )  # fmt: skip
        entry = self.entries.get(key)
        if entry is None:
            if x.is_mkldnn or weight.is_mkldnn:  # its key is that of a dense one
                raise RuntimeError("PyTorch's own business")
            if len(self.entries) >= _MAX_ENTRIES:
                self.entries.clear()
                self._forget()
            spec = make_spec(values, ndim)
            config = (spec, (cudnn, mkldnn))
            entry = self.entries[key] = Entry(spec, named(x, weight, ndim), config)
            if spec is None and self.planner.tiers[0].name == "current":  # PyTorch's alone
                entry.rows = self.audience.rows(entry.what, "current")
        return entry

    def run(
        self, entry: Entry, values: tuple[Any, ...], func: Callable[..., Any],
        args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        """The result of the best tier that gives one; autograd is the caller's."""
        call: ConvCall | None = None
        is_settled = entry.is_straight and entry.generation == VERDICTS.generation
        if entry.spec is not None and (not is_settled or faults.active()):
            if values[0].is_mkldnn or values[1].is_mkldnn:
                return func(*args, **kwargs)
            if what := recorder():
                self._leave(f"{what} records")
                return func(*args, **kwargs)
            call = self._call(entry.spec, values, func, args, kwargs)
            is_old = entry.generation != VERDICTS.generation or entry.expires < time.monotonic()
            if is_old and not self._refresh(entry, call):
                return func(*args, **kwargs)
            timed = None if faults.active() else self._to_time(entry, entry.spec)
            if timed is not None:
                return self._timed(entry, timed, call)
            if entry.fast is None or faults.active():
                return self._fall_back(entry, call)
        start = perf_counter()
        try:
            if call is None or isinstance(entry.fast, CurrentTier):
                result = func(*args, **kwargs)
            else:
                assert entry.fast is not None
                result = entry.fast.run(call)
                check_form(result, call, synchronize=False)
        except Exception as error:  # noqa: BLE001  # the chain raises again what is not ours
            failed = [error]
        else:
            self._tell(entry, start)
            return result
        self._tell_failure(entry, start, failed[0])
        if entry.spec is None:
            self._raise_foreign(entry, values, failed)
        return self._fall_back(
            entry, call or self._call(entry.spec, values, func, args, kwargs), failed
        )

    def _call(
        self, spec: ConvSpec, values: tuple[Any, ...], func: Callable[..., Any],
        args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> ConvCall:  # fmt: skip
        current = functools.partial(func, *args, **kwargs)
        return ConvCall(spec, values[0], values[1], values[2], current, self.settings.limits)

    def _fall_back(
        self, entry: Entry, call: ConvCall, failed: list[Exception] | None = None,
        plan: Plan | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """`failed` has what the first tier's own attempt has just raised."""
        if failed is None:
            failed = []
            self.audience.add("booked_calls")
        plan = plan or entry.plan
        assert plan is not None
        widen = None
        if plan.is_brief:
            widen = functools.partial(self.planner.plan, call, entry.config, in_full=True)
        chain = fallback.FallbackChain(self, call, entry, plan, widen)
        try:
            result = chain.run(failed)
        except RuntimeError as error:  # of a question to the device; else it is translated already
            if is_lost(error) and not isinstance(error, DeviceLostError):
                raise errors.lost_error(str(entry.what), described(error), error) from error
            raise
        if entry.fast is None:
            self._look_for_fast(entry)
        if entry.watching is not None and chain.winner is not plan.tiers[0]:
            entry.watching.failed(plan.tiers[0].name)
        return result

    def _not_planned(self, entry: Entry, error: Exception) -> None:
        """What planning raises is never a reason to lose a call, unless the device is lost."""
        if is_cancel(error) or isinstance(error, DeviceLostError):
            raise error
        if is_lost(error):
            raise errors.lost_error(str(entry.what), described(error), error) from error
        if VERDICTS.first_time(("planning", described(error))):
            self.audience.say(
                f"{entry.what}: the router failed ({described(error)}); such calls are computed"
                " by PyTorch as it is set up"
            )

    def _refresh(self, entry: Entry, call: ConvCall) -> bool:
        """The plan, made anew if anything that it hangs on has changed; False where that failed, so
        that PyTorch has to take the call."""
        generation = VERDICTS.generation
        try:
            standing = VERDICTS.standing((t.name for t in self.planner.tiers), entry.config)
            is_late = entry.expires < time.monotonic()
            if entry.plan is None or is_late or standing != entry.standing:
                entry.plan = plan = self._make_plan(entry, call)
                entry.expires = plan.expires
                entry.recovers = bool(plan.tiers and plan.tiers[0].name != plan.preferred)
                if plan.tiers and entry.watching is not None:
                    entry.watching.follow(plan)
                elif plan.unmeasured:
                    entry.watching = Watching(call.spec, self.overhead, plan)
            entry.generation, entry.standing = generation, standing
            self._look_for_fast(entry)
        except Exception as error:  # noqa: BLE001  # raises again what is not ours
            self._not_planned(entry, error)
            self.audience.add("booked_calls")
            return False
        return True

    def _make_plan(self, entry: Entry, call: ConvCall) -> Plan:
        plan = self.planner.plan(call, entry.config)
        if plan.probe is None or fallback.is_capturing(call.spec.device):
            return plan
        probe = (call.spec, plan.probe, entry.config, entry.what, self.audience)
        return self.planner.plan(call, entry.config) if self.budget.probe(*probe) else plan

    def _look_for_fast(self, entry: Entry) -> None:
        """Whether calls may go straight to the first tier of the plan."""
        plan, config = entry.plan, entry.config
        entry.fast, entry.is_straight, entry.is_counted_later = None, False, False
        if plan is None or not plan.tiers or not self.is_plain or entry.spec is None:
            return
        first = plan.tiers[0]
        is_current = isinstance(first, CurrentTier)
        if plan.is_fixed and not is_current:
            return
        if any(VERDICTS.standing((first.name,), config)) or first.name == "cpu":
            return
        if fallback.needs_check(first, config, plan) or fallback.needs_trying(first, config, plan):
            return
        if not (is_current or plan.is_roomy):
            return  # it is asked at each call whether it still fits
        entry.fast = first
        entry.is_straight = is_current and entry.watching is None and entry.expires == math.inf
        entry.is_counted_later = (
            entry.is_straight and not entry.recovers and not self.audience.listeners
        )
        predicted = base.workspace_of(first, entry.spec)
        entry.rows = self.audience.rows(entry.what, first.name, predicted)

    def _to_time(self, entry: Entry, spec: ConvSpec) -> str | None:
        """The tier to time at this call of a layer that is measured in passing; mostly none."""
        watching = entry.watching
        if watching is None or fallback.is_capturing(spec.device):
            return None
        try:
            if watching.collect():
                entry.generation = -1  # better known now: chosen anew at the next call
                entry.standing = ()
            elif watching.is_done:
                entry.watching = None
            return watching.to_time()
        except Exception as error:  # noqa: BLE001  # as in _refresh
            entry.watching = None
            self._not_planned(entry, error)
            return None

    def _timed(self, entry: Entry, timed: str, call: ConvCall) -> torch.Tensor:
        """The call, computed by the tier that is to be measured if that can."""
        watching, plan = entry.watching, entry.plan
        assert watching is not None
        assert plan is not None
        if timed != plan.tiers[0].name:
            tier = next(t for t in plan.tiers if t.name == timed)  # offered by this plan
            others = tuple(t for t in plan.tiers if t is not tier)
            plan = replace(plan, tiers=(tier, *others), preferred=tier.name)
        with watching.timing(timed):
            return self._fall_back(entry, call, plan=plan)

    def _tell(self, entry: Entry, start: float, outcome: str = "ok", detail: str = "") -> None:
        """Books a call and its first attempt in one go."""
        seconds = perf_counter() - start
        if detail:
            self.audience.count(entry.rows, seconds, failed=True)
        else:
            self.audience.count(entry.rows, seconds, recovered=entry.recovers)
        if self.audience.listeners:
            tier = "current" if entry.fast is None else entry.fast.name
            self.audience.tell(start, tier, entry.what, seconds, outcome, detail)

    def _tell_failure(self, entry: Entry, start: float, error: Exception) -> None:
        found = errors.classify(error)
        is_retried = found is not None and found.kind in errors.RETRIED and entry.spec is not None
        self._tell(entry, start, "failed" if is_retried else "raised", errors.first_line(error))

    def _raise_foreign(
        self, entry: Entry, values: tuple[Any, ...], failed: list[Exception]
    ) -> NoReturn:
        """Of a call that no other tier can take: PyTorch's words, in a sentence if they are about
        devices."""
        self.audience.add("raised")
        raised = failed.pop()
        found = errors.classify(raised)
        tensors = {
            name: tensor.device
            for name, tensor in zip(("input", "weight", "bias"), values, strict=False)
            if tensor is not None
        }
        if found is not None and found.kind is Kind.UNSUPPORTED and len({*tensors.values()}) > 1:
            # With cuDNN or MIOpen off, a CPU input and a GPU weight end as "Could not run
            # 'aten::slow_conv3d_forward' with arguments from the 'CUDA' backend".
            found = errors.Rule(Kind.DEVICE_MISMATCH, found.reason)
        places = ", ".join(f"{name} on {device}" for name, device in tensors.items())
        try:
            raise (found and fallback.translate(raised, found, entry.what, places)) or raised
        finally:
            del raised  # a frame that names the exception it raises is a cycle
