"""Memory of the device that ComfyUI computes on: what it is now, a cap on it, giving it back."""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import comfy.model_management as management
import torch

from hy3d_rocm import memory as measured
from hy3d_rocm import meter
from hy3d_rocm.comfy import devices
from hy3d_rocm.conv import prepared
from hy3d_rocm.diagnose.env.choices import say_once
from hy3d_rocm.diagnose.env.shown import first_line
from hy3d_rocm.memory import Kind, stage_line
from hy3d_rocm.offload.components import indexed
from hy3d_rocm.units import size_text

logger = logging.getLogger("hy3d_rocm")

_KEY = "hy3d_rocm"
_PARTLY = "partially_unload"

_lock = threading.Lock()


@dataclass(frozen=True)
class Usage:
    """Bytes on `device`. free: what can still be had, below a cap; allocated: by this process.

    limit: the cap, else all memory of the card or the host, as `kind` says.
    """

    device: torch.device
    free: int
    allocated: int
    limit: int
    kind: Kind

    def line(self, stage: str) -> str:
        return stage_line(stage, self.free, self.allocated, self.limit, self.kind)


_cap: tuple[torch.device, int] | None = None  # the one that is in force: where, bytes
_told: ContextVar[frozenset[str]] = ContextVar("hy3d_rocm_stages", default=frozenset())


def comfy_device() -> torch.device:
    return torch.device(management.get_torch_device())


def usage(device: torch.device | None = None) -> Usage:
    """How things stand on `device` (ComfyUI's without one). RuntimeError of a driver goes on."""
    device = comfy_device() if device is None else device
    if device.type != "cuda":
        total = int(management.get_total_memory(device))
        held = meter.resident_bytes() if device.type == "cpu" else 0
        return Usage(device, measured.host_free_bytes() or 0, held, total, "host")
    free, total = measured.gpu_bytes(device)
    allocated = torch.cuda.memory_allocated(device)
    cap = _cap
    if cap is None or cap[0] != indexed(device):
        return Usage(device, free, allocated, total, "card")
    return Usage(device, min(free, cap[1] - allocated), allocated, cap[1], "limit")


def free_and_total(device: torch.device | None = None) -> tuple[int, int]:
    """Free bytes, and the most that this process may have, on `device`: the cap counts."""
    now = usage(device)
    return max(now.free, 0), now.limit


def log_stage(stage: str) -> str:
    """Logs the memory line of a stage such as "Before VAE Load", and returns it.

    "" where the memory cannot be asked for: a line in the log is never worth a prompt.
    """
    try:
        line = usage().line(stage)
    except (RuntimeError, OSError, AttributeError) as error:
        logger.debug("hy3d_rocm: no memory line for %s: %s", stage, error)
        return ""
    logger.info("%s", line)
    return line


@contextmanager
def stage_lines(before: str, after: str) -> Iterator[None]:
    """The lines "Before ..." and "After ...", of the outermost of those that tell of `after`."""
    told = _told.get()
    if after in told:
        yield
        return
    token = _told.set(told | {after})
    log_stage(f"Before {before}")
    try:
        yield
    finally:
        log_stage(f"After {after}")
        _told.reset(token)


def cap_at_start(environ: Mapping[str, str] = os.environ) -> int | None:
    """Puts the cap of HY3D_ROCM_MAX_VRAM_GB or _SHARE into force, by torch's allocator and in
    ComfyUI's reserve; the cap in bytes, else None. A second call changes nothing. What makes no
    sense is one line and no cap."""
    global _cap
    names = [n for n in (measured.CAP_GB, measured.CAP_SHARE) if environ.get(n, "").strip()]
    if not names:
        return None
    device = comfy_device()
    if device.type != "cuda":
        say_once(f"{' and '.join(names)}: no effect, since ComfyUI computes on {device}")
        return None
    with _lock:
        if _cap is not None:
            return _cap[1]
        device = indexed(device)
        _, total = measured.gpu_bytes(device)
        cap, said = measured.wanted_cap(environ, total)
        for line in said:
            say_once(line)
        if cap is None:
            return None
        torch.cuda.set_per_process_memory_fraction(cap / total, device)
        taken = total - cap
        management.EXTRA_RESERVED_VRAM += taken
        _cap = device, cap
    logger.info(
        "hy3d_rocm: this process may have %s of the %s on %s; ComfyUI was told to leave %s more",
        size_text(cap), size_text(total), device, size_text(taken),
    )  # fmt: skip
    return cap


def free_everything() -> str:
    """Unloads all of ComfyUI's models, gives back weights that were prepared for the C convolution,
    collects garbage and empties the allocator once.

    Returns what that did, in lines: before, after, the difference. Memory of pipelines that
    ComfyUI does not manage, and of the outputs that it keeps in its cache, is not given back.
    """
    before = usage()
    models = len(management.current_loaded_models)
    management.unload_all_models()
    devices.close()
    prepared.give_back()
    collected = gc.collect()
    management.soft_empty_cache()
    after = usage(before.device)
    unloaded = models - len(management.current_loaded_models)
    more = after.free - before.free
    lines = [
        before.line("Before Free Memory"),
        after.line("After Free Memory"),
        f"{size_text(abs(more))} {'less' if more < 0 else 'more'} free on {after.device}; "
        f"{unloaded} of {models} models unloaded, {collected} unreachable objects collected",
    ]
    for line in lines:
        logger.info("%s", line)
    return "\n".join(lines)


def is_managed(vae: Any) -> bool:
    """Whether ComfyUI loads and casts this VAE's weights."""
    return hasattr(vae, "patcher") and hasattr(vae, "first_stage_model")


def give_way(vae: Any) -> None:
    """Has what was prepared of weights go with a VAE that ComfyUI manages: whenever ComfyUI unloads
    it, or a part of it, for room, for its Free Memory node or for the route /free."""
    patcher = vae.patcher
    callbacks = getattr(patcher, "callbacks", None)
    if not isinstance(callbacks, dict):
        return
    from comfy.patcher_extension import CallbacksMP

    if not callbacks.get(CallbacksMP.ON_DETACH, {}).get(_KEY):
        patcher.add_callback_with_key(CallbacksMP.ON_DETACH, _KEY, _unloaded)
    # A part of it is unloaded without a callback.
    if _PARTLY not in vars(patcher) and callable(getattr(patcher, _PARTLY, None)):
        setattr(patcher, _PARTLY, _then_unloaded(weakref.ref(patcher)))


def _then_unloaded(found: weakref.ref[Any]) -> Callable[..., Any]:
    """The patcher's own method, for the patcher alone. It must not hold the patcher: ComfyUI takes
    one that outlives its VAE for a leak."""

    def partially_unload(*args: Any, **kwargs: Any) -> Any:
        patcher = found()
        freed = getattr(type(patcher), _PARTLY)(patcher, *args, **kwargs)
        _unloaded()
        return freed

    return partially_unload


def _unloaded(*_: Any) -> None:
    """A VAE, or a part of one, has left its device."""
    devices.drop()
    freed = prepared.give_back()
    if freed:
        logger.info(
            "hy3d_rocm: %s of prepared weights given back with the VAE", size_text(freed, 2)
        )


@contextmanager
def own_care(vae: Any) -> Iterator[None]:
    """Around a VAE's work. What was prepared of its weights goes when ComfyUI unloads the VAE; of
    one that ComfyUI does not manage at the end, since nobody would say when it is in the way."""
    is_kept = is_managed(vae)
    if is_kept:
        give_way(vae)
    try:
        yield
    finally:
        if not is_kept:
            prepared.give_back()


def counted_free(device: torch.device) -> tuple[int, int]:
    """Free bytes on `device`, with what ComfyUI would unload for us, and the most there can be."""
    free, total = free_and_total(device)
    for loaded in list(management.current_loaded_models):
        if loaded.device == device and loaded.model is not None:
            free += int(loaded.model_loaded_memory())
    return min(free, total), total


def make_room(needed_bytes: int, device: torch.device) -> int | None:
    """Has ComfyUI unload models until `needed_bytes` are free on `device`; what is free then.

    ComfyUI is asked only where they are not free already, only for a GPU, and decides itself which
    of its models go, in whole or in part. None where the driver cannot be asked. A failure costs
    one line and nothing else; ComfyUI's cancel goes on.
    """
    if device.type != "cuda":
        return None
    try:
        target = indexed(device)
        free, _ = free_and_total(target)
        if needed_bytes <= free:
            return free
        # ComfyUI compares with what the driver has free. Where a cap leaves us less, it must free
        # as much as we are short of all the same.
        short = needed_bytes - free
        wanted = max(needed_bytes, int(management.get_free_memory(target)) + short)
        management.free_memory(wanted, target)
        now, _ = free_and_total(target)
    except management.InterruptProcessingException:
        raise
    except Exception as error:  # noqa: BLE001  (the prompt may have room enough without)
        _say_free(f"ComfyUI was asked to free memory on {device} and could not", error)
        return None
    logger.info(
        "%s are needed on %s and %s were free: ComfyUI was asked to free more, %s are free now",
        size_text(needed_bytes), target, size_text(free), size_text(now),
    )  # fmt: skip
    return now


def unload_models(device: torch.device) -> None:
    """All of ComfyUI's models off the GPUs, as nodes of upstream's begin with; nothing on a CPU.

    Done before such a node is measured, so that what goes is not counted as the node's own. A
    failure costs one line.
    """
    if device.type == "cpu":
        return
    try:
        management.unload_all_models()
        management.soft_empty_cache()
    except management.InterruptProcessingException:
        raise
    except Exception as error:  # noqa: BLE001  (upstream will try again, and say it in its words)
        _say_free("ComfyUI could not unload its models", error)


def _say_free(what: str, error: Exception) -> None:
    logger.warning("hy3d_rocm: %s (%s)", what, first_line(error))
