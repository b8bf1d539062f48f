"""Serves `import custom_rasterizer` and the mesh processor where the real ones cannot be imported.

A finder at the head of sys.meta_path looks for three names. It asks the other finders first. Where
they have a module, that is loaded, and only if it fails is ours put in its place; where they have
none, or a folder without code (a namespace package, as the packs' source folders make one), ours
is served. What would have been imported without the finder is imported with it.

Nothing heavy is imported here: it is installed before torch is there.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

from hy3d_rocm.diagnose.env.choices import is_off
from hy3d_rocm.diagnose.env.shown import first_line

logger = logging.getLogger("hy3d_rocm")

VARIABLE = "HY3D_RASTER"
# What is asked for -> the names of raster/served.py that answer.
SERVED: dict[str, tuple[str, ...]] = {
    "custom_rasterizer": ("interpolate", "rasterize"),
    "mesh_inpaint_processor": ("meshVerticeInpaint",),
    "mesh_processor": ("meshVerticeInpaint",),
}
_MARK = "__hy3d_rocm__"  # in a module of ours: why it was served
_LOCK = threading.Lock()


class Installed(NamedTuple):
    """active: whether the finder is in place and not switched off. reason: a sentence's worth of
    why. served: name -> why ours stands there in this process."""

    active: bool
    reason: str
    served: dict[str, str]


def install(allowed: Callable[[], bool] = lambda: True) -> Installed:
    """Puts the finder in place; once is enough, again changes `allowed`. Never raises.

    allowed: asked when one of the names is imported and cannot be had. HY3D_RASTER=off goes first.
    """
    with _LOCK:
        found = _installed()
        if found is None:
            sys.meta_path.insert(0, _Finder(allowed))
        else:
            found.allowed = allowed
        for name in SERVED:
            _forget_namespace(name)
    off = _switched_off()  # `allowed` is not asked before it has to be
    return Installed(not off, off or "it is installed", _served())


def uninstall() -> None:
    """Takes the finder away, and its modules out of sys.modules: the next import is Python's own.
    Who holds such a module keeps it."""
    with _LOCK:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
        for name in SERVED:
            if hasattr(sys.modules.get(name), _MARK):
                del sys.modules[name]
    importlib.invalidate_caches()


def status() -> Installed:
    """What is in place now."""
    finder = _installed()
    reason = "it is not installed" if finder is None else finder.why_not()
    return Installed(not reason, reason or "it is installed", _served())


class _Finder(MetaPathFinder):
    def __init__(self, allowed: Callable[[], bool]) -> None:
        self.allowed = allowed
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Ours, or the real one with ours behind it; None for any other name."""
        if fullname not in SERVED or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            return self._answer(fullname, path, target)
        except Exception as error:  # noqa: BLE001  (an import must go on as if we were not there)
            logger.debug("hy3d_rocm: %s is left to Python: %s", fullname, error)
            return None
        finally:
            self._asking.now = False

    def why_not(self) -> str:
        """Why nothing is served; "" if it is."""
        if off := _switched_off():
            return off
        try:
            return "" if self.allowed() else "it is switched off"
        except Exception as error:  # noqa: BLE001  (a setting must not cost an import)
            logger.debug("whether modules may be served is not known: %s", error)
            return ""

    def _answer(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        if self.why_not():
            return None
        real = _others_find(name, path, target)
        if real is None or _is_namespace(real):
            folders = None if real is None else list(real.submodule_search_locations or ())
            why = "is not installed" if not folders else f"is a folder without code ({folders[0]})"
            return _spec(name, why, folders) if _can_serve(name, why) else None
        if hasattr(real.loader, "exec_module"):
            real.loader = _Trying(real.loader)
        return real


class _Serving(Loader):
    """Makes a module of the names of ours."""

    def __init__(self, why: str) -> None:
        self.why = why

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        ours = importlib.import_module("hy3d_rocm.raster.served")
        for public in SERVED[name]:
            setattr(module, public, getattr(ours, public))
        module.__doc__, module.__file__ = ours.__doc__, ours.__file__
        setattr(module, _MARK, self.why)
        logger.info(
            "hy3d_rocm: %s %s: hy3d_rocm's own rasteriser serves it (%s=off leaves it alone)",
            name, self.why, VARIABLE,
        )  # fmt: skip


class _Trying(Loader):
    """The real module's loader; where that fails, ours takes the module's place."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._failed: Exception | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        try:
            made: ModuleType | None = self._inner.create_module(spec)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (a library that does not load, whatever it says)
            self._failed = error
            return None
        return made

    def exec_module(self, module: ModuleType) -> None:
        name, before = module.__name__, set(sys.modules)
        try:
            if self._failed is not None:
                raise self._failed
            self._inner.exec_module(module)
        except MemoryError:
            raise
        except Exception as error:
            if not _replace(name, before, error):
                raise
            return
        if module.__spec__ is not None:  # as if we had not been there
            module.__spec__.loader = module.__loader__ = self._inner

    def __getattr__(self, name: str) -> Any:  # get_source and so on, for tracebacks
        return getattr(self._inner, name)


def _switched_off() -> str:
    return f"{VARIABLE}=off" if is_off(os.environ, VARIABLE) else ""


def _served() -> dict[str, str]:
    found = {name: getattr(sys.modules.get(name), _MARK, "") for name in SERVED}
    return {name: why for name, why in found.items() if why}


def _installed() -> _Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)


def _others_find(
    name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = None if isinstance(finder, _Finder) else getattr(finder, "find_spec", None)
        found: ModuleSpec | None = None if find is None else find(name, path, target)
        if found is not None:
            return found
    return None


def _is_namespace(spec: ModuleSpec) -> bool:
    return spec.loader is None or isinstance(spec.loader, importlib.machinery.NamespaceLoader)


def _forget_namespace(name: str) -> None:
    """Drops what an import before us made of a folder without code, unless it is in use."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is None or spec is None or not _is_namespace(spec):
        return
    if not any(other.startswith(f"{name}.") for other in list(sys.modules)):
        del sys.modules[name]


def _can_serve(name: str, why: str) -> bool:
    from hy3d_rocm import _native

    if not _native.available:
        from hy3d_rocm._fallback import INSTALL

        logger.info(
            "hy3d_rocm: %s %s; hy3d_rocm's rasteriser could serve it, but its C core is not there: "
            "%s", name, why, INSTALL,
        )  # fmt: skip
    return _native.available


def _spec(name: str, why: str, folders: list[str] | None) -> ModuleSpec:
    """folders: where its sub-modules are looked for; what lies there can be imported as before."""
    spec = ModuleSpec(name, _Serving(why), origin="hy3d_rocm", is_package=bool(folders))
    if folders:
        spec.submodule_search_locations = folders
    return spec


def _replace(name: str, before: set[str], error: Exception) -> bool:
    """Ours in place of a module that failed, with nothing left of that; False if ours fails too."""
    why = f"cannot be imported ({first_line(error)})"
    try:
        if not _can_serve(name, why):
            return False
        ours = importlib.util.module_from_spec(spec := _spec(name, why, None))
        assert spec.loader is not None
        spec.loader.exec_module(ours)
    except Exception as problem:  # noqa: BLE001  (then the real one's error is the one to see)
        logger.debug("hy3d_rocm: %s cannot be served: %s", name, problem)
        return False
    for other in set(sys.modules) - before:
        if other.startswith(f"{name}."):
            del sys.modules[other]
    sys.modules[name] = ours  # what importlib returns is what stands here
    return True
