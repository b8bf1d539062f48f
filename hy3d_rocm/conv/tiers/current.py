"""The tier that does what untouched code would do."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.tiers import windows

_LABELS = {"Miopen": "MIOpen", "Cudnn": "cuDNN", "Mkldnn": "oneDNN", "Slow": "PyTorch native"}


class CurrentTier:
    """PyTorch as it is set up: MIOpen, cuDNN, oneDNN, or its native code where those are off."""

    name = "current"

    def label(self, call: ConvCall) -> str:
        chosen = select_backend(call)
        found = (label for part, label in _LABELS.items() if part in chosen)
        return next(found, "the current back-end")

    def workspace_bytes(self, spec: ConvSpec) -> int:
        return 0

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        return None

    def run(self, call: ConvCall) -> torch.Tensor:
        return call.run_current()


def select_backend(call: ConvCall) -> str:
    """The name of the back-end that PyTorch itself would choose ("Miopen", "Slow3d", ...)."""
    spec = call.spec
    if spec.pad_before != spec.pad_after:
        return "unknown"
    x, weight, bias = call.operands()
    flat = (spec.stride, spec.pad_before, spec.dilation, False, (0,) * spec.ndim, spec.groups)
    try:
        chosen = torch._C._select_conv_backend(x, weight, bias, *flat)
    except RuntimeError:
        return "unknown"
    return str(chosen.name)


def run_current(
    spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """What PyTorch as it is set up would be asked for."""
    x = x if spec.batched else x.unsqueeze(0)
    shape = spec.problem
    padding = spec.pad_before
    if not spec.is_padded_plainly:
        x, padding = windows.window(windows.lifted(x), shape, shape.box), (0,) * spec.ndim
        x = x.squeeze(2) if spec.ndim == 2 else x
    conv = F.conv2d if spec.ndim == 2 else F.conv3d
    out = conv(x, weight, bias, spec.stride, padding, spec.dilation, spec.groups)
    return out if spec.batched else out.squeeze(0)
