"""The launches of attention over large heads, of a GroupNorm's factors and of what packs a weight.
Pure integers: no torch, no triton."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from hy3d_rocm.conv.problem import Triple
from hy3d_rocm.conv.triton import configs
from hy3d_rocm.conv.triton.plan import Call, Launch

KERNELS = "hy3d_rocm.decoding.backends.triton.kernels"


class AttentionJob(NamedTuple):
    """softmax(q k^T) v of some frames' queries. size: of a head; tokens: of a frame's queries.
    Frame f sees keys (first + f) * begin to stop + (first + f) * stop_by. q_head, k_head: from a
    head to the next; out: strides of the result by head, token and element."""

    dtype: str
    size: int
    heads: int
    frames: int
    tokens: int
    first: int
    begin: int
    stop: int
    stop_by: int
    q_head: int
    k_head: int
    out: Triple


class AttentionWork:
    """Its launch; attention_of() gives the same object for the same question. calls: as Work's."""

    def __init__(self, job: AttentionJob, arch: str) -> None:
        tile = configs.attention(arch, job.dtype)
        assert tile is not None, f"no tile for attention on {arch}"
        self.calls: dict[Hashable, tuple[Call, ...]] = {}
        # In two blocks, of which the second is loaded when the first is multiplied.
        most, further = 256, 128 if job.size <= 384 or job.size % 384 == 0 else 256
        parts, (o_head, o_token, o_element) = -(-job.size // (most + further)), job.out
        vector = 8 if o_element == 1 and not any(n % 8 for n in job.out[:2]) else 1
        even = job.size % tile.block_k == 0 and job.size % (most + further) == 0
        scale = job.size**-0.5 * math.log2(math.e)
        self.launches = (Launch(
            "attend", (job.frames * -(-job.tokens // tile.block_p), job.heads, parts),
            (("x0", 0), ("x1", 0), ("x2", 0), ("out", 0)),
            (job.size // 8, job.tokens, job.first, job.begin, job.stop, job.stop_by,
             scale,
             job.q_head // 8, job.k_head // 8,
             o_head // vector, o_token // vector, o_element),
            (even, vector, "ieee", tile.block_p, tile.block_n, tile.block_k, most, further),
            tile.num_warps, tile.num_stages, KERNELS,
        ),)  # fmt: skip


attention_of = functools.lru_cache(maxsize=256)(AttentionWork)


class FactorsWork:
    """The launch of a GroupNorm's factor and summand, from the moments of parts of a video;
    factors_of() gives the same object for the same question. calls: as Work's.

    shares: at most three pairs, of how many parts each has so many positions. of: the types of the
    norm's weight and bias, "" where it has none.
    """

    def __init__(
        self, channels: int, groups: int, shares: tuple[tuple[int, int], ...], eps: float,
        of: tuple[str, str],
    ) -> None:  # fmt: skip
        self.calls: dict[Hashable, tuple[Call, ...]] = {}
        size, parts = channels // groups, sum(count for count, _ in shares)
        block = max(16, 1 << (size - 1).bit_length())
        (n0, c0), (n1, c1), (_, c2) = [*shares, (0, 1), (0, 1)][:3]
        weight, bias = "weight" if of[0] else "moments", "bias" if of[1] else "moments"
        self.launches = (Launch(
            "group_factors", (groups, 1, 1),
            (("moments", 0), (weight, 0), (bias, 0), ("factor", 0)),
            (channels, size, parts, n0, n1, c0, c1, c2, eps),
            (*map(bool, of), block), 1 if block <= 64 else 4, 1, KERNELS,
        ),)  # fmt: skip


factors_of = functools.lru_cache(maxsize=256)(FactorsWork)


def shares_of(counts: Sequence[int]) -> tuple[tuple[int, int], ...] | None:
    """Runs of equal counts, as FactorsWork takes them, or None where these are too many or too
    large."""
    found = tuple((len(list(run)), count) for count, run in itertools.groupby(counts))
    return found if 0 < len(found) <= 3 and max(counts) < 2**31 else None


class PackWork:
    """The launch that packs a weight as conv_rows reads it; pack_of() gives the same object for the
    same question. calls: as Work's. size: of the packed weight, (rows, taps of one, values of a
    tap).

    outputs: of a phase; row_channels: with those that pad them; kernel: of the weight; folds:
    whether taps are summed over time, and over rows and columns; strides: by phase (t, h, w),
    output, channel and tap (t, h, w).
    """

    def __init__(
        self, dtype: str, outputs: int, channels: int, row_channels: int, kernel: Triple,
        phases: Triple, folds: tuple[bool, bool], strides: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.calls: dict[Hashable, tuple[Call, ...]] = {}
        rows = outputs * math.prod(phases)
        t, h, w = (2 if folds[n > 0] else count for n, count in enumerate(kernel))
        self.size = rows, t * h, w * row_channels
        programs = -(-outputs // 16) * math.prod(phases), -(-row_channels // 64), 1
        self.launches = (Launch(
            "pack_weight", programs, (("x0", 0), ("out", 0)),
            (outputs, channels, row_channels, *phases[1:], t, h, w, *map(int, folds), *strides),
            (dtype == "f32", 16, 64), 4, 1, KERNELS,
        ),)  # fmt: skip


pack_of = functools.lru_cache(maxsize=512)(PackWork)
