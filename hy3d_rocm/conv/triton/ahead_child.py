"""A process that compiles kernels which another one will want (ahead.py), into Triton's cache.

It never opens a GPU and never loads torch, which take seconds and memory: Triton is told for which
card to compile, and given stand-ins for tensors.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Tensor:
    """What Triton asks of an operand: its type, whether it is aligned, whether it is small."""

    def __init__(self, dtype: object, is_small: bool, is_aligned: bool) -> None:
        self.dtype = dtype
        self._size = 16 if is_small else 1 << 40
        self._address = 16 if is_aligned else 8

    def data_ptr(self) -> int:
        return self._address

    def untyped_storage(self) -> Tensor:
        return self

    def size(self) -> int:
        return self._size

    def ptr_range(self) -> int:
        return self._size


class _Type:
    """A torch.dtype, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


class _Driver:
    """Of a GPU that is not opened."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target


def _prepare(target: list[Any]) -> None:
    torch: Any = ModuleType("torch")
    torch.__spec__ = ModuleSpec("torch", None)
    torch.Tensor = Tensor
    sys.modules["torch"] = torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    driver.set_active(_Driver(GPUTarget(*target)))


def _compile(job: dict[str, Any], types: dict[str, _Type]) -> None:
    function = getattr(importlib.import_module(job["module"]), job["kernel"])
    operands = [
        Tensor(types.setdefault(dtype, _Type(dtype)), is_small, is_aligned)
        for dtype, is_small, is_aligned in job["operands"]
    ]
    function.warmup(
        *operands, *job["numbers"], *job["constants"], grid=(1, 1, 1),
        num_warps=job["num_warps"], num_stages=job["num_stages"],
    )  # fmt: skip


def serve(
    header: dict[str, Any], lines: Iterable[bytes], report: Callable[[dict[str, Any]], None]
) -> None:
    """See conv/probe/child.py. header: for what to compile; lines: a kernel each."""
    types: dict[str, _Type] = {}
    _prepare(header["target"])
    report({"event": "ready"})
    for line in lines:
        try:
            _compile(json.loads(line), types)
        except Exception:  # noqa: BLE001 - whatever a compiler raises
            report({"event": "failed"})
        else:
            report({"event": "done"})
