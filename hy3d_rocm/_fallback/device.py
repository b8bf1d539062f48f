"""Twin of csrc/python/device.c: where does this pipeline, module or VAE compute?

Nothing but attribute look-ups, and one call: `.parameters()`. Whatever a look-up raises is
skipped, if it is an Exception. torch is not imported: a device is what looks like one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

# A model has a few thousand modules at most; the bound is for objects that make up children.
MAX_OBJECTS = 20000
_TEXT = re.compile(r"(cpu|cuda|hip|hpu|mps|mtia|npu|privateuseone|vulkan|xla|xpu)(:[0-9]{1,3})?\Z")
_NOTHING = object()


def resolve_device(obj: object, default: object = None) -> tuple[Any, str]:
    """The device as found on `obj`, and the rule that found it.

    In this order: "_execution_device", "accelerate hook" (its own, then those of its components
    and sub-modules), "device", "first parameter" (its own, then its components'), "default".
    None, "meta" and whatever does not look like a device are passed over.
    """
    searches: tuple[tuple[str, Callable[[], object]], ...] = (
        ("_execution_device", lambda: _device_attribute(obj, "_execution_device")),
        ("accelerate hook", lambda: _first(_hook_device, _objects(obj, deep=True))),
        ("device", lambda: _device_attribute(obj, "device")),
        ("first parameter", lambda: _first(_parameter_device, _objects(obj, deep=False))),
    )
    for rule, search in searches:
        found = search()
        if found is not _NOTHING:
            return found, rule
    return default, "default"


def _look_up(obj: object, name: str) -> Any:
    try:
        return getattr(obj, name)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  (a strange pipeline's property may raise anything)
        return _NOTHING


def _is_device(value: object) -> bool:
    if isinstance(value, str):
        return _TEXT.match(str.__str__(value)) is not None
    kind = _look_up(value, "type")
    if not isinstance(kind, str) or str.__str__(kind) == "meta":
        return False
    index = _look_up(value, "index")
    return index is None or isinstance(index, int)


def _device_attribute(obj: object, name: str, *, number_allowed: bool = False) -> object:
    value = _look_up(obj, name)
    if value is _NOTHING:
        return _NOTHING
    if type(value) is int:
        return value if number_allowed and 0 <= value < 1000 else _NOTHING
    return value if _is_device(value) else _NOTHING


def _hook_device(obj: object) -> object:
    hook = _look_up(obj, "_hf_hook")
    if hook is _NOTHING:
        return _NOTHING
    found = _device_attribute(hook, "execution_device", number_allowed=True)
    several = _look_up(hook, "hooks") if found is _NOTHING else ()
    for one in tuple.__iter__(several) if isinstance(several, tuple) else ():
        found = _device_attribute(one, "execution_device", number_allowed=True)
        if found is not _NOTHING:
            break
    return found


def _parameter_device(obj: object) -> object:
    method = _look_up(obj, "parameters")
    if method is _NOTHING:
        return _NOTHING
    try:
        first = next(iter(method()))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  (see _look_up)
        return _NOTHING
    return _device_attribute(first, "device")


def _children(obj: object, name: str) -> list[object]:
    values = _look_up(obj, name)
    if not isinstance(values, dict):
        return []
    return [child for child in dict.values(values) if child is not None]


def _objects(obj: object, *, deep: bool) -> Iterator[object]:
    """The object, then its components and (deep) sub-modules, depth first in their order."""
    stack = [obj]
    seen: set[int] = set()
    for count in range(MAX_OBJECTS):
        if not stack:
            return
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if count == 0:
            stack.extend(reversed(_children(item, "components")))
        if deep:
            stack.extend(reversed(_children(item, "_modules")))


def _first(find: Callable[[object], object], objects: Iterator[object]) -> object:
    for item in objects:
        found = find(item)
        if found is not _NOTHING:
            return found
    return _NOTHING
