"""Further devices for VAE decodes and encodes: which the node or the setting names, and their
processes, which stay from one to the next (decoding/workers.py)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from hy3d_rocm.comfy import settings
from hy3d_rocm.conv.triton.launch import architecture
from hy3d_rocm.decoding.device_names import ALL, further_devices, parse_devices
from hy3d_rocm.decoding.stages import stage_of, warn_alone
from hy3d_rocm.offload.components import indexed

if TYPE_CHECKING:
    from hy3d_rocm.decoding.group import Group
    from hy3d_rocm.decoding.workers import Workers

logger = logging.getLogger("hy3d_rocm")

Result = TypeVar("Result")

_lock = threading.Lock()
_workers: Workers | None = None


def shared(
    family: Any, video: torch.Tensor, devices: str, wishes: Mapping[str, Any],
    place: torch.device, work: Callable[[Group | None], Result], cancel: Any, encode: bool,
) -> Result:  # fmt: skip
    """work(group), where the group is of ComfyUI's device, `place`, and of those that are named;
    work(None) where none is, or one is not there. devices: see parse_devices; "": as the settings
    say. wishes, cancel, encode: see Workers.share."""
    names = parse_devices(devices or settings.current().vae_devices)
    workers = _workers_of(names, place, encode) if names else None
    if workers is None:
        return work(None)
    return workers.share(family, video, wishes, work, cancel, encode)


def drop() -> None:
    """The processes give back what they hold of a VAE."""
    if _workers is not None:
        _workers.drop()


def close() -> None:
    """The processes end."""
    if _workers is not None:
        _workers.close()


def _workers_of(names: tuple[str, ...], place: torch.device, encode: bool) -> Workers | None:
    """Those of the last time where it asked for the same."""
    global _workers
    place = indexed(place)
    try:
        others = further_devices(names, place)
    except ValueError as error:  # a workflow of another machine; the budget counts all the same
        warn_alone(str(error), encode, place)
        return None
    if not others:
        if names == (ALL,):
            logger.info("[%s] %s", stage_of(encode), _alone(place, encode))
        return None
    from comfy.cli_args import args

    from hy3d_rocm.decoding.workers import Workers

    with _lock:
        known = _workers
        if known is None or (known.device, known.others) != (place, tuple(others)):
            if known is not None:
                known.close()
            _workers = known = Workers(place, others, partial(prepare, dict(vars(args))))
        return known


def _alone(place: torch.device, encode: bool) -> str:
    verb = "encode" if encode else "decode"
    if place.type != "cuda":
        return f"ComfyUI computes on {place}: no other device can {verb} with it"
    return f"no other GPU is a {architecture(place)} as {place} is: it {verb}s alone"


def prepare(options: dict[str, Any]) -> None:
    """ComfyUI's modules, of which VAEs are made, find the options that the server was started with.
    No server is started."""
    import comfy.cli_args

    vars(comfy.cli_args.args).update(options)
