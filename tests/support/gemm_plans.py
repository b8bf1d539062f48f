"""Every plan that `gemm` could carry out for a convolution, not only the one that it takes."""

from __future__ import annotations

import dataclasses
import itertools

from hy3d_rocm.conv.call import ConvSpec
from hy3d_rocm.conv.tiers import columns, gemm, im2col, products


def plans_of(spec: ConvSpec) -> list[columns.Plan | im2col.Plan]:
    """The one that is taken first."""
    taken, base = gemm.plan(spec), columns.plan(spec)
    found: list[columns.Plan | im2col.Plan] = [] if taken is None else [taken]
    if base is None:
        return found
    shape = base.shape
    work = products.work_dtype(spec.device, spec.dtype)
    total = products.sum_dtype(spec.device, spec.dtype)
    adds_up = shape.stride[0] == 1 and not products.is_half(total)
    turns = (1, shape.kernel[0]) if adds_up else (1,)
    free = (True, False) if shape.dilation[2] == 1 else (False,)
    for one, is_free in itertools.product(dict.fromkeys(turns), free):
        draft = dataclasses.replace(base, turns=one, free_width=is_free, phases=1)
        cut = columns._cut(draft, work, total)
        if cut is not None and cut not in found:
            found.append(cut)
    return found
