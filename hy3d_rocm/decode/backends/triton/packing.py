"""Weights as the kernels read them: (phases * outputs, kt * kh, kw * channels)."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from hy3d_rocm.decode.backends.torch_ops import by_phase
from hy3d_rocm.decode.backends.triton.work import Job

# Taps of a 3-wide kernel that meet the same input, for the even and the odd one of two outputs.
_FOLDED = (((0,), (1, 2)), ((0, 1), (2,)))


def pack(weight: Tensor, job: Job, order: str) -> Tensor:
    """The packed weight of a module's; channels padded to a multiple of 8. order: of the shuffle
    whose phases are the job's, or "".

    Sums of taps are made in float32 and rounded once.
    """
    weight = weight.view(*weight.shape[:2], *job.kernel)
    rows = -(-weight.shape[1] // 8) * 8
    phases = [weight] if not job.folds[1] else _folded(weight, job.folds[0])
    if order:
        phases = [_by_phase(weight, job, order)]
    o, c, kt, kh, kw = phases[0].shape
    packed = weight.new_zeros((len(phases), o, kt, kh, kw, rows))
    for place, part in zip(packed, phases, strict=True):
        place[..., :c] = part.permute(0, 2, 3, 4, 1)
    return packed.view(len(phases) * o, kt * kh, kw * rows)


def pack_bias(bias: Tensor, job: Job, order: str) -> Tensor:
    """The bias in the order of the packed weight's outputs."""
    if order:
        return _by_phase(bias, job, order).contiguous()
    count = 1 if not job.folds[1] else 8 if job.folds[0] else 4
    return bias.repeat(count) if count > 1 else bias.contiguous()


def _by_phase(tensor: Tensor, job: Job, order: str) -> Tensor:
    """Outputs in the order (phase, channel), as many channels as are kept."""
    return by_phase(tensor, job.shuffle, order)[:, :, :, : job.outputs].flatten(0, 3)


def _folded(weight: Tensor, in_time: bool) -> list[Tensor]:
    """A weight a phase, of sums of taps. Of two output frames the first is the odd one."""
    alone = tuple((k,) for k in range(weight.shape[2]))
    wide = torch.float64 if weight.dtype is torch.float32 else torch.float32
    found = []
    for frames, lines, columns in itertools.product(
        _FOLDED[::-1] if in_time else (alone,), _FOLDED, _FOLDED
    ):
        made = weight.new_empty((*weight.shape[:2], len(frames), 2, 2))
        for t, h, w in itertools.product(range(len(frames)), range(2), range(2)):
            total = torch.zeros(weight.shape[:2], dtype=wide, device=weight.device)
            for kt, kh, kw in itertools.product(frames[t], lines[h], columns[w]):
                total += weight[:, :, kt, kh, kw]
            made[:, :, t, h, w] = total
        found.append(made)
    return found
