"""What tuning says: a line per outcome, the table, the gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hy3d_rocm.conv.call import dtype_name, size_text

if TYPE_CHECKING:
    from hy3d_rocm.conv.probe import Outcome
    from hy3d_rocm.tune.shapes import Shape


def shape_line(shape: Shape) -> str:
    """'10 x conv3d 1x128x19x642x610 -> 128 k3x3x3, bf16'."""
    spec = shape.spec
    layout = ", channels-last" if spec.channels_last else ""
    return (
        f"{shape.count} x {spec.op} {size_text(spec.x_size)} -> {spec.weight_size[0]}"
        f" k{size_text(spec.kernel)}, {dtype_name(spec.dtype)}{layout}"
    )


def outcome_line(done: int, total: int, shape: Shape, outcome: Outcome) -> str:
    """Of a probe."""
    took = "" if outcome.seconds is None else f" {outcome.seconds * 1e3:.3g} ms"
    first = "" if outcome.first_seconds is None else f" (first call {outcome.first_seconds:.2g} s)"
    why = f": {outcome.detail}" if outcome.detail else ""
    return (
        f"[{done}/{total}, in a child process] {shape_line(shape)}: {outcome.case.tier}"
        f" {outcome.verdict}{took}{first}{why}"
    )
