"""Fault injection: makes a tier of the router fail as a real back-end does. Off unless asked for.

    with inject_faults([Fault("current", "conv3d", MIOPEN_NO_ALGORITHM)]):
        ...

Besides raising, a fault may let the tier lie (Fault(effect="wrong"), "nan") or dawdle ("slow").

Scope: the thread that entered, so that two tests or two decodes do not disturb each other;
`scope="process"` for all threads. On that thread faults of the tier "current" also hit
convolutions outside every protect(), to show what happens without it.

For a running ComfyUI the environment variable HY3D_FAULTS does the same for every protect() of the
process: entries separated by ";", each `tier:op:shape:text` with optional `,every=2`, `,first=3`,
`,count=1`; text: a key of TEXTS, or wrong, nan, slow; the rest as in Fault. For example

    HY3D_FAULTS="current:conv3d:*:no_algorithm;native:conv3d:1x512x*:hip_oom,count=2"
"""

from __future__ import annotations

import fnmatch
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hy3d_rocm.conv.call import SIGNATURES, ConvCall, make_spec, read_arguments, size_text
from hy3d_rocm.conv.tiers import TIER_NAMES

_LOG = logging.getLogger("hy3d_rocm")

# Texts as users reported them; the links are in errors.toml beside the rule that knows each.
MIOPEN_NO_ALGORITHM = (
    "MIOpen Error: No suitable algorithm was found to execute the required convolution"
)
MIOPEN_UNKNOWN = "miopenStatusUnknownError"
MIOPEN_INTERNAL = "miopenStatusInternalError"
NO_ENGINE = "GET was unable to find an engine to execute this computation"
HIP_OOM = (
    "HIP out of memory. Tried to allocate 13.21 GiB. GPU 0 has a total capacity of 15.92 GiB of"
    " which 2.41 GiB is free."
)
CUDA_OOM = HIP_OOM.replace("HIP", "CUDA", 1)
CPU_OOM = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"
    " tried to allocate 14184386560 bytes. Error code 12 (Cannot allocate memory)"
)
BLOCK_ALLOCATOR = "HSA exception: MemoryRegion::BlockAllocator::alloc failed"
ILLEGAL_ACCESS = "HIP error: an illegal memory access was encountered"
DEVICE_ASSERT = "CUDA error: device-side assert triggered"
DEVICE_MISMATCH = (
    "Expected all tensors to be on the same device, but got weight is on cuda:0, different from"
    " other tensors on cpu (when checking argument in method wrapper_CUDA___slow_conv2d_forward)"
)
TYPE_MISMATCH = (
    "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same"
)

TEXTS = {  # "no_algorithm" and so on
    name.removeprefix("MIOPEN_").lower(): text
    for name, text in dict(globals()).items()
    if name.isupper() and isinstance(text, str)
}
ENVIRONMENT = "HY3D_FAULTS"

_OPS = ("conv2d", "conv3d", "conv2d_backward", "conv3d_backward", "*")
_EFFECTS = ("raise", "wrong", "nan", "slow")
_SLOW_SECONDS = 0.05
_WORDS = (*TEXTS, *_EFFECTS[1:])  # the last part of an entry of HY3D_FAULTS


@dataclass
class Fault:
    """Fails tier `tier` ("*": any) for matching calls with `exception(text)`, or does what `effect`
    says. op: conv2d, conv3d, conv2d_backward, conv3d_backward (raised faults only) or "*".

    effect: "raise"; "wrong" (every number of the result is off), "nan" (the result is NaN), "slow"
    (the call takes 50 ms longer).

    Of the matching attempts (counted from 0, per fault) those fail that are `first`,
    `first + every`, `first + 2 * every`, ...; at most `count` of them if it is not None.
    `shape` is a file-name pattern on the input's size as in "1x128x19x64x64"; `match` may look at
    the whole call in addition.
    """

    tier: str = "current"
    op: str = "*"
    text: str = MIOPEN_NO_ALGORITHM
    shape: str = "*"
    match: Callable[[ConvCall], bool] | None = None
    exception: Callable[[str], BaseException] = RuntimeError
    every: int = 1
    first: int = 0
    count: int | None = None
    effect: str = "raise"
    seen: int = field(default=0, init=False)
    fired: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.op not in _OPS:
            raise ValueError(f"Fault: op {self.op!r} is none of {', '.join(_OPS)}")
        if self.effect not in _EFFECTS:
            raise ValueError(f"Fault: effect {self.effect!r} is none of {', '.join(_EFFECTS)}")
        if self.every < 1 or self.first < 0 or (self.count is not None and self.count < 0):
            raise ValueError(
                f"Fault: every={self.every}, first={self.first}, count={self.count}: every must be"
                " at least 1, first and count at least 0"
            )

    def due(self, tier: str, call: ConvCall, op: str = "") -> bool:
        """Counts a matching attempt; whether it has to fail. op: the call's own without one."""
        if self.tier not in ("*", tier) or self.op not in ("*", op or call.spec.op):
            return False
        if not fnmatch.fnmatchcase(size_text(call.x.shape), self.shape):
            return False
        if self.match is not None and not self.match(call):
            return False
        with self._lock:
            index, self.seen = self.seen, self.seen + 1
            if index < self.first or (index - self.first) % self.every:
                return False
            if self.count is not None and self.fired >= self.count:
                return False
            self.fired += 1
            return True


class Local(threading.local):
    """What belongs to a thread."""

    def __init__(self) -> None:
        self.modes: list[Any] = []  # router.RouterMode of each protect(), innermost last


@dataclass(eq=False)
class _Source:
    """A scope of inject_faults, or ENVIRONMENT. thread: the one that it acts on, None for all."""

    faults: tuple[Fault, ...]
    thread: int | None = None
    is_environment: bool = False


LOCAL = Local()
#: Where faults come from now, on any thread
SOURCES: list[_Source] = []
_sources_lock = threading.Lock()
_environment = ""  # as it was read last


def _here() -> list[_Source]:
    """What acts on this thread; the environment last."""
    me = threading.get_ident()
    found = [source for source in tuple(SOURCES) if source.thread in (None, me)]
    return sorted(found, key=lambda source: source.is_environment)


def active() -> bool:
    """Whether any fault could hit this thread now."""
    return bool(SOURCES) and bool(_here())


def _due(tier: str, call: ConvCall, protected: bool, lies: bool, op: str = "") -> Iterator[Fault]:
    for source in _here():
        for fault in source.faults if protected or not source.is_environment else ():
            if (fault.effect in ("wrong", "nan")) == lies and fault.due(tier, call, op):
                yield fault


def check(tier: str, call: ConvCall, *, protected: bool = True, op: str = "") -> None:
    """Before a tier runs: raises what an injected fault says, or returns.

    Faults of the environment act inside protect() only. op: "conv3d_backward" for a backward.
    """
    for fault in _due(tier, call, protected, lies=False, op=op):
        if fault.effect == "slow":
            time.sleep(_SLOW_SECONDS)
        else:
            raise fault.exception(fault.text)


def distort(
    tier: str, call: ConvCall, result: torch.Tensor, *, protected: bool = True
) -> torch.Tensor:
    """After a tier has run: its result, made wrong where a fault says so."""
    for fault in _due(tier, call, protected, lies=True):
        result = torch.full_like(result, float("nan")) if fault.effect == "nan" else -result - 1
    return result


class _FaultMode(TorchFunctionMode):
    """Lets injected faults of the current tier hit convolutions that nobody protects."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        signature, kwargs, values, spec = SIGNATURES.get(func), kwargs or {}, None, None
        if signature is not None and not LOCAL.modes:
            values = read_arguments(signature, args, kwargs)
            spec = None if values is None else make_spec(values, signature.ndim or 3)
        if values is None or spec is None:
            return func(*args, **kwargs)
        call = ConvCall(spec, values[0], values[1], values[2], lambda: func(*args))
        check("current", call, protected=False)
        return distort("current", call, func(*args, **kwargs), protected=False)


@contextmanager
def inject_faults(
    faults: Fault | Iterable[Fault], *, scope: str = "thread"
) -> Iterator[tuple[Fault, ...]]:
    """Makes tiers fail until the block ends, for tests; yields the faults, whose counters can be
    read.

    scope: "thread" (this thread only) or "process". Blocks nest; all their faults act.
    """
    if scope not in ("thread", "process"):
        raise ValueError(f"inject_faults: scope {scope!r} is neither 'thread' nor 'process'")
    added = (faults,) if isinstance(faults, Fault) else tuple(faults)
    for fault in added:
        if not isinstance(fault, Fault):
            raise TypeError(f"inject_faults: {fault!r} is no Fault; give Fault(tier, op, text)")
    source = _Source(added, threading.get_ident() if scope == "thread" else None)
    with _sources_lock:
        SOURCES.append(source)
    try:
        with _FaultMode():
            yield added
    finally:
        with _sources_lock:
            SOURCES.remove(source)


def parse(text: str) -> tuple[Fault, ...]:
    """The faults of a HY3D_FAULTS value; ValueError with a sentence for a wrong one."""
    return tuple(_parse_entry(entry.strip()) for entry in text.split(";") if entry.strip())


def _parse_entry(entry: str) -> Fault:
    parts = entry.split(":")
    if len(parts) != 4:
        raise ValueError(
            f"{ENVIRONMENT}: {entry!r} is not tier:op:shape:text, such as"
            " current:conv3d:*:no_algorithm"
        )
    tier, op, shape, rest = parts
    key, *options = rest.split(",")
    tiers = (*TIER_NAMES, "*")
    for value, known, what in ((tier, tiers, "tier"), (op, _OPS, "op"), (key, _WORDS, "text")):
        if value not in known:
            raise ValueError(
                f"{ENVIRONMENT}: {what} {value!r} in {entry!r} is none of {', '.join(known)}"
            )
    numbers: dict[str, int] = {}
    for option in options:
        name, _, number = option.partition("=")
        if name not in ("every", "first", "count") or not number.isdigit():
            raise ValueError(
                f"{ENVIRONMENT}: {option!r} in {entry!r} is none of every=N, first=N, count=N"
            )
        numbers[name] = int(number)
    effect = "raise" if key in TEXTS else key
    return Fault(
        tier, op, TEXTS.get(key, ""), shape, effect=effect, every=numbers.get("every", 1),
        first=numbers.get("first", 0), count=numbers.get("count"),
    )  # fmt: skip


def load_environment() -> None:
    """Reads HY3D_FAULTS if it changed; says in one line that it acts."""
    global _environment
    text = os.environ.get(ENVIRONMENT, "")
    if text == _environment:
        return
    faults = parse(text)
    with _sources_lock:
        SOURCES[:] = [source for source in SOURCES if not source.is_environment]
        if faults:
            SOURCES.append(_Source(faults, is_environment=True))
        _environment = text
    if faults:
        _LOG.warning("fault injection is ON: %s=%s", ENVIRONMENT, text)
    else:
        _LOG.warning("fault injection is off: %s is empty", ENVIRONMENT)
