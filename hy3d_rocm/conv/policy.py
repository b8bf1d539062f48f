"""From a call to its plan: what is asked of the tiers, the store and the device, and chosen.

choice.py decides; this module gathers. Everything a test wants to replace is one function here:
all_tiers (which tiers there are), setting_of (what the machine is), memory_for (the verdict store).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm import _native
from hy3d_rocm.conv import tiers
from hy3d_rocm.conv.call import ConvCall, ConvSpec, dtype_name
from hy3d_rocm.conv.choice import TIERS, Candidate, Policy, Setting, Work, choose
from hy3d_rocm.conv.errors import Kind
from hy3d_rocm.conv.tiers import Limits, Tier, base
from hy3d_rocm.conv.verdicts import VERDICTS

if TYPE_CHECKING:
    from hy3d_rocm.conv.probe import Outcome
    from hy3d_rocm.conv.verdict_store.records import Record
    from hy3d_rocm.conv.verdict_store.store import Store

_LOG = logging.getLogger("hy3d_rocm")

# A tier that fits this many times over is not asked again at each call.
_ROOMY = 4
# Where something lacked memory the plan is made anew after this time.
_CRAMPED_SECONDS = 1.0
# One shape of the vendor library during a decode; `hy3d-rocm tune` has patience.
PROBE_SECONDS = 30.0
_MAY_RECOVER = frozenset({Kind.NO_ALGORITHM, Kind.BACKEND, Kind.UNSUPPORTED})


class Memory:
    """What is known beyond this process about a device's convolutions: what the store has, the
    process's own if none is given. Without a device, as for a CPU, where nothing hangs: nothing."""

    def __init__(self, device: torch.device | None = None, store: Store | None = None) -> None:
        self._store: Store | None = None
        if device is not None:  # imported here: it is not for CPU tensors
            from hy3d_rocm.conv.verdict_store.records import Record, make_key, this_machine
            from hy3d_rocm.conv.verdict_store.store import store as own_store

            self._record, self._store = Record, own_store() if store is None else store
            self._key = functools.partial(make_key, machine=this_machine(device))

    def records(self, spec: ConvSpec) -> Mapping[str, Record]:
        """By tier."""
        return {} if self._store is None else self._store.records(self._key(spec))

    def put(self, spec: ConvSpec, tier: str, verdict: str, **fields: Any) -> None:
        """Adds a record; fields as in verdict_store.records.Record."""
        if self._store is not None:
            self._store.put(self._key(spec), self._record(tier, verdict, **fields))

    def in_flight(self, spec: ConvSpec, tier: str) -> AbstractContextManager[None]:
        """Around the first call of a tier that may take the process with it."""
        if self._store is None:
            return contextlib.nullcontext()
        return self._store.in_flight(self._key(spec), tier)


_NO_MEMORY = Memory()
_memories: dict[torch.device, Memory] = {}
_rates: dict[torch.device, _native.Rates] = {}


def memory_for(device: torch.device) -> Memory:
    """What is known about a device: the store for a GPU, nothing for the rest."""
    if device.type != "cuda":
        return _NO_MEMORY
    if device not in _memories:
        _memories[device] = Memory(device)
    return _memories[device]


def all_tiers(**cpu_options: Any) -> tuple[Tier, ...]:
    """Every tier that there is, in the order that decides between equals."""
    return tuple(tiers.make_tier(name, **cpu_options) for name in TIERS)


def setting_of(call: ConvCall) -> Setting:
    """Whose code PyTorch would run for this call as it is set up."""
    if call.spec.device.type != "cuda":
        return Setting(on_gpu=False)
    vendor_on = torch._C._get_cudnn_enabled()
    chosen = tiers.select_backend(_cheap(call))
    if "Miopen" in chosen or "Cudnn" in chosen:
        current = "vendor"
    elif "Slow" in chosen:
        current = "native"
    elif chosen == "unknown":  # padding that PyTorch applies itself before it chooses
        current = "vendor" if vendor_on else "native"
    else:
        current = "other"
    is_rocm = torch.version.hip is not None
    return Setting(on_gpu=True, is_rocm=is_rocm, current=current, vendor_on=vendor_on)


def _cheap(call: ConvCall) -> ConvCall:
    """The call with an input of no bytes where autocast would copy it to be asked about."""
    spec = call.spec
    if call.x.dtype == spec.dtype:
        return call
    empty = torch.empty(1, dtype=spec.dtype, device=spec.device).expand(call.x.shape)
    return replace(call, x=empty)


@dataclass(frozen=True)
class Plan:
    """The order of tiers for one configuration, while nothing changes.

    preferred: the tier that would be first, had none failed in this process. left_out: why each
    other tier is not in `tiers`. probe: see Choice. unmeasured: tiers worth measuring in passing,
    with their estimated seconds. spare: tiers that failed before and get another chance before a
    call is given up. expires: time.monotonic().
    """

    tiers: tuple[Tier, ...]
    setting: Setting
    preferred: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    probe: str | None = None
    unmeasured: tuple[tuple[str, float | None], ...] = ()
    spare: tuple[Tier, ...] = ()
    first_seconds: float | None = None  # measured, of the first tier
    is_roomy: bool = True  # the first tier would fit several times over
    expires: float = math.inf
    is_fixed: bool = False  # protect(tiers=...): the order is the caller's
    is_brief: bool = False  # only the first tier: the others have not been asked yet


def is_trusted(tier: str, setting: Setting) -> bool:
    """PyTorch as it is set up on a GPU that is not AMD's: neither checked nor recorded."""
    return tier == "current" and setting.on_gpu and setting.trusts_vendor


def known_as(tier: str, setting: Setting) -> str:
    """The name under which the verdict store has what this tier calls."""
    if tier == "current" and setting.on_gpu and setting.current in ("vendor", "native"):
        return setting.current
    return tier


class Planner:
    """Makes plans for one protect(). policy: None for protect(tiers=...): the order is as given."""

    def __init__(self, policy: Policy | None, given: Sequence[Tier], limits: Limits) -> None:
        self.policy = policy
        self.tiers = tuple(given)
        self._limits = limits

    def plan(self, call: ConvCall, config: Hashable, *, in_full: bool = False) -> Plan:
        """Asks every tier, the store and the device; some 0.1 ms. On a healthy machine that is
        not AMD's nobody is asked (importing Triton takes a second) unless `in_full`."""
        setting, spec = setting_of(call), call.spec
        if self.policy is None:
            return Plan(self.tiers, setting, self.tiers[0].name, is_fixed=True)
        is_healthy = setting.current == "vendor" and is_trusted("current", setting)
        is_healthy = is_healthy and VERDICTS.failing("current", config) is None
        if not in_full and is_healthy and self.policy.name in ("auto", "vendor-first"):
            current = tuple(tier for tier in self.tiers if tier.name == "current")
            return Plan(current, setting, "current", is_brief=True)
        work = work_of(spec)
        numbers = work.numbers()
        rates = _rates.setdefault(spec.device, _native.Rates())
        records = memory_for(spec.device).records(spec)
        for name, record in records.items():
            if name in TIERS and record.seconds is not None and record.verdict == "ok":
                rates.learn(TIERS.index(name), numbers, record.seconds)
        has_room = _room(spec, self._limits)
        known: dict[str, Candidate] = {}
        for tier in self.tiers:
            refused = base.refusal_of(tier, call, self._limits)
            own = records.get(known_as(tier.name, setting))
            # The host's memory is another one; what it lacks is asked for at each call.
            lacks = isinstance(refused, base.Shortage)
            fits = not lacks if tier.name == "cpu" else has_room(tier, own)
            failed = VERDICTS.failing(tier.name, config)
            known[tier.name] = Candidate(
                tier.name, refused, own, rates.seconds(TIERS.index(tier.name), numbers), fits,
                None if failed is None else failed.reason,
                failed is not None and failed.kind in _MAY_RECOVER,
                base.workspace_of(tier, spec),
            )  # fmt: skip
        choice = choose(self.policy, [*known.values()], setting, work.column_bytes)
        by_name = {tier.name: tier for tier in self.tiers}
        order = tuple(by_name[name] for name in choice.order)
        return Plan(
            order,
            setting,
            choice.preferred,
            left_out=choice.reasons,
            probe=choice.probe,
            unmeasured=tuple((name, known[name].estimate_seconds) for name in choice.unmeasured),
            spare=tuple(by_name[name] for name in choice.spare),
            first_seconds=known[choice.order[0]].seconds if order else None,
            is_roomy=bool(order) and has_room(order[0], None, _ROOMY),
            expires=time.monotonic() + _CRAMPED_SECONDS if choice.cramped else math.inf,
        )


def expected_seconds(spec: ConvSpec, tier: str) -> float | None:
    """The estimate for a warm call, None where there is none."""
    rates = _rates.setdefault(spec.device, _native.Rates())
    return rates.seconds(TIERS.index(tier), work_of(spec).numbers()) if tier in TIERS else None


def _room(spec: ConvSpec, limits: Limits) -> Callable[..., bool]:
    """Whether a tier's bytes fit so many times over, by what was measured (a record), else by what
    it predicts. The device is asked once, and only where it matters."""

    @functools.cache
    def allowed() -> float:
        free = base.free_bytes(spec.device)
        return math.inf if free is None else free * limits.memory_threshold

    def has_room(tier: Tier, record: Record | None, times: int = 1) -> bool:
        workspace = base.workspace_of(tier, spec)
        if record is not None and record.peak_bytes is not None:
            workspace = max(workspace, record.peak_bytes)
        need = workspace + spec.out_bytes
        if limits.budget is not None and need > limits.budget:
            return False
        return workspace <= base.SMALL_BYTES or times * need <= allowed()

    return has_room


def work_of(spec: ConvSpec) -> Work:
    """The size of a convolution, as estimates take it."""
    size = spec.dtype.itemsize
    numbers = math.prod(spec.x_size) + math.prod(spec.weight_size) + math.prod(spec.out_size)
    columns = 0 if spec.is_view else spec.column_elems() * spec.x_size[0] * spec.groups
    return Work(
        dtype_name(spec.dtype), float(spec.flops), float(numbers * size), float(spec.out_bytes),
        float(columns * size), math.prod(spec.kernel),
        spec.kernel[0] if spec.ndim == 3 else 1, spec.weight_size[1],
    )  # fmt: skip


def prove(spec: ConvSpec, tier: str, cancel: Any = None) -> str:
    """Lets a child process try the shape, and records what it says; the verdict.

    "ok", "slow-find", "hang", "error", or what is no verdict: "oom", "not-run".
    """
    from hy3d_rocm.conv import probe

    outcome = probe.probe([probe.Case(tier, spec)], limit_s=PROBE_SECONDS, cancel=cancel)[0]
    if not outcome.is_verdict:
        _LOG.warning("a probe of %s said nothing: %s", tier, outcome.detail or outcome.verdict)
    else:
        keep(memory_for(spec.device), spec, outcome)
    return outcome.verdict


def keep(memory: Memory, spec: ConvSpec, outcome: Outcome) -> None:
    """Records a probe's verdict."""
    memory.put(
        spec, outcome.case.tier, outcome.verdict, seconds=outcome.seconds,
        first_seconds=outcome.first_seconds, peak_bytes=outcome.peak_bytes,
        detail=outcome.detail, measured_by="probe",
    )  # fmt: skip
