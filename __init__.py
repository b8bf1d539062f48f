"""The door for ComfyUI: it loads this file from custom_nodes/, whatever the folder is called.

prestartup_script.py runs this file too, before torch is imported, and calls prestartup().
HY3D_ROCM=off: no nodes, no patches, no variables; one line says so.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

_LIBRARY = Path(__file__).resolve().parent / "hy3d_rocm"
_LOGGER = logging.getLogger("hy3d_rocm")
WEB_DIRECTORY = "./web"  # the settings and the nodes' help pages; ComfyUI reads this name


def _make_importable() -> None:
    """`import hy3d_rocm` finds the package beside this file, or an installed one that is the same.

    Where the two differ the folder's is taken, but for one without a C core where the installed
    one has it and one that is broken; a line says which and why. sys.path stays as it is: this
    folder has names (tests, docs) that would shadow other packs'.
    """
    if "hy3d_rocm" in sys.modules:
        return
    installed = _installed()
    if installed is None:
        _load_own()
        return
    changed = _changed(installed)
    if not changed:  # it is the folder's, with what was built of it
        return
    why_not = _why_not_ours(installed, changed)
    if not why_not:
        try:
            _load_own()
        except Exception as error:  # noqa: BLE001  (there is another one)
            why_not = f"which cannot be imported ({type(error).__name__}: {error})"
    ours = f"this folder's {_version(_LIBRARY)} ({_LIBRARY.parent})"
    theirs = f"the installed {_version(installed)} ({installed.parent})"
    used = (
        f"{theirs} is used, not {ours}, {why_not}" if why_not else f"{ours} is used, not {theirs}"
    )
    _LOGGER.warning(
        "hy3d_rocm: %s; %d files differ. Run `pip install .` in the folder to have both the same, "
        "or `pip install --force-reinstall --no-deps` a wheel of the folder's commit",
        used, len(changed),
    )  # fmt: skip


def _load_own() -> None:
    spec = importlib.util.spec_from_file_location(
        "hy3d_rocm", _LIBRARY / "__init__.py", submodule_search_locations=[str(_LIBRARY)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{_LIBRARY} cannot be read")
    module = sys.modules["hy3d_rocm"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["hy3d_rocm"]
        raise


def _installed() -> Path | None:
    """The folder of another hy3d_rocm that Python would import."""
    spec = importlib.util.find_spec("hy3d_rocm")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parent


def _changed(installed: Path) -> list[Path]:
    """Files of Python, by their paths in the package, that are not the same in both. What a wheel
    has bundled lies in the folder of this file, elsewhere."""
    if installed == _LIBRARY:
        return []
    both = {at.relative_to(of) for of in (_LIBRARY, installed) for at in of.rglob("*.py")}
    both = {at for at in both if at.parts[0] != "_bundled"}
    return sorted(at for at in both if _text(_LIBRARY / at) != _text(installed / at))


def _text(path: Path) -> bytes | None:
    """Whichever way its lines end; None where it cannot be read."""
    try:
        return path.read_bytes().replace(b"\r\n", b"\n")
    except OSError:
        return None


def _why_not_ours(installed: Path, changed: list[Path]) -> str:
    """Why the folder's package cannot be taken; "" where it can."""
    for path in changed:
        text = _text(_LIBRARY / path)
        try:
            compile(text or b"", str(path), "exec")
        except (SyntaxError, ValueError) as error:
            return f"which is broken ({path}: {error})"
    if not (_LIBRARY / "__init__.py").is_file():
        return "which is not there"
    if _has_core(installed) and not _has_core(_LIBRARY):
        return "which has no C core"
    return ""


def _has_core(package: Path) -> bool:
    return any((package / f"_core{ending}").is_file() for ending in EXTENSION_SUFFIXES)


def _version(package: Path) -> str:
    found = re.search(rb'__version__ = "([^"]+)"', _text(package / "__init__.py") or b"")
    return found[1].decode() if found else "without a version"


def _is_off() -> bool:
    return os.environ.get("HY3D_ROCM", "").strip().lower() == "off"


def _no_nodes() -> Any:
    from comfy_api.v0_0_2 import ComfyExtension

    class NoNodes(ComfyExtension):  # type: ignore[misc]
        async def get_node_list(self) -> list[Any]:
            return []

    return NoNodes()


def prestartup() -> None:
    """What must be done before torch and other packs are imported. What fails is one log line."""
    if _is_off():  # comfy_entrypoint says so
        return
    what = "the environment variables are left as they are"
    try:
        _make_importable()
        from hy3d_rocm.diagnose.env import startup

        startup.run(os.environ)
        what = "FramePackWrapper is imported as it is"
        from hy3d_rocm.comfy import import_hooks

        import_hooks.prepare_framepack(os.environ)
        what = "custom_rasterizer is not served"
        import_hooks.prepare_raster(os.environ)
    except Exception as error:  # noqa: BLE001  (a broken pack must not break ComfyUI)
        _LOGGER.error("hy3d_rocm: %s: %s: %s", what, type(error).__name__, error)


async def comfy_entrypoint() -> Any:
    """ComfyUI's entry (V3). Whatever fails here costs this pack's nodes and one log line."""
    if _is_off():
        _LOGGER.info("hy3d_rocm: HY3D_ROCM=off: no nodes, no patches, no variables")
        return _no_nodes()
    try:
        _make_importable()
        from hy3d_rocm.comfy.extension import make_extension

        return make_extension()
    except Exception as error:  # noqa: BLE001  (a broken pack must not break ComfyUI)
        _LOGGER.error(
            "hy3d_rocm: its nodes are not there, ComfyUI is not affected: %s: %s",
            type(error).__name__,
            error,
        )
        return _no_nodes()
