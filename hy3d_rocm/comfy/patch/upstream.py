"""Finds ComfyUI-Hunyuan3DWrapper among the loaded packs and compares it with what we know of it.

A pack's folder may have any name, and ComfyUI names its module after the folder's path, so the
wrapper is known by what it is: node classes with its ids from one package whose modules include
its paint pipeline. The comparisons answer None or a sentence that says what is different; they
read signatures and compiled code and run nothing.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import CodeType, ModuleType
from typing import Any

PAINT_PIPELINE = "hy3dgen.texgen.hunyuanpaint.pipeline"
NODE_IDS = (
    "Hy3DDelightImage",
    "Hy3DSampleMultiView",
    "Hy3DGenerateMesh",
    "Hy3DGenerateMeshMultiView",
    "Hy3DVAEDecode",
    "DownloadAndLoadHy3DDelightModel",
    "DownloadAndLoadHy3DPaintModel",
    "Hy3DRenderMultiView",
    "Hy3DRenderSingleView",
    "Hy3DRenderMultiViewDepth",
)


class UpstreamError(LookupError):
    """Upstream lacks something that we know of it. The text is a sentence."""


class Upstream:
    """One loaded copy of the wrapper.

    package: its module name in sys.modules (ComfyUI makes it of the folder's path).
    name: its folder, for messages.
    """

    def __init__(self, package: str, nodes: Mapping[str, type]) -> None:
        self.package = package
        self.name = PurePath(package.replace("\\", "/")).name.replace("_x_", ".")
        self._nodes = dict(nodes)
        self._pipeline = sys.modules.get(f"{package}.{PAINT_PIPELINE}")

    def __repr__(self) -> str:
        return f"Upstream({self.package!r}, {len(self._nodes)} nodes)"

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The ids that this copy defines."""
        return tuple(self._nodes)

    def node(self, node_id: str) -> type:
        """The class of a node of this copy; UpstreamError if it has none of that id."""
        try:
            return self._nodes[node_id]
        except KeyError:
            raise UpstreamError(f"it has no node {node_id}") from None

    def module(self, suffix: str) -> ModuleType:
        """Module `<package>.<suffix>` ("hy3dgen.texgen.hunyuanpaint.pipeline"), imported if it
        is not yet; UpstreamError if it cannot be."""
        full_name = f"{self.package}.{suffix}"
        found = sys.modules.get(full_name)
        if found is not None:
            return found
        try:
            return importlib.import_module(full_name)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UpstreamError(f"its module {suffix} cannot be imported ({reason})") from error

    def strange(self) -> str | None:
        """Why nothing of it can be patched; None where nothing speaks against."""
        if any(is_v1(self.node(node_id)) for node_id in self.node_ids):
            return None
        return "its nodes are no V1 classes"

    def same_as(self, other: Any) -> bool:
        """Whether both are one copy, not loaded anew in between."""
        return (
            isinstance(other, Upstream)
            and self.package == other.package
            and self._pipeline is other._pipeline
            and self._nodes.keys() == other._nodes.keys()
            and all(self._nodes[key] is other._nodes[key] for key in self._nodes)
        )


@dataclass(frozen=True)
class PatchSpec:
    """One switchable patch.

    name: in HY3D_ROCM_PATCH and in the settings ("delight"). title: for people.
    expects: of an Upstream, or what else a Pack finds (packs.py): None if it is as we know it, else
    a sentence ("Hy3DDelightImage.process has no parameter seed"). It may also raise UpstreamError,
    as Upstream.node and Upstream.module do.
    changes: what to replace; asked only if `expects` answered None.
    wanted: whether it has anything to do as the settings stand; nothing is replaced while it has
    not. Its switch in the settings is looked at all the same.
    """

    name: str
    title: str
    expects: Callable[[Any], str | None]
    changes: Callable[[Any], list[Any]]
    wanted: Callable[[], bool] = lambda: True


def is_v1(node_class: type) -> bool:
    """Whether a node class is written the old way, with the name of its method in FUNCTION.

    Looked up statically: in a V3 class FUNCTION is a property that does things when asked.
    """
    return isinstance(inspect.getattr_static(node_class, "FUNCTION", None), str)


def node_differs(
    upstream: Upstream,
    node_id: str,
    function: str = "process",
    parameters: Collection[str] = (),
    names: Collection[str] = (),
    constants: Collection[object] = (),
) -> str | None:
    """None if the V1 node `node_id` runs its method `function`, and that has the parameters,
    names and constants (see the functions of these names); else a sentence."""
    node_class = upstream.node(node_id)
    if not is_v1(node_class):
        return f"{node_id} is no V1 node (it has no FUNCTION)"
    runs = inspect.getattr_static(node_class, "FUNCTION")
    if runs != function:
        return f"{node_id} runs its method {runs}, not {function}"
    method = getattr(node_class, function, None)
    if method is None:
        return f"{node_id} has no method {function}"
    return (
        parameters_missing(method, parameters)
        or names_missing(method, names)
        or constants_missing(method, constants)
    )


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


def methods_differ(
    owner: Any, label: str, methods: Mapping[str, tuple[Collection[str], Collection[str]]]
) -> str | None:
    """None if the class has all these methods with the parameters that can be given by name, and
    code that uses the names; else a sentence."""
    for name, (parameters, names) in methods.items():
        method = getattr(owner, name, None)
        if method is None:
            return f"{label} has no method {name}"
        different = parameters_missing(method, parameters) or names_missing(method, names)
        if different:
            return different
    return None


def constants_missing(function: Any, constants: Collection[object]) -> str | None:
    """None if each is a constant in the code of `function`, with the same type; else a sentence.
    Names of keyword arguments in calls count as texts."""
    codes = list(_codes(function))
    if not codes:
        return f"{_label(function)} is not written in Python"
    found = {(type(v), v) for code in codes for const in code.co_consts for v in _flat(const)}
    absent = [repr(value) for value in constants if (type(value), value) not in found]
    return _missing(function, "constant", absent)


def _codes(function: Any) -> Iterator[CodeType]:
    """The code objects of a function under its decorators, inner ones included."""
    inner = written(function)
    waiting = [getattr(inner, "__code__", None)]
    while waiting:
        code = waiting.pop()
        if isinstance(code, CodeType):
            yield code
            waiting += [const for const in code.co_consts if isinstance(const, CodeType)]


def _flat(constant: object) -> Iterator[object]:
    yield constant
    if isinstance(constant, tuple | frozenset):
        for part in constant:
            yield from _flat(part)


def _label(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _missing(function: Any, kind: str, absent: list[str]) -> str | None:
    if not absent:
        return None
    return f"{_label(function)} has no {kind} {', '.join(absent)}"


def find_upstreams(node_class_mappings: Mapping[str, Any]) -> list[Upstream]:
    """All loaded copies of the wrapper, those whose nodes ComfyUI runs first.

    node_class_mappings: ComfyUI's table. Of two copies it has the classes of the one loaded last;
    the other is found by its paint pipeline, with the table that its own package holds.
    """
    packages: dict[str, None] = {}
    for node_id in NODE_IDS:
        package = _package_of(getattr(node_class_mappings.get(node_id), "__module__", ""))
        if package:
            packages[package] = None
    ending = "." + PAINT_PIPELINE
    for name in list(sys.modules):  # other threads may import
        if name.endswith(ending):
            packages[name.removesuffix(ending)] = None
    found = [Upstream(package, _nodes_of(package, node_class_mappings)) for package in packages]
    return [upstream for upstream in found if upstream.node_ids]


def find_upstream(node_class_mappings: Mapping[str, Any]) -> Upstream | None:
    """The copy whose nodes ComfyUI runs; None if the wrapper is not loaded."""
    return next(iter(find_upstreams(node_class_mappings)), None)


def _package_of(module: str) -> str:
    """The package that a node's module belongs to and that has the paint pipeline, or ""."""
    while module and f"{module}.{PAINT_PIPELINE}" not in sys.modules:
        module = module.rpartition(".")[0]
    return module


def _nodes_of(package: str, node_class_mappings: Mapping[str, Any]) -> dict[str, type]:
    """The classes of our ids that the package defines: by its own table, else by ComfyUI's."""
    found: dict[str, type] = {}
    own = [
        getattr(sys.modules.get(name), "NODE_CLASS_MAPPINGS", None)
        for name in (package, f"{package}.nodes")
    ]
    for table in (*own, node_class_mappings):
        if not isinstance(table, Mapping):
            continue
        for node_id in NODE_IDS:
            node_class = table.get(node_id)
            if isinstance(node_class, type) and _is_in(node_class.__module__, package):
                found.setdefault(node_id, node_class)
    return found


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")
