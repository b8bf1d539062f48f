"""A cancel that is looked at while the VAE's own code runs."""

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
