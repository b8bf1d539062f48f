"""Peak of a pipeline's activations, measured during its calls. Kept in memory only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("hy3d_rocm")


@dataclass(frozen=True)
class Measured:
    """Peak of everything but the weights during a call, and where the figure comes from."""

    activation_bytes: int
    source: str


def recorded(
    pipeline: Any, component_bytes: dict[str, int], size: tuple[int, int] | None = None
) -> Measured | None:
    """What is known of this kind of pipeline, with weights of these sizes; None if nothing is."""
    return None


@contextmanager
def measuring(
    pipeline: Any, device: torch.device | str, size: tuple[int, int] | None = None
) -> Iterator[None]:
    """Measures the calls made inside; afterwards recorded() knows. On a CPU nothing is measured."""
    raise NotImplementedError
    yield
