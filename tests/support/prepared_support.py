"""What the tests of the cache of prepared weights share: a rig without the core."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from hy3d_rocm.conv.prepared import WeightCache

MB = 1 << 20


def all_bytes(tensor: Any, _threads: int = 0) -> tuple[int, int]:
    data = tensor.detach().numpy().tobytes()
    form = repr((tensor.dtype, tensor.shape, tensor.stride()))
    digest = hashlib.blake2b(form.encode() + data, digest_size=16).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")


class Made:
    """Prepared weights that remember what they were made from."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight.detach().clone()


class Rig:
    """A cache, and a counter of what was made."""

    def __init__(self, limit: int = 100) -> None:
        self.cache = WeightCache(limit, fingerprint=all_bytes)
        self.made = 0

    def get(self, weight: Any, nbytes: int = 10, number: int = 1) -> Any:
        def make() -> Made:
            self.made += 1
            return Made(weight)

        found = self.cache.get(weight.detach(), number, nbytes, make, owner=weight)
        assert found is None or torch.equal(found.weight, weight.detach()), "stale weights"
        return found


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*(shape or (2, 2))), requires_grad=False)


class Stopped(Exception):  # noqa: N818
    """What make() may end with."""
