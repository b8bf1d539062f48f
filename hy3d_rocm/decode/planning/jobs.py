"""What is to be decoded, and what may be chosen about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from hy3d_rocm.conv.tiers.base import Tier
    from hy3d_rocm.decode.layers import Backend, Weights
    from hy3d_rocm.decode.planning.planner import Way

Shape = tuple[int, ...]  # (B, C, T, H, W)
MakeBackend = Callable[["Weights", torch.device], "Backend"]


@dataclass(frozen=True)
class WayOptions:
    """What may be chosen about ways. Sizes in bytes or latent frames.

    chunk_size: latent frames that go through all layers at a time, where norms are per position;
    None: one, of small pictures more on a GPU. slice_bytes: see LayerEngine. cpu_offload: whether
    activations may be spilled to the host. halo_pixels, overlap_pixels, min_tile_pixels,
    statistic_passes: see tiles.py.
    """

    chunk_size: int | None = None
    slice_bytes: int | None = None
    cpu_offload: bool = True
    halo_pixels: int | None = 32
    overlap_pixels: int = 16
    min_tile_pixels: int = 32
    statistic_passes: int = 1

    def __post_init__(self) -> None:
        for name in ("chunk_size", "slice_bytes"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < 1
            ):
                raise ValueError(
                    f'{name} is {value!r}; give a whole number of 1 or more, or "auto"'
                )


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be decoded: a latent of `shape` (B, C, T, H, W) by `family` on `device`.

    device: where it is computed unless the way says "cpu". dtype: of the computation; result_dtype:
    of the frames. encode: the other way round, `shape` is that of the pixels. keeps_result: whether
    all frames are kept in host memory (False: they go to a file as they come).
    make_backend: (weights, device) -> Backend, for `device`, for the host where a way computes
    there, and for "meta", where it stands for one of them; tier: of hy3d_rocm.conv that computes
    what the backend leaves to F.conv3d, None for torch's own. is_fused: whether make_backend's
    computes layers fused, which is faster than the VAE's own code as well as smaller: then "auto"
    begins with it.
    """

    family: Any
    shape: Shape
    device: torch.device
    dtype: torch.dtype
    result_dtype: torch.dtype
    make_backend: MakeBackend
    encode: bool = False
    keeps_result: bool = True
    tier: Tier | None = None
    is_fused: bool = False

    @property
    def out_shape(self) -> Shape:
        """Of the result of all samples."""
        family = self.family
        shape: Shape = (
            family.moments_shape(self.shape) if self.encode else family.out_shape(self.shape)
        )
        return shape

    def device_of(self, way: Way) -> torch.device:
        """Where the way computes."""
        return torch.device("cpu") if way.strategy == "cpu" else self.device
