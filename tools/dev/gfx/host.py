"""Launches for a GPU on tensors in main memory: what torch is asked about devices is answered, and
what it allocates begins as NaN, so that nothing unwritten can pass unseen."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

_MISSING = object()


class Changes:
    """Attributes and environment variables that were replaced, and may be put back."""

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute, or makes it."""
        before = getattr(owner, name, _MISSING)
        setattr(owner, name, value)
        if before is _MISSING:
            self._undo.callback(delattr, owner, name)
        else:
            self._undo.callback(setattr, owner, name, before)

    def set_variable(self, name: str, value: str) -> None:
        """The same of an environment variable."""
        before = os.environ.get(name)
        os.environ[name] = value
        if before is None:
            self._undo.callback(os.environ.pop, name, None)
        else:
            self._undo.callback(os.environ.__setitem__, name, before)

    def undo(self) -> None:
        self._undo.close()


def prepare_torch(changes: Changes) -> None:
    """Devices of torch.cuda are the CPU, its streams are 0, and torch.empty makes NaN."""
    import torch

    changes.set(torch, "empty", _poisoned(torch.empty))
    changes.set(torch.cuda, "device", lambda _: contextlib.nullcontext())
    changes.set(torch.cuda, "current_device", lambda: None)
    changes.set(torch._C, "_cuda_getCurrentRawStream", lambda _: 0)


def _poisoned(empty: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def poisoned(*args: Any, **kwargs: Any) -> Any:
        made = empty(*args, **kwargs)
        if made.dtype is torch.uint8:
            return made.fill_(255)  # a workspace: NaN as any float
        return made.fill_(float("nan")) if made.is_floating_point() else made

    return poisoned


def reach(tensor: Any) -> tuple[int, int]:
    """The address of a tensor's first element, and bytes to the end of its last one; 0 of none."""
    if not tensor.numel():
        return tensor.data_ptr(), 0
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((n - 1) * s for n, s in sides) + 1
    return tensor.data_ptr(), last * tensor.element_size()
