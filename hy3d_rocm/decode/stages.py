"""The lines of a decode or encode: the last one in a log tells where it stopped.

Every line is out before what follows it begins, also where a handler keeps lines back.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

logger = logging.getLogger("hy3d_rocm")

T = TypeVar("T")

_telling: ContextVar[bool] = ContextVar("hy3d_rocm_telling", default=False)


def synchronize(device: torch.device) -> None:
    """Waits for what a GPU has been given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def stage_of(encode: bool) -> str:
    """What stands in brackets before each line."""
    return "VAE Encode" if encode else "VAE Decode"


def say_start(source: Any, device: object, dtype: object, encode: bool = False) -> None:
    """What goes in (a tensor or several), and where the VAE is."""
    stage, kind = stage_of(encode), "pixels" if encode else "latents"
    tensors = list(tensors_in(source))
    where = tensors[0].device if tensors else "unknown"
    logger.info("[%s] Starting - %s shape %s, device %s", stage, kind, shapes_of(source), where)
    logger.info("[%s] VAE device %s, VAE dtype %s", stage, device, dtype)
    flush()


def say_attempt(device: torch.device, encode: bool = False, how: str = "") -> None:
    """What begins now. how: " with ..." at the end of the line."""
    logger.info("[%s] Attempting %s on %s%s", stage_of(encode), _what(device, encode), device, how)
    flush()


def say_success(device: torch.device, result: str, seconds: float, encode: bool = False) -> None:
    """That it has ended well. result: "device cpu, shape (1, 3, 69, 720, 1280)"."""
    logger.info(
        "[%s] %s SUCCESS - result %s, %.2f s",
        stage_of(encode), _what(device, encode), result, seconds,
    )  # fmt: skip


def told(
    work: Callable[[], T], source: Any, device: torch.device, dtype: object, encode: bool = False,
    how: str = "",
) -> T:  # fmt: skip
    """`work()`, which runs a VAE's own code, between these lines.

    The device is waited for before and after, so that what was given to it earlier is not taken
    for a decode that hangs, and what it has not ended for one that is ready. What `work` itself
    runs through here has no lines of its own.
    """
    if _telling.get():
        return work()
    token = _telling.set(True)
    try:
        say_start(source, device, dtype, encode)
        synchronize(device)
        say_attempt(device, encode, how)
        began = time.perf_counter()
        try:
            made = work()
            synchronize(device)
        except BaseException as error:
            first = (str(error).strip().splitlines() or [""])[0]
            logger.info(
                "[%s] %s ended after %.2f s by %s%s", stage_of(encode), _what(device, encode),
                time.perf_counter() - began, type(error).__name__, first and f": {first}",
            )  # fmt: skip
            raise
        say_success(device, described(made), time.perf_counter() - began, encode)
        return made
    finally:
        _telling.reset(token)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """A tensor, those that a sequence holds, or those of a VAE's output object."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    else:
        for name in ("sample", "latent_dist", "parameters"):
            inner = getattr(value, name, None)
            if inner is not None and not callable(inner):
                yield from tensors_in(inner)
                return


def shapes_of(value: Any) -> str:
    """ "(1, 16, 18, 90, 160)", or several of them; the kind of what holds no tensor."""
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in(value))
    return shapes or type(value).__name__


def described(made: Any) -> str:
    """A result in words: where it is and of which size."""
    while isinstance(made, tuple) and len(made) == 1:
        made = made[0]
    tensors = list(tensors_in(made))
    if tensors:
        return f"device {tensors[0].device}, shape {shapes_of(made)}"
    vertices = getattr(made, "vertices", None)
    text = f"a {type(made).__name__}"
    return text if vertices is None else f"{text} of {len(vertices)} vertices"


def flush() -> None:
    """What has been logged goes out now."""
    at: logging.Logger | None = logger
    while at is not None:
        for handler in at.handlers:
            handler.flush()
        at = at.parent if at.propagate else None
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # a program without a console has none
            stream.flush()


def _what(device: torch.device, encode: bool) -> str:
    return f"{'CPU' if device.type == 'cpu' else 'GPU'} {'encode' if encode else 'decode'}"
