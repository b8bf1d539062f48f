"""protect(): a scope in which a convolution that fails is computed in another way.

The scope is a TorchFunctionMode: PyTorch keeps those per thread, so nothing is patched, no flag
of the process is flipped, and other threads never notice. It sees torch.conv2d / conv3d as
nn.Conv*, torch.nn.functional, comfy.ops and diffusers layers call them.

It can't see: convolutions inside TorchScript functions and torch.compile'd code (they do not come
back to Python), transposed and 1D convolutions, and what other tensor subclasses do inside.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

from hy3d_rocm.conv import errors, faults
from hy3d_rocm.conv.call import SIGNATURES, ConvCall, ConvSpec, Signature, make_spec, read_arguments
from hy3d_rocm.conv.errors import Kind
from hy3d_rocm.conv.ladder import Audience, Climb, Named, Settings, named, translate
from hy3d_rocm.conv.stats import LOCK, OnEvent, Row, Stats
from hy3d_rocm.conv.tiers import CurrentTier, Limits, Tier, make_tier
from hy3d_rocm.conv.verdicts import VERDICTS

DEFAULT_TIERS = ("current", "native", "cpu")

# Parameters behave like tensors; anything else (FakeTensor, quantised or functorch wrappers)
# brings its own rules and is left alone.
_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
# Entries of one mode: shapes x layouts of a session. Rebuilt from nothing when exceeded.
_MAX_ENTRIES = 4096


class _Local(threading.local):
    def __init__(self) -> None:
        self.modes: list[_RouterMode] = []  # innermost last
        self.busy = False  # an inner router handles the call that an outer one sees


_local = _Local()


@dataclass
class _Entry:
    """What a mode knows about one call signature: read once, used at every call."""

    spec: ConvSpec | None
    what: Named
    config: Hashable
    rows: tuple[Row, ...]
    generation: int = -1
    known: bool = True


def _backend_flags() -> tuple[bool, bool]:
    """The switches that decide what "current" means (ComfyUI flips the first on RDNA3+)."""
    return torch._C._get_cudnn_enabled(), torch._C._get_mkldnn_enabled()


def _autocast(kind: str) -> Hashable:
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _key(values: tuple[Any, ...], ndim: int) -> Hashable:
    x, weight, bias, stride, padding, dilation, groups = values
    return (
        ndim, x.shape, x.stride(), x.dtype, x.device, weight.shape, weight.stride(), weight.dtype,
        weight.device, None if bias is None else (bias.shape, bias.dtype, bias.device),
        tuple(stride) if type(stride) is list else stride,
        tuple(padding) if type(padding) is list else padding,
        tuple(dilation) if type(dilation) is list else dilation,
        groups, torch._C._get_cudnn_enabled(), torch._C._get_mkldnn_enabled(),
        _autocast(x.device.type) if torch._C._is_any_autocast_enabled() else None,
    )  # fmt: skip


class _RouterMode(TorchFunctionMode):
    """The mode of one entered guard. Made anew at every entry."""

    def __init__(self, guard: Guard, outer: Sequence[_RouterMode]) -> None:
        super().__init__()
        self.settings = guard.settings
        around = [g for mode in outer for g in mode.guards]
        self.guards: tuple[Guard, ...] = tuple(dict.fromkeys((guard, *around)))
        listeners = (g.settings.on_event for g in self.guards)
        self.audience = Audience(
            tuple(g.stats for g in self.guards), tuple(f for f in listeners if f is not None)
        )
        self.scope: object = outer[0].scope if outer else object()
        self.is_nested = bool(outer)
        self.entries: dict[Hashable, _Entry] = {}
        first = self.settings.tiers[0]
        plain = not (self.settings.check_finite or self.settings.synchronize)
        self.may_run_plainly = plain and isinstance(first, CurrentTier)

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
        if signature is None or torch.compiler.is_compiling() or _local.busy:
            return func(*args, **kwargs) if kwargs else func(*args)
        if not self.is_nested:
            return self._route(signature, func, args, kwargs or {})
        _local.busy = True  # the modes around this one would route the same call again
        try:
            return self._route(signature, func, args, kwargs or {})
        finally:
            _local.busy = False

    def _route(
        self, signature: Signature, func: Callable[..., Any], args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        values = read_arguments(signature, args, kwargs)
        if values is None:
            return func(*args, **kwargs)
        x, weight, bias = values[:3]
        if type(x) not in _PLAIN_TYPES or type(weight) not in _PLAIN_TYPES:
            return func(*args, **kwargs)
        if bias is not None and type(bias) not in _PLAIN_TYPES:
            return func(*args, **kwargs)
        ndim = signature.ndim or weight.dim() - 2
        if ndim not in (2, 3):
            return func(*args, **kwargs)
        if torch.is_grad_enabled() and (
            x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
        ):
            self.audience.add("passed_through")
            return func(*args, **kwargs)
        try:
            entry = self._entry(values, ndim)
        except (TypeError, AttributeError, RuntimeError):
            return func(*args, **kwargs)  # arguments that PyTorch will refuse in its own words
        return self._run(entry, values, func, args, kwargs)

    def _entry(self, values: tuple[Any, ...], ndim: int) -> _Entry:
        key = _key(values, ndim)
        entry = self.entries.get(key)
        if entry is None:
            if len(self.entries) >= _MAX_ENTRIES:
                self.entries.clear()
            spec = make_spec(values, ndim)
            what = named(values[0], values[1], ndim)
            rows = self.audience.rows(what, "current") if self.may_run_plainly else ()
            entry = _Entry(spec, what, (spec, _backend_flags()), rows)
            self.entries[key] = entry
        if entry.generation != VERDICTS.generation:
            entry.generation = VERDICTS.generation
            entry.known = VERDICTS.knows(self.settings.tier_names, entry.config)
        return entry

    def _run(
        self, entry: _Entry, values: tuple[Any, ...], func: Callable[..., Any],
        args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        spec = entry.spec
        failed: list[Exception] = []
        if spec is None or (self.may_run_plainly and not entry.known and not faults.active()):
            start = time.perf_counter()
            try:
                result = func(*args, **kwargs)
            except Exception as error:
                found = errors.classify(error)
                is_retried = found is not None and found.kind in errors.RETRIED and spec is not None
                outcome = "failed" if is_retried else "raised"
                self._tell(entry, start, outcome, errors.first_line(error))
                if found is None:
                    self.audience.add("raised")
                    raise
                failed.append(error)
            else:
                self._tell(entry, start, "ok", "")
                return result
            if spec is None:
                self._raise_foreign(entry, values, failed)
        else:
            self.audience.add("calls")
        assert spec is not None
        run_current = functools.partial(func, *args, **kwargs)
        limits = self.settings.limits
        call = ConvCall(spec, values[0], values[1], values[2], run_current, limits)
        climb = Climb(call, entry.what, entry.config, self.settings, self.audience, self.scope)
        return climb.run(failed)

    def _tell(self, entry: _Entry, start: float, outcome: str, detail: str) -> None:
        """Books a call and its first attempt in one go."""
        seconds = time.perf_counter() - start
        audience = self.audience
        with LOCK:
            for stats in audience.stats:
                stats.calls += 1
            for row in entry.rows:
                row.calls += 1
                row.seconds += seconds
                if seconds > row.max_seconds:
                    row.max_seconds = seconds
                if detail:
                    row.failures += 1
        if audience.listeners:
            audience.tell(start, "current", entry.what, seconds, outcome, detail)

    def _raise_foreign(
        self, entry: _Entry, values: tuple[Any, ...], failed: list[Exception]
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


class Guard:
    """What protect() returns: a re-entrant context manager. `stats` may be read at any time.

    It may be entered more than once and by several threads; it acts on the thread that entered.
    """

    def __init__(self, settings: Settings, *, active: bool = True) -> None:
        self.settings = settings
        self.active = active
        self.stats = Stats()

    def __enter__(self) -> Self:
        if self.active:
            faults.load_environment()
            mode = _RouterMode(self, tuple(_local.modes))
            mode.__enter__()  # type: ignore[no-untyped-call]  # torch has no annotation
            _local.modes.append(mode)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.active:
            if not _local.modes:
                raise RuntimeError(
                    "protect() is left on another thread than it was entered on; a scope belongs"
                    " to one thread"
                )
            mode = _local.modes.pop()
            mode.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]  # as above


def protect(
    *,
    when: str = "always",
    tiers: Sequence[str | Tier] = DEFAULT_TIERS,
    budget: int | None = None,
    memory_threshold: float = 0.8,
    on_event: OnEvent | None = None,
    check_finite: bool = False,
    synchronize: bool = False,
    on_oom: str = "retry",
    threads: int | None = None,
    workspace_limit: int | None = None,
    cancel: object = None,
) -> Guard:
    """A scope in which conv2d and conv3d get their result although a back-end fails.

        with protect() as guard:
            frames = vae.decode(latents)
        print(guard.stats.table())

    Each call goes to the first of `tiers` that can: "current" (PyTorch as it is set up), "native"
    (PyTorch without MIOpen, cuDNN, oneDNN), "cpu" (our C conv3d; GPU tensors are copied). What
    failed is remembered for the process (hy3d_rocm.conv.forget() drops it).

    when: "always", since who writes `with protect():` asks for it; "amd" acts only if this
    PyTorch is a ROCm build, and otherwise enters nothing at all.
    budget: bytes that the native tier's im2col buffer and output may take; memory_threshold: share
    of the free memory that it may take. on_event: called with an Event for each attempt, on the
    calling thread; what it raises is not caught. check_finite: a tier that gives NaN or infinity
    for finite input has failed (costs a pass over the result, and a wait for the GPU).
    synchronize: wait for the GPU after each attempt, so that seconds are those of the kernel and
    errors come up at the call that made them. on_oom: "raise" lets an out-of-memory error pass to
    a caller who can do with less (smaller tiles), "retry" goes down the ladder. threads,
    workspace_limit, cancel: for the C conv3d.

    Calls with an input that requires grad (grad mode on) pass through untouched. Raises
    ValueError for a wrong argument or a wrong HY3D_FAULTS.
    """
    if when not in ("always", "amd"):
        raise ValueError(f"protect: when={when!r} is neither 'always' nor 'amd'")
    if on_oom not in ("retry", "raise"):
        raise ValueError(f"protect: on_oom={on_oom!r} is neither 'retry' nor 'raise'")
    if not 0 < memory_threshold <= 1:
        raise ValueError(f"protect: memory_threshold={memory_threshold} is not in (0, 1]")
    if budget is not None and budget < 0:
        raise ValueError(f"protect: budget={budget} bytes is negative; None means no budget")
    if isinstance(tiers, str) or not tiers:
        raise ValueError(f"protect: tiers={tiers!r} is not a list such as ['current', 'cpu']")
    cpu = {"threads": threads, "workspace_limit": workspace_limit, "cancel": cancel}
    made = tuple(make_tier(t, **cpu) if isinstance(t, str) else t for t in tiers)
    if len({tier.name for tier in made}) != len(made):
        raise ValueError(f"protect: tiers={tiers!r} names a tier twice")
    settings = Settings(
        made, Limits(budget, memory_threshold), on_event, check_finite, synchronize,
        raise_oom=on_oom == "raise",
    )  # fmt: skip
    return Guard(settings, active=when == "always" or torch.version.hip is not None)


class _FaultMode(TorchFunctionMode):
    """Lets injected faults of the current tier hit convolutions that nobody protects."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        signature = SIGNATURES.get(func)
        if signature is not None and not _local.modes:
            values = read_arguments(signature, args, kwargs or {})
            ndim = signature.ndim or 3
            spec = None if values is None else make_spec(values, ndim)
            if spec is not None and values is not None:
                call = ConvCall(spec, values[0], values[1], values[2], lambda: func(*args))
                faults.check("current", call, protected=False)
        return func(*args, **(kwargs or {}))


@contextmanager
def fault_mode() -> Iterator[None]:
    """For inject_faults: see _FaultMode."""
    with _FaultMode():
        yield
