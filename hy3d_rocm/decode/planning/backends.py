"""Which backend computes the layers of a decode, where.

A maker is called with the weights and a device: the job's own, the host's where a way computes
there, or "meta", which stands for either (dry_run.modelled): that backend is asked, never run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hy3d_rocm.decode.black_box import runs_own_code
from hy3d_rocm.decode.memory.dry_run import modelled

if TYPE_CHECKING:
    from hy3d_rocm.decode.layers import Backend, Weights
    from hy3d_rocm.decode.planning.jobs import Job, MakeBackend
    from hy3d_rocm.decode.planning.planner import Way

__all__ = [
    "FusedOf", "best_backend", "computes_natively", "fused_backend", "host_backend", "is_native",
    "native_backend", "runs_first", "torch_backend",
]  # fmt: skip

# How many times faster a whole decode is layer by layer with the C convolution than by the VAE's
# own code with torch's operators, where both fit. Above 1, "auto" begins with the former.
# Measured by: python -m hy3d_rocm bench decode --device cpu
NATIVE_SPEED = 1.0


def torch_backend(weights: Weights, device: torch.device) -> Backend:
    """TorchBackend, whatever the device."""
    from hy3d_rocm.decode.backends.torch_ops import TorchBackend

    return TorchBackend(weights)


def native_backend(weights: Weights, device: torch.device) -> Backend:
    """NativeBackend, for the host."""
    from hy3d_rocm.decode.backends.native import NativeBackend

    return NativeBackend(weights)


def host_backend(weights: Weights, device: torch.device) -> Backend:
    """On the host the C convolution where it is there; else, and on a GPU, torch's operators."""
    from hy3d_rocm.decode.backends.native import refusal

    native = modelled(device).type == "cpu" and refusal(_HOST, torch.float32) is None
    return (native_backend if native else torch_backend)(weights, device)


def fused_backend(weights: Weights, device: torch.device) -> Backend:
    """TritonBackend; on "meta" it stands for the current GPU. On the host, where a decode goes on
    that no GPU could do, what is best there."""
    from hy3d_rocm.decode.backends.triton.backend import TritonBackend

    if modelled(device).type == "cpu":
        return host_backend(weights, device)
    if device.type != "meta":
        return TritonBackend(weights, device)
    here = torch.device("cuda", torch.cuda.current_device())
    return TritonBackend(weights, device, machine=TritonBackend(weights, here)._target())


@dataclass(frozen=True)
class FusedOf:
    """fused_backend as for a GPU that need not be here, of an architecture ("gfx1100", "sm_90"):
    for plans, on "meta" and the host alone."""

    arch: str

    def refusal(self, dtype: torch.dtype) -> str | None:
        """Why its kernels can't be asked for this type, in a few words, or None."""
        from hy3d_rocm.conv.triton import configs

        name = _KERNEL_TYPES.get(dtype)
        if name is None:
            return f"the fused kernels have no {dtype}"
        if not configs.is_known(self.arch) or not configs.offered(self.arch, name):
            return f"the kernels were not checked for {name} on {self.arch}"
        return None

    def __call__(self, weights: Weights, device: torch.device) -> Backend:
        """See MakeBackend."""
        from hy3d_rocm.decode.backends.triton.backend import TritonBackend
        from hy3d_rocm.decode.backends.triton.work import Machine

        if modelled(device).type == "cpu":
            return host_backend(weights, device)
        return TritonBackend(weights, device, machine=Machine(self.arch, _UNITS))


def best_backend(device: torch.device, dtype: torch.dtype, asked: str = "auto") -> MakeBackend:
    """What computes this type on this device: fused kernels on a GPU, the C convolution on the CPU,
    torch's operators where they can't.

    asked: as DecodeOptions.backend; "torch": torch's operators everywhere; "native": on the CPU the
    C convolution, ValueError (a sentence) where it can't.
    """
    from hy3d_rocm.decode.backends import native as native
    from hy3d_rocm.decode.backends.triton import backend as fused

    if asked == "torch":
        return torch_backend
    if device.type == "cpu" or asked == "native":
        reason = native.refusal(_HOST, dtype)
        if reason is not None and asked == "native":
            raise ValueError(f'the backend "native" can\'t be taken: {reason}. Use "auto"')
        if device.type == "cpu":
            return torch_backend if reason is not None else native_backend
    return host_backend if fused.refusal(device, dtype) is not None else fused_backend


def computes_natively(make_backend: MakeBackend) -> bool:
    """Whether it is the C convolution on the host."""
    from hy3d_rocm.decode.backends.native import refusal

    if make_backend in (host_backend, fused_backend) or isinstance(make_backend, FusedOf):
        return refusal(_HOST, torch.float32) is None
    return make_backend is native_backend


def is_native(job: Job, way: Way) -> bool:
    """Whether the C convolution computes the way's layers."""
    on_host = job.device_of(way).type == "cpu"
    return on_host and not runs_own_code(job, way) and computes_natively(job.make_backend)


def runs_first(make_backend: MakeBackend) -> bool:
    """Whether it makes the layers faster than the VAE's own code does: see Job.is_fused."""
    if isinstance(make_backend, FusedOf):
        return True
    return make_backend is fused_backend or (make_backend is native_backend and NATIVE_SPEED >= 1.0)


_HOST = torch.device("cpu")
_KERNEL_TYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
# Compute units of a GPU that is not here: they choose tiles of kernels.
_UNITS = 96
