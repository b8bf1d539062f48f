"""What stands for norms over the whole video where only a part of it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.layers import Norm

Affine = tuple["Tensor", "Tensor"]


class Norms:
    """What stands for the "group" norms, whose moments over the video a chunk cannot know.

    index: the norm's place among the group norms of one call of the family's function.
    """

    def affine(self, norm: Norm, index: int) -> Affine:
        """(C,) factor and summand, as group_affine() makes them. The default refuses."""
        raise RuntimeError(
            "this VAE normalises over the whole video (GroupNorm), which a run in chunks cannot "
            "know: give it the norms' statistics (tiles.py does), or decode it layer by layer"
        )

    def observe(self, norm: Norm, index: int, frames: Tensor) -> None:
        """Sees each frame that is normalised, once."""


class Given(Norms):
    """Norms by a function (norm, index) -> (factor, summand)."""

    def __init__(self, affine: Callable[[Norm, int], Affine]) -> None:
        self._affine = affine

    def affine(self, norm: Norm, index: int) -> Affine:
        return self._affine(norm, index)
