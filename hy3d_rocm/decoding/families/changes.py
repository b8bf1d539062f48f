"""What somebody has changed in a VAE's modules, so that they do not compute what the layers say.

A family reads weights and sizes off modules and never calls them. Hooks, a module's own forward(),
parametrisations, a class's patched methods would be passed by in silence. So all of a VAE is looked
at before each decode: what is found is a sentence, and the VAE's own code runs. Beside that its
state is noted, which is another as soon as anything was put in, taken out or set: what was shown of
a VAE once holds for as long as its state is the same.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.nn.modules import module as torch_modules

from hy3d_rocm.decoding.families.original import inner_vae

# What runs when a module, or an attention's processor, is called
_CALLS = ("__call__", "forward")
# Names that tensors and modules have methods of: these say nothing about a module's forward()
_SHARED = frozenset((*dir(torch.nn.Module), *dir(torch.Tensor))).difference(
    _CALLS, ("_call_impl", "_wrapped_call_impl", "_slow_forward", "__getattr__")
)
# Whoever writes a class may wrap its methods in these packages' decorators. hy3d_rocm: our patches,
# which call what was there.
_DECORATORS = frozenset(
    ("torch", "diffusers", "accelerate", "contextlib", "functools", "hy3d_rocm")
)
# What modules of torch and diffusers import functions from.
_HELPERS = sys.stdlib_module_names | {"diffusers", "einops", "numpy", "hy3d_rocm"}
_MISSING: Any = object()
_TORCHS = frozenset(vars(torch.nn.Module()))
_HOOKS = ("_hf_hook", "_diffusers_hook")
# What a module's compile() leaves, and which method it stands for.
_COMPILED = {"_compiled_call_impl": "_call_impl"}
# What programs that move weights or train note on modules.
_KEPT = _TORCHS.union(
    _HOOKS, _COMPILED,
    ("_old_forward", "_is_hf_initialized", "gradient_checkpointing", "seed_key", "device"),
    ("_gradient_checkpointing_func", "_is_torch_compile"),
)  # fmt: skip
# Names that begin so, or hold one of these, are caches and ComfyUI's notes.
_MANAGED = ("_", "model_", "current_", "dynamic_")
_NOTED = ("comfy", "lowvram", "_function")
_FUNCTIONS = tuple(
    f"{name}{kind}_function" for name in ("weight", "bias") for kind in ("", "_lowvram")
)
# The same attention in other words: only sums are in another order.
_PROCESSORS = frozenset(
    f"diffusers.models.attention_processor.{name}AttnProcessor"
    for name in ("", "Sliced", "XFormers")
) | {"diffusers.models.attention_processor.AttnProcessor2_0"}
# How the paths of hooks begin that move weights, or cast them from the type they are stored in to
# the one computed in, and of what holds several hooks.
_CARRIERS = (
    "accelerate.hooks.ModelHook", "accelerate.hooks.AlignDevicesHook",
    "accelerate.hooks.CpuOffload", "accelerate.hooks.UserCpuOffloadHook",
    "diffusers.hooks.group_offloading.", "diffusers.hooks.layerwise_casting.",
)  # fmt: skip
_REGISTRIES = ("accelerate.hooks.", "diffusers.hooks.hooks.")
_PACKAGES = frozenset(("torch", "diffusers", "comfy"))
_TENSORS = frozenset((torch.nn.Parameter, torch.Tensor, torch.nn.Buffer, type(None)))
_SIMPLE = frozenset((str, int, float, bool, type(None), complex, bytes, torch.dtype))
_MOST = 32  # entries of a list that are looked at


@dataclass
class Examined:
    """A VAE's decode, or its encode, as it is.

    change: what was changed, a part of a sentence, or "". state: see the module's text; equal
    states compare equal. is_pure: no function of torch's own has been replaced.
    Found afterwards, and kept, since it takes 0.1 s: facts: of the family, whose layers fit.
    proven: whether the VAE does what they say; None: nobody asked. nodes: of the graphs of its
    decode and its encode. plans: of decodes (planning/compiled.py).
    """

    change: str
    state: Any = None
    is_pure: bool = False
    facts: Any = None
    proven: bool | None = None
    nodes: dict[bool, Any] = field(default_factory=dict)
    plans: dict[Any, Any] = field(default_factory=dict)


def examined(vae: Any, encode: bool = False, casts: bool = False) -> Examined:
    """What a decode (or encode) by `vae` runs through, with all that is known of it in this state,
    if it was in it the last time. casts: whoever reads the weights applies ComfyUI's patches to
    them."""
    if torch_modules._global_forward_hooks or torch_modules._global_forward_pre_hooks:
        return Examined("torch calls a hook around every module's forward()")
    inner = inner_vae(vae)
    tops = [vae] if inner is vae else [vae, inner]
    homes = _PACKAGES | {_home_of(type(m)) for m in (*tops, getattr(inner, "decoder", None))}
    state: list[Any] = []
    kinds: dict[tuple[type, tuple[str, ...]], str] = {}
    verb: tuple[str, ...] = ("encode" if encode else "decode",)
    for name, module, is_top in _walk(vae, tops, encode):
        found = _changed(name, module, casts)
        if found:
            return Examined(found)
        noted = _attributes(module, is_top)
        for _, value in noted:  # objects that are called, as an attention's processor
            if isinstance(value, type) and "__call__" in vars(value):
                kinds.setdefault((value, _CALLS), name)
        kinds.setdefault((type(module), verb if is_top else _CALLS), name)
        shapes = [(key, None if held is None else held.shape) for key, held in _tensors(module)]
        state.append((name, type(module), noted, shapes))
    codes: list[_ClassCode] = []
    for (kind, roots), name in kinds.items():
        code = _code_of(kind, roots)
        found = code.change
        if not found and not code.homes <= homes:
            found = f"{name or 'it'} is a {code.name} with code of its own"
        if found:
            return Examined(found)
        codes.append(code)
    training = any(getattr(module, "training", False) for module in tops)
    made = Examined("", (state, codes, training), all(code.is_pure for code in codes))
    with contextlib.suppress(TypeError):  # no weak references
        known = _seen.setdefault(vae, {})
        if encode not in known or known[encode].state != made.state:
            known[encode] = made
        return known[encode]
    return made


_seen: weakref.WeakKeyDictionary[Any, dict[bool, Examined]] = weakref.WeakKeyDictionary()
# What configurations make: a few in a process.
_built: dict[tuple[Any, str, bool], list[Any]] = {}


def is_as_built(vae: Any, found: Examined, encode: bool = False) -> bool:
    """Whether `vae` is diffusers' own, every module in it, as it was examined, what its
    configuration makes, and torch's functions torch's: of what is set otherwise the layers may know
    nothing."""
    if not found.is_pure or not type(vae).__module__.startswith("diffusers."):
        return False
    try:
        kind, config = type(vae), dict(vae.config)
        key = (kind, repr(sorted(config.items())), encode)
        if key not in _built:
            with torch.device("meta"):
                _built[key] = _layout(examined(kind.from_config(config).eval(), encode).state)
    except Exception:  # noqa: BLE001  another diffusers, a configuration that was tampered with
        return False
    return _layout(found.state) == _built[key]


def _layout(state: Any) -> list[Any]:
    """Names, classes and settings of what is in a VAE; not its own, which are about tiles."""
    return [
        (
            name,
            kind,
            name and [(k, _PROCESSORS if _path(v) in _PROCESSORS else v) for k, v in noted],
        )
        for name, kind, noted, _ in state[0]
    ]


def _walk(vae: Any, tops: list[Any], encode: bool) -> Iterator[tuple[str, Any, bool]]:
    """Modules by name, less the half that does not run, and whether each is one of `tops`. A
    compiled module is the one inside."""
    left_out = "decoder" if encode else "encoder"
    halves = ("encoder", "quant_conv") if encode else ("decoder", "post_quant_conv")
    waiting: list[tuple[str, Any]] = [("", vae)]
    seen = set()
    while waiting:
        name, module = waiting.pop()
        module = inside(module)
        is_top = any(module is top for top in tops)
        if id(module) in seen:
            yield f"{name} again", module, is_top
            continue
        seen.add(id(module))
        if isinstance(module, torch.nn.Module):
            yield name, module, is_top
            parts: Any = module._modules
        else:  # an object that is built like one
            parts = {half: getattr(module, half, None) for half in halves}
        start = f"{name}." if name else ""
        waiting += [
            (start + part, held)
            for part, held in parts.items()
            if isinstance(held, torch.nn.Module) and not (is_top and part == left_out)
        ]


def inside(module: Any) -> Any:
    """The module that torch.compile() was given, else the module itself."""
    while type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules:
        module = module._orig_mod
    return module


def _changed(name: str, module: Any, casts: bool) -> str:
    """What is not as the module's class has it, or ""."""
    own, kind = vars(module), type(module)
    where = name or kind.__name__
    if isinstance(module, torch.jit.ScriptModule):
        return f"{where} is compiled by torch.jit"
    if own["_forward_hooks"] or own["_forward_pre_hooks"]:
        return f"{where} has a hook around its forward()"
    if "parametrizations" in own["_modules"]:
        return f"{where} has parametrised weights"
    if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.training and module.p:
        return f"{where} drops values at random in training mode (eval() ends that)"
    for key, value in _tensors(module):
        if type(value) not in _TENSORS and not (casts and hasattr(kind, "comfy_cast_weights")):
            return f"{where}.{key} is a {type(value).__name__}, which only its own code reads"
    for key, value in own.items():
        if type(value) not in _SIMPLE and key not in _TORCHS:
            found = _set_on(module, key, value, casts)
            if found:
                return where + found
    return ""


def _set_on(module: Any, key: str, value: Any, casts: bool) -> str:
    """What an attribute changes, the end of a sentence about the module, or ""."""
    if key in _HOOKS:
        if not _carries(value):
            return f" has a hook of {_path(type(value))} around its forward()"
    elif key in _FUNCTIONS:
        if value and not casts:
            return f"'s weights are patched when they are read ({key})"
    elif callable(value) and (key not in _SHARED or key in _COMPILED):
        stands_for = key in _COMPILED or callable(getattr(type(module), key, None))
        if stands_for and not _is_own(module, key, value):
            return f" has a {_COMPILED.get(key, key)}() of its own"
    return ""


def _is_own(module: Any, key: str, value: Any) -> bool:
    """Whether a callable that a module holds under the name of its class's method is that method,
    compiled or within offloading."""
    key = _COMPILED.get(key, key)
    value = getattr(value, "_torchdynamo_orig_callable", value)
    if isinstance(value, MethodType):
        return value.__self__ is module and value.__func__ is getattr(type(module), key, None)
    if key != "forward" or not isinstance(value, partial) or value.args[:1] != (module,):
        return False
    maker = getattr(value.func, "__globals__", {}).get("__name__")
    if maker == "accelerate.hooks":
        return _is_own(module, key, vars(module).get("_old_forward"))
    registry = vars(module).get("_diffusers_hook")
    if maker == "diffusers.hooks.hooks" and registry is not None and registry._fn_refs:
        return _is_own(module, key, registry._fn_refs[0].forward)
    return False


def _carries(hook: Any) -> bool:
    """Whether a hook of accelerate's or diffusers' moves or casts weights and does nothing else."""
    inner, path = getattr(hook, "hooks", None), _path(type(hook))
    if inner is not None and path.startswith(_REGISTRIES):
        return all(map(_carries, inner.values() if isinstance(inner, dict) else inner))
    instance = set(vars(hook)) & {"pre_forward", "post_forward", "new_forward", "init_hook"}
    return path.startswith(_CARRIERS) and not instance


def _path(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else ""


def _attributes(module: Any, is_top: bool) -> tuple[tuple[str, Any], ...]:
    """What is set on a module, of what can be compared. A VAE's own private attributes are its
    caches; counters of who manages it are nobody's affair."""
    found = []
    private = is_top or hasattr(type(module), "comfy_cast_weights")
    for key, value in vars(module).items():
        if key in _KEPT or (key in _CALLS and callable(value)):  # examined by _changed()
            continue
        if private and (key.startswith(_MANAGED) or any(word in key for word in _NOTED)):
            continue
        found.append((key, _comparable(value)))
    return tuple(found)


def _comparable(value: Any) -> Any:
    """Equal for what is the same; nothing that keeps a module or a tensor alive."""
    if type(value) in _SIMPLE or isinstance(value, (type, FunctionType, BuiltinFunctionType)):
        return value
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, (tuple, list)):
        return tuple(map(_comparable, value[:_MOST])) if len(value) <= _MOST else len(value)
    if isinstance(value, dict):
        pairs = list(value.items())[:_MOST]
        return tuple((_comparable(key), _comparable(held)) for key, held in pairs)
    if isinstance(value, MethodType):
        return "method", value.__func__
    return type(value)


def _tensors(module: Any) -> list[tuple[str, Any]]:
    return [*vars(module)["_parameters"].items(), *vars(module)["_buffers"].items()]


# A class may be patched at any time, by any program in the process. A function is at home where its
# globals are: functools.wraps() gives another's name to a function, not another's globals.


def _home_of(thing: Any) -> str:
    """The package that a class or a function was written in."""
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__", "")).split(".")[0]
    return str(getattr(thing, "__module__", "")).split(".")[0]


class _ClassCode:
    """The functions that the methods `roots` of a class come by, as they are now.

    change: which function is not its own, a part of a sentence, or "". homes: packages that its
    functions are from. is_pure: whether torch's functions that they call are torch's own. Compared
    by identity: _code_of() gives the same one until something is replaced.
    """

    def __init__(self, kind: type, roots: tuple[str, ...]) -> None:
        self.kind, self.name = kind, kind.__name__
        self.change = ""
        self.homes: set[str] = set()
        self.is_pure = True
        self._found: list[tuple[Any, str, Any]] = []  # where, under which name, what
        self._names: set[tuple[str, bool]] = set()
        self._functions: set[int] = set()
        for name in roots:
            self._method(name)

    def is_current(self) -> bool:
        return all(_held(space, name) is value for space, name, value in self._found)

    def _look(self, space: Any, name: str) -> Any:
        value = _held(space, name)
        self._found.append((space, name, value))
        return value

    def _method(self, name: str, inherited: bool = False) -> None:
        """What `name` is for instances, in the order of their classes. inherited: what it is for
        super(), too."""
        if (name, inherited) in self._names or name in _SHARED:
            return
        self._names.add((name, inherited))
        for base in self.kind.__mro__[:-1]:
            value = self._look(vars(base), name)
            if value is _MISSING:
                continue
            held = isinstance(value, (staticmethod, classmethod))
            function = value.__func__ if held else value
            function = function.fget if isinstance(function, property) else function
            if isinstance(function, FunctionType):
                self._own(function, base, name)
            elif callable(value) and not isinstance(value, (type, BuiltinFunctionType)):
                self._refuse(f"{base.__name__}.{name} is a {type(value).__name__}")
            if not inherited:
                return

    def _own(self, function: FunctionType, base: type, name: str) -> None:
        """A method: of the package of its class, or a decorator around such a one."""
        if id(function) in self._functions:
            return
        home, written = _home_of(function), _home_of(base)
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
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            self._look(function, part)
        names = set(_names_in(function.__code__))
        space = function.__globals__
        modules: list[ModuleType] = []
        for name in names:
            self._method(name, inherited="__class__" in function.__code__.co_freevars)
            value = space.get(name)
            if isinstance(value, (FunctionType, BuiltinFunctionType, ModuleType)):
                self._look(space, name)
                if not isinstance(value, ModuleType):
                    self._called(value, function, name)
                elif value.__name__.split(".")[0] == "torch":
                    modules.append(value)
        for module, name in product(modules, names):
            value = vars(module).get(name)
            if callable(value) and not isinstance(value, type):
                self._operator(self._look(vars(module), name))

    def _called(self, value: Any, caller: FunctionType, name: str) -> None:
        """A function of the module that a method is written in."""
        home, at = _home_of(value), _home_of(caller)
        if isinstance(value, BuiltinFunctionType) or home == "torch":
            self._operator(value)
        elif home == at and id(value) not in self._functions:
            self._body(value)
        elif at in ("torch", "diffusers") and home not in _HELPERS:
            self._refuse(f"{caller.__module__}.{name}() was replaced by a function of {home}")

    def _operator(self, value: Any) -> None:
        """A function of torch: whoever replaced it may have meant the same (a faster attention)."""
        if isinstance(value, FunctionType):
            self.is_pure &= _home_of(value) == "torch" and _is_in_place(value)
        else:
            self.is_pure &= _home_of(type(value)) in ("torch", "builtins")


def _held(space: Any, name: str) -> Any:
    """What a function has, or a namespace."""
    if isinstance(space, FunctionType):
        return getattr(space, name)
    return space.get(name, _MISSING)


def _wrapped_in(function: FunctionType) -> Iterator[FunctionType]:
    compiled = getattr(function, "_torchdynamo_orig_callable", None)
    held = [compiled, getattr(function, "__wrapped__", None)]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not filled yet
            held.append(cell.cell_contents)
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
_known: dict[tuple[type, tuple[str, ...]], _ClassCode] = {}


def _code_of(kind: type, roots: tuple[str, ...]) -> _ClassCode:
    """The code that the methods `roots` of `kind` come by, as it is now."""
    found = _known.get((kind, roots))
    if found is None or not found.is_current():
        found = _known[kind, roots] = _ClassCode(kind, roots)
    return found
