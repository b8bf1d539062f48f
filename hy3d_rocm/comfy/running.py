"""What decode and encode run in: protection, a cancel that is seen, a progress bar, a record.

ComfyUI's interrupt is a flag that is reset by whoever raises for it. What computes in parts only
needs to know: a Watcher reads the flag, and once the work has ended by that, ComfyUI's own
exception is raised, which resets the flag and ends the prompt as any other node would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self

import comfy.model_management as management
import comfy.utils
import torch

from hy3d_rocm import _native
from hy3d_rocm.comfy.memory import own_care
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.router import Guard
from hy3d_rocm.conv.triton import jit
from hy3d_rocm.decoding.memory.budget import Request
from hy3d_rocm.decoding.report import DecodeOptions, DecodeReport
from hy3d_rocm.decoding.stages import logged
from hy3d_rocm.meter import PeakMeter

Made = tuple[torch.Tensor, DecodeReport]

# The C convolution's flag is set so much later than ComfyUI's at most, plus a switch of threads.
INTERVAL_S = 0.05
# Memory is looked at this often. As decode() itself does.
SAMPLE_S = 0.02


class Watcher:
    """A scope around work that can be cancelled, and `cancel` of a decode; an instance is for one
    scope at a time.

    `flag` is the C core's: a thread sets it INTERVAL_S after ComfyUI's at the latest, so that a
    long convolution on the CPU ends, too. An Exception that leaves the scope while the flag is up
    becomes ComfyUI's own InterruptProcessingException; a result that was ready by then is kept.
    """

    def __init__(self) -> None:
        self.flag = _native.CancelFlag()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="hy3d-cancel")
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if isinstance(error, Exception) and self.requested:
            error.__traceback__ = None  # whose frames hold the decode's tensors
            self.throw()

    @property
    def requested(self) -> bool:
        """Whether the user has cancelled; nothing is reset."""
        return bool(self.flag.requested or management.processing_interrupted())

    def throw(self, *_: Any) -> None:
        """Raises ComfyUI's exception, and resets its flag, if the user has cancelled; usable as a
        listener of protect()."""
        management.throw_exception_if_processing_interrupted()
        if self.flag.requested:  # somebody has reset ComfyUI's flag meanwhile
            raise management.InterruptProcessingException

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            if management.processing_interrupted():
                self.flag.request()
                return


class TimeBar:
    """A bar in the browser that goes by the time that was given; a cancel is looked at with it."""

    def __init__(self, seconds: float, watcher: Watcher) -> None:
        self.seconds, self.watcher = max(int(seconds), 1), watcher
        self.bar = comfy.utils.ProgressBar(self.seconds)
        self._began = time.monotonic()
        self._shown = -1

    def look(self) -> None:
        """Raises ComfyUI's exception after a cancel."""
        self.watcher.throw()
        now = min(int(time.monotonic() - self._began), self.seconds)
        if now != self._shown:
            self._shown = now
            self.bar.update_absolute(now, self.seconds)

    def end(self) -> None:
        """All is done, if sooner than it might have taken."""
        self.bar.update_absolute(self.seconds, self.seconds)


@dataclass(frozen=True)
class Asked:
    """What a node or a patch asks of a decode or encode. budget: see parse_budget. who: for the
    log, the node or method that was called. devices: see parse_devices; "": as the settings say."""

    budget: Request
    strategy: str
    precision: str
    options: DecodeOptions = field(default_factory=DecodeOptions)
    who: str = "VAE.decode"
    devices: str = ""


class Steps:
    """`progress` of a decode: a bar in the browser, and what was done when.

    seen: (begin, end, kind of step) in seconds since the start, steps of a kind that follow each
    other as one. A step begins where the one before it ended, but the first after a new beginning,
    of which nobody knows it. again: seconds at which it began anew.
    """

    def __init__(self) -> None:
        self.bar = comfy.utils.ProgressBar(1)
        self.seen: list[tuple[float, float, str]] = []
        self.again: list[float] = []
        self._began = time.perf_counter()
        self._done = 0

    def start(self) -> None:
        """The clock's zero."""
        self._began = time.perf_counter()

    def __call__(self, done: int, total: int, step: Any) -> None:
        now = time.perf_counter() - self._began
        begin, last = (self.seen[-1][1], self.seen[-1][2]) if self.seen else (0.0, "")
        kind = str(getattr(step, "kind", step))
        if done <= self._done:
            self.again.append(now)
            begin, last = now, ""
        self._done = done
        if kind == last:
            self.seen[-1] = (self.seen[-1][0], now, kind)
        else:
            self.seen.append((begin, now, kind))
        self.bar.update_absolute(done, total or done + 1)


@dataclass
class Run:
    """One node's work. meters: of the device, and of the host where that is another."""

    guard: Guard
    watcher: Watcher
    steps: Steps
    meters: list[PeakMeter] = field(default_factory=list)

    @contextmanager
    def metered(self, device: torch.device) -> Iterator[None]:
        """Memory above what is in use now, over time."""
        host = [] if device.type == "cpu" else [torch.device("cpu")]
        self.meters = [PeakMeter(d, SAMPLE_S, exact=False) for d in (device, *host)]
        self.steps.start()
        with self.meters[0], self.meters[1] if host else nullcontext():
            yield


# How each running() of this context has convolutions computed, and whether it looks through each
# one's values; see protect().
POLICY: ContextVar[str] = ContextVar("hy3d_rocm_policy", default="auto")
CHECKED: ContextVar[bool] = ContextVar("hy3d_rocm_checked", default=False)
ON_CPU = "pin:cpu"


def caught() -> str:
    """How a VAE's own code runs here, for the log."""
    on_the_cpu = POLICY.get() == ON_CPU
    return "with each convolution on the CPU" if on_the_cpu else "with failing convolutions caught"


@contextmanager
def running() -> Iterator[Run]:
    """The scope of one node's work: failing convolutions are caught, and a cancel ends it after the
    running step with ComfyUI's own exception."""
    # A first decode compiles for some seconds: a cancel need not wait for the end of that.
    jit.on_compile = lambda *_: management.throw_exception_if_processing_interrupted()
    with (
        Watcher() as watcher,
        protect(
            policy=POLICY.get(),
            on_event=watcher.throw,
            cancel=watcher.flag,
            check_finite=CHECKED.get(),
        ) as guard,
    ):
        yield Run(guard, watcher, Steps())


def current_device(device: torch.device) -> Any:
    """ComfyUI's context that makes the VAE's device the current one (not in 2025-10)."""
    context = getattr(management, "cuda_device_context", None)
    return nullcontext() if context is None else context(device)


def own_code(vae: Any, work: Callable[[], Any], given: Any, encode: bool = False) -> Any:
    """`work()`, which is the VAE's own code, between the lines that tell where it stopped."""
    device, dtype = where_of(vae)
    is_sent = POLICY.get() == ON_CPU and device.type != "cpu"
    how = f", {caught()}" if is_sent else ""
    with own_care(vae):
        return logged(work, given, device, dtype, encode, how)


def where_of(vae: Any) -> tuple[torch.device, object]:
    """Where a VAE's own code computes, and in which type."""
    device, dtype = getattr(vae, "device", None), getattr(vae, "vae_dtype", None)
    if dtype is None and callable(getattr(vae, "parameters", None)):
        parameter = next(vae.parameters(), None)
        if parameter is not None:
            device, dtype = parameter.device, parameter.dtype
    found = torch.device(management.get_torch_device() if device is None else device)
    return found, "of its own" if dtype is None else dtype


def said(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
