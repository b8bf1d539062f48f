"""The cache of prepared weights: transformed once, used by every call with the same weights.

Weights are known by what they are: the key is a fingerprint of all their bytes, type, sizes and
strides, made at each call (`_core.fingerprint`, one pass at the speed of memory), and the layout.
PyTorch's version counter alone would not do. torch 2.13 does not count `param.data.copy_(...)`
(which is how ComfyUI patches weights in place), `param.data = ...`, what is written through NumPy
or the storage, or in inference mode to a tensor detached there; `module.to(dtype)` sets it to 0.

What is kept is bounded by a limit (HY3D_WEIGHT_CACHE_MB), chosen by the C core (Admission, whose
rules are in include/hy3d/cache.h), and let go of when the storage it was made from dies.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hy3d_rocm import _native, memory
from hy3d_rocm.units import GB, MB, size_text

_LOG = logging.getLogger("hy3d_rocm")
VARIABLE = "HY3D_WEIGHT_CACHE_MB"
_MOST_BYTES = 3 * GB

Print = tuple[int, int]  # what a fingerprint is
Key = tuple[Print, int]


@dataclass(frozen=True)
class CacheStats:
    """hits: requests that found their weights, those included that waited for another thread to
    make them. misses: the rest; of these `made` were prepared and `refused` were not kept (no
    room, a limit of 0, weights with gaps). evicted: gave way to others. entries, bytes: kept now.
    """

    hits: int
    misses: int
    made: int
    refused: int
    evicted: int
    entries: int
    bytes: int
    limit_bytes: int

    @property
    def hit_rate(self) -> float:
        """Share of the requests that were hits; 0 where there was none."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    def since(self, earlier: CacheStats) -> CacheStats:
        """The counters less those of `earlier`; entries and bytes as they are now."""
        names = ("hits", "misses", "made", "refused", "evicted")
        less = {name: getattr(self, name) - getattr(earlier, name) for name in names}
        return CacheStats(**less, entries=self.entries, bytes=self.bytes,
                          limit_bytes=self.limit_bytes)  # fmt: skip

    def text(self) -> str:
        """One line for logs and reports."""
        return (
            f"prepared weights: {self.hits} of {self.hits + self.misses} calls found theirs "
            f"({self.hit_rate:.0%}), {self.entries} kept in {size_text(self.bytes)} of "
            f"{size_text(self.limit_bytes)}, {self.refused} without room, {self.evicted} evicted"
        )


# HY3D_CACHE_REUSE_WINDOW of include/hy3d/cache.h.
_REUSE_WINDOW = 16


@dataclass
class _Owner:
    """A storage that weights were made from or found for: what it led to, how often, when last."""

    ref: weakref.ref[Any]
    keys: set[Key]
    uses: int = 0
    last: int = 0


class WeightCache:
    """Prepared weights of at most `limit_bytes`. All methods may be called by many threads.

    What a running call uses lives until the call ends, so that right after an eviction more than
    the limit may be in memory, by the layers that are being computed.
    """

    def __init__(
        self, limit_bytes: int, *, fingerprint: Callable[[Any, int], Print | None] | None = None
    ) -> None:
        """fingerprint: replaces `_core.fingerprint` (tests without the core)."""
        self._fingerprint = _native.fingerprint if fingerprint is None else fingerprint
        self._lock = threading.Lock()
        self._limit = limit_bytes
        self._admission = _native.Admission(limit_bytes)
        self._values: dict[Key, Any] = {}
        self._making: dict[Key, Future[Any]] = {}  # by one thread; others wait for them
        self._owners: dict[int, _Owner] = {}
        self._dead: deque[tuple[int, weakref.ref[Any]]] = deque()
        self._hits = self._misses = self._made = self._refused = 0

    def get(
        self,
        weight: Any,
        format: int,  # noqa: A002
        nbytes: int,
        make: Callable[[], Any],
        *,
        owner: Any = None,
        threads: int = 0,
    ) -> Any:
        """The prepared weights, made by `make()` where they are not here yet and may stay; else
        None: the call then transforms them as it runs. A scope of steady() limits more.

        weight: what is read (a detached tensor). format, nbytes: as `_core.conv3d_format` gives
        them. owner: the caller's own tensor, of which `weight` is a view; its storage's end is the
        end of what was made. make: called without a lock, by one of several threads that ask at
        the same time; the others wait for it. A MemoryError in it empties the cache and gives
        None; what else it raises passes to the caller that made it, and the others get None.
        """
        source = weight if owner is None else owner
        try:
            found = self._print_of(weight, source, threads) if 0 < nbytes <= self._limit else None
        except MemoryError:
            found = None
        if found is None:
            return self._refuse()
        key = (found, format)
        with self._locked():
            try:
                value = self._values[key] if self._admission.request(key) else None
            except MemoryError:  # a request that there is no memory to note is none
                value = None
            waiting = self._making.get(key)
            if value is not None or waiting is not None:
                self._hits += 1
                self._own(key, source)
            else:
                self._misses += 1
                if not self._reserve(key, nbytes):
                    self._refused += 1
                    return None
                making = self._making[key] = Future()
        if value is not None:
            return value
        if waiting is not None:
            value = waiting.result()
            return self._refuse(after_hit=True) if value is None else value

        def made() -> Any:
            """Where they were written to while they were read: neither these weights nor those."""
            value = make()
            return value if self._fingerprint(weight, threads) == found else None

        return self._make(key, making, made, source)

    def _reserve(self, key: Key, nbytes: int) -> bool:
        """Room for weights that were requested just now; then put or cancel must follow."""
        _, _, used, _, evicted = self._admission.info()
        if _SCOPE.most_bytes is not None and used + nbytes > _SCOPE.most_bytes:
            return False
        reserved = self._admission.reserve(key, nbytes)
        if self._admission.info()[4] != evicted:
            self._values = {k: v for k, v in self._values.items() if self._admission.has(k)}
        return reserved

    def stats(self) -> CacheStats:
        """The counters since the cache was made, and what it holds."""
        with self._locked():
            _, limit, used, entries, evicted = self._admission.info()
            return CacheStats(
                self._hits, self._misses, self._made, self._refused, evicted, entries, used, limit
            )

    def holds(self, owner: Any, format: int) -> bool:  # noqa: A002
        """Whether weights made from the storage behind `owner` are here in this layout; whether
        that was written to since, nobody looks."""
        storage = _storage(owner)
        with self._locked():
            known = self._owners.get(id(storage))
            if known is None or known.ref() is not storage:
                return False
            return any(key[1] == format and key in self._values for key in known.keys)

    def clear(self) -> int:
        """Gives all memory back; the bytes that were held. What calls use lives until they end."""
        with self._locked():
            self._owners.clear()
            self._values.clear()
            return self._admission.clear()

    def _refuse(self, *, after_hit: bool = False) -> None:
        with self._locked():
            self._hits -= after_hit
            self._misses += 1
            self._refused += 1

    def _print_of(self, weight: Any, source: Any, threads: int) -> Print | None:
        """What the weights are known by, None for those with gaps."""
        memo, version = _SCOPE.memo, _version(source)
        if memo is None or version is None:
            return self._fingerprint(weight, threads)
        state = (weight.data_ptr(), version, weight.dtype, weight.shape, weight.stride())
        known = memo.get(id(source))
        if known is not None and known[0]() is source and known[1] == state:
            return known[2]
        found = self._fingerprint(weight, threads)
        memo[id(source)] = (weakref.ref(source), state, found)
        return found

    def _make(self, key: Key, making: Future[Any], make: Callable[[], Any], source: Any) -> Any:
        value = None
        try:
            value = make()
        except MemoryError:
            freed = self.clear()
            _LOG.info("No memory for prepared weights: %s of others given back.", size_text(freed))
        finally:
            with self._locked():
                if value is None:
                    self._admission.cancel(key)
                else:
                    self._made += 1
                    if self._admission.put(key):
                        self._values[key] = value
                        self._own(key, source)
                if self._making.get(key) is making:
                    del self._making[key]
            making.set_result(value)
        return value

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            self._bury()
            yield
        self._sweep()

    def _own(self, key: Key, source: Any) -> None:
        """Ties a key to the storage behind a tensor."""
        storage = _storage(source)
        if storage is None:
            return
        name = id(storage)
        owner = self._owners.get(name)
        if owner is None or owner.ref() is not storage:
            if owner is not None:
                self._end(name, owner)
            owner = _Owner(weakref.ref(storage, lambda ref: self._ended(name, ref)), set())
            self._owners[name] = owner
        owner.keys.add(key)
        owner.uses += 1
        owner.last = self._admission.info()[0]

    def _ended(self, name: int, ref: weakref.ref[Any]) -> None:
        """A storage died. On any thread, perhaps one that holds the lock: so never waits for it."""
        self._dead.append((name, ref))
        self._sweep()

    def _sweep(self) -> None:
        while self._dead and self._lock.acquire(blocking=False):
            try:
                self._bury()
            finally:
                self._lock.release()

    def _bury(self) -> None:
        while self._dead:
            name, ref = self._dead.popleft()
            owner = self._owners.get(name)
            if owner is not None and owner.ref is ref:
                self._end(name, owner)

    def _end(self, name: int, owner: _Owner) -> None:
        """Drops what only a dead storage led to. One that was used once and died at once was a
        copy made for a call (a cast): the next call makes its like, so what it led to stays."""
        del self._owners[name]
        if owner.uses == 1 and self._admission.info()[0] - owner.last <= _REUSE_WINDOW:
            return
        for key in owner.keys:
            if not any(key in other.keys for other in self._owners.values()):
                self._values.pop(key, None)
                self._admission.drop(key)


class _Scope(threading.local):
    """memo: by a tensor's id, itself, its state and its fingerprint. most_bytes: see steady()."""

    memo: dict[int, tuple[weakref.ref[Any], Any, Print | None]] | None = None
    most_bytes: int | None = None


_SCOPE = _Scope()


@contextmanager
def steady(most_bytes: int | None = None) -> Iterator[None]:
    """On this thread and until the end, weights that were read once are not read again while their
    tensor lives at the same address with the same version counter; and none are prepared that would
    make the cache hold more than `most_bytes` (None: no limit but its own).

    For a decode that owns its model while it runs: nobody may write to weights behind the counter
    (see above) meanwhile. Outside of it every call reads them: 1 ms for 9 MB, some per cent of the
    time of the smallest layers (512 channels, 3x20x20) and below 1 % of a decode's.
    """
    outer = _SCOPE.memo, _SCOPE.most_bytes
    _SCOPE.memo = {} if _SCOPE.memo is None else _SCOPE.memo
    _SCOPE.most_bytes = most_bytes
    try:
        yield
    finally:
        _SCOPE.memo, _SCOPE.most_bytes = outer


def _version(tensor: Any) -> int | None:
    """None for inference tensors, which have none."""
    try:
        return int(tensor._version)
    except (AttributeError, RuntimeError):
        return None


def _storage(tensor: Any) -> Any:
    """What holds a tensor's memory and dies with it; None for what is no tensor."""
    get = getattr(tensor, "untyped_storage", None)
    return None if get is None else get()


def default_limit(total_bytes: int) -> int:
    """HY3D_WEIGHT_CACHE_MB, else 3 GB or a tenth of `total_bytes`, whichever is less."""
    text = os.environ.get(VARIABLE, "").strip()
    usual = min(_MOST_BYTES, total_bytes // 10)
    if not text:
        return usual
    try:
        megabytes = float(text)
    except ValueError:
        megabytes = math.nan
    if not 0 <= megabytes < 2**40:
        _LOG.warning(
            "%s is %r, which is no number of megabytes from 0 up: prepared weights get %s.",
            VARIABLE, text, size_text(usual),
        )  # fmt: skip
        return usual
    return int(megabytes * MB)


_made: WeightCache | None = None
_made_lock = threading.Lock()


def stats_now() -> CacheStats:
    """The figures of the process's cache, all 0 while there is none; makes none."""
    return CacheStats(*[0] * 8) if _made is None else _made.stats()


def give_back() -> int:
    """Empties the cache of this process where there is one: for when an allocation has failed.
    The bytes that were held."""
    return 0 if _made is None else _made.clear()


def cache() -> WeightCache:
    """The one of this process, made at the first call."""
    global _made
    with _made_lock:
        if _made is None:
            _made = WeightCache(default_limit(memory.host_total_bytes() or 0))
        return _made


def _begin_anew() -> None:
    """In a child after fork: threads that held locks or were making weights are not there."""
    global _made, _made_lock
    _made_lock = threading.Lock()
    _made = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
