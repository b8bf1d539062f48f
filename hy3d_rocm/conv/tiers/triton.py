"""Our implicit-GEMM kernel, where the user's PyTorch brings Triton."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.tiers.base import shortage


@functools.cache
def _launch() -> Any:
    return importlib.import_module("hy3d_rocm.conv.triton.launch")


class TritonTier:
    """The kernels of hy3d_rocm.conv.triton; imported when first asked, since Triton is heavy."""

    name = "triton"

    def label(self, call: ConvCall) -> str:
        return "hy3d_rocm's Triton kernel"

    def workspace_bytes(self, spec: ConvSpec) -> int:
        try:
            return int(_launch().workspace_bytes(spec))
        except ImportError:
            return 0

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        spec = call.spec
        if spec.device.type != "cuda":
            return f"the Triton kernels run on GPUs, and the call is on {spec.device.type}"
        try:
            launch = _launch()
            reason = launch.refusal(spec)
        except ImportError as error:
            return f"Triton can't be imported ({error})"
        if reason is not None:
            return str(reason)
        need = int(launch.workspace_bytes(spec)) + spec.out_bytes
        return shortage(need, limits, spec.device, "its workspace and output")

    def compiles(self, spec: ConvSpec) -> bool:
        """Whether a first call like this would compile a kernel."""
        return bool(_launch().is_new_kernel(spec))

    def run(self, call: ConvCall) -> torch.Tensor:
        result = _launch().run(call)
        assert isinstance(result, torch.Tensor)
        return result
