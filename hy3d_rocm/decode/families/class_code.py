"""The functions that a call of a class's instances comes by, and whether they are its own.

A class may be patched at any time, by any program in the process. A function is at home where its
globals are: functools.wraps() gives another's name to a function, not another's globals.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

#: What runs when a module, or an attention's processor, is called
CALLS = ("__call__", "forward")
_MODULE_CALLS = frozenset(
    (*CALLS, "_call_impl", "_wrapped_call_impl", "_slow_forward", "__getattr__")
)
#: Names that tensors and modules have methods of: these say nothing about a module's forward()
SHARED = (frozenset(dir(torch.nn.Module)) | frozenset(dir(torch.Tensor))) - _MODULE_CALLS
# Whoever writes a class may wrap its methods in these packages' decorators. hy3d_rocm: our patches,
# which call what was there.
_DECORATORS = frozenset(
    ("torch", "diffusers", "accelerate", "contextlib", "functools", "hy3d_rocm")
)
# What modules of torch and diffusers import functions from.
_HELPERS = sys.stdlib_module_names | {"diffusers", "einops", "numpy", "hy3d_rocm"}
_MISSING: Any = object()


def home_of(thing: Any) -> str:
    """The package that a class or a function was written in."""
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__", "")).split(".")[0]
    return str(getattr(thing, "__module__", "")).split(".")[0]


class ClassCode:
    """The functions that the methods `roots` of a class come by, as they are now.

    change: which function is not its own, a part of a sentence, or "". homes: packages that its
    functions are from. is_pure: whether torch's functions that they call are torch's own. Compared
    by identity: code_of() gives the same one until something is replaced.
    """

    def __init__(self, kind: type, roots: tuple[str, ...]) -> None:
        self.kind, self.name = kind, kind.__name__
        self.change = ""
        self.homes: set[str] = set()
        self.is_pure = True
        # What was found under a name of a class's or module's namespace, and in functions.
        self._cells: list[tuple[Any, str, Any]] = []
        self._bodies: list[tuple[FunctionType, CodeType, Any, Any]] = []
        self._names: set[tuple[str, bool]] = set()
        self._functions: set[int] = set()
        for name in roots:
            self._method(name)

    def is_current(self) -> bool:
        """Whether all that was found is there still."""
        return all(
            space.get(name, _MISSING) is value for space, name, value in self._cells
        ) and all(
            f.__code__ is code and f.__defaults__ is given and f.__kwdefaults__ is named
            for f, code, given, named in self._bodies
        )

    def _method(self, name: str, inherited: bool = False) -> None:
        """What `name` is for instances, in the order of their classes. inherited: what it is for
        super(), too."""
        if (name, inherited) in self._names or name in SHARED:
            return
        self._names.add((name, inherited))
        for base in self.kind.__mro__[:-1]:
            value = vars(base).get(name, _MISSING)
            self._cells.append((vars(base), name, value))
            if value is _MISSING:
                continue
            function = _function_of(value)
            if function is not None:
                self._own(function, base, name)
            elif callable(value) and not isinstance(value, (type, BuiltinFunctionType)):
                self._refuse(f"{base.__name__}.{name} is a {type(value).__name__}")
            if not inherited:
                return

    def _own(self, function: FunctionType, base: type, name: str) -> None:
        """A method: of the package of its class, or a decorator around such a one."""
        if id(function) in self._functions:
            return
        home, written = home_of(function), home_of(base)
        decorates = home in _DECORATORS and (written != "torch" or home == "hy3d_rocm")
        where = f"{base.__name__}.{name}()"
        owner = function.__qualname__.rpartition(".")[0]
        bases = {kind.__qualname__ for kind in self.kind.__mro__}
        if home != written and not decorates:
            self._refuse(f"{where} was replaced by a function of {home}")
        elif owner and not owner.endswith("<locals>") and owner not in bases:
            self._refuse(f"{where} was replaced by {function.__qualname__}()")
        elif not _is_in_place(function):
            self._refuse(f"the code of {where} was replaced")
        if home == written or not decorates:
            self.homes.add(home)
        self._body(function)
        for wrapped in _wrapped_in(function):
            self._own(wrapped, base, name)

    def _refuse(self, change: str) -> None:
        self.change = self.change or change

    def _body(self, function: FunctionType) -> None:
        """What a function names: methods of the class, and of its module what it calls."""
        self._functions.add(id(function))
        self._bodies.append(
            (function, function.__code__, function.__defaults__, function.__kwdefaults__)
        )
        names = set(_names_in(function.__code__))
        space = function.__globals__
        modules: list[ModuleType] = []
        for name in names:
            self._method(name, inherited="__class__" in function.__code__.co_freevars)
            value = space.get(name, _MISSING)
            if isinstance(value, (FunctionType, BuiltinFunctionType, ModuleType)):
                self._cells.append((space, name, value))
            if isinstance(value, ModuleType):
                modules.append(value)
            elif isinstance(value, (FunctionType, BuiltinFunctionType)):
                self._called(value, function, name)
        for module in modules:
            if module.__name__.split(".")[0] != "torch":
                continue
            for name in names:
                value = vars(module).get(name, _MISSING)
                if callable(value) and not isinstance(value, type):
                    self._cells.append((vars(module), name, value))
                    self._operator(value)

    def _called(self, value: Any, caller: FunctionType, name: str) -> None:
        """A function of the module that a method is written in."""
        home, at = home_of(value), home_of(caller)
        if isinstance(value, BuiltinFunctionType) or home == "torch":
            self._operator(value)
        elif home == at:
            if id(value) not in self._functions:
                self._body(value)
        elif at in ("torch", "diffusers") and home not in _HELPERS:
            self._refuse(f"{caller.__module__}.{name}() was replaced by a function of {home}")

    def _operator(self, value: Any) -> None:
        """A function of torch: whoever replaced it may have meant the same (a faster attention)."""
        if isinstance(value, FunctionType):
            self.is_pure &= home_of(value) == "torch" and _is_in_place(value)
        elif not isinstance(value, BuiltinFunctionType):
            self.is_pure &= home_of(type(value)) in ("torch", "builtins")


def _function_of(value: Any) -> FunctionType | None:
    """The function that an entry of a class is made of."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    return value if isinstance(value, FunctionType) else None


def _wrapped_in(function: FunctionType) -> Iterator[FunctionType]:
    """Functions that a decorator's function holds."""
    compiled = getattr(function, "_torchdynamo_orig_callable", None)
    held = [compiled, getattr(function, "__wrapped__", None)]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    yield from (f for f in held if isinstance(f, FunctionType))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_in_place(function: FunctionType) -> bool:
    """Whether a function's code is of the file that its module is."""
    written, file = function.__code__.co_filename, function.__globals__.get("__file__")
    if not file or written.startswith("<"):
        return True
    return PurePath(written).stem == PurePath(file).stem


# Classes are held, and what they were made of: a few dozen in a process.
_known: dict[tuple[type, tuple[str, ...]], ClassCode] = {}


def code_of(kind: type, roots: tuple[str, ...]) -> ClassCode:
    """The code that the methods `roots` of `kind` come by, as it is now."""
    found = _known.get((kind, roots))
    if found is None or not found.is_current():
        found = _known[kind, roots] = ClassCode(kind, roots)
    return found
