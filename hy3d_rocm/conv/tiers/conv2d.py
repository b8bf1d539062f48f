"""conv3d by 2D convolutions of the vendor library, with the time taps folded into the channels."""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F

from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.problem import Box, Problem, Triple
from hy3d_rocm.conv.tiers import products, vendor, windows
from hy3d_rocm.conv.tiers.base import empty_result, shortage

_PIECE_BYTES = 512 << 20
_OWN_BYTES = 64 << 20
_MAX_ELEMS = (1 << 31) - 1


class Conv2dTier:
    """A conv3d is the sum over kT of 2D convolutions of shifted frames. Summing three results of a
    half type would round each; the frames t, t + 1, t + 2 laid behind each other as channels give
    the same sum inside one 2D convolution, in its own f32 sums. Frames are the batch.

    For a library whose 3D kernels fail and whose 2D kernels do not, where Triton is missing: on an
    H200 0.8 times `gemm`'s time over HunyuanVideo's decoder in bfloat16, and 1.4 to 2.7 times over
    smaller sets; the library's own 3D kernels are faster on every layer.
    """

    name = "conv2d"

    def label(self, call: ConvCall) -> str:
        gpu = call.spec.device.type == "cuda"
        return f"2D convolutions of {vendor.library_name() if gpu else 'PyTorch'}"

    def workspace_bytes(self, spec: ConvSpec) -> int:
        steps, work = _steps(spec), products.work_dtype(spec.device, spec.dtype)
        if min(spec.out_size) == 0 or steps is None:
            return 0
        own = _OWN_BYTES if spec.device.type == "cuda" else 0
        weights = 3 * math.prod(spec.weight_size)  # folded, and the library's copy of that
        return _piece_bytes(spec.problem, work.itemsize, steps) + weights * work.itemsize + own

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        spec = call.spec
        if spec.ndim != 3:
            return "it is a way to compute conv3d"
        if spec.device.type != "cpu":
            reason = vendor.library_refusal(spec, spec.dilation[1:])
            if reason is not None:
                return reason
        if min(spec.out_size) > 0 and _steps(spec) is None:
            return "not even one output row's frames fit its workspace"
        need = self.workspace_bytes(spec) + spec.out_bytes
        return shortage(need, limits, spec.device, "its frames and output")

    def run(self, call: ConvCall) -> torch.Tensor:
        spec = call.spec
        out = empty_result(spec)
        if out.numel():
            x, weight, bias = call.values()
            work = products.work_dtype(spec.device, spec.dtype)
            folded = _fold(spec, weight.to(work))
            addend = None if bias is None else bias.to(work).view(-1, 1, 1)
            steps = _steps(spec)
            assert steps is not None, "refusal() is asked first"
            shape = spec.problem
            for n in range(shape.batch):
                for box in windows.boxes(shape.box, steps):
                    frames = _frames(spec, shape, x[n], box, work)
                    got = _convolve(spec, frames, folded)
                    del frames
                    # (C, T, H, W) of the output as (T, C, H, W)
                    place = windows.target(out[n : n + 1], box)[0].transpose(0, 1)
                    products.write(place, got, addend)
                    del got
        return windows.lowered(out, spec)


def _piece_bytes(shape: Problem, itemsize: int, steps: Triple) -> int:
    """Frames and result of a box, and the library's copies of both in a layout of its own."""
    _, h, w = shape.window_sizes(steps)
    frames = steps[0] * shape.kernel[0] * shape.cin * h * w
    return 2 * (frames + shape.cout * math.prod(steps)) * itemsize


def _steps(spec: ConvSpec) -> Triple | None:
    shape, itemsize = spec.problem, products.work_dtype(spec.device, spec.dtype).itemsize
    # With a stride in time the frames of a box are no range of the input: one at a time.
    frames = 1 if shape.stride[0] > 1 else shape.out[0]
    most = (frames, *shape.out[1:])
    limit = min(_PIECE_BYTES, 2 * _MAX_ELEMS * itemsize)
    return windows.steps_that_fit(
        most, lambda steps: _piece_bytes(shape, itemsize, steps), limit, cut_width=True
    )


def _fold(spec: ConvSpec, weight: torch.Tensor) -> torch.Tensor:
    """(Cout, C, kT, kH, kW) as (Cout, kT x C, kH, kW)."""
    outputs, cin, kt, kh, kw = weight.shape
    folded = weight.transpose(1, 2).reshape(outputs, kt * cin, kh, kw)
    kept = torch.channels_last if spec.channels_last else torch.contiguous_format
    return folded.contiguous(memory_format=kept)


def _frames(
    spec: ConvSpec, shape: Problem, x: torch.Tensor, box: Box, work: torch.dtype
) -> torch.Tensor:
    """(T, groups x kT x C, H, W) of a box, padded, from x (groups x C, T, H, W)."""
    counts = windows.counts(box)
    _, h, w = shape.window_sizes(counts)
    groups, kt, cin = shape.groups, shape.kernel[0], shape.channels
    if spec.channels_last:
        sizes, order, tap_axis = (counts[0], h, w, groups, kt, cin), (3, 4, 0, 1, 2), 4
    else:
        sizes, order, tap_axis = (counts[0], groups, kt, cin, h, w), (1, 2, 0, 3, 4), 2
    frames = torch.empty(sizes, dtype=work, device=x.device)
    source = x.view(groups, cin, *x.shape[1:])
    for tap in range(kt):
        first = shape.pad_before[0] - tap * shape.dilation[0]
        one = dataclasses.replace(
            shape, kernel=(1, *shape.kernel[1:]), pad_before=(first, *shape.pad_before[1:])
        )
        windows.fill(frames.select(tap_axis, tap).permute(order), source, one, box)
    if spec.channels_last:
        return frames.view(counts[0], h, w, groups * kt * cin).permute(0, 3, 1, 2)
    return frames.view(counts[0], groups * kt * cin, h, w)


def _convolve(spec: ConvSpec, frames: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    stride, dilation = spec.stride[1:], spec.dilation[1:]
    if spec.device.type == "cpu":
        return F.conv2d(frames, weight, None, stride, 0, dilation, spec.groups)
    return vendor.convolution(frames, weight, stride, (0, 0), dilation, spec.groups)
