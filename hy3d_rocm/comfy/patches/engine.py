"""PatchSet: replaces attributes of other people's classes, all of them or none, and takes it back.

What stands at the attribute afterwards is a guard, a small function that asks at each call whether
its set is active and calls the replacement or the original. That makes three things simple: a set
that is being applied takes effect at one moment, a revert takes effect although somebody has kept
or wrapped the guard, and whoever asks for the signature, name or doc sees the original's. An error
that the original raises leaves the guard without a frame of ours: who reads "hy3d_rocm" in the
traceback of a node that has failed by itself looks in the wrong place.
"""

from __future__ import annotations

import dis
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, Final

logger = logging.getLogger("hy3d_rocm")


MISSING: Final = object()  # in place of an attribute that is absent
_RECORD = "__hy3d_rocm_record__"
# Attributes are the process's, so one lock serves all sets. Re-entrant: a `make` may apply a set.
_LOCK = threading.RLock()
_HELD: list[_Record] = []  # what stands for some set now, in the order in which it was made


class PatchError(RuntimeError):
    """A set could not be applied; nothing is changed. The text is a sentence."""


@dataclass(frozen=True)
class Change:
    """Replace attribute `name` of `owner` (a class, a module or an object with a __dict__).

    make: original -> replacement. For a classmethod or staticmethod the original is the function
    inside, and a plain function that comes back is put into the same kind again; for a property
    it is the property, and a property must come back; else it is the attribute as it stands.
    added: the attribute may be absent. `make` then gets MISSING, what it returns is set as it is
    (so a classmethod must come back as one), and the revert deletes it.
    """

    owner: Any
    name: str
    make: Callable[[Any], Any]
    added: bool = False

    def same_as(self, other: Change) -> bool:
        """Whether both do the same to the same attribute."""
        return self.owner is other.owner and self.name == other.name and self.make is other.make


class _Application:
    """One apply of a set. A set that is applied again gets a new one: guards of the old one that
    somebody kept stay inert."""

    def __init__(self) -> None:
        self.active = False
        self.records: list[_Record] = []


class _Record:
    """One replaced attribute: what stood there, what stands there now, and for whom."""

    def __init__(self, change: Change, raw: Any, was_own: bool) -> None:
        self.change = change
        self.raw = raw
        self.was_own = was_own
        self.installed: Any = MISSING
        self.below = _held_at(change, raw)
        self.holders: tuple[_Application, ...] = ()

    @property
    def live(self) -> bool:
        """Whether any set that holds the change is active."""
        return any(holder.active for holder in self.holders)


class PatchSet:
    """Changes that belong together. Thread-safe; `apply` and `revert` may be called repeatedly."""

    def __init__(self, label: str = "") -> None:
        self.label = label
        self._application: _Application | None = None

    @property
    def active(self) -> bool:
        """Whether the changes take effect."""
        application = self._application
        return application is not None and application.active

    def apply(self, changes: Sequence[Change]) -> bool:
        """Make all changes, or none and PatchError. False if the set is active already.

        Every replacement is made before the first is set. A change that another active set has
        made already (same owner, name and `make`) is shared and ends with the last set that has
        it. A BaseException from `make` goes on as it is, with nothing changed.
        """
        with _LOCK:
            if self.active:
                return False
            application = _Application()
            fresh: list[_Record] = []
            try:
                for change in changes:
                    _prepare(change, application, fresh)
                for record in fresh:
                    application.records.append(record)
                    _HELD.append(record)
                    _install(record)
            except BaseException:
                _take_back(application)
                raise
            application.active = True
            self._application = application
            return True

    def revert(self) -> tuple[str, ...]:
        """Take the changes back; the names of attributes that are left because somebody has
        replaced or wrapped ours since. Ours is inert in there."""
        with _LOCK:
            application, self._application = self._application, None
            return () if application is None else _take_back(application)


def _prepare(change: Change, application: _Application, fresh: list[_Record]) -> None:
    """Make one replacement without setting it, or join the set that has made it."""
    if any(r.change.owner is change.owner and r.change.name == change.name for r in fresh):
        raise PatchError(f"{where(change)} is changed twice in one set; make it one change")
    raw, was_own = _standing(change)
    shared = _live_record(raw, change)
    if shared is not None:
        shared.holders += (application,)
        application.records.append(shared)
        return
    record = _Record(change, raw, was_own)
    record.holders = (application,)
    try:
        record.installed = _replacement(record)
    except PatchError:
        raise
    except Exception as error:
        raise PatchError(
            f"the replacement of {where(change)} could not be made: {type(error).__name__}: {error}"
        ) from error
    fresh.append(record)


def _standing(change: Change) -> tuple[Any, bool]:
    """What stands at the attribute, and whether the owner itself has it (not a base class).

    Reverted guards of ours that somebody who kept them put back are looked through.
    """
    raw, was_own = _look_up(change.owner, change.name)
    if raw is MISSING and not change.added:
        raise PatchError(f"{where(change)} does not exist")
    while (record := _record_of(raw)) is not None and not record.live:
        raw, was_own = record.raw, was_own and record.was_own
    return raw, was_own


def _look_up(owner: Any, name: str) -> tuple[Any, bool]:
    if isinstance(owner, type):
        for base in owner.__mro__:
            if name in base.__dict__:
                return base.__dict__[name], base is owner
        return MISSING, False
    own = getattr(owner, "__dict__", None)
    if own is None:
        raise PatchError(f"{owner!r} has no __dict__; change its class instead")
    if name in own:
        return own[name], True
    if hasattr(type(getattr(type(owner), name, None)), "__set__"):
        kind = type(owner).__name__
        raise PatchError(f"{name} is a property of {kind}; change the class instead")
    found = getattr(owner, name, MISSING)  # may be made on demand, as modules do
    return found, name in owner.__dict__


def _replacement(record: _Record) -> Any:
    """What is set: the replacement behind a guard, in the original's kind of method."""
    change, raw = record.change, record.raw
    made = change.make(_inner(raw))
    if raw is MISSING:
        return made
    if isinstance(raw, property):
        if not isinstance(made, property):
            raise PatchError(f"{where(change)} is a property and {made!r} is none")
        return _guarded_property(record, raw, made)
    if isinstance(raw, classmethod | staticmethod):
        if isinstance(made, classmethod | staticmethod) and type(made) is not type(raw):
            raise PatchError(f"{where(change)} is a {type(raw).__name__}; {made!r} is another kind")
        return type(raw)(_guarded(record, raw.__func__, _inner(made)))
    # On a class only functions are bound to the object: a guard in place of another callable
    # would be given one argument too many.
    binds_alike = isinstance(raw, FunctionType) or not isinstance(change.owner, type)
    are_functions = all(callable(one) and not isinstance(one, type) for one in (raw, made))
    if binds_alike and are_functions:
        return _guarded(record, raw, made)
    return made


def _inner(raw: Any) -> Any:
    return raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw


def _guarded(record: _Record, original: Any, replacement: Any) -> Any:
    if replacement is original:
        return original
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

    functools.update_wrapper(guard, original)
    setattr(guard, _RECORD, record)
    return guard


def _guarded_property(record: _Record, raw: property, made: property) -> property:
    parts: list[Any] = []
    for original, replacement in (
        (raw.fget, made.fget), (raw.fset, made.fset), (raw.fdel, made.fdel),
    ):  # fmt: skip
        both = original is not None and replacement is not None
        parts.append(_guarded(record, original, replacement) if both else replacement)
    return property(parts[0], parts[1], parts[2], raw.__doc__)


def _record_of(raw: Any) -> _Record | None:
    """The record whose guard stands here. functools.wraps copies the mark into other people's
    wrappers, so the mark alone proves nothing."""
    function = raw.fget if isinstance(raw, property) else _inner(raw)
    record = getattr(function, "__dict__", {}).get(_RECORD)
    return record if isinstance(record, _Record) and record.installed is raw else None


def _live_record(raw: Any, change: Change) -> _Record | None:
    """The active record that does the same already, also under other people's wrappers."""
    at = raw
    while at is not None and at is not MISSING:
        mark = getattr(_inner(at), "__dict__", {}).get(_RECORD)
        if isinstance(mark, _Record) and mark.live and mark.change.same_as(change):
            return mark
        at = getattr(_inner(at), "__wrapped__", None)
    return None


def _held_at(change: Change, raw: Any) -> _Record | None:
    """The record of another set that has put `raw` there, if one has."""
    for record in reversed(_HELD):
        at = record.change
        if at.owner is change.owner and at.name == change.name and record.installed is raw:
            return record
    return None


def _install(record: _Record) -> None:
    change = record.change
    try:
        setattr(change.owner, change.name, record.installed)
    except Exception as error:
        raise PatchError(
            f"{where(change)} cannot be replaced: {type(error).__name__}: {error}"
        ) from error
    if change.owner.__dict__.get(change.name, MISSING) is not record.installed:
        _put_back(record)  # no later step would know the value that its owner has made of ours
        raise PatchError(f"{where(change)} cannot be replaced: its owner keeps another value")


def _take_back(application: _Application) -> tuple[str, ...]:
    """Undo what is held, last first; names of the attributes that could not be put back."""
    application.active = False
    left = []
    for record in reversed(application.records):
        record.holders = tuple(h for h in record.holders if h is not application)
        if not record.holders:
            _HELD.remove(record)
            if not _restore(record):
                left.append(where(record.change))
    application.records.clear()
    return tuple(left)


def _restore(record: _Record) -> bool:
    owner, name = record.change.owner, record.change.name
    return owner.__dict__.get(name, MISSING) is record.installed and _put_back(record)


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
    kept = list(_entries(error.__traceback__))
    code = getattr(inspect.unwrap(original), "__code__", None)
    if not any(entry.tb_frame.f_code is code for entry in kept) or _raised_by_us(kept[-1]):
        return error.__traceback__
    found: TracebackType | None = None
    for entry in reversed(kept):
        if not _is_ours(entry):
            found = TracebackType(found, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return found


def _entries(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _is_ours(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_OURS)


def _raised_by_us(last: TracebackType) -> bool:
    code = last.tb_frame.f_code.co_code
    return _is_ours(last) and code[last.tb_lasti] == _RAISE
