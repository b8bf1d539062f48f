"""PyTorch's own operators, by name, in pieces whose im2col buffer fits."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.problem import Triple
from hy3d_rocm.conv.tiers import base, windows
from hy3d_rocm.conv.tiers.base import allowance, empty_result, shortage

# What pieces are cut to where more would fit: past this size a larger one is no faster.
_PIECE_BYTES = 2 << 30
# The depthwise kernels count in 32 bits; the others don't.
_INDEX_ELEMS = 1 << 31
_NEVER = 1 << 62
# A call that fits this many times over does so for some time.
_ROOMY = 4
_ROOMY_SECONDS = 1.0


class NativeTier:
    """PyTorch's own im2col operators, called by name: no MIOpen, no cuDNN, no oneDNN.

    No flag is flipped. The operators exist for CPU and CUDA/HIP. The im2col buffer of one sample
    and one group is prod(kernel) times the input (27x for 3x3x3), so the output is cut over T, then
    H, until it fits; each value is still one operator's sum over all of its products. On the CPU
    PyTorch would build the buffer for the whole batch at once, so samples go one at a time here.
    """

    name = "native"

    def label(self, call: ConvCall) -> str:
        return "PyTorch native"

    def workspace_bytes(self, spec: ConvSpec) -> int:
        return _facts_of(spec).workspace_bytes

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        spec = call.spec
        if spec.device.type not in ("cpu", "cuda"):
            return f"PyTorch has no native convolution for {spec.device.type}"
        if limits.budget is None and _facts_of(spec).is_small:
            return None
        steps = _steps(spec, _piece_limit(spec, allowance(limits, spec.device)))
        if steps is not None:
            return None
        need = _need(spec, (1, 1, spec.problem.out[2])) + spec.out_bytes
        what = "the im2col buffer of one output row, and the output,"
        return shortage(need, limits, spec.device, what)

    def run(self, call: ConvCall) -> torch.Tensor:
        spec = call.spec
        if spec.x_size[0] == 0:
            return empty_result(spec)
        facts = _facts_of(spec)
        steps = _steps_of(facts, spec, call.limits)
        x, weight, bias = call.operands()
        if facts.is_whole and steps == facts.out:
            out = _operator(spec, x, weight, bias, spec.pad_before)
            out = out.contiguous(memory_format=spec.memory_format)
        else:
            out = empty_result(spec)
            _write_pieces(spec, steps, out, x, weight, bias)
        return windows.lowered(out, spec)


@dataclass
class _Facts:
    """What the calls of a spec share. out: (T, H, W). is_whole: uncut, it is one operator call on
    the operands as they are. is_uncut: in one piece it takes no more than pieces should.
    is_small: what it takes always fits. roomy_until: it fits _ROOMY times over, as was found; by
    time.monotonic()."""

    out: Triple
    is_whole: bool
    is_uncut: bool
    workspace_bytes: int
    is_small: bool
    roomy_until: float = 0.0


def _facts_of(spec: ConvSpec) -> _Facts:
    """Worked out once: that takes longer than a small convolution."""
    facts: _Facts | None = spec.notes.get("native")
    if facts is None:
        out, steps = spec.problem.out, _steps(spec, _PIECE_BYTES)
        need = _need(spec, out if steps is None else steps)
        is_small = steps == out and need + spec.out_bytes <= base.SMALL_BYTES
        facts = _Facts(out, _is_whole(spec, out), steps == out, need, is_small)
        spec.notes["native"] = facts
    return facts


def _steps_of(facts: _Facts, spec: ConvSpec, limits: Limits) -> Triple:
    """The box that a call computes at once. What is free is asked at each call only where it is
    scarce: reading it takes longer than a small convolution on a GPU."""
    need, now = facts.workspace_bytes + spec.out_bytes, time.monotonic()
    if facts.is_small and limits.budget is None:
        return facts.out
    if now < facts.roomy_until and (limits.budget is None or need <= limits.budget):
        return facts.out
    allowed = allowance(limits, spec.device)
    if facts.is_uncut and allowed is not None and _ROOMY * need <= allowed:
        facts.roomy_until = now + _ROOMY_SECONDS
    return _steps(spec, _piece_limit(spec, allowed)) or (1, 1, facts.out[2])


def _is_depthwise(spec: ConvSpec) -> bool:
    """A kernel of its own on a GPU, without a buffer."""
    return spec.device.type == "cuda" and spec.groups == spec.x_size[1] > 1


def _is_whole(spec: ConvSpec, steps: Triple) -> bool:
    """One operator call on the operands as they are."""
    parts = 1 if _is_depthwise(spec) else spec.groups * spec.x_size[0]
    return steps == spec.problem.out and parts == 1 and spec.is_padded_plainly


def _need(spec: ConvSpec, steps: Triple) -> int:
    """Predicted bytes of a call cut into boxes of `steps`."""
    if _is_whole(spec, steps):
        return _whole_need(spec)
    shape = spec.problem
    channels, outputs = spec.weight_size[1], shape.outputs
    columns = spec.weight_size[1] * math.prod(shape.kernel) * math.prod(steps)
    if _is_depthwise(spec):
        channels, outputs, columns = shape.cin, shape.cout, 0
    # The operator makes what it is given contiguous: a window, padded or not.
    read = channels * math.prod(shape.window_sizes(steps))
    written = outputs * math.prod(steps)
    if _is_depthwise(spec) and max(read, written) >= _INDEX_ELEMS:
        return _NEVER
    copies = 2 if shape.is_padded else 1
    return (columns + copies * read + written) * spec.dtype.itemsize


def _whole_need(spec: ConvSpec) -> int:
    sizes = (math.prod(spec.x_size), math.prod(spec.out_size))
    if _is_depthwise(spec) and max(sizes) >= _INDEX_ELEMS:
        return _NEVER
    # The operators know no channels-last: operands and result are copied.
    elems = sum(sizes) + math.prod(spec.weight_size) if spec.channels_last else 0
    # The dilated operators fill a buffer even where the input is its own matrix.
    is_dilated = any(d != 1 for d in spec.dilation)
    fills = is_dilated or (spec.ndim == 3 and spec.device.type == "cuda")
    if not _is_depthwise(spec) and (fills or not spec.is_view):
        elems += spec.column_elems()
    return elems * spec.dtype.itemsize


def _steps(spec: ConvSpec, limit: int) -> Triple | None:
    shape = spec.problem
    if min(spec.out_size) == 0:
        return shape.out
    if _need(spec, shape.out) <= limit:
        return shape.out
    return windows.steps_that_fit(shape.out, lambda steps: _need(spec, steps), limit)


def _piece_limit(spec: ConvSpec, allowed: int | None) -> int:
    """Bytes for the workspace of one piece: what is allowed, less the output."""
    return _PIECE_BYTES if allowed is None else min(_PIECE_BYTES, allowed - spec.out_bytes)


def _write_pieces(
    spec: ConvSpec, steps: Triple, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:  # fmt: skip
    """One operator call for each sample, group and box."""
    groups = 1 if _is_depthwise(spec) else spec.groups
    cin, cout = x.shape[1] // groups, weight.shape[0] // groups
    for g in range(groups):
        rows = slice(g * cout, (g + 1) * cout)
        compute = functools.partial(
            _operator, spec, weight=weight[rows], bias=None if bias is None else bias[rows],
            padding=(0,) * spec.ndim,
        )  # fmt: skip
        source = x[:, g * cin : (g + 1) * cin]
        windows.in_pieces(spec, source, out[:, rows], steps, compute)


def _operator(
    spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    padding: tuple[int, ...],
) -> torch.Tensor:  # fmt: skip
    """One operator call: one group (or all of a depthwise one), padding the same on both sides."""
    aten = torch.ops.aten
    # self, weight, kernel_size, bias, stride, padding: the order that all of them share.
    head = (x, weight, spec.kernel, bias, spec.stride, padding)
    operator: Callable[..., Any]
    dilated = any(d != 1 for d in spec.dilation)
    tail: tuple[Any, ...] = (spec.dilation,)
    if _is_depthwise(spec):
        operator = aten.conv_depthwise3d if spec.ndim == 3 else aten._conv_depthwise2d
    elif spec.ndim == 2 and not dilated:
        operator, tail = aten._slow_conv2d_forward, ()
    elif spec.ndim == 3 and not dilated and spec.device.type == "cpu":
        operator, tail = aten.slow_conv3d, ()  # exists for the CPU only
    else:
        operator = aten.slow_conv_dilated3d if spec.ndim == 3 else aten.slow_conv_dilated2d
    result = operator(*head, *tail)
    assert isinstance(result, torch.Tensor)
    return result
