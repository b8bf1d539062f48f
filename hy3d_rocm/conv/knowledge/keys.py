"""The key of what is known: one convolution, exactly, on one machine with its versions."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hy3d_rocm.conv.knowledge.machine import Machine

if TYPE_CHECKING:
    from hy3d_rocm.conv.call import ConvSpec


class Key(NamedTuple):
    """A tuple, since it is hashed at every convolution. All fields are text.

    shape: see shape_text; dtype: "f32" "f16" "bf16" "f64"; layout: "contiguous" or
    "channels_last"; the rest as in Machine.
    """

    op: str
    shape: str
    dtype: str
    layout: str
    architecture: str
    driver: str
    torch: str
    vendor: str
    ours: str

    @property
    def name(self) -> str:
        """Eight hexadecimal digits, for people: `hy3d-rocm db show 3f9a01c2`."""
        text = "\0".join(self).encode("utf-8", "surrogatepass")
        return hashlib.sha256(text).hexdigest()[:8]


@functools.lru_cache(maxsize=4096)
def make_key(spec: ConvSpec, machine: Machine) -> Key:
    """The key of a convolution on `machine`. Equal exactly where the same work is to be done:
    sizes, stride, padding, dilation, groups, bias, dtype and layout, but not the missing batch
    dimension of an unbatched call, nor a padding mode where nothing is padded."""
    from hy3d_rocm.conv.call import dtype_name

    return Key(
        spec.op,
        shape_text(spec),
        dtype_name(spec.dtype),
        "channels_last" if spec.channels_last else "contiguous",
        machine.architecture,
        machine.driver,
        machine.torch,
        machine.vendor,
        machine.ours,
    )


def shape_text(spec: ConvSpec) -> str:
    """'1x128x19x642x610 w128x128x3x3x3 p2+0x1x1 replicate/zeros/zeros bias'.

    Input and weight always; then, where it is not PyTorch's default: s stride, p padding (before
    and after as 2+0 where they differ), its mode, d dilation, g groups, bias.
    """
    parts = [_times(spec.x_size), f"w{_times(spec.weight_size)}"]
    if any(step != 1 for step in spec.stride):
        parts.append(f"s{_times(spec.stride)}")
    pads = list(zip(spec.pad_before, spec.pad_after, strict=True))
    if any(map(any, pads)):
        parts.append("p" + "x".join(str(a) if a == b else f"{a}+{b}" for a, b in pads))
    modes = _modes(spec, pads)
    if any(mode != "zeros" for mode in modes):
        parts.append("/".join(modes))
    if any(step != 1 for step in spec.dilation):
        parts.append(f"d{_times(spec.dilation)}")
    if spec.groups != 1:
        parts.append(f"g{spec.groups}")
    if spec.has_bias:
        parts.append("bias")
    return " ".join(parts)


def _modes(spec: ConvSpec, pads: Sequence[tuple[int, int]]) -> list[str]:
    """The padding mode of each dimension; "zeros" where nothing is padded, so that it matters
    to nobody."""
    modes: Sequence[str] = getattr(spec, "pad_modes", ("zeros",) * len(pads))
    return [mode if any(pad) else "zeros" for mode, pad in zip(modes, pads, strict=True)]


def _times(numbers: Sequence[int]) -> str:
    return "x".join(map(str, numbers))
