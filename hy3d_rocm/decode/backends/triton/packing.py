"""Weights as the kernels read them: (phases * outputs, kt * kh, kw * channels)."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from hy3d_rocm.conv.triton.plan import Triple

# Taps of a 3-wide kernel that meet the same input, for the even and the odd one of two outputs.
_FOLDED = (((0,), (1, 2)), ((0, 1), (2,)))


class Phases(NamedTuple):
    """Channels that become space and time, in which order, and how many of each phase are kept."""

    factor: Triple
    order: str
    channels: int


def kernel_of(weight: Tensor) -> Tensor:
    """(O, C, kt, kh, kw), whatever the module's weight looks like."""
    if weight.dim() == 4:
        return weight.unsqueeze(2)
    return weight[(...,) + (None,) * (5 - weight.dim())]


def pack(weight: Tensor, folds: tuple[bool, bool], shuffle: Phases | None) -> Tensor:
    """The packed weight of a (O, C, kt, kh, kw) one; channels padded to a multiple of 8.

    folds: as Job.folds; sums of taps are made in float32 and rounded once.
    """
    rows = -(-weight.shape[1] // 8) * 8
    phases = [weight] if not folds[1] else _folded(weight, folds[0])
    if shuffle is not None:
        phases = [_by_phase(weight, shuffle)]
    o, c, kt, kh, kw = phases[0].shape
    packed = weight.new_zeros((len(phases), o, kt, kh, kw, rows))
    for place, part in zip(packed, phases, strict=True):
        place[..., :c] = part.permute(0, 2, 3, 4, 1)
    return packed.view(len(phases) * o, kt * kh, kw * rows)


def pack_bias(bias: Tensor, folds: tuple[bool, bool], shuffle: Phases | None) -> Tensor:
    """The bias in the order of the packed weight's outputs."""
    if shuffle is not None:
        return _by_phase(bias, shuffle).contiguous()
    count = 1 if not folds[1] else 8 if folds[0] else 4
    return bias.repeat(count) if count > 1 else bias.contiguous()


def _by_phase(tensor: Tensor, phases: Phases) -> Tensor:
    """Outputs in the order (phase, channel), as many channels as are kept."""
    count = phases.factor[0] * phases.factor[1] * phases.factor[2]
    if phases.order == "channel first":
        parts = tensor.reshape(-1, count, *tensor.shape[1:])[: phases.channels].transpose(0, 1)
    elif phases.order == "space first":
        time, *space = phases.factor
        parts = tensor.reshape(*space, time, -1, *tensor.shape[1:]).movedim(2, 0)
        parts = parts.flatten(0, 2)[:, : phases.channels]
    else:
        parts = tensor.reshape(count, -1, *tensor.shape[1:])[:, : phases.channels]
    return parts.flatten(0, 1)


def _folded(weight: Tensor, in_time: bool) -> list[Tensor]:
    """A weight a phase, of sums of taps. Of two output frames the first is the odd one."""
    alone = tuple((k,) for k in range(weight.shape[2]))
    wide = torch.float64 if weight.dtype is torch.float32 else torch.float32
    found = []
    for frames, lines, columns in itertools.product(
        _FOLDED[::-1] if in_time else (alone,), _FOLDED, _FOLDED
    ):
        size = (*weight.shape[:2], len(frames), 2, 2)
        made = weight.new_empty(size)
        for t, h, w in itertools.product(range(len(frames)), range(2), range(2)):
            taps = itertools.product(frames[t], lines[h], columns[w])
            total = torch.zeros(weight.shape[:2], dtype=wide, device=weight.device)
            for kt, kh, kw in taps:
                total += weight[:, :, kt, kh, kw]
            made[:, :, t, h, w] = total
        found.append(made)
    return found
