"""Two scopes for code that cannot be edited: "cuda" written out, and draws without a generator.

Both are `TorchFunctionMode`s: they hold for the calling thread, from `with` to its end, may be
nested, and replace nothing in torch. What does not come by as a torch function is out of their
sight: `torch.load(map_location=...)`, `torch.Generator(device=...)`, `torch.cuda.*`, a call by
`torch.ops`, and whatever runs inside a graph that torch.compile has already made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hy3d_rocm import _draws

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
        elif func is torch.Tensor.cuda:
            func, args, kwargs = torch.Tensor.to, *_cuda_as_to(self.device, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _means_cuda(value: object) -> bool:
    """Whether a device argument names an accelerator of torch.cuda."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    return type(value) is int


def _cuda_as_to(
    device: torch.device, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `tensor.cuda(device, non_blocking, memory_format)` for `tensor.to`."""
    rest = {name: value for name, value in kwargs.items() if name != "device"}
    return (args[0], device), {**dict(zip(("non_blocking",), args[2:], strict=False)), **rest}


class _Drawing(TorchFunctionMode):
    """Gives random functions without a generator the one it was made with."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or func not in _draws.RANDOM:
            return func(*args, **kwargs)
        if _draws.has_generator(args, kwargs):
            return func(*args, **kwargs)
        return _draws.draw(func, args, kwargs, self.generator)
