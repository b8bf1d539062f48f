"""Moving weights with progress in bytes, and watching others move them (docs/offload.md).

While a pipeline is watched, each of its components has a `to` of ours as an instance attribute:
what a loader, diffusers and accelerate's CpuOffload (which sends the previous component to the CPU,
then its own to the execution device) call to move it. diffusers makes new hooks at the end of each
call (`maybe_free_model_hooks`), so that method is wrapped on the instance too.
"""

from __future__ import annotations

import functools
import logging
import time
import traceback
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hy3d_rocm.offload import components
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("hy3d_rocm")


# progress(done_bytes, total_bytes, what): what is moved, for people ("unet to cuda:0").
Progress = Callable[[int, int, str], None]
PROGRESS_SECONDS = 0.1
# Packages whose modules' own `to` checks for quantised weights and then does as nn.Module's.
_KNOWN_TO = ("torch", "diffusers", "transformers", "accelerate")


class Reporter:
    """Calls `progress` at most every PROGRESS_SECONDS and at the end; then one line in the log."""

    def __init__(
        self, progress: Progress | None, total: int, name: str, device: torch.device,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._progress, self._clock = progress, clock
        self._total, self._name, self._device = total, name, device
        self._done = 0
        self._began = self._last = clock()

    def add(self, count: int) -> None:
        """`count` bytes more are moved."""
        self._done += count
        now = self._clock()
        due = now - self._last >= PROGRESS_SECONDS
        if due and self._progress is not None and self._done < self._total:
            self._last = now
            self._progress(self._done, self._total, f"{self._name} to {self._device}")

    def finish(self) -> None:
        """Everything is moved."""
        seconds = max(self._clock() - self._began, 1e-6)
        if self._progress is not None:
            self._progress(self._total, self._total, f"{self._name} to {self._device}")
        logger.info(
            "%s: %s to %s in %.1f s (%s/s)",
            self._name, size_text(self._total, 2), self._device, seconds,
            size_text(int(self._total / seconds)),
        )  # fmt: skip


def move(
    module: torch.nn.Module, device: torch.device | str, progress: Progress | None = None,
    what: str | None = None,
) -> int:  # fmt: skip
    """Moves a module's parameters and buffers to `device`; returns the bytes that were moved.

    As module.to(device), but with progress(done, total, "<what> to <device>"); what shares memory
    still shares it; no more than one parameter is in both places at a time; if anything raises
    (progress itself, too), what had moved goes back. Modules that have their own idea of moving
    (see is_plain) are moved by their own `to` in one step. what: the module's name for people.
    """
    target, name = components.indexed(device), what or type(module).__name__
    if not is_plain(module):
        return _move_by_itself(module, target, progress, name)
    tensors = components.distinct_tensors([module])
    stay = {components.memory_key(t) for t in tensors if components.is_on(t, target)}
    total = sum(components.size_bytes(t) for t in tensors if not components.is_on(t, target))
    if len(stay) == len(tensors):
        return 0
    del tensors  # they would keep the old memory alive
    reporter = Reporter(progress, total, name, target)
    moved: dict[object, torch.Tensor] = {}
    homes: dict[object, torch.device] = {}

    def there(tensor: torch.Tensor) -> torch.Tensor:
        if components.is_on(tensor, target):
            return tensor
        key = components.memory_key(tensor)
        if key not in moved:
            moved[key] = _copy(tensor, target)
            homes[components.memory_key(moved[key])] = components.device_of(tensor)
            reporter.add(components.size_bytes(tensor))
        return moved[key]

    try:
        module._apply(there)  # type: ignore[no-untyped-call]
        reporter.finish()
    except BaseException as error:
        moved.clear()
        traceback.clear_frames(error.__traceback__)  # torch's has the last tensor that was moved
        _move_back(module, target, stay, homes, name)
        raise
    return total


def is_plain(module: torch.nn.Module) -> bool:
    """Whether moving its tensors one by one is all that the module's own `to` would do."""
    import torch

    if "to" in vars(module) or type(module).to.__module__.split(".")[0] not in _KNOWN_TO:
        return False
    marks = ("hf_quantizer", "is_quantized", "is_loaded_in_4bit", "is_loaded_in_8bit")
    if any(getattr(module, mark, None) for mark in marks):
        return False
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):
            return False
        for tensor in [*part._parameters.values(), *part._buffers.values()]:
            if tensor is None:
                continue
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                return False
            if tensor.is_leaf and tensor.grad is not None:
                return False
    return True


def _copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.detach().to(device)


def _move_back(
    module: torch.nn.Module, device: torch.device, stay: Container[object],
    homes: Mapping[object, torch.device], name: str,
) -> None:  # fmt: skip
    """Undoes a move to `device` that raised, but for what was there before. What cannot go back
    stays where it is: whole, and said so."""
    failed: list[Exception] = []

    def back(tensor: torch.Tensor) -> torch.Tensor:
        key = components.memory_key(tensor)
        # Of memory that an RNN has made anew for its weights there nobody knows more.
        home = homes.get(key) or next(iter(homes.values()), None)
        if home is None or key in stay or not components.is_on(tensor, device):
            return tensor
        try:
            if key not in returned:
                returned[key] = _copy(tensor, home)
        except Exception as error:  # noqa: BLE001  # the first exception is the one to go on
            failed.append(error)
        return returned.get(key, tensor)

    returned: dict[object, torch.Tensor] = {}
    module._apply(back)  # type: ignore[no-untyped-call]
    if failed:
        logger.warning(
            "%s: the move was broken off and could not be undone in full (%s); "
            "move it to one device before it is used again",
            name, failed[-1],
        )  # fmt: skip


def _move_by_itself(
    module: torch.nn.Module, device: torch.device, progress: Progress | None, name: str
) -> int:
    """module.to(device) in one step; back to where it was if that raises."""
    elsewhere = [
        t for t in components.distinct_tensors([module]) if not components.is_on(t, device)
    ]
    total = sum(map(components.size_bytes, elsewhere))
    origins = {str(components.device_of(t)) for t in elsewhere}
    del elsewhere  # they would keep the old memory alive
    reporter = Reporter(progress, total, name, device)
    try:
        module.to(device)
        if total:
            reporter.finish()
    except BaseException:
        if len(origins) == 1:
            try:
                module.to(origins.pop())
            except Exception as error:  # noqa: BLE001  # the first exception is the one to go on
                logger.warning("%s could not be moved back: %s", name, error)
        raise
    return total


# (module, device, name) -> bytes moved
Mover = Callable[["torch.nn.Module", "torch.device", str], int]
_SLOT = "_hy3d_offload_watch"
_FREE = "maybe_free_model_hooks"


@contextmanager
def reporting_moves(pipeline: Any, progress: Progress | None) -> Iterator[None]:
    """While open, `to(device)` of the pipeline's components is reported to `progress`, whoever
    calls it: a loader, the pipeline's own `to`, accelerate's hooks of model offload.

    pipeline: anything that components_of() knows. What moves, and in which order, stays the
    caller's. Without a report go: modules with a `to` of their own on the instance, moves that
    change the dtype or the memory format, and non_blocking ones. Of nested scopes the outermost
    reports.
    """
    with watched(
        pipeline, Listener(lambda module, device, name: move(module, device, progress, name))
    ):
        yield


@dataclass(eq=False)
class Listener:
    """What watched() calls. mover: moves a module before its own `to` does; None: no wish. before,
    after: enclose each transfer, also one that an exception breaks off."""

    mover: Mover | None = None
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None


@contextmanager
def watched(pipeline: Any, listener: Listener) -> Iterator[bool]:
    """Tells `listener` about the transfers of the pipeline's components while open.

    Yields whether those of every component are seen. Several listeners may watch one pipeline; the
    first one with a mover moves.
    """
    pipeline = components.unwrap(pipeline)
    own = getattr(pipeline, "__dict__", {})
    watch = own.get(_SLOT)
    if watch is None:
        watch = own[_SLOT] = _Watch(pipeline)
        watch.attach()
    watch.listeners.append(listener)
    try:
        yield watch.complete
    finally:
        watch.listeners.remove(listener)
        if not watch.listeners:
            own.pop(_SLOT, None)
            watch.detach()


class _Watch:
    """The replaced methods of one pipeline and its components."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.listeners: list[Listener] = []
        self.complete = True
        self._free: Callable[..., Any] | None = None

    def attach(self) -> None:
        for name, module in components.components_of(self.pipeline).items():
            found = vars(module).setdefault("to", functools.partial(self._to, module, name))
            self.complete &= self._is_ours(found)
        free = getattr(self.pipeline, _FREE, None)
        if self._free is None and callable(free) and _FREE not in vars(self.pipeline):
            self._free = free
            vars(self.pipeline)[_FREE] = self._free_hooks

    def detach(self) -> None:
        for module in components.components_of(self.pipeline).values():
            if self._is_ours(vars(module).get("to")):
                del vars(module)["to"]
        if self._free is not None:
            vars(self.pipeline).pop(_FREE, None)

    def _is_ours(self, found: Any) -> bool:
        return isinstance(found, functools.partial) and found.func == self._to

    def _to(self, module: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """module.to(*args, **kwargs), its transfer told."""
        mine = vars(module).pop("to")  # move() must see the module as it is
        try:
            device = _destination(module, args, kwargs)
            if device is None or all(
                components.is_on(t, device) for t in components.distinct_tensors([module])
            ):
                return module.to(*args, **kwargs)
            for listener in self.listeners:
                listener.before()
            try:
                movers = (one.mover for one in self.listeners if one.mover is not None)
                mover = next(movers, None)
                if mover is not None:
                    mover(module, device, name)
                return module.to(*args, **kwargs)
            finally:
                for listener in self.listeners:
                    listener.after()
        finally:
            vars(module)["to"] = mine

    def _free_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """maybe_free_model_hooks: everything to the CPU, and new hooks, for which accelerate takes
        a module's `to` away."""
        assert self._free is not None  # set where this was put in place
        for module in components.components_of(self.pipeline).values():
            if any(
                components.is_kind(hook, "CpuOffload") for hook in components.flat_hooks(module)
            ):
                module.to("cpu")
        try:
            return self._free(*args, **kwargs)
        finally:
            self.attach()


def _destination(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.device | None:
    """Where these arguments of `to` send a module, if they do nothing else to it."""
    import torch

    parsed: Any
    try:
        # As nn.Module.to reads them; under cuda_literals() "cuda" is translated here too.
        parsed = torch._C._nn._parse_to(*args, **kwargs)
    except (TypeError, RuntimeError):
        return None  # the module's own `to` says in its own words what is wrong
    device, dtype, non_blocking, memory_format = parsed
    if device is None or non_blocking or memory_format is not None:
        return None
    if dtype is not None and any(
        tensor.dtype != dtype and (tensor.is_floating_point() or tensor.is_complex())
        for tensor in [*module.parameters(), *module.buffers()]
    ):
        return None
    return components.indexed(device)
