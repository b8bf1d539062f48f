"""What the tests of weights prepared by the core share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hy3d_rocm import _core
from hy3d_rocm.conv import prepared
from hy3d_rocm.conv.prepared import WeightCache

ONE = (1, 1, 1)

C = 32

SIZE = (2, 24, 24)

X = torch.randn(1, C, *SIZE, generator=torch.Generator().manual_seed(1))


def layout(dtype: str = "f32", accuracy: str = "fast", **options: Any) -> tuple[int, str, int]:
    return _core.conv3d_format(SIZE, C, C, (3, 3, 3), ONE, ONE, ONE, ONE, "zeros", 1, dtype,
                               accuracy, **options)  # fmt: skip


NUMBER, NAME, NBYTES = layout()

# At HY3D_CPU=ref, say, a fast convolution may well be a direct one.
needs_layout = pytest.mark.skipif(
    NUMBER == 0, reason=f"at CPU level {_core.cpu_info()['level']} no weights have a layout"
)


def parameter(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    made = torch.randn(C, C, 3, 3, 3, generator=torch.Generator().manual_seed(seed))
    return nn.Parameter(made.to(dtype), requires_grad=False)


def once(weight: Any, ready: Any = None, x: Any = X, **options: Any) -> torch.Tensor:
    out = torch.full(x.shape, float("nan"), dtype=x.dtype)
    words = {"accuracy": "fast", **options}
    _core.conv3d(x, weight, None, out, ONE, ONE, ONE, ONE, "zeros", 1, 2, prepared=ready, **words)
    return out


@pytest.fixture(name="cache")
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[WeightCache]:
    """An empty one in the process-wide one's place."""
    made = WeightCache(1 << 30)
    monkeypatch.setattr(prepared, "_made", made)
    yield made
    made.clear()
