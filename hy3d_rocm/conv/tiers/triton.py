"""Our implicit-GEMM kernel, where the user's PyTorch brings Triton."""

from __future__ import annotations

import torch

from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.tiers.base import shortage


class TritonTier:
    """The kernels of hy3d_rocm.conv.triton, imported when first needed: with them comes the verdict
    store, and at a first call Triton."""

    name = "triton"

    def label(self, call: ConvCall) -> str:
        return "hy3d_rocm's Triton kernel"

    def workspace_bytes(self, spec: ConvSpec) -> int:
        from hy3d_rocm.conv.triton import launch

        return launch.workspace_bytes(spec)

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        from hy3d_rocm.conv.triton import launch

        spec = call.spec
        reason = launch.refusal(spec)
        if reason is not None:
            return reason
        need = launch.workspace_bytes(spec) + spec.out_bytes
        return shortage(need, limits, spec.device, "its workspace and output")

    def run(self, call: ConvCall) -> torch.Tensor:
        from hy3d_rocm.conv.triton import launch

        return launch.run(call)
