"""What is to be decoded, and which backend computes its layers where."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from hy3d_rocm.conv.triton.work import Target
from hy3d_rocm.decoding.backends import native
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend
from hy3d_rocm.decoding.backends.triton import backend as fused
from hy3d_rocm.decoding.graph import Graph, record
from hy3d_rocm.decoding.layers import Weights
from hy3d_rocm.decoding.memory.dry_run import modelled
from hy3d_rocm.decoding.placing import on_their_way
from hy3d_rocm.decoding.planning.planner import Variant
from hy3d_rocm.decoding.precision import name_of
from hy3d_rocm.decoding.report import DecodeOptions

Shape = tuple[int, ...]  # (B, C, T, H, W)
_HOST = torch.device("cpu")
# Compute units of a GPU that is not here: they choose tiles of kernels.
_UNITS = 96


@dataclass(frozen=True)
class MakeBackend:
    """Makes backends. Called with the weights and a device: the job's own, the host's where a
    variant computes there, or "meta", which stands for either (dry_run.modelled): that backend is
    asked, never run.

    on_gpu: "torch" for torch's operators, "fused" for the fused kernels of the current GPU, or the
    name of an architecture ("gfx1100", "sm_90") for those of a GPU that need not be here: for
    plans, on "meta" alone. on_host: "native", the C convolution where it is there, or "torch".
    is_tuned: whether fused kernels have the tiles that were measured on the GPU.
    """

    on_gpu: str = "torch"
    on_host: str = "native"
    is_tuned: bool = True

    @property
    def computes_natively(self) -> bool:
        return self.on_host == "native" and native.refusal(_HOST, torch.float32) is None

    def __call__(self, weights: Weights, device: torch.device) -> TorchBackend:
        on_host = modelled(device).type == "cpu"
        if on_host or self.on_gpu == "torch":
            is_native = on_host and self.computes_natively
            return (native.NativeBackend if is_native else TorchBackend)(weights)
        if self.on_gpu != "fused":
            return fused.TritonBackend(weights, device, machine=Target(self.on_gpu, _UNITS))
        if device.type != "meta":
            return fused.TritonBackend(weights, device, is_tuned=self.is_tuned)
        here = torch.device("cuda", torch.cuda.current_device())
        machine = fused.TritonBackend(weights, here, is_tuned=self.is_tuned).target()
        return fused.TritonBackend(weights, device, machine=machine)


torch_backend = MakeBackend(on_host="torch")
host_backend = MakeBackend()
fused_backend = MakeBackend("fused")


def best_backend(device: torch.device, dtype: torch.dtype, asked: str = "auto") -> MakeBackend:
    """What computes this type on this device: fused kernels on a GPU, the C convolution on the CPU,
    torch's operators where they can't.

    asked: as DecodeOptions.backend; "torch": torch's operators everywhere; "native": on the CPU the
    C convolution, ValueError (a sentence) where it can't.
    """
    if asked == "torch":
        return torch_backend
    if device.type == "cpu" or asked == "native":
        reason = native.refusal(_HOST, dtype)
        if reason is not None and asked == "native":
            raise ValueError(f'the backend "native" can\'t be taken: {reason}. Use "auto"')
        if device.type == "cpu":
            return host_backend if reason is None else torch_backend
    return host_backend if fused.refusal(device, dtype) is not None else fused_backend


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be decoded: a latent of `shape` (B, C, T, H, W) by `family` on `device`.

    device: where it is computed unless the variant says "cpu". dtype: of the computation;
    result_dtype: of the frames. encode: the other way round, `shape` is that of the pixels.
    keeps_result: whether all frames are kept in host memory (False: they go to a file as they
    come). rank, ranks: which of the ranks of a group this one is, that share every value's rows.
    sends_source: whether rank 0 sends the others what they need of the latents (or pixels).
    without_library: whether MIOpen or cuDNN is to compute no convolution.
    """

    family: Any
    shape: Shape
    device: torch.device
    dtype: torch.dtype
    result_dtype: torch.dtype
    make_backend: MakeBackend
    encode: bool = False
    keeps_result: bool = True
    rank: int = 0
    ranks: int = 1
    sends_source: bool = False
    without_library: bool = False

    @cached_property
    def graph(self) -> Graph:
        """Its layers, recorded for this decode: a timestep is in them."""
        return record(self.family, self.encode)

    def but(self, **changes: Any) -> Job:
        """The job with other facts. Its layers, which depend on family and encode alone, are not
        recorded again."""
        made = replace(self, **changes)
        if "graph" in vars(self) and not changes.keys() & {"family", "encode"}:
            vars(made)["graph"] = self.graph
        return made

    @property
    def is_fused(self) -> bool:
        """Whether layers are computed fused, which is no slower than the VAE's own code (on the
        CPU: python -m hy3d_rocm bench decode --device cpu) and smaller: "auto" begins with it."""
        if self.device.type == "cpu":
            return self.make_backend.computes_natively
        return self.make_backend.on_gpu != "torch"

    @cached_property
    def out_shape(self) -> Shape:
        """Of the result of all samples."""
        shape: Shape = self.family.out_shape(self.shape, self.encode)
        return shape

    @property
    def result_bytes(self) -> int:
        return math.prod(self.out_shape) * self.result_dtype.itemsize * self.keeps_result

    @property
    def host_bytes(self) -> int:
        """Of the result in host memory, and of its frames that are on their way from a GPU."""
        there = self.keeps_result and self.device.type != "cpu"
        return self.result_bytes + there * on_their_way(self.out_shape, self.result_dtype)[1]

    def device_of(self, variant: Variant) -> torch.device:
        return _HOST if variant.strategy == "cpu" else self.device

    def runs_own_code(self, variant: Variant) -> bool:
        """Whether the VAE's own code runs, with the VAE's own parameters."""
        return variant.strategy == "whole" or is_opaque(self.family)

    def asks_library(self, variant: Variant) -> bool:
        """Whether MIOpen or cuDNN may compute its convolutions."""
        on_gpu = self.device_of(variant).type == "cuda"
        return on_gpu and (self.runs_own_code(variant) or not self.is_fused)

    def is_native(self, variant: Variant) -> bool:
        on_host = self.device_of(variant).type == "cpu"
        return on_host and not self.runs_own_code(variant) and self.make_backend.computes_natively


def is_opaque(family: Any) -> bool:
    """Whether of its VAE nothing but its own decode() is known (families/unknown.py)."""
    return bool(getattr(family, "is_opaque", False))


def resume_key_of(job: Job, variant: Variant) -> dict[str, Any]:
    """What the frames of a variant depend on, JSON-able; not where activations lie meanwhile."""
    parameters = {
        k: v if isinstance(v, (int, str)) else str(v) for k, v in variant.parameters.items()
    }
    made = {"strategy": variant.strategy, "dtype": name_of(job.dtype), "parameters": parameters}
    if job.without_library:
        made["without"] = "library"
    return made | ({"backend": "native"} if job.is_native(variant) else {})


def unused_sizes(job: Job, variant: Variant, options: DecodeOptions) -> list[str]:
    """Sentences about the sizes that were given and that this variant does not look at."""
    sentences = []
    if options.chunk_size is not None and (why := _why_no_chunks(job, variant)):
        sentences.append(f"chunk_size={options.chunk_size} is ignored: {why}")
    if options.slice_bytes is not None and "slice_bytes" not in variant.parameters:
        sentences.append(
            f"slice_bytes={options.slice_bytes} is ignored: slices are of a decode that goes layer "
            f"by layer; this one of {job.family.name} is {variant.name}"
        )
    return sentences


def _why_no_chunks(job: Job, variant: Variant) -> str:
    """Why chunk_size means nothing to a variant, "" where it does."""
    family, parameters = job.family, variant.parameters
    if getattr(family, "is_image", False):
        return f"{family.name} makes single images, which have no frames to be cut"
    if variant.strategy == "whole":
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
