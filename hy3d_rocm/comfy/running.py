"""What decode and encode run in: protection, a cancel that is seen, a progress bar, a record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import comfy.model_management as management
import comfy.utils
import torch

from hy3d_rocm.comfy.memory import own_care
from hy3d_rocm.comfy.watching import Watcher
from hy3d_rocm.decoding.stages import told
from hy3d_rocm.meter import PeakMeter

if TYPE_CHECKING:
    from hy3d_rocm.conv.router import Guard
    from hy3d_rocm.decoding.memory.budget import Request
    from hy3d_rocm.decoding.report import DecodeOptions, DecodeReport

__all__ = [
    "Asked", "Made", "Run", "Steps", "caught", "checked", "current_device", "on_cpu", "own_code",
    "own_report", "parts_or_why", "running", "said",
]  # fmt: skip

logger = logging.getLogger("hy3d_rocm")

Made = tuple[torch.Tensor, "DecodeReport"]

# Memory is looked at this often. As decode() itself does.
SAMPLE_S = 0.02


@dataclass(frozen=True)
class Asked:
    """What a node or a patch asks of a decode or encode. budget: see parse_budget. who: for the
    log, the node or method that was called."""

    budget: Request
    strategy: str
    precision: str
    options: DecodeOptions
    who: str = "VAE.decode"


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


# Whether each running() of this context looks through each convolution's values, see protect().
CHECKED: ContextVar[bool] = ContextVar("hy3d_rocm_checked", default=False)


@contextmanager
def checked() -> Iterator[None]:
    """Every running() inside looks through each convolution's values."""
    token = CHECKED.set(True)
    try:
        yield
    finally:
        CHECKED.reset(token)


# How each running() of this context has convolutions computed, see protect().
POLICY: ContextVar[str] = ContextVar("hy3d_rocm_policy", default="auto")
ON_CPU = "pin:cpu"


@contextmanager
def on_cpu() -> Iterator[None]:
    """Every running() inside has each convolution computed on the CPU."""
    token = POLICY.set(ON_CPU)
    try:
        yield
    finally:
        POLICY.reset(token)


def caught() -> str:
    """How a VAE's own code runs here, for the log."""
    on_the_cpu = POLICY.get() == ON_CPU
    return "with each convolution on the CPU" if on_the_cpu else "with failing convolutions caught"


@contextmanager
def running() -> Iterator[Run]:
    """The scope of one node's work: failing convolutions are caught, and a cancel ends it after the
    running grain with ComfyUI's own exception."""
    from hy3d_rocm.conv.router import protect
    from hy3d_rocm.conv.triton import jit

    jit.on_compile = _before_compiling
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
        return told(work, given, device, dtype, encode, how)


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


def parts_or_why(
    what: str, work: Callable[[], Made | str], asked: Asked, run: Run,
    refusals: tuple[type[Exception], ...] = (),
) -> Made | str:  # fmt: skip
    """What `work` makes in parts, or why the VAE's own code has to make it.

    What ends the node goes on: an interrupt, a cancel, a given budget that is too small, refusals.
    """
    from hy3d_rocm.decoding.plan import BudgetTooSmallError

    try:
        return work()
    except (management.InterruptProcessingException, *refusals):
        raise
    except BudgetTooSmallError as error:
        if asked.budget is not None:
            raise
        return said(error)
    except Exception as error:
        if run.watcher.cancelled():
            raise
        logger.debug("hy3d_rocm: the %s in parts", what, exc_info=True)
        return said(error)


def own_report(
    vae: Any, given: tuple[int, ...], made: tuple[int, ...], why: str, seconds: float
) -> DecodeReport:
    """Of ComfyUI's own decode or encode, which was run because of `why`."""
    from hy3d_rocm.decoding.report import DecodeReport

    inner = getattr(vae, "first_stage_model", vae)
    return DecodeReport(
        type(inner).__name__, given, made, str(getattr(vae, "device", "its device")),
        str(getattr(vae, "vae_dtype", "its type")).removeprefix("torch."), 0, "none",
        strategy="own", reason=why, plan={"how": caught()}, seconds=seconds,
    )  # fmt: skip


def _before_compiling(kernel: str, number: int) -> None:
    """A first decode compiles for some seconds: a cancel need not wait for the end of that."""
    management.throw_exception_if_processing_interrupted()
