"""Convolution by matrix products: hipBLASLt or rocBLAS on AMD, no MIOpen, bounded workspace."""

from __future__ import annotations

import math

import torch

from hy3d_rocm.conv.call import ConvCall, ConvSpec, Limits
from hy3d_rocm.conv.tiers import columns_plan, products, spread, windows
from hy3d_rocm.conv.tiers.base import empty_result, foreign, shortage
from hy3d_rocm.conv.tiers.columns import Columns
from hy3d_rocm.conv.tiers.windows import geometry

# What the BLAS library may take for itself through PyTorch's allocator (32 MiB on Hopper).
_BLAS_BYTES = 33 << 20
# Sums of a 1x1x1 in f32 at a time: about what a card's last-level cache holds, since they are read
# back at once to be rounded.
_SUM_BYTES = 32 << 20
# Slices start at multiples of this many positions, as fast products want it.
_SLICE = 128


class GemmTier:
    """Matrix products through torch.bmm. Three ways, by the shape:

    1x1x1 without stride or padding: the input is its own matrix, and nothing is copied.
    Few output channels: products of every tap first, then their shifted sum (`spread`).
    Else columns of the input, one box at a time, and long products of them (`columns`).

    Sums are in f32 (f64 for f64), rounded once; under 256 MB beside the output.
    """

    name = "gemm"

    def label(self, call: ConvCall) -> str:
        return "matrix products"

    def workspace_bytes(self, spec: ConvSpec) -> int:
        """The most that any of the three takes: which one it is depends on strides, too."""
        if min(spec.out_size) == 0:
            return 0
        found = [p.bytes for p in (spread.plan(spec), columns_plan.plan(spec)) if p is not None]
        blas = _BLAS_BYTES if spec.device.type == "cuda" else 0
        return max(*found, _view_bytes(spec), 0) + blas

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        spec = call.spec
        reason = foreign(spec.device)
        if reason is not None or min(spec.out_size) == 0:
            return reason
        if columns_plan.plan(spec) is None:
            return "not even one output row's columns, or one channel's weights, fit its workspace"
        need = self.workspace_bytes(spec) + spec.out_bytes
        return shortage(need, limits, spec.device, "its columns and output")

    def run(self, call: ConvCall) -> torch.Tensor:
        spec = call.spec
        out = empty_result(spec)
        if out.numel():
            x, weight, bias = (None if t is None else t.detach() for t in call.operands())
            assert x is not None
            assert weight is not None
            x, weight, whole = (windows.lifted(t) for t in (x, weight, out))
            if not (_may_be_view(spec) and _run_view(spec, x, weight, bias, whole)):
                _run_plan(spec, x, weight, bias, whole)
        return windows.lowered(out, spec)


def _may_be_view(spec: ConvSpec) -> bool:
    return spec.is_view and products.work_dtype(spec.device, spec.dtype) is spec.dtype


def _run_plan(
    spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:  # fmt: skip
    wide, narrow = columns_plan.plan(spec), spread.plan(spec)
    assert wide is not None, "refusal() is asked first"
    if narrow is not None and narrow.traffic < wide.traffic:
        spread.run(narrow, x, weight, bias, out)
    else:
        Columns(wide, x, out).run(weight, bias)


def _run_view(
    spec: ConvSpec, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor,
) -> bool:  # fmt: skip
    """1x1x1: one product for each sample and group, written in place. False where the input's or
    output's strides make no matrix."""
    shape = geometry(spec)
    cin, cout = shape.cin // shape.groups, shape.cout // shape.groups
    rows = weight.reshape(shape.cout, cin)
    if spread.flat(x) is None or spread.flat(out) is None:
        return False
    for n in range(shape.batch):
        for g in range(shape.groups):
            source = spread.flat(x[n : n + 1, g * cin : (g + 1) * cin])
            place = spread.flat(out[n : n + 1, g * cout : (g + 1) * cout])
            assert source is not None
            assert place is not None
            part = slice(g * cout, (g + 1) * cout)
            _product(rows[part], source, None if bias is None else bias[part], place)
    return True


def _product(
    rows: torch.Tensor, source: torch.Tensor, bias: torch.Tensor | None, place: torch.Tensor
) -> None:
    """place (Cout, P) = rows (Cout, C) @ source (C, P) + bias, rounded once."""
    if products.can_widen(place.device, place.dtype):
        _product_in_slices(rows, source, bias, place)
    elif bias is None:
        torch.mm(rows, source, out=place)
    else:
        torch.addmm(bias[:, None], rows, source, out=place)


def _product_in_slices(
    rows: torch.Tensor, source: torch.Tensor, bias: torch.Tensor | None, place: torch.Tensor
) -> None:
    """The same through f32 sums of a few positions at a time.

    A product of half types into a half type may be split by the library, whose parts are rounded to
    that type before they are added (allow_bf16_reduced_precision_reduction, on by default).
    """
    addend = None if bias is None else bias.float()[:, None]
    by_channel = place.stride(0) == 1 and place.shape[0] > 1
    size = _slice_size(*place.shape)
    for first in range(0, place.shape[1], size):
        part = slice(first, min(first + size, place.shape[1]))
        if by_channel:
            total = products.multiply(source[None, :, part].mT, rows[None].mT)[0].mT
        else:
            total = products.multiply(rows[None], source[None, :, part])[0]
        if addend is None:
            place[:, part].copy_(total)
        else:
            torch.add(total, addend, out=place[:, part])
        del total  # so that the next one is written to the same memory


def _slice_size(outputs: int, positions: int) -> int:
    most = _SUM_BYTES // (4 * outputs)
    return min(positions, max(most // _SLICE * _SLICE, _SLICE))


def _view_bytes(spec: ConvSpec) -> int:
    """What the products of a 1x1x1 take for their sums."""
    if not _may_be_view(spec) or not products.can_widen(spec.device, spec.dtype):
        return 0
    outputs, positions = spec.weight_size[0] // spec.groups, math.prod(spec.out_size[2:])
    return 4 * outputs * (_slice_size(outputs, positions) + 1)
