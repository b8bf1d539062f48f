"""Watching accelerate's model offload hooks: when a component is about to move, and has moved.

accelerate's CpuOffload has one method that moves, `pre_forward`: it sends the previous component
to the CPU, then its own to the execution device. While a pipeline is watched, each such hook has
a `pre_forward` of ours as an instance attribute. diffusers makes new hooks at the end of each call
(`maybe_free_model_hooks`), so that method is wrapped on the instance too.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hy3d_rocm.offload import components
from hy3d_rocm.offload.components import components_of, flat_hooks, indexed, is_kind, unwrapped

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("hy3d_rocm")

# (module, device, name) -> bytes moved
Mover = Callable[["torch.nn.Module", "torch.device", str], int]
_SLOT = "_hy3d_offload_watch"
_FREE = "maybe_free_model_hooks"
# What pre_forward of the CpuOffload that we know looks up; with another one nothing is replaced.
_KNOWN_NAMES = {"prev_module_hook", "offload", "execution_device", "to", "send_to_device"}


class Listener:
    """What watched() calls. before and after enclose each transfer, not each forward."""

    @property
    def mover(self) -> Mover | None:
        """What moves a module instead of its own `to`; None: no wish."""
        return None

    def before(self) -> None:
        """Components are about to move."""

    def after(self) -> None:
        """They have moved, or it was broken off by an exception."""


@contextmanager
def watched(pipeline: Any, listener: Listener) -> Iterator[bool]:
    """Tells `listener` about the transfers of the pipeline's offload hooks while open.

    Yields whether every model offload hook of the pipeline could be watched. Several listeners
    may watch one pipeline; the last one with a mover moves.
    """
    pipeline = unwrapped(pipeline)
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
    """The replaced methods of one pipeline and its hooks."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.listeners: list[Listener] = []
        self.complete = True
        self._hooks: list[Any] = []
        self._free: Callable[..., Any] | None = None

    def attach(self) -> None:
        for name, module in components_of(self.pipeline).items():
            for hook in flat_hooks(module):
                if not is_kind(hook, "CpuOffload"):
                    continue
                difference = _difference(hook)
                if difference is None:
                    self._hooks.append(hook)
                    hook.pre_forward = functools.partial(
                        self._pre_forward, hook, hook.pre_forward, name
                    )
                else:
                    self.complete = False
                    logger.debug("transfers of %s are not watched: %s", name, difference)
        free = getattr(self.pipeline, _FREE, None)
        if self._free is None and callable(free) and _FREE not in vars(self.pipeline):
            self._free = free
            vars(self.pipeline)[_FREE] = self._free_hooks

    def detach(self) -> None:
        self._release_hooks()
        if self._free is not None:
            vars(self.pipeline).pop(_FREE, None)
            self._free = None

    def _release_hooks(self) -> None:
        for hook in self._hooks:
            replaced = vars(hook).get("pre_forward")
            if isinstance(replaced, functools.partial) and replaced.func == self._pre_forward:
                del hook.pre_forward
        self._hooks = []

    def _pre_forward(
        self, hook: Any, original: Any, name: str, module: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        previous: Any = getattr(hook.prev_module_hook, "model", None)
        target = _device_of(hook)
        leaves = previous is not None and not _at(previous, _cpu())
        arrives = target is not None and not _at(module, target)
        if not leaves and not arrives:
            return original(module, *args, **kwargs)
        with self._transfer() as mover:
            if mover is None or target is None:
                return original(module, *args, **kwargs)
            if leaves:
                mover(previous, _cpu(), self._name_of(previous))
                _empty_cache(target)
            if not arrives:
                return args, kwargs
            mover(module, target, name)
        # As accelerate: inputs follow where the module has moved, and only there.
        from accelerate.utils import send_to_device

        return send_to_device(args, target), send_to_device(kwargs, target)

    def _free_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """maybe_free_model_hooks: everything to the CPU, and new hooks."""
        assert self._free is not None  # set where this was put in place
        hooked = [hook for hook in self._hooks if vars(hook).get("pre_forward") is not None]
        if not hooked:
            return self._free(*args, **kwargs)
        with self._transfer() as mover:
            if mover is not None:
                for name, module in components_of(self.pipeline).items():
                    if any(is_kind(hook, "CpuOffload") for hook in flat_hooks(module)):
                        mover(module, _cpu(), name)
            self._release_hooks()
            try:
                return self._free(*args, **kwargs)
            finally:
                self.attach()

    @contextmanager
    def _transfer(self) -> Iterator[Mover | None]:
        for listener in self.listeners:
            listener.before()
        try:
            movers = [listener.mover for listener in self.listeners if listener.mover is not None]
            yield movers[-1] if movers else None
        finally:
            for listener in self.listeners:
                listener.after()

    def _name_of(self, module: Any) -> str:
        names = components_of(self.pipeline).items()
        return next((name for name, known in names if known is module), type(module).__name__)


def _difference(hook: Any) -> str | None:
    """What is different about a hook from accelerate's CpuOffload as we know it; None: nothing."""
    if type(hook).__name__ != "CpuOffload" or "pre_forward" in vars(hook):
        return f"its hook is a changed CpuOffload ({type(hook).__qualname__})"
    if not {"prev_module_hook", "execution_device"} <= set(vars(hook)):
        return "its hook lacks prev_module_hook or execution_device"
    function = type(hook).pre_forward
    function = getattr(function, "__wrapped__", function)
    missing = _KNOWN_NAMES - set(getattr(getattr(function, "__code__", None), "co_names", ()))
    return f"its hook's pre_forward does not use {', '.join(sorted(missing))}" if missing else None


def _cpu() -> torch.device:
    import torch

    return torch.device("cpu")


def _device_of(hook: Any) -> torch.device | None:
    from hy3d_rocm.device import as_device

    found = as_device(hook.execution_device)
    return None if found is None else indexed(found)


def _at(module: Any, device: torch.device) -> bool:
    """accelerate's own test: where the first parameter is. A module without any is everywhere."""
    first = next(iter(module.parameters()), None)
    return first is None or components.is_on(first, device)


def _empty_cache(device: torch.device) -> None:
    import torch

    if device.type == "cuda" and torch.cuda.is_available():
        torch.cuda.empty_cache()
