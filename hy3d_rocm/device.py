"""Where a pipeline computes: the device that its inputs and generators belong on.

`.device` is not the answer. Under `enable_model_cpu_offload()` diffusers said the CPU there until
PR 14383 and says the accelerator since, and a tensor put on the CPU meets weights that the offload
hook has just moved.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

logger = logging.getLogger("hy3d_rocm")


class ResolvedDevice(NamedTuple):
    """A device and the rule that decided for it, e.g. `(device("cuda:0"), "_execution_device")`."""

    device: torch.device
    rule: str


def resolve_device(pipeline: object, default: torch.device | str | None = None) -> ResolvedDevice:
    """Device on which `pipeline` executes, and why.

    The first of these that names a device other than "meta" decides: `_execution_device`, an
    accelerate hook, `device`, the first parameter, `default`. Without a `default` it is the
    pipeline's `main_device` (Hunyuan3D's shape pipeline has that and none of the others), else the
    accelerator where `torch.cuda` has one (CUDA or ROCm), else the CPU. Never raises because of the
    pipeline, whatever its properties do; a `default` that torch does not know is a ValueError.
    """
    fallback = default_device() if default is None else _checked_default(default)
    found, rule = find_device(pipeline, fallback)
    if rule == "default" and default is None:
        main = main_device(pipeline)
        if main is not None:
            return ResolvedDevice(main, "main_device")
    device = as_device(found)
    if device is None:
        logger.debug("%s gave %r, which is no device: %s is taken", rule, found, fallback)
        return ResolvedDevice(fallback, f"default ({rule} gave {found!r}, which is no device)")
    return ResolvedDevice(device, rule)


def default_device() -> torch.device:
    """The accelerator if `torch.cuda` has one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def as_device(found: object) -> torch.device | None:
    """`found` (torch.device, text, or accelerate's number of an accelerator) as a usable device.

    None for anything else and for "meta", where nothing can be computed.
    """
    if isinstance(found, torch.device):
        device = found
    elif isinstance(found, bool):
        return None
    elif isinstance(found, int):
        device = torch.device("cuda", found) if found >= 0 else torch.device("cpu")
    elif isinstance(found, str):
        try:
            device = torch.device(found)
        except RuntimeError:
            return None
    else:
        return None
    return None if device.type == "meta" else device


def main_device(pipeline: object) -> torch.device | None:
    """Where a shape pipeline computes (it has no `_execution_device`); None for any other."""
    try:
        return as_device(getattr(pipeline, "main_device", None))
    except Exception:  # noqa: BLE001  (a strange pipeline's property may raise anything)
        return None


def _checked_default(default: torch.device | str) -> torch.device:
    device = as_device(default)
    if device is None:
        raise ValueError(
            f"default is {default!r}, which is no device to compute on; "
            'give a torch.device or a text such as "cuda:0" or "cpu"'
        )
    return device


# The look-up: nothing but attributes, and one call, `.parameters()`. Whatever a look-up raises is
# skipped, if it is an Exception. A device is what looks like one.

# A model has a few thousand modules at most; the bound is for objects that make up children.
MAX_OBJECTS = 20000
_TEXT = re.compile(r"(cpu|cuda|hip|hpu|mps|mtia|npu|privateuseone|vulkan|xla|xpu)(:[0-9]{1,3})?\Z")
_NOTHING = object()


def find_device(obj: object, default: object = None) -> tuple[Any, str]:
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
    found = list(dict.values(values)) if isinstance(values, dict) else []
    return [child for child in found if child is not None]


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
