"""Who stays in a cache that is too small: a shelf of things with sizes, and a rule for them.

A decoder asks for its layers' weights in turn, again and again. Where they are larger than the
cache, dropping the least recently used one drops each just before it is asked for: no hit at all.
So what is on the shelf stays, and by this rule gives way:

* to a thing that has come round: asked for, then other things, then asked for again, while the one
  that gives way was not asked for once. In a scan that repeats nothing gives way, and hits are the
  share that fits; after a change of the model the old one's things go at the second pass.
* Things that are asked for many times in a row (a layer computed chunk by chunk) and have no place
  share a guest's place: the fourth request takes it, by when doing without has cost what making
  the thing costs, and if the guest before has not been asked for lately. Room for it is made once,
  by those least recently used, and then kept free.

Pure: no lock, no clock but the number of requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["VISIT", "Shelf"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Requests within so many of each other are one visit. Layers of one block that take turns chunk by
# chunk lie 2 to 4 apart, eight threads at the same layer 8.
VISIT = 16
# A guest's place is taken by the request of this number in a visit, and from a guest that was not
# asked for in so many requests.
_ASKED, _PATIENCE = 4, 8
# Requests for things that are not here are remembered too: more than the layers of any decoder.
_REMEMBERED = 4096


@dataclass
class _Requests:
    """When a thing was asked for: the first and the last request of this visit, how many it has
    had, and the first one of the visit before (None: there was none)."""

    start: int
    last: int
    count: int = 1
    before: int | None = None


@dataclass
class _Thing(Generic[V]):
    value: V
    nbytes: int
    last: int
    guest: bool


class Shelf(Generic[K, V]):
    """Things by key, `limit` bytes of them at most, those included that are being made."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.clock = 0
        self.used = 0
        self.evicted = 0
        self._things: dict[K, _Thing[V]] = {}
        self._reserved: dict[K, tuple[int, bool]] = {}
        self._requests: OrderedDict[K, _Requests] = OrderedDict()
        self._guest_room = 0

    def __len__(self) -> int:
        return len(self._things)

    def __contains__(self, key: K) -> bool:
        return key in self._things

    def ask(self, key: K) -> V | None:
        """The thing, where it is here. Every request counts, also for what is not."""
        self.clock += 1
        known = self._requests.get(key)
        if known is None:
            self._requests[key] = _Requests(self.clock, self.clock)
            if len(self._requests) > _REMEMBERED:
                self._requests.popitem(last=False)
        else:
            self._requests.move_to_end(key)
            if self.clock - known.last > VISIT:
                known.before, known.start, known.count = known.start, self.clock, 0
            known.count += 1
            known.last = self.clock
        thing = self._things.get(key)
        if thing is None:
            return None
        thing.last = self.clock
        return thing.value

    def reserve(self, key: K, nbytes: int) -> bool:
        """Room for a thing that was asked for just now; then `put` or `cancel` must follow."""
        if key in self._things or key in self._reserved:
            return False
        room = self.limit - self._guest_room
        if self.used + nbytes <= room or self._take_from_stale(key, nbytes, room):
            return self._book(key, nbytes, guest=False)
        if self._requests[key].count >= _ASKED and self._take_guest_room(nbytes):
            return self._book(key, nbytes, guest=True)
        return False

    def put(self, key: K, value: V) -> bool:
        """Whether the thing is here now; not where everything was dropped meanwhile."""
        booked = self._reserved.pop(key, None)
        if booked is None:
            return False
        self._things[key] = _Thing(value, booked[0], self.clock, booked[1])
        return True

    def cancel(self, key: K) -> None:
        """Gives back what was reserved."""
        booked = self._reserved.pop(key, None)
        if booked is not None:
            self.used -= booked[0]

    def drop(self, key: K) -> None:
        """Lets go of one thing, if it is here."""
        thing = self._things.pop(key, None)
        if thing is not None:
            self.used -= thing.nbytes

    def clear(self) -> int:
        """Lets go of all things and forgets all requests; the bytes that were here."""
        held = sum(thing.nbytes for thing in self._things.values())
        self._things.clear()
        self._reserved.clear()
        self._requests.clear()
        self.used = self._guest_room = 0
        return held

    def _book(self, key: K, nbytes: int, *, guest: bool) -> bool:
        self._reserved[key] = (nbytes, guest)
        self.used += nbytes
        return True

    def _take_from_stale(self, key: K, nbytes: int, room: int) -> bool:
        """Things that were not asked for since the visit before this one began make room."""
        before = self._requests[key].before
        if before is None:
            return False
        stale = [k for k, thing in self._by_age() if thing.last < before]
        if self.used - sum(self._things[k].nbytes for k in stale) + nbytes > room:
            return False
        self._evict(stale, room - nbytes)
        return True

    def _take_guest_room(self, nbytes: int) -> bool:
        """The guest's place, if nobody has just used it; larger than half the shelf it never is."""
        guests = {k: thing for k, thing in self._things.items() if thing.guest}
        busy = any(guest for _, guest in self._reserved.values())
        if busy or any(self.clock - thing.last <= _PATIENCE for thing in guests.values()):
            return False
        if nbytes > self.limit // 2:
            return False
        self._evict(guests, -1)
        self._guest_room = max(self._guest_room, nbytes)
        self._evict([k for k, _ in self._by_age()], self.limit - self._guest_room)
        return self.used + nbytes <= self.limit

    def _by_age(self) -> list[tuple[K, _Thing[V]]]:
        return sorted(self._things.items(), key=lambda item: item[1].last)

    def _evict(self, keys: Iterable[K], most: int) -> None:
        """In that order, until no more than `most` bytes are used."""
        for key in keys:
            if self.used <= most:
                return
            self.drop(key)
            self.evicted += 1
