"""Moving weights with progress in bytes."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hy3d_rocm.offload import components, hooks
from hy3d_rocm.offload.components import distinct_tensors, indexed, memory_key, size_bytes
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
        self,
        progress: Progress | None,
        total: int,
        name: str,
        device: torch.device,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
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


@dataclass
class _Owner:
    """A place in a module that holds a tensor."""

    module: torch.nn.Module
    name: str
    is_parameter: bool

    def get(self) -> torch.Tensor:
        table: Any = self.module._parameters if self.is_parameter else self.module._buffers
        tensor: torch.Tensor = table[self.name]
        return tensor


def move(
    module: torch.nn.Module,
    device: torch.device | str,
    progress: Progress | None = None,
    what: str | None = None,
) -> int:
    """Moves a module's parameters and buffers to `device`; returns the bytes that were moved.

    As module.to(device), with these differences: progress(done, total, "<what> to <device>") is
    called at most ten times a second and at the end; tensors that share memory still share it
    afterwards; at no time is more than one tensor in both places; if anything raises (out of
    memory, progress itself), what had moved goes back before the exception goes on.
    Modules that have their own idea of moving (quantised ones, tensor subclasses, an own `to`,
    gradients) are moved by their own `to` in one step. what: the module's name for people.
    """
    target, name = indexed(device), what or type(module).__name__
    if not is_plain(module):
        return _move_by_itself(module, target, progress, name)
    groups = _groups_elsewhere(module, target)
    total = sum(size_bytes(owners[0].get()) for owners in groups)
    if not groups:
        return 0
    reporter = Reporter(progress, total, name, target)
    moved: list[tuple[list[_Owner], torch.device]] = []
    try:
        while groups:
            owners = groups.popleft()
            source = owners[0].get()
            origin, count = components.device_of(source), size_bytes(source)
            del source  # or it would live until the next one is moved
            _move_group(owners, target)
            moved.append((owners, origin))
            reporter.add(count)
        _refresh(module, target)
        reporter.finish()
    except BaseException:
        _move_back(module, moved, name)
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


def _groups_elsewhere(module: torch.nn.Module, device: torch.device) -> deque[list[_Owner]]:
    """The places of each piece of memory that is not on `device` yet, in the module's order."""
    groups: dict[object, list[_Owner]] = {}
    for part in module.modules():
        for table, is_parameter in ((part._parameters, True), (part._buffers, False)):
            for name, tensor in table.items():
                if tensor is not None and not components.is_on(tensor, device):
                    owner = _Owner(part, name, is_parameter)
                    groups.setdefault(memory_key(tensor), []).append(owner)
    return deque(groups.values())


def _copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.detach().to(device)


def _move_group(owners: list[_Owner], device: torch.device) -> None:
    """Puts a copy on `device` into every place; the old memory dies with the last of them."""
    import torch

    with torch.no_grad():
        moved = _copy(owners[0].get(), device)
        replaced: dict[int, torch.nn.Parameter] = {}
        for owner in owners:
            if not owner.is_parameter:
                owner.module._buffers[owner.name] = moved
                continue
            old = owner.get()
            if torch._has_compatible_shallow_copy_type(old, moved):
                old.data = moved  # the Parameter object stays, and who else holds it follows
                continue
            new = replaced.get(id(old))
            if new is None:
                new = replaced[id(old)] = torch.nn.Parameter(moved, old.requires_grad)
            owner.module._parameters[owner.name] = new


def _refresh(module: torch.nn.Module, device: torch.device) -> None:
    """Lets modules with an `_apply` of their own act: they move or view more than their tables.

    RNNs keep a list of views of their weights there, others plain tensors that are no buffers.
    """
    import torch

    for part in module.modules():
        if type(part)._apply is not torch.nn.Module._apply:
            part._apply(lambda t: t.to(device))  # type: ignore[no-untyped-call]


def _move_back(
    module: torch.nn.Module, moved: list[tuple[list[_Owner], torch.device]], name: str
) -> None:
    """Undoes a move that raised. What cannot go back stays where it is: whole, and said so."""
    failed: Exception | None = None
    origins = {str(origin): origin for _, origin in moved}
    while moved:
        owners, origin = moved.pop()
        try:
            _move_group(owners, origin)
        except Exception as error:  # noqa: BLE001  # the first exception is the one to go on
            failed = error
    try:
        if len(origins) == 1:
            _refresh(module, *origins.values())
    except Exception as error:  # noqa: BLE001
        failed = error
    if failed is not None:
        logger.warning(
            "%s: the move was broken off and could not be undone in full (%s); "
            "move it to one device before it is used again",
            name, failed,
        )  # fmt: skip


def _move_by_itself(
    module: torch.nn.Module, device: torch.device, progress: Progress | None, name: str
) -> int:
    """module.to(device) in one step; back to where it was if that raises."""
    elsewhere = [t for t in distinct_tensors([module]) if not components.is_on(t, device)]
    total, origins = (
        sum(map(size_bytes, elsewhere)),
        {str(components.device_of(t)) for t in elsewhere},
    )
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


@contextmanager
def reporting_transfers(pipeline: Any, progress: Progress | None) -> Iterator[None]:
    """While open, transfers made by the pipeline's model offload are reported to `progress`.

    Each transfer is one sequence of progress calls ("unet to cuda:0"); an exception from progress
    breaks the transfer off (see move) and goes through the pipeline's call. What moves, and in
    which order, is as accelerate does it. Sequential offload, other kinds of hooks and pipelines
    without hooks are left alone.
    """
    reporting = _Reporting(progress)
    with hooks.watched(pipeline, reporting):
        yield


class _Reporting(hooks.Listener):
    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    @property
    def mover(self) -> hooks.Mover:
        return self._move

    def _move(self, module: torch.nn.Module, device: torch.device, name: str) -> int:
        return move(module, device, self._progress, name)
