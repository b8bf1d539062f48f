"""PatchSet: replaces attributes of other people's classes, all of them or none, and takes it back.

What stands at the attribute afterwards is a guard that asks at each call whether its set is active.
So a set takes effect at one moment, a revert takes effect although somebody has kept or wrapped the
guard, and whoever asks for the signature, name or doc sees the original's. An error that the
original raises leaves the guard without a frame of ours: who reads "hy3d_rocm" in the traceback of
a node that has failed by itself looks in the wrong place.
"""

from __future__ import annotations

import dis
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, Final

logger = logging.getLogger("hy3d_rocm")


MISSING: Final = object()  # in place of an attribute that is absent
# Attributes are the process's, so one lock serves all sets. Re-entrant: a `make` may apply a set.
_LOCK = threading.RLock()
_HELD: list[_Record] = []  # what stands for some set now, in the order in which it was made


class PatchError(RuntimeError):
    """A set could not be applied; nothing is changed. The text is a sentence."""


@dataclass(frozen=True)
class Change:
    """Replace attribute `name` of `owner` (a class, a module or an object with a __dict__).

    make: original -> replacement. For a classmethod or staticmethod the original is the function
    inside, and what comes back is put into the same kind again; else it is the attribute as it
    stands.
    added: the attribute may be absent. `make` then gets MISSING, what it returns is set as it is
    (so a classmethod must come back as one), and the revert deletes it.
    """

    owner: Any
    name: str
    make: Callable[[Any], Any]
    added: bool = False

    def is_at(self, other: Change) -> bool:
        """Whether both are of the same attribute."""
        return self.owner is other.owner and self.name == other.name


class _Record:
    """One replaced attribute: what stood there, what stands there now, and for whom."""

    def __init__(self, change: Change, holder: PatchSet) -> None:
        self.change = change
        self.holders: tuple[PatchSet, ...] = (holder,)
        self.raw, self.was_own = _look_up(change.owner, change.name)
        if self.raw is MISSING and not change.added:
            raise PatchError(f"{where(change)} does not exist")
        # The record of another set that has put it there.
        at_once = (r for r in reversed(_HELD) if r.change.is_at(change))
        self.below = next((r for r in at_once if r.installed is self.raw), None)
        self.installed: Any = _replacement(self)

    @property
    def live(self) -> bool:
        """Whether any set that holds the change is active."""
        return any(holder.active for holder in self.holders)


class PatchSet:
    """Changes that belong together. Thread-safe; `apply` and `revert` may be called repeatedly."""

    def __init__(self, label: str = "") -> None:
        self.label = label
        self.active = False  # whether the changes take effect
        self._records: list[_Record] = []

    def apply(self, changes: Sequence[Change]) -> bool:
        """Make all changes, or none and PatchError. False if the set is active already. A change
        that another set has made already (same owner, name and `make`) is shared and ends with the
        last set that has it. A BaseException from `make` goes on as it is, with nothing changed."""
        with _LOCK:
            if self.active:
                return False
            fresh: list[_Record] = []
            try:
                for change in changes:
                    self._prepare(change, fresh)
                for record in fresh:
                    self._records.append(record)
                    _HELD.append(record)
                    _install(record)
            except BaseException:
                self._take_back()
                raise
            self.active = True
            return True

    def revert(self) -> tuple[str, ...]:
        """Take the changes back; the names of attributes that are left because somebody has
        replaced or wrapped ours since. Ours is inert in there."""
        with _LOCK:
            return self._take_back()

    def _prepare(self, change: Change, fresh: list[_Record]) -> None:
        """Make one replacement without setting it, or join the set that has made it."""
        if any(record.change.is_at(change) for record in fresh):
            raise PatchError(f"{where(change)} is changed twice in one set; make it one change")
        for record in _HELD:
            if record.change.is_at(change) and record.change.make is change.make:
                record.holders += (self,)
                self._records.append(record)
                return
        try:
            fresh.append(_Record(change, self))
        except PatchError:
            raise
        except Exception as error:
            raise PatchError(
                f"the replacement of {where(change)} could not be made: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _take_back(self) -> tuple[str, ...]:
        """Undo what is held, last first; names of the attributes that could not be put back."""
        self.active = False
        left = []
        for record in reversed(self._records):
            record.holders = tuple(holder for holder in record.holders if holder is not self)
            if not record.holders:
                _HELD.remove(record)
                if not (_stands(record) and _put_back(record)):
                    left.append(where(record.change))
        self._records.clear()
        return tuple(left)


def _look_up(owner: Any, name: str) -> tuple[Any, bool]:
    """What stands at the attribute, and whether the owner itself has it (not a base class)."""
    if isinstance(owner, type):
        home = next((base for base in owner.__mro__ if name in base.__dict__), None)
        return (MISSING if home is None else home.__dict__[name]), home is owner
    found = getattr(owner, name, MISSING)  # may be made on demand, as modules do
    return found, name in owner.__dict__


def _replacement(record: _Record) -> Any:
    """What is set: the replacement behind a guard, in the original's kind of method."""
    owner, raw = record.change.owner, record.raw
    if isinstance(raw, classmethod | staticmethod):
        return type(raw)(_guarded(record, raw.__func__, record.change.make(raw.__func__)))
    made = record.change.make(raw)
    # On a class only functions are bound to the object: a guard in place of another callable
    # would be given one argument too many.
    if isinstance(raw, FunctionType) or (callable(raw) and not isinstance(owner, type)):
        return _guarded(record, raw, made)
    return made


def _guarded(record: _Record, original: Any, replacement: Any) -> Any:
    guard: Any
    if inspect.iscoroutinefunction(original):  # ComfyUI asks which nodes are async

        async def guard(*args: Any, **kwargs: Any) -> Any:
            try:
                return await (replacement if record.live else original)(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = without_ours(error, original)
                raise
    else:

        def guard(*args: Any, **kwargs: Any) -> Any:
            try:
                return (replacement if record.live else original)(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = without_ours(error, original)
                raise

    return functools.update_wrapper(guard, original)


def _install(record: _Record) -> None:
    change = record.change
    try:
        setattr(change.owner, change.name, record.installed)
    except Exception as error:
        raise PatchError(
            f"{where(change)} cannot be replaced: {type(error).__name__}: {error}"
        ) from error
    if not _stands(record):
        _put_back(record)  # no later step would know the value that its owner has made of ours
        raise PatchError(f"{where(change)} cannot be replaced: its owner keeps another value")


def _stands(record: _Record) -> bool:
    return record.change.owner.__dict__.get(record.change.name, MISSING) is record.installed


def _put_back(record: _Record) -> bool:
    owner, name = record.change.owner, record.change.name
    bottom = record  # sets may be reverted in any order: what a reverted one made never comes back
    while bottom.below is not None and not bottom.below.holders:
        bottom = bottom.below
    try:
        if bottom.was_own:
            setattr(owner, name, bottom.raw)
        else:
            delattr(owner, name)
    except Exception as error:  # noqa: BLE001  (the others must still be put back)
        logger.warning("hy3d_rocm: %s keeps an inert wrapper: %s", where(record.change), error)
        return False
    return True


def where(change: Change) -> str:
    """The attribute in words: "Hy3DDelightImage.process"."""
    owner = change.owner
    label = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", None)
    return f"{label or type(owner).__name__}.{change.name}"


_OURS = str(Path(__file__).resolve().parents[2])
_RAISE = dis.opmap["RAISE_VARARGS"]


def without_ours(error: BaseException, original: Callable[..., Any]) -> TracebackType | None:
    """The traceback of `error` without this package's frames; as it is where the error is ours.

    original: what stood where we stand. An error is ours if it did not come out of that, or if a
    `raise` of ours has made it; what a function of C raised that we called is not. To be set as
    `error.__traceback__` before a bare `raise`, which adds no frame.
    """
    entries = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    codes = [entry.tb_frame.f_code for entry in entries]
    is_ours = [code.co_filename.startswith(_OURS) for code in codes]
    raised_by_us = is_ours[-1] and codes[-1].co_code[entries[-1].tb_lasti] == _RAISE
    if raised_by_us or getattr(inspect.unwrap(original), "__code__", None) not in codes:
        return error.__traceback__
    found: TracebackType | None = None
    for entry, ours in zip(reversed(entries), reversed(is_ours), strict=True):
        if not ours:
            found = TracebackType(found, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return found
