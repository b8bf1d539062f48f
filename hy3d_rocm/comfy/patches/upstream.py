"""Whose code is patched (ComfyUI's own and that of packs), found by what it is, and compared with
what we know of it (upstream.toml).

A pack's folder may have any name, so a pack is known by a node id whose class comes from a package
that has a certain module. The comparisons answer None or a sentence that says what is different;
they read signatures and compiled code and run nothing.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import CodeType
from typing import Any

KNOWN: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("upstream.toml").read_text(encoding="utf-8")
)


class UpstreamError(LookupError):
    """Upstream lacks something that we know of it. The text is a sentence."""


class Place:
    """One loaded copy of somebody's code.

    name: its folder, for messages. parts: the objects in it that the patches change (node classes
    by id, classes, modules), by name. package: its module's name in sys.modules (ComfyUI makes it
    of the folder's path), "" for ComfyUI's own code.
    """

    def __init__(self, name: str, parts: Mapping[str, Any], package: str = "") -> None:
        self.name, self.package = name, package
        self.parts = {key: part for key, part in parts.items() if part is not None}

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Of the nodes that are wrapped those that this copy defines."""
        return tuple(name for name in self.parts if name in KNOWN["nodes"])

    def part(self, name: str) -> Any:
        """The object of this name, a "module" or a "module:attribute" with a dot in it, which is
        imported if it is not yet; UpstreamError if there is none."""
        if name in self.parts:
            return self.parts[name]
        module, _, attribute = name.partition(":")
        if "." not in module:
            raise UpstreamError(f"it has no {'node ' * (name in KNOWN['nodes'])}{name}")
        try:
            found = importlib.import_module(f"{self.package}.{module}")
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UpstreamError(f"its module {module} cannot be imported ({reason})") from error
        if attribute and not hasattr(found, attribute):
            raise UpstreamError(f"its module {module} has no {attribute}")
        return getattr(found, attribute) if attribute else found

    def same_as(self, other: Place) -> bool:
        """Whether both are one copy, not loaded anew in between."""
        return (
            self.name == other.name
            and self.parts.keys() == other.parts.keys()
            and all(self.parts[key] is other.parts[key] for key in self.parts)
        )

    def strange(self) -> str | None:
        """Why nothing of it can be patched, as a sentence; None where nothing speaks against."""
        if not self.node_ids or any(is_v1(self.parts[node_id]) for node_id in self.node_ids):
            return None
        return "its nodes are no V1 classes"


@dataclass(frozen=True)
class PatchSpec:
    """One switchable patch.

    name: in HY3D_ROCM_PATCH and in the settings ("delight").
    expects: of a Place: None if it is as we know it, else a sentence ("Hy3DDelightImage.process
    has no parameter seed"). It may also raise UpstreamError, as Place.part does.
    changes: what to replace; asked only if `expects` answered None.
    wanted: whether it has anything to do as the settings stand; nothing is replaced while it has
    not. Its switch in the settings is looked at all the same.
    """

    name: str
    expects: Callable[[Any], str | None]
    changes: Callable[[Any], list[Any]]
    wanted: Callable[[], bool] = lambda: True


def is_v1(node_class: type) -> bool:
    """Whether a node class is written the old way, with the name of its method in FUNCTION.

    Looked up statically: in a V3 class FUNCTION is a property that does things when asked.
    """
    return isinstance(inspect.getattr_static(node_class, "FUNCTION", None), str)


def written(function: Any) -> Any:
    """The function that somebody wrote, under decorators: those that say what they wrap, and
    diffusers' `apply_forward_hook`, which before 0.35 or so did not and keeps it in a variable."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    while getattr(inner, "__qualname__", "") == "apply_forward_hook.<locals>.wrapper":
        method = inspect.getclosurevars(inner).nonlocals.get("method")
        if not callable(method):
            break
        inner = inspect.unwrap(method)
    return inner


def parameters_missing(function: Any, names: Collection[str]) -> str | None:
    """None if all are parameters of `function` that may be given by name, else a sentence."""
    try:
        parameters = inspect.signature(written(function)).parameters
    except (TypeError, ValueError):
        return f"{_label(function)} has no signature that could be read"
    by_name = {
        n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    return _missing(function, "parameter", [name for name in names if name not in by_name])


def defaults_differ(function: Any, defaults: Mapping[str, object]) -> str | None:
    """None if each parameter has this default (same type and value), else a sentence."""
    absent = parameters_missing(function, defaults.keys())
    if absent is not None:
        return absent
    parameters = inspect.signature(function).parameters
    for name, value in defaults.items():
        found = parameters[name].default
        if type(found) is not type(value) or found != value:
            shown = "no default" if found is inspect.Parameter.empty else f"the default {found!r}"
            return f"{_label(function)} has {shown} for {name}, not {value!r}"
    return None


def names_missing(function: Any, names: Collection[str]) -> str | None:
    """None if the code of `function`, inner functions included, uses all of these names
    (globals, attributes, methods, variables); else a sentence."""
    codes = list(_codes(function))
    if not codes:
        return f"{_label(function)} is not written in Python"
    used = {n for c in codes for n in (*c.co_names, *c.co_varnames, *c.co_cellvars, *c.co_freevars)}
    return _missing(function, "use of", [name for name in names if name not in used])


def functions_of(
    place: Place, spec: str
) -> Iterator[tuple[str, tuple[Any, str] | None, str | None, bool]]:
    """The functions that the patch `spec` relies on: the path of each in upstream.toml, its owner
    and name, a sentence if it is not as we know it, whether it alone is left as it is then."""
    for paths, known in KNOWN["expects"].get(spec, {}).items():
        for path in paths.split():
            part, _, name = path.removesuffix("?").rpartition(".")
            try:
                owner = place.part(part)
                at, different = (owner, name), function_differs(owner, part, name, known)
            except UpstreamError as error:
                at, different = None, str(error)
            yield path.removesuffix("?"), at, different, path.endswith("?")


def function_differs(owner: Any, part: str, name: str, known: Mapping[str, Any]) -> str | None:
    """None if `owner` (the part of that name) has the function `name`, and that is as the table of
    upstream.toml says; else a sentence."""
    found = getattr(owner, name, None)
    if known.get("is_node"):
        if not is_v1(owner):
            return f"{part} is no V1 node (it has no FUNCTION)"
        runs = inspect.getattr_static(owner, "FUNCTION")
        if runs != name:
            return f"{part} runs its method {runs}, not {name}"
    if found is None:
        is_class = isinstance(owner, type)
        return f"{part} has no method {name}" if is_class else f"its module {part} has no {name}"
    if known.get("is_coroutine") and not inspect.iscoroutinefunction(found):
        return f"{part}.{name} is no coroutine by now"
    if str(getattr(found, "__module__", "")).startswith("hy3d_rocm."):
        return None  # ours, from the import
    checks = {"parameters": parameters_missing, "names": names_missing, "defaults": defaults_differ}
    asked = (checks[kind](found, known[kind]) for kind in checks if kind in known)
    return next(filter(None, asked), None)


def _codes(function: Any) -> Iterator[CodeType]:
    """The code objects of a function under its decorators, inner ones included."""
    inner = written(function)
    waiting = [getattr(inner, "__code__", None)]
    while waiting:
        code = waiting.pop()
        if isinstance(code, CodeType):
            yield code
            waiting += [const for const in code.co_consts if isinstance(const, CodeType)]


def _label(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _missing(function: Any, kind: str, absent: list[str]) -> str | None:
    if not absent:
        return None
    return f"{_label(function)} has no {kind} {', '.join(absent)}"


def packages_with(
    suffix: str, node_ids: Sequence[str], node_class_mappings: Mapping[str, Any]
) -> list[str]:
    """Names of loaded packages that have a module `<package>.<suffix>` and whose classes ComfyUI
    runs for one of the ids; copies whose nodes a later copy has replaced come last."""
    found: dict[str, None] = {}
    for node_id in node_ids:
        module = getattr(node_class_mappings.get(node_id), "__module__", "")
        while module and f"{module}.{suffix}" not in sys.modules:
            module = module.rpartition(".")[0]
        if module:
            found[module] = None
    ending = "." + suffix
    for name in list(sys.modules):  # other threads may import
        package = name.removesuffix(ending)
        if name.endswith(ending) and any(
            set(node_ids) & table.keys() for table in _tables(package)
        ):
            found[package] = None
    return list(found)


def _tables(package: str) -> list[Mapping[str, Any]]:
    """The tables of nodes that a package itself holds."""
    modules = (sys.modules.get(name) for name in (package, f"{package}.nodes"))
    tables = [getattr(module, "NODE_CLASS_MAPPINGS", None) for module in modules]
    return [table for table in tables if isinstance(table, Mapping)]


def find(pack: str, node_class_mappings: Mapping[str, Any]) -> list[Place]:
    """All loaded copies of a pack of upstream.toml, those whose nodes ComfyUI runs first, with the
    parts that are named there and the classes of its nodes. What is not there is missing.

    node_class_mappings: ComfyUI's table. Of two copies it has the classes of the one loaded last;
    the other is found by its module, with the table that its own package holds.
    """
    known = KNOWN["packs"][pack]
    core = {name: _loaded(at) for name, at in known.get("core", {}).items()}
    if "module" not in known:
        found = [Place("ComfyUI", core)]
        return found if found[0].parts else []
    places, node_ids = [], known.get("nodes", tuple(KNOWN["nodes"]))
    for package in packages_with(known["module"], node_ids, node_class_mappings):
        parts = core | {name: _loaded(f"{package}.{at}") for name, at in known["parts"].items()}
        for table in (*_tables(package), node_class_mappings):
            for node_id in node_ids:
                node = table.get(node_id)
                if isinstance(node, type) and f"{node.__module__}.".startswith(f"{package}."):
                    parts.setdefault(node_id, node)
        # The folder: ComfyUI makes the module's name of its path.
        folder = PurePath(package.replace("\\", "/")).name.replace("_x_", ".")
        places.append(Place(folder, parts, package))
    return places


def _loaded(at: str) -> Any:
    """A module, or a "module:attribute" of it; None where it is not loaded."""
    module, _, attribute = at.partition(":")
    found = sys.modules.get(module)
    return getattr(found, attribute, None) if attribute else found


@dataclass(frozen=True)
class Pack:
    """name: in upstream.toml. specs: its patches, asked when a copy has been found. done: how the
    line that lists the applied ones ends."""

    name: str
    specs: Callable[[], Sequence[PatchSpec]]
    done: str

    @property
    def always_there(self) -> bool:
        """Part of ComfyUI, so that leaving it alone on other machines than AMD's is said to nobody
        but the status."""
        return "module" not in KNOWN["packs"][self.name]


def specs_in(module: str, name: str = "SPECS") -> Callable[[], Sequence[PatchSpec]]:
    """A tuple of a module beside this one that is imported when it is asked for: the patches import
    this module, and are needed only where upstream is loaded."""
    return lambda: getattr(importlib.import_module(f"hy3d_rocm.comfy.patches.{module}"), name)


_AS_SET = "run as the VAE settings say"

# In the order in which they are patched.
PACKS: tuple[Pack, ...] = (
    Pack("hunyuan3d", specs_in("hunyuan3d"), "run on the right device"),
    Pack("comfyui", specs_in("vaes", "CORE_SPECS"), _AS_SET),
    Pack("wan", specs_in("vaes", "WAN_SPECS"), _AS_SET),
    Pack("hunyuan", specs_in("vaes", "HUNYUAN_SPECS"), _AS_SET),
    Pack("framepack", specs_in("framepack"), "are in place"),
)
