"""Two scopes for code that cannot be edited: "cuda" written out, and draws without a generator.

Both are `TorchFunctionMode`s: they hold for the calling thread, from `with` to its end, may be
nested, and replace nothing in torch. What does not come by as a torch function is out of their
sight: `torch.load(map_location=...)`, `torch.Generator(device=...)`, `torch.cuda.*`, a call by
`torch.ops`, and whatever runs inside a graph that torch.compile has already made.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_MOVES = (torch.Tensor.to, torch._C._nn._parse_to)  # the device is a positional argument, or not


@contextmanager
def cuda_literals(device: torch.device | str) -> Iterator[torch.device]:
    """While open, code that says "cuda" gets `device`; yields it as a torch.device.

    Where `device` is an accelerator of `torch.cuda` (CUDA or ROCm) it becomes the current one, so
    that a plain "cuda" means it; a number that is written out ("cuda:0") stays what it says, and
    no torch function pays anything. Elsewhere every device argument that means such an accelerator
    ("cuda", "cuda:0", a torch.device, a number, `.cuda()`) is replaced by `device`, for tensors,
    factories and nn.Module alike.
    """
    target = torch.device(device)
    if target.type != "cuda":
        with _Redirect(target):
            yield target
    elif target.index is None or not torch.cuda.is_available():
        yield target
    else:
        with torch.cuda.device(target):
            yield target


@contextmanager
def global_draws(generator: torch.Generator) -> Iterator[torch.Generator]:
    """While open, torch's random functions that are given no generator draw from `generator`.

    generator: a private one on the CPU. The numbers are drawn on the CPU and moved, so every
    device gets the same bits: those that a global generator in the same state would have given on
    the CPU. The global states stay as they are, and a call that brings a generator is left alone.
    So are the functions that cannot take one: dropout and its kin, `F.rrelu`, `F.gumbel_softmax`,
    `F.fractional_max_pool2d/3d`, attention with dropout. Compiled code draws as torch.compile
    makes it draw. Raises ValueError for a generator of an accelerator, whose bits no other device
    could repeat.
    """
    if generator.device.type != "cpu":
        raise ValueError(
            f"the generator is on {generator.device}, and its numbers differ from device to "
            "device; give one made by torch.Generator()"
        )
    with _Drawing(generator):
        yield generator


class _Redirect(TorchFunctionMode):
    """Sends every device argument that means an accelerator of torch.cuda to `device`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))  # an object says what its maker wrote
        if kwargs and "device" in kwargs and _means_cuda(kwargs["device"]):
            kwargs = {**kwargs, "device": self.device}
        if func in _MOVES:
            args = tuple(self.device if _means_cuda(item) else item for item in args)
        elif func is torch.Tensor.cuda:  # (device, non_blocking, memory_format)
            rest = {name: value for name, value in (kwargs or {}).items() if name != "device"}
            kwargs = {**dict(zip(("non_blocking",), args[2:], strict=False)), **rest}
            func, args = torch.Tensor.to, (args[0], self.device)
        return func(*args, **(kwargs or {}))


def _means_cuda(value: object) -> bool:
    """Whether a device argument names an accelerator of torch.cuda."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    return type(value) is int


class _Drawing(TorchFunctionMode):
    """Gives random functions without a generator the one it was made with."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or func not in RANDOM:
            return func(*args, **kwargs)
        if has_generator(args, kwargs):
            return func(*args, **kwargs)
        return draw(func, args, kwargs, self.generator)


# The random functions, called with a CPU generator whatever device their result is for.

# Public functions with a `generator` argument. A name that this torch lacks is left out.
_FUNCTIONS = (
    "bernoulli", "binomial", "multinomial", "normal", "poisson", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "randperm", "_sample_dirichlet", "_standard_gamma",
)  # fmt: skip
_METHODS = (
    "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_",
    "multinomial", "normal_", "random_", "uniform_",
)  # fmt: skip


def _initialisers() -> list[Any]:
    """The functions of torch.nn.init that take a generator (none before torch 2.2)."""
    found = [getattr(torch.nn.init, name) for name in dir(torch.nn.init)]
    functions = [item for item in found if inspect.isfunction(item)]
    return [item for item in functions if "generator" in inspect.signature(item).parameters]


_LIKE: dict[Any, Any] = {
    torch.randn_like: torch.Tensor.normal_,
    torch.rand_like: torch.Tensor.uniform_,
    torch.randint_like: torch.Tensor.random_,
}
_INITIALISERS = frozenset(_initialisers())
_IN_PLACE = _INITIALISERS.union(
    [getattr(torch.Tensor, name) for name in _METHODS if name.endswith("_")]
)
RANDOM = _IN_PLACE.union(
    [getattr(torch, name) for name in _FUNCTIONS if hasattr(torch, name)],
    [getattr(torch.Tensor, name) for name in _METHODS if hasattr(torch.Tensor, name)],
)


def has_generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call brings a generator of its own."""
    if kwargs.get("generator") is not None:
        return True
    return any(isinstance(item, torch.Generator) for item in args)


def draw(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], generator: Any) -> Any:
    """`func(*args, **kwargs)` with its numbers from `generator`, which is on the CPU."""
    device = _device_of(args, kwargs)
    if device.type == "meta":
        return func(*args, **kwargs)  # no numbers there
    if device.type != "cpu":
        return _draw_for(device, func, args, kwargs, generator)
    if func in _LIKE:
        return _draw_like(func, args, kwargs, generator)
    return func(*args, **{**kwargs, "generator": generator})


def _draw_for(
    device: torch.device, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], generator: Any
) -> Any:
    """The same draw on the CPU, its result moved to `device`."""
    options = {name: item for name, item in kwargs.items() if name not in ("device", "out")}
    grad = bool(options.pop("requires_grad", False))
    if func in _IN_PLACE:
        return _draw_into(args[0] if args else kwargs["tensor"], func, args, kwargs, generator)
    out = kwargs.get("out")
    if out is not None and "dtype" not in options and not _tensors(args, options):
        options["dtype"] = out.dtype
    here = {name: _on_cpu(item) for name, item in options.items()}
    if not _tensors(args, options) or func in _LIKE:
        here["device"] = torch.device("cpu")
    drawn = draw(func, tuple(_on_cpu(item) for item in args), here, generator)
    if out is not None:
        return out.resize_(drawn.shape).copy_(drawn)
    moved = drawn.to(device)
    return moved.requires_grad_() if grad else moved


def _draw_into(
    target: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], generator: Any
) -> Any:
    """An in-place draw: made in a CPU tensor of its strides, which set the order of numbers."""
    room = torch.empty_strided(target.size(), target.stride(), dtype=target.dtype, device="cpu")

    def swap(item: Any) -> Any:
        return room if item is target else _on_cpu(item)

    here = {name: swap(item) for name, item in kwargs.items()}
    func(*(swap(item) for item in args), **{**here, "generator": generator})
    with torch.set_grad_enabled(torch.is_grad_enabled() and func not in _INITIALISERS):
        return target.copy_(room)


def _draw_like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], generator: Any) -> Any:
    """The `*_like` functions, which take no generator before torch 2.10, as torch composes them."""
    options = {name: item for name, item in kwargs.items() if name not in ("generator", "input")}
    bounds = {name: options.pop(name) for name in ("low", "high") if name in options}
    grad = bool(options.pop("requires_grad", False))
    like, *limits = args or (kwargs["input"],)
    limits = [*limits, *bounds.values()]
    if func is torch.randint_like and len(limits) == 1:
        limits = [0, *limits]
    room = torch.empty_like(like, **options)
    with torch.no_grad():
        _LIKE[func](room, *limits, generator=generator)
    return room.requires_grad_() if grad else room


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Where the result of a random function goes."""
    if kwargs.get("device") is not None:
        device = kwargs["device"]
        return torch.device("cuda", device) if type(device) is int else torch.device(device)
    if kwargs.get("out") is not None:
        return kwargs["out"].device  # type: ignore[no-any-return]
    tensors = _tensors(args, kwargs)
    elsewhere = (item.device for item in tensors if item.device.type != "cpu")
    if tensors:
        return next(elsewhere, tensors[0].device)
    return torch.get_default_device()


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    return [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]


def _on_cpu(item: Any) -> Any:
    return item.cpu() if isinstance(item, torch.Tensor) else item
