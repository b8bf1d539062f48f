"""Where a pipeline computes: the device that its inputs and generators belong on.

`.device` is not the answer. Under `enable_model_cpu_offload()` diffusers said the CPU there until
PR 14383 and says the accelerator since, and a tensor put on the CPU meets weights that the offload
hook has just moved. The look-up itself (which attribute is asked, in which order) is the native
`resolve_device`; this module turns what it found into a `torch.device`.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch

from hy3d_rocm import _native

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
    found, rule = _native.resolve_device(pipeline, fallback)
    if rule == "default" and default is None:
        main = main_device(pipeline)
        if main is not None:
            return ResolvedDevice(main, "main_device")
    device = as_device(found)
    if device is None:
        logger.debug("%s gave %r, which is no device: %s is taken", rule, found, fallback)
        return ResolvedDevice(fallback, f"default ({rule} gave {found!r}, which is no device)")
    return ResolvedDevice(device, str(rule))


def default_device() -> torch.device:
    """The accelerator if `torch.cuda` has one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def as_device(found: object) -> torch.device | None:
    """`found` (torch.device, text, or accelerate's number of an accelerator) as a usable device.

    None for anything else and for "meta", where nothing can be computed.
    """
    if isinstance(found, bool) or not isinstance(found, torch.device | int | str):
        return None
    if isinstance(found, int):
        found = torch.device("cuda", found) if found >= 0 else "cpu"
    try:
        device = torch.device(found)
    except RuntimeError:
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


def gpus_of_each_kind() -> list[torch.device]:
    """The first GPU of each architecture, of NVIDIA's of each name."""
    found: dict[str, torch.device] = {}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        kind = str(getattr(properties, "gcnArchName", properties.name))
        found.setdefault(kind, torch.device("cuda", index))
    return list(found.values())
