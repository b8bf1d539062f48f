"""A sink in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.frames.output import Shape


class TensorSink:
    """A sink in memory. (A decode without a sink fills a tensor by itself: placing.py.)"""

    def __init__(self, out: Any = None) -> None:
        self._out: Tensor | None = out
        self._next: list[int] = []
        self._plan: Mapping[str, Any] | None = None

    def begin(
        self, shape: Shape, dtype: torch.dtype, plan: Mapping[str, Any] | None = None
    ) -> None:
        if self._out is None:
            self._out = torch.empty(shape, dtype=dtype)
        if not self._next or plan != self._plan:
            self._next = [0] * shape[0]
        self._plan = plan

    def host_bytes(self, shape: Shape) -> int:
        return 0 if self._out is not None else math.prod(shape) * 4

    def first_wanted(self, sample: int) -> int:
        return self._next[sample]

    def put(self, sample: int, first: int, frames: Tensor) -> None:
        stop = first + frames.shape[2]
        self._tensor()[sample : sample + 1, :, first:stop].copy_(frames)
        if first <= self._next[sample]:
            self._next[sample] = max(stop, self._next[sample])

    def finish(self) -> Tensor:
        return self._tensor()

    def abort(self) -> None:
        self._next = [0] * len(self._next)

    @property
    def buffer(self) -> Tensor | None:
        return self._out

    @property
    def folder(self) -> Path | None:
        return None

    def _tensor(self) -> Tensor:
        if self._out is None:
            raise RuntimeError("a sink was used before begin()")
        return self._out
