"""functional.fused_conv3d in plain steps of torch: the words of its contract, one after another."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class FusedConv3d:
    """compute(frames, weight, bias, ...); counts its calls and keeps the weights it was given."""

    def __init__(self) -> None:
        self.calls = 0
        self.weights: list[Any] = []
        self.cancels: list[Any] = []

    def __call__(
        self, frames: Any, weight: Any, bias: Any, *, padding: Any, padding_mode: Any, stride: Any,
        upsample: Any = (1, 1), scale: Any = None, shift: Any = None, activation: Any = None,
        residual: Any = None, out: Any = None, accuracy: str = "fast", threads: Any = None,
        cancel: Any = None,
    ) -> Any:  # fmt: skip
        self.calls += 1
        self.weights.append(weight)
        self.cancels.append(cancel)
        like = next(f for f in frames if f is not None)
        done = [
            torch.zeros(like.shape, dtype=torch.float32)
            if f is None
            else _changed(f, scale, shift, activation)
            for f in frames
        ]
        x = torch.stack(done, 1)[None]
        x = x.repeat_interleave(upsample[0], 3).repeat_interleave(upsample[1], 4)
        for axis in range(3):
            pad = [0] * 6
            pad[4 - 2 * axis : 6 - 2 * axis] = padding[axis]
            mode = "constant" if padding_mode[axis] == "zeros" else "replicate"
            x = F.pad(x, pad, mode=mode)
        y = F.conv3d(x, weight.float(), None if bias is None else bias.float(), stride)
        if residual is not None:
            y = y + residual.float()
        if out is None:
            return y.to(like.dtype)
        assert out.shape == y.shape
        assert out.dtype == like.dtype == weight.dtype
        return out.copy_(y)


def _changed(frame: Any, scale: Any, shift: Any, activation: Any) -> Any:
    y = frame.float()
    if scale is not None:
        assert scale.dtype == shift.dtype == torch.float32
        assert scale.is_contiguous()
        y = torch.addcmul(shift.view(-1, 1, 1), y, scale.view(-1, 1, 1))
    assert activation in (None, "silu")
    return F.silu(y) if activation == "silu" else y
