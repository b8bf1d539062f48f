"""Bytes of live storages, followed by a dispatch mode: for tests of what an engine holds."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows storages that operators make; those in `known` were there before."""

    def __init__(self, known: list[torch.Tensor], device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = [t.untyped_storage() for t in known]  # kept, so that addresses stay taken
        self._seen: dict[int, Any] = {s._cdata: None for s in self._known}
        self._device = device
        self.live = self.peak = self.macs = 0

    def _freed(self, key: int, size: int) -> None:
        self.live -= size
        self._seen.pop(key, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default:
            self.macs += out.numel() * math.prod(args[1].shape[1:])
            hidden = OperatorWorkspace(self._device).convolution(args, out, by_layer=True)
            self.peak = max(self.peak, self.live + hidden + out.nbytes)
        for leaf in (out,) if isinstance(out, torch.Tensor) else tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._born(leaf.untyped_storage())
        return out

    def _born(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes()
        self._seen[key] = weakref.finalize(storage, self._freed, key, size)
        self.live += size
        self.peak = max(self.peak, self.live)
