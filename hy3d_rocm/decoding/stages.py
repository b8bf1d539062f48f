"""Where a decode or encode is: its lines in the log, and its steps as they are counted.

The last line in a log tells where it stopped: every line is out before what follows it begins, also
where a handler keeps lines back. Progress and cancel come between steps, in the caller's thread.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from hy3d_rocm import _native
from hy3d_rocm.conv import errors
from hy3d_rocm.decoding.report import DecodeCancelled, Progress, Step

logger = logging.getLogger("hy3d_rocm")

T = TypeVar("T")

_logging: ContextVar[bool] = ContextVar("hy3d_rocm_logging", default=False)


def synchronize(device: torch.device) -> None:
    """Waits for what a GPU has been given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def stage_of(encode: bool) -> str:
    """What stands in brackets before each line."""
    return "VAE Encode" if encode else "VAE Decode"


def warn_alone(why: str, encode: bool, device: torch.device | None = None) -> None:
    """That this rank goes on without the others, or this device of the machine's."""
    verb = "encoding" if encode else "decoding"
    where = "" if device is None else f" on {device}"
    logger.warning("[%s] %s: %s%s alone", stage_of(encode), why, verb, where)


def _say(encode: bool, text: str, *given: object) -> None:
    logger.info("[%s] " + text, stage_of(encode), *given)
    flush()


def say_start(source: Any, device: object, dtype: object, encode: bool = False) -> None:
    """What goes in (a tensor or several), and where the VAE is."""
    where = next((tensor.device for tensor in tensors_in(source)), "unknown")
    kind = "pixels" if encode else "latents"
    _say(encode, "Starting - %s shape %s, device %s", kind, shapes_of(source), where)
    _say(encode, "VAE device %s, VAE dtype %s", device, dtype)


def say_attempt(device: torch.device, encode: bool = False, how: str = "") -> None:
    """What begins now. how: " with ..." at the end of the line."""
    _say(encode, "Attempting %s on %s%s", _what(device, encode), device, how)


def say_success(device: torch.device, result: str, seconds: float, encode: bool = False) -> None:
    """That it has ended well. result: "device cpu, shape (1, 3, 69, 720, 1280)"."""
    _say(encode, "%s SUCCESS - result %s, %.2f s", _what(device, encode), result, seconds)


def logged(
    work: Callable[[], T], source: Any, device: torch.device, dtype: object, encode: bool = False,
    how: str = "",
) -> T:  # fmt: skip
    """`work()`, which runs a VAE's own code, between these lines.

    The device is waited for before and after, so that what was given to it earlier is not taken
    for a decode that hangs, and what it has not ended for one that is ready. What `work` itself
    runs through here has no lines of its own.
    """
    if _logging.get():
        return work()
    token = _logging.set(True)
    try:
        say_start(source, device, dtype, encode)
        synchronize(device)
        say_attempt(device, encode, how)
        began = time.perf_counter()
        try:
            made = work()
            synchronize(device)
        except BaseException as error:
            seconds = time.perf_counter() - began
            _say(encode, "%s ended after %.2f s by %s", _what(device, encode), seconds,
                 errors.described(error, 1000))  # fmt: skip
            raise
        say_success(device, described(made), time.perf_counter() - began, encode)
        return made
    finally:
        _logging.reset(token)


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
    return ", ".join(str(tuple(t.shape)) for t in tensors_in(value)) or type(value).__name__


def described(made: Any) -> str:
    """A result in words: where it is and of which size."""
    while isinstance(made, tuple) and len(made) == 1:
        made = made[0]
    for tensor in tensors_in(made):
        return f"device {tensor.device}, shape {shapes_of(made)}"
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
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a program without a console has none
        stream.flush()


def _what(device: torch.device, encode: bool) -> str:
    return f"{'CPU' if device.type == 'cpu' else 'GPU'} {'encode' if encode else 'decode'}"


def asked_to_stop(cancel: Any) -> bool:
    """`cancel`: None, a callable, an object with `.requested`, or a threading.Event."""
    if cancel is None:
        return False
    for name in ("requested", "is_set"):
        found = getattr(cancel, name, None)
        if found is not None:
            return bool(found() if callable(found) else found)
    return bool(cancel())


def native_flag(cancel: Any) -> Any:
    """The C core's CancelFlag of `cancel`, where it is one or has one as `.flag`; else None. A long
    convolution on the CPU ends by it."""
    found = getattr(cancel, "flag", cancel)
    return found if isinstance(found, _native.CancelFlag) else None


@dataclass
class Counter:
    """Looks at `cancel` before each step, reports to `progress` after it. total: 0 where nobody
    knows how many there will be."""

    progress: Progress | None
    cancel: Any
    total: int = 0
    done: int = 0
    _waits: bool = False

    def watch(self, device: torch.device, always: bool, encode: bool) -> None:
        """From now on, at debug level or with `always`, `device` is waited for before and after
        each step, so that a line about it is true when it is written."""
        self._device, self._stage = device, stage_of(encode)
        self._waits = always or logger.isEnabledFor(logging.DEBUG)

    def check_cancel(self, *_: object) -> bool:
        """True, or DecodeCancelled is raised: the caller wants no more."""
        if asked_to_stop(self.cancel):
            of = f" of {self.total}" if self.total else ""
            raise DecodeCancelled(f"the decode was cancelled after {self.done}{of} steps")
        return True

    def check(self) -> None:
        """Before an attempt at a step: check_cancel()."""
        if self.cancel is not None:
            self.check_cancel()
        if self._waits:
            synchronize(self._device)
            logger.debug("[%s] Step %d begins", self._stage, self.done + 1)

    def tick(self, step: Step) -> None:
        if self._waits:
            synchronize(self._device)
            logger.debug(
                "[%s] Step %d done: %s, frames %d to %d",
                self._stage, self.done + 1, step.kind, step.frames[0], step.frames[1] - 1,
            )  # fmt: skip
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, step)
