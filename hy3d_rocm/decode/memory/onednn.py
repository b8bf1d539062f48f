"""Where oneDNN is taken in place of torch's im2col, by TorchBackend and by its prediction alike.

On the CPU torch sends a float32 convolution in 3D whose N*C*T*H is at most 20480 to its native
code, which builds im2col: 27 times the input for 3x3x3. oneDNN does the same layer in input plus
output. It is taken directly only where nobody would miss the call to F.conv3d: under protect() the
router must see it, as any mode over torch's functions or operators must, and autocast.
"""

from __future__ import annotations

import math

import torch

from hy3d_rocm.units import MB

__all__ = ["instead_of_im2col", "is_watched"]

# Columns that are worth avoiding. Below it nobody lacks the memory, and the native code is faster
# (C 64 to 32, 3x24x34: 13 ms of CPU time against 28; C 32 to 32, 3x82x200: 73 against 32).
_COLUMNS_BYTES = 8 * MB


def is_watched() -> bool:
    """Whether a mode of this thread (protect(), inject_faults(), another's) sees or changes calls,
    or oneDNN is switched off or absent."""
    return (
        torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.is_autocast_enabled("cpu")
        or not torch._C._has_mkldnn
        or not bool(torch.backends.mkldnn.enabled)
    )


def instead_of_im2col(
    backend: str, weight: tuple[int, ...], out: tuple[int, ...], dtype: torch.dtype
) -> bool:
    """Of a convolution on the CPU that is not watched: weight (O, C, t, h, w), out (N, O, T, H, W),
    backend as workspace.conv_backend names torch's choice."""
    if backend != "Slow3d" or dtype != torch.float32:
        return False
    columns = math.prod(weight[1:]) * out[0] * math.prod(out[2:]) * dtype.itemsize
    return columns >= _COLUMNS_BYTES
