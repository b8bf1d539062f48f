"""What is to be decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from hy3d_rocm.conv.tiers.base import Tier
    from hy3d_rocm.decode.layers import Backend, Weights
    from hy3d_rocm.decode.planning.planner import Way
    from hy3d_rocm.decode.report import DecodeOptions

Shape = tuple[int, ...]  # (B, C, T, H, W)
MakeBackend = Callable[["Weights", torch.device], "Backend"]


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


def unused_sizes(job: Job, way: Way, options: DecodeOptions) -> list[str]:
    """Sentences about the sizes that were given and that this way does not look at."""
    said = []
    if options.chunk_size is not None and (why := _why_no_chunks(job, way)):
        said.append(f"chunk_size={options.chunk_size} is ignored: {why}")
    if options.slice_bytes is not None and "slice_bytes" not in way.parameters:
        said.append(
            f"slice_bytes={options.slice_bytes} is ignored: slices are of a decode that goes layer "
            f"by layer; this one of {job.family.name} is {way.name}"
        )
    return said


def _why_no_chunks(job: Job, way: Way) -> str:
    """Why chunk_size means nothing to a way, "" where it does."""
    family, parameters = job.family, way.parameters
    if getattr(family, "is_image", False):
        return f"{family.name} makes single images, which have no frames to be cut"
    if way.strategy == "whole":
        return "the VAE's own unsplit decode has no chunks"
    if parameters.get("engine") == "layers" and "chunk" not in parameters:
        why = (
            f"the norms of {family.name} see the whole video"
            if family.has_global_norms else "chunks did not fit or had failed"
        )  # fmt: skip
        return f"{why}, so it goes layer by layer; slice_bytes cuts that"
    if "chunk_size" in parameters and family.warm_up.latents is None:
        return f"later latents change earlier frames of {family.name}, so time is not cut"
    return ""
