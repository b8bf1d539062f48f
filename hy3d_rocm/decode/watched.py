"""What is looked at while a VAE's code runs: a cancel, and whether it computes as wide as asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_LAYERS = frozenset(
    (
        torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d,
        torch.nn.functional.linear, torch.nn.functional.group_norm,
        torch.nn.functional.scaled_dot_product_attention,
    )
)  # fmt: skip


class LayerByLayer(TorchFunctionMode):
    """Calls `check` before each convolution, product, norm and attention of this thread in its
    scope; nothing of the VAE is touched. What `check` raises passes through the VAE's code."""

    def __init__(self, check: Callable[[], object]) -> None:
        super().__init__()
        self._check = check

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LAYERS:
            self._check()
        return func(*args, **(kwargs or {}))


class Narrowing(TorchFunctionMode):
    """Notes the functions of torch that make narrower floating point numbers than `dtype` of
    floating point numbers, of this thread in its scope: x.float() in the middle of a float64 decode
    is float32's error in all that follows. Copies into memory that is there already are not meant,
    nor are shapes on "meta"."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._bytes = dtype.itemsize
        self.found: dict[str, torch.dtype] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if self._is_narrow(made) and func not in _COPIES and any(map(_is_float, args)):
            self.found.setdefault(getattr(func, "__name__", str(func)), made.dtype)
        return made

    def _is_narrow(self, made: Any) -> bool:
        return _is_float(made) and made.dtype.itemsize < self._bytes and not made.is_meta

    def words(self) -> str:
        """What a report says of it, "" where nothing was found."""
        if not self.found:
            return ""
        names = ", ".join(list(self.found)[:3])
        kind = str(min(self.found.values(), key=lambda d: d.itemsize)).removeprefix("torch.")
        return f"but the VAE's own code computes in {kind} on the way ({names}), whose error it has"


_COPIES = frozenset((torch.Tensor.copy_, torch.Tensor.__setitem__))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
