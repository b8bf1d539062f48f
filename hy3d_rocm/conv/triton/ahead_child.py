"""A program that compiles kernels which another process will want (ahead.py), into Triton's cache.

It never opens a GPU and never loads torch, which take seconds and memory: Triton is told for which
card to compile, and given stand-ins for tensors. Started as a file, with nothing imported yet.

    python ahead_child.py SECONDS     (none of its steps takes longer, or the process ends)

stdin: a line that says for what to compile, then a line a kernel, JSON. stdout: "hy3d: ready", then
"hy3d: done" or "hy3d: failed" for each kernel. Whatever else is printed there is no answer.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
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


class _Packages:
    """Finds this project's packages without their own code, which loads torch."""

    def __init__(self, root: str) -> None:
        self._root, self._name = os.path.split(root)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        folder = os.path.join(self._root, *name.split("."))
        if name.partition(".")[0] != self._name or not os.path.isdir(folder):
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [folder]
        return spec


def _prepare(header: dict[str, Any]) -> None:
    sys.path[:] = header["path"]
    torch: Any = ModuleType("torch")
    torch.__spec__ = ModuleSpec("torch", None)
    torch.Tensor = Tensor
    sys.modules["torch"] = torch
    sys.meta_path.insert(0, _Packages(header["root"]))
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    driver.set_active(_Driver(GPUTarget(*header["target"])))


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


def main() -> None:
    """Until stdin ends."""
    seconds = float(sys.argv[1])

    def watch() -> None:
        """Whatever hangs, and whoever has gone meanwhile: this process ends."""
        faulthandler.dump_traceback_later(seconds, exit=True)

    watch()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    types: dict[str, _Type] = {}
    _prepare(json.loads(sys.stdin.readline()))
    answers.write("hy3d: ready\n")
    faulthandler.cancel_dump_traceback_later()
    for line in iter(sys.stdin.readline, ""):
        watch()
        try:
            _compile(json.loads(line), types)
        except Exception:  # noqa: BLE001 - whatever a compiler raises
            answers.write("hy3d: failed\n")
        else:
            answers.write("hy3d: done\n")
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
