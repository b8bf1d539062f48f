"""FramePack's memory module where torch.cuda can't be asked which GPU is the current one.

`diffusers_helper/memory.py` asks `torch.cuda.current_device()` in its fourth line, so on a machine
without a GPU (also an AMD one whose torch sees none, or DirectML) the whole pack cannot be
imported. An import hook answers that one call from that one module with 0 where the driver cannot,
and then puts ComfyUI's own device, or the CPU, into the module's `gpu`. Where the driver answers,
the module is left as it is. Nothing is imported here: this runs before torch is.
"""

from __future__ import annotations

import importlib.machinery
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

logger = logging.getLogger("hy3d_rocm")

MODULE = "diffusers_helper.memory"
SIBLING = "models/hunyuan_video_packed.py"  # beside memory.py; no other package has it
_CHANGED = "_hy3d_rocm_import"  # in a module that was changed: what stood there

DeviceName = Callable[[], str]


def install(allowed: Callable[[], bool] = lambda: True, device: DeviceName = lambda: "cpu") -> Hook:
    """Watches for FramePack's memory module to be imported; the hook, of which there is one.

    allowed: asked at that import. device: where to compute if the driver cannot be asked.
    """
    for found in sys.meta_path:
        if isinstance(found, Hook):
            found.allowed, found.device = allowed, device
            return found
    hook = Hook(allowed, device)
    sys.meta_path.insert(0, hook)
    return hook


def uninstall() -> None:
    """Takes the hook away, and what it has put into modules."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Hook)]
    for module in list(sys.modules.values()):
        originals = getattr(module, "__dict__", {}).get(_CHANGED)
        if isinstance(originals, dict):
            module.__dict__.update(originals)
            del module.__dict__[_CHANGED]


class Hook(MetaPathFinder):
    """Finds FramePack's memory module as Python does and runs it."""

    def __init__(self, allowed: Callable[[], bool], device: DeviceName) -> None:
        self.allowed = allowed
        self.device = device

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not f".{fullname}".endswith("." + MODULE):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None or spec.origin is None:
            return None
        if not (Path(spec.origin).parent / SIBLING).is_file():
            return None
        run_by(spec.loader, self.run)
        return spec

    def run(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        """Runs FramePack's memory module, with the query answered meanwhile if need be."""
        reason = why_not_asked() if self._allowed() else ""
        if not reason:
            execute(module)
            return
        with answered(module.__name__):
            execute(module)
        place(module, self.device())
        logger.info(
            "hy3d_rocm: %s: torch.cuda has no current device here (%s), so it computes on %s",
            module.__name__.removesuffix("." + MODULE).rpartition("/")[2], reason, module.gpu,
        )  # fmt: skip

    def _allowed(self) -> bool:
        try:
            return self.allowed()
        except Exception as error:  # noqa: BLE001  (a setting must not cost the import)
            logger.debug("whether imports may be corrected is not known: %s", error)
            return True


def run_by(loader: Loader, run: Callable[[Callable[[ModuleType], None], ModuleType], None]) -> None:
    """Has a module's own loader run it by run(how it runs modules, the module)."""
    vars(loader)["exec_module"] = partial(run, loader.exec_module)


def why_not_asked() -> str:
    """Why torch.cuda cannot say which GPU is current; "" if it can."""
    import torch

    try:
        torch.cuda.current_device()
    except (AssertionError, RuntimeError) as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ""


@contextmanager
def answered(name: str) -> Iterator[None]:
    """While open, `torch.cuda.current_device()` is 0 for callers in the module `name`, and for
    nobody else."""
    import torch

    original = torch.cuda.current_device

    def current_device() -> int:
        return 0 if sys._getframe(1).f_globals.get("__name__") == name else original()

    torch.cuda.current_device = current_device
    try:
        yield
    finally:
        if torch.cuda.current_device is current_device:
            torch.cuda.current_device = original


def place(module: ModuleType, device: str) -> None:
    """Has the memory module compute on `device` and count the memory that is free there."""
    import torch

    names = module.__dict__
    query = names.get("get_cuda_free_memory_gb")
    names[_CHANGED] = {} if query is None else {"get_cuda_free_memory_gb": query}
    names["gpu"] = torch.device(device)
    if query is not None:
        names["get_cuda_free_memory_gb"] = free_memory_gb(query, lambda: names["gpu"])


def free_memory_gb(query: Callable[..., float], default: Callable[[], Any]) -> Callable[..., float]:
    """Upstream's get_cuda_free_memory_gb for any device: a GPU's is asked as upstream does, the
    host's memory is counted where there is none. Answers in GB (2**30 bytes)."""

    def get_cuda_free_memory_gb(device: Any = None) -> float:
        import torch

        from hy3d_rocm.memory import host_free_bytes
        from hy3d_rocm.units import GB

        asked = torch.device(default() if device is None else device)
        if asked.type == "cuda":
            return query(asked)
        return (host_free_bytes() or 0) / GB

    return get_cuda_free_memory_gb
