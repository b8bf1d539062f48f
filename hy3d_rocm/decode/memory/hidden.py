"""What a convolution of TorchBackend's holds inside itself, by the back-end that computes it.

* oneDNN reorders input and output to blocks of 16 channels: in + out, channels rounded up to 16.
  (Measured as VmHWM on one AVX-512 machine over the layers of tests/bench/measure_decode.py.)
* the native path builds im2col: kernel volume x Cin x output positions, where onednn.py has it.
* GPU libraries: counted as input and output once more; a library's own workspace may be larger.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from hy3d_rocm.decode.memory.live import workspace_rules
from hy3d_rocm.decode.memory.onednn import instead_of_im2col, is_watched
from hy3d_rocm.decode.memory.workspace import BLOCKED_CHANNELS, conv_backend


def conv_hidden(args: Any, out: torch.Tensor, device: torch.device) -> tuple[int, int]:
    """Bytes alive inside aten.convolution (its output not yet among them), and its MACs."""
    x, weight = args[0], args[1]
    rules = workspace_rules()
    if rules is not None:  # in a prediction, which knows the tier, too
        macs = out.numel() * math.prod(weight.shape[1:])
        return rules.convolution(args, out, by_layer=True) + out.nbytes, macs
    positions = out.shape[0] * math.prod(out.shape[2:])
    taps = math.prod(weight.shape[2:])
    macs = positions * weight.shape[0] * weight.shape[1] * taps
    backend = conv_backend(
        tuple(x.shape),
        tuple(weight.shape),
        x.dtype,
        device.type,
        tuple(args[3]),
        tuple(args[4]),
        tuple(args[5]),
        args[8],
        torch.get_num_threads(),
    )
    size: int = x.element_size()
    shapes = tuple(weight.shape), tuple(out.shape)
    avoided = device.type == "cpu" and not is_watched()
    avoided = avoided and instead_of_im2col(backend, *shapes, x.dtype)
    if backend.startswith("Slow") and not avoided:
        columns = taps * x.shape[1] * positions * size
        return columns + out.numel() * size, macs

    def blocked(t: torch.Tensor) -> int:
        elements: int = t.numel() // max(t.shape[1], 1) * _round_up(t.shape[1])
        return elements * size

    weights = _round_up(weight.shape[0]) * _round_up(weight.shape[1]) * taps * size
    return blocked(x) + blocked(out) + weights, macs


def _round_up(channels: int) -> int:
    return -(-channels // BLOCKED_CHANNELS) * BLOCKED_CHANNELS
