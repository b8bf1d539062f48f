"""What the process has learnt: which tier failed for which configuration, and what was said; how
long which failure is remembered: docs/router.md. What holds beyond the process is in
hy3d_rocm.conv.verdict_store.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from hy3d_rocm.conv.errors import Kind, Rule, described, is_compile_error

# Shapes of a long session: a video VAE has about 60, each resolution brings its own. The oldest
# is dropped, which costs one more failing attempt.
_CAPACITY = 4096

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True)
class Verdict:
    """Why a tier is left out. `scope` and `free` matter for out of memory only."""

    kind: Kind
    reason: str
    scope: object = None
    free: int | None = None
    needed: int = 0


class _Recent(OrderedDict[_K, _V]):
    """Of the keys that were set, the last ones."""

    def __setitem__(self, key: _K, value: _V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > _CAPACITY:
            self.popitem(last=False)


class Verdicts:
    """A bounded, thread-safe map (tier, configuration) -> Verdict.

    `generation` changes with every change, so that a reader may cache "nothing known".
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: _Recent[tuple[str, Hashable], Verdict] = _Recent()
        self._said: _Recent[Hashable, None] = _Recent()
        self._broken: dict[str, Verdict] = {}
        self._symptoms: _Recent[tuple[str, str], Hashable] = _Recent()
        self.generation = 0

    def record(self, tier: str, config: Hashable, verdict: Verdict) -> None:
        with self._lock:
            self._known[tier, config] = verdict
            self.generation += 1

    def get(
        self, tier: str, config: Hashable, scope: object, free: Callable[[], int | None]
    ) -> Verdict | None:
        """The verdict that holds now; one about memory that no longer holds is dropped."""
        verdict = self._known.get((tier, config))
        if verdict is None or verdict.kind is not Kind.OUT_OF_MEMORY:
            return verdict or self._broken.get(tier)
        if verdict.scope is scope:
            now = free()
            if now is None or verdict.free is None or now < verdict.free + verdict.needed:
                return verdict
        with self._lock:
            self._known.pop((tier, config), None)
            self.generation += 1
        return None

    def failing(self, tier: str, config: Hashable) -> Verdict | None:
        """Why the tier can't do this configuration, where that holds for the process."""
        verdict = self._known.get((tier, config))
        if verdict is None or verdict.kind is Kind.OUT_OF_MEMORY:
            return self._broken.get(tier)
        return verdict

    def break_tier(self, tier: str, reason: str) -> bool:
        """Leaves the tier out for every configuration; whether that is new."""
        with self._lock:
            if tier in self._broken:
                return False
            self._broken[tier] = Verdict(Kind.BACKEND, reason)
            self.generation += 1
            return True

    def mend_tier(self, tier: str) -> None:
        """It has computed something, as a last resort: it is not broken as a whole."""
        with self._lock:
            if self._broken.pop(tier, None) is not None:
                self.generation += 1
            for key in [k for k in self._symptoms if k[0] == tier]:
                del self._symptoms[key]

    def is_seen_elsewhere(self, tier: str, symptom: str, config: Hashable) -> bool:
        """Whether the tier failed like this at another configuration; notes this one."""
        with self._lock:
            return self._symptoms.setdefault((tier, symptom), config) != config

    def standing(self, tiers: Iterable[str], config: Hashable) -> tuple[Verdict | None, ...]:
        """What is remembered of each tier; to see whether anything has changed."""
        return tuple(self._known.get((tier, config)) or self._broken.get(tier) for tier in tiers)

    def is_sound(self, tier: str, config: Hashable) -> bool:
        """Whether the tier's first result for this configuration has been checked."""
        return ("sound", tier, config) in self._said

    def mark_sound(self, tier: str, config: Hashable) -> None:
        self.first_time(("sound", tier, config))

    def first_time(self, event: Hashable) -> bool:
        """True once for each event: what was logged is not logged again."""
        with self._lock:
            if event in self._said:
                return False
            self._said[event] = None
            return True

    def forget(self) -> int:
        """Drops everything; how many verdicts there were."""
        with self._lock:
            count = len(self._known)
            for each in (self._known, self._said, self._broken, self._symptoms):
                each.clear()
            self.generation += 1
            return count

    def __len__(self) -> int:
        return len(self._known)


VERDICTS = Verdicts()

# The tiers that a fault without a shape switches off as a whole. What a library of convolutions
# says (vendor, conv2d, current) hangs on the shape too often.
_BREAKABLE = frozenset({"triton", "gemm", "native"})
_NO_COMPILER = re.compile(r"Failed to find C compiler|ld\.lld.*not found", re.IGNORECASE)
_OF_A_SHAPE = re.compile(r"MIOpen|CUDNN|size of the kernel's grid", re.IGNORECASE)


def breaks_tier(tier: str, config: Hashable, found: Rule, error: BaseException) -> bool:
    """Whether this failure makes the process give the tier up as a whole; notes it.

    So it is where no shape can do better (a module is missing, the compiler can't be run), or where
    another shape failed with the same text, numbers apart, that is no shape's fault.
    """
    text = described(error)
    if tier not in _BREAKABLE or found.kind is not Kind.BACKEND or is_compile_error(error):
        return False
    if _OF_A_SHAPE.search(text) or _OF_A_SHAPE.search(found.reason):
        return False
    # The files are programs: gcc, ld.lld.
    missing = (ImportError, subprocess.SubprocessError, FileNotFoundError, PermissionError)
    is_elsewhere = VERDICTS.is_seen_elsewhere(tier, re.sub(r"0x[0-9a-f]+|\d+", "#", text), config)
    if is_elsewhere or isinstance(error, missing) or _NO_COMPILER.search(str(error)):
        return VERDICTS.break_tier(tier, found.reason)
    return False


def forget() -> int:
    """Forgets every failure the process remembers, so that all tiers are tried again.

    For after a driver update, a freed card, a change of MIOpen's settings, or a test. Returns
    how many verdicts were dropped.
    """
    return VERDICTS.forget()
