"""What a layer over slices needs of its engine (layerwise.LayerEngine)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    from hy3d_rocm.decode.engines.sliced import Sliced
    from hy3d_rocm.decode.engines.spill import Keeper, Slice
    from hy3d_rocm.decode.faults import Grains
    from hy3d_rocm.decode.layers import Backend, Moments, Norm
    from hy3d_rocm.decode.report import Step


class SliceEngine(Protocol):
    """See LayerEngine for all of it."""

    backend: Backend
    device: torch.device
    slice_bytes: int
    grains: Grains
    keeper: Keeper
    gather: bool

    def run(self, step: Step, work: Callable[[], Any]) -> Any:
        """One grain."""

    def step(self, kind: str, x: Sliced, frames: tuple[int, int]) -> Step:
        """`frames` of x as a counter gets them."""

    def held(
        self, pieces: Sequence[Slice], making: int, work: Callable[[list[Tensor]], Any],
        then: Sequence[Slice] = (),
    ) -> Any:  # fmt: skip
        """work(tensors of the slices), with room for `making` bytes."""

    def finish(self, out: Sliced, tensor: Tensor, moments: Moments | None, step: Step) -> None:
        """Takes a finished slice of `out` in."""

    def affine(self, x: Sliced, norm: Norm | None) -> Any:
        """What stands for a norm over the whole of x."""

    def release(self, x: Sliced, stop: int) -> None:
        """Lets the slices of x that end at or before frame `stop` go."""
