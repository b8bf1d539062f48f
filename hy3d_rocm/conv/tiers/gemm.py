"""Convolution by matrix products: hipBLASLt or rocBLAS on AMD, no MIOpen, bounded workspace."""

from __future__ import annotations

import torch

from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.tiers import columns, im2col
from hy3d_rocm.conv.tiers.base import empty_result, foreign, shortage

# What the BLAS library may take for itself through PyTorch's allocator (32 MiB on Hopper).
_BLAS_BYTES = 33 << 20


class GemmTier:
    """Matrix products through torch.bmm, over columns of the input, one box at a time (`columns`);
    over the input as it lies where a kernel has one element, and over columns that PyTorch makes
    where those are few (`im2col`).

    Sums are in f32 (f64 for f64), rounded once; under 256 MB beside the output.
    """

    name = "gemm"

    def label(self, call: ConvCall) -> str:
        return "matrix products"

    def workspace_bytes(self, spec: ConvSpec) -> int:
        found = plan(spec)
        if found is None:
            return 0
        return found.bytes + (_BLAS_BYTES if spec.device.type == "cuda" else 0)

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        spec = call.spec
        reason = foreign(spec.device)
        if reason is not None or min(spec.out_size) == 0:
            return reason
        if plan(spec) is None:
            return "not even one output row's columns, or one channel's weights, fit its workspace"
        need = self.workspace_bytes(spec) + spec.out_bytes
        return shortage(need, limits, spec.device, "its columns and output")

    def run(self, call: ConvCall) -> torch.Tensor:
        spec = call.spec
        out = empty_result(spec)
        if out.numel():
            x, weight, bias = call.values()
            found = spec.notes.get("gemm")
            if found is None:
                found = spec.notes["gemm"] = plan(spec)
            if isinstance(found, im2col.Plan):
                im2col.run(found, x, weight, bias, out)
            else:
                assert found is not None, "refusal() is asked first"
                columns.run(found, spec, x, weight, bias, out)
        return out if spec.batched else out.squeeze(0)


def plan(spec: ConvSpec) -> columns.Plan | im2col.Plan | None:
    """How a convolution is cut; None where it has no outputs, or does not fit the workspace."""
    return im2col.plan(spec) or columns.plan(spec)
