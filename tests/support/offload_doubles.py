"""Stand-ins for the offload tests: an accelerator made of labels, and its allocator's counters.

"cpu:0" is the simulated accelerator. torch computes there as on "cpu" and forgets the number, so a
real pipeline runs; which tensors lie on the accelerator is kept here, by storage.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

CPU = torch.device("cpu")
ACCELERATOR = torch.device("cpu:0")

# The package's functions have the modules' names, so the modules are fetched by their full ones.
components_module = importlib.import_module("hy3d_rocm.offload.components")
transfer_module = importlib.import_module("hy3d_rocm.offload.transfer")


class SimulatedAccelerator:
    """Which storages lie on ACCELERATOR, how many bytes live there and lived there at most.

    capacity: bytes; a copy beyond it raises torch.OutOfMemoryError, as torch's allocator does.
    """

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.live: dict[torch.device, int] = {CPU: 0, ACCELERATOR: 0}
        self.most: dict[torch.device, int] = {CPU: 0, ACCELERATOR: 0}
        self.most_together = 0
        self.before_copy: Callable[[torch.Tensor], None] = lambda tensor: None
        self._there: set[int] = set()

    def install(self, patch: pytest.MonkeyPatch) -> SimulatedAccelerator:
        patch.setattr(components_module, "device_of", self.device_of)
        patch.setattr(transfer_module, "_copy", self.copy)
        patch.setattr(components_module, "is_accelerator", lambda device: device == ACCELERATOR)
        patch.setattr(torch.nn.Module, "to", self._module_to(torch.nn.Module.to))
        patch.setattr("accelerate.hooks.CpuOffload.pre_forward", self._pre_forward())
        return self

    def _pre_forward(self) -> Callable[..., Any]:
        """accelerate 1.15's, which asks tensors for their devices: here it asks the simulation."""

        def pre_forward(hook: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            previous = hook.prev_module_hook
            if previous is not None and self._at(previous.model) != CPU:
                previous.offload()
            if self._at(module) != hook.execution_device:
                module.to(hook.execution_device)
            return args, kwargs

        return pre_forward

    def _at(self, module: torch.nn.Module) -> torch.device:
        return self.device_of(next(module.parameters()))

    def _module_to(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """nn.Module.to between "cpu" and "cpu:0", which torch takes for one place."""

        @functools.wraps(original)
        def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            places = [value for value in (*args, *kwargs.values()) if _is_place(value)]
            others = [value for value in args if not _is_place(value) and value is not None]
            if others:
                original(module, *others)
            for place in map(torch.device, places):
                module._apply(lambda t, to=place: t if self.is_on(t, to) else self.copy(t, to))
            return module

        return to

    def place(self, tensor: torch.Tensor) -> int:
        return tensor.untyped_storage().data_ptr()

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        if tensor.is_meta:
            return tensor.device
        return ACCELERATOR if self.place(tensor) in self._there else CPU

    def is_on(self, tensor: torch.Tensor, device: torch.device) -> bool:
        return self.device_of(tensor) == device

    def copy(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        self.before_copy(tensor)
        count = tensor.numel() * tensor.element_size()
        if device == ACCELERATOR and self.live[ACCELERATOR] + count > self.capacity:
            raise torch.OutOfMemoryError(f"simulated out of memory: tried to allocate {count}")
        copied = tensor.detach().clone()
        self.track(copied, device)
        return copied

    def track(self, tensor: torch.Tensor, device: torch.device) -> None:
        """`tensor` lies on `device` and counts until its storage dies."""
        storage = tensor.untyped_storage()
        count, address = storage.nbytes(), storage.data_ptr()
        if device == ACCELERATOR:
            self._there.add(address)
        self.live[device] += count
        self.most[device] = max(self.most[device], self.live[device])
        self.most_together = max(self.most_together, sum(self.live.values()))
        weakref.finalize(storage, self._freed, device, count, address)

    def _freed(self, device: torch.device, count: int, address: int) -> None:
        self.live[device] -= count
        if device == ACCELERATOR:
            self._there.discard(address)

    def track_module(self, module: torch.nn.Module, device: torch.device = CPU) -> None:
        """Counts a module's tensors from now on."""
        seen: set[int] = set()
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.numel() and self.place(tensor) not in seen:
                seen.add(self.place(tensor))
                self.track(tensor, device)

    # As torch.cuda's.
    def memory_allocated(self, device: Any) -> int:
        return self.live[ACCELERATOR]

    def max_memory_allocated(self, device: Any) -> int:
        return self.most[ACCELERATOR]

    def reset_peak_memory_stats(self, device: Any) -> None:
        self.most[ACCELERATOR] = self.live[ACCELERATOR]


def _is_place(value: object) -> bool:
    return isinstance(value, (str, torch.device))


class Progress:
    """Keeps what it is told; raises what it is given at call number `at`."""

    def __init__(self, error: BaseException | None = None, at: int = 0) -> None:
        self.calls: list[tuple[int, int, str]] = []
        self.error, self.at = error, at

    def __call__(self, done: int, total: int, what: str) -> None:
        if self.error is not None and len(self.calls) == self.at:
            self.error, error = None, self.error
            raise error
        self.calls.append((done, total, what))

    @property
    def finished(self) -> list[str]:
        return [what for done, total, what in self.calls if done == total]


def values_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all parameters and buffers."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def same_values(module: torch.nn.Module, values: dict[str, torch.Tensor]) -> bool:
    now = values_of(module)
    return now.keys() == values.keys() and all(torch.equal(now[k], values[k]) for k in now)


def hooked(pipeline: Any) -> list[str]:
    """Names of the components that have an accelerate hook."""
    return [
        name
        for name, module in components_module.components_of(pipeline).items()
        if hasattr(module, "_hf_hook")
    ]


def all_on(sim: SimulatedAccelerator, module: torch.nn.Module, device: torch.device) -> bool:
    """Whether all of a module lies on `device`."""
    tensors = [*module.parameters(), *module.buffers()]
    return all(sim.is_on(tensor, device) for tensor in tensors if tensor.numel())
