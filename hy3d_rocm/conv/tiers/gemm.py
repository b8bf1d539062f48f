"""Convolution by matrix products: hipBLASLt or rocBLAS on AMD, no MIOpen, bounded workspace."""

from __future__ import annotations

import torch

from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.tiers import columns, columns_plan, in_place, spread, unfolded, windows
from hy3d_rocm.conv.tiers.base import empty_result, foreign, shortage

# What the BLAS library may take for itself through PyTorch's allocator (32 MiB on Hopper).
_BLAS_BYTES = 33 << 20


class GemmTier:
    """Matrix products through torch.bmm. Four ways, by the shape and what they cost:

    Kernels of one element in H and W without stride or padding: the input is its own matrix, and
    nothing is copied (`in_place`).
    Few output channels: products of every tap first, then their shifted sum (`spread`).
    Small ones: PyTorch's own im2col and one product, which asks least of the host (`unfolded`).
    Else columns of the input, one box at a time, and long products of them (`columns`).

    Sums are in f32 (f64 for f64), rounded once; under 256 MB beside the output.
    """

    name = "gemm"

    def label(self, call: ConvCall) -> str:
        return "matrix products"

    def workspace_bytes(self, spec: ConvSpec) -> int:
        """Of the way that is taken, or of the one without copies: strides decide between them."""
        if min(spec.out_size) == 0:
            return 0
        blas = _BLAS_BYTES if spec.device.type == "cuda" else 0
        found = plans(spec)
        return max(in_place.workspace_bytes(spec), cheapest(found).bytes if found else 0) + blas

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        spec = call.spec
        reason = foreign(spec.device)
        if reason is not None or min(spec.out_size) == 0:
            return reason
        if not plans(spec):
            return "not even one output row's columns, or one channel's weights, fit its workspace"
        need = self.workspace_bytes(spec) + spec.out_bytes
        return shortage(need, limits, spec.device, "its columns and output")

    def run(self, call: ConvCall) -> torch.Tensor:
        spec = call.spec
        out = empty_result(spec)
        if out.numel():
            x, weight, bias = map(_plain, call.operands())
            assert x is not None
            assert weight is not None
            found = in_place.steps(spec, x, out) if in_place.can(spec) else None
            if found is not None:
                in_place.run(found, spec, x, weight, bias, out)
            else:
                _run_plan(spec, x, weight, bias, out)
        return out if spec.batched else out.squeeze(0)


def _plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor without autograd, its values in memory (x.conj().imag has its sign in a flag)."""
    if tensor is None:
        return None
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.detach() if tensor.requires_grad else tensor


Way = columns_plan.Plan | spread.Plan | unfolded.Plan


def plans(spec: ConvSpec) -> list[Way]:
    """The ways that a convolution can go, whatever its strides."""
    others = (spread.plan(spec), unfolded.plan(spec))
    return [*columns_plan.candidates(spec), *(plan for plan in others if plan is not None)]


def cheapest(found: list[Way]) -> Way:
    return min(found, key=lambda plan: plan.cost)


def _run_plan(
    spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:  # fmt: skip
    plan: Way | None = spec.notes.get("gemm")
    if plan is None:
        plan = spec.notes["gemm"] = cheapest(plans(spec))
    if isinstance(plan, unfolded.Plan):
        unfolded.run(plan, x, weight, bias, out)
    elif isinstance(plan, spread.Plan):
        x, weight, out = (windows.lifted(t) for t in (x, weight, out))
        spread.run(plan, x, weight, bias, out)
    else:
        columns.run(plan, spec, x, weight, bias, out)
