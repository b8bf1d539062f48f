"""softmax(q k^T) v by torch's own attention, and how its operands lie."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _nn

from hy3d_rocm.conv import attention

#: streams that attentions of single frames are shared by, of so many queries a program
MOST_STREAMS, _QUERIES = 4, 64


class KeyRanges(NamedTuple):
    """Which keys the queries of each of some frames see. frames, tokens: of the queries, and of a
    frame's; keys: of a frame; first: the first query's frame, counted from the first key's; span:
    of layers.Attention."""

    frames: int
    tokens: int
    keys: int
    first: int
    span: str

    def of(self, frame: int, total: int) -> slice:
        """The keys, of `total`, that a frame's queries see."""
        at = self.first + frame
        stop = total if self.span == "video" else (at + 1) * self.keys
        return slice(at * self.keys if self.span == "frame" else 0, stop)


def by_frames(
    q: Tensor, room: Tensor, target: Tensor, ranges: KeyRanges, check: Callable[[], object]
) -> None:
    """softmax(q k^T) v into target (heads, queries, size of a head), a frame's queries after the
    other. q: (1, heads, queries, size); room: (2, heads, keys, size), keys and values; check:
    called before each frame."""
    every = slice(0, ranges.tokens)
    fused = is_fused(q[:, :, every], room[0, None], room[1, None])
    with _streams(q.device, q.shape[1] * ranges.tokens if fused else 0) as next_stream:
        for frame in range(ranges.frames):
            check()
            seen = ranges.of(frame, room.shape[2])
            here = slice(frame * ranges.tokens, (frame + 1) * ranges.tokens)
            with next_stream():
                k, v = room[0, None, :, seen], room[1, None, :, seen]
                weigh(q[:, :, here], k, v, target[:, here])


def weigh(q: Tensor, k: Tensor, v: Tensor, target: Tensor) -> None:
    """softmax(q k^T) v of some queries, at a time all where a fused kernel takes them, else what
    keeps the scores (float32, of float64 queries float64) below SCORE_BYTES."""
    if not attention.is_trusted(q, v):
        for start, some in attention.query_blocks(q, k, v):
            target[:, start : start + some.shape[2]].copy_(some[0])
            del some  # before the next are made
        return
    rows = q.shape[2] if is_fused(q, k, v) else attention.queries_at_once(q, k)
    for start in range(0, q.shape[2], rows):
        part = slice(start, start + rows)
        # torch's own: one that somebody put in its place is a VAE of unknown layers.
        target[:, part].copy_(_nn.scaled_dot_product_attention(q[:, :, part], k, v)[0])


def is_fused(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch has a kernel for the whole attention of these. On shapes alone: no."""
    # 0 is torch's number for the composite of two products and a softmax, -1 for none.
    if q.device.type == "meta" or not attention.is_trusted(q, v):
        return False
    return int(torch._fused_sdp_choice(q, k, v)) > 0


def tokens_of(x: Tensor, heads: int) -> Tensor:
    """(1, width, T, H, W) -> (heads, tokens, size of a head), a view where it can be one."""
    return x.reshape(heads, x.shape[1] // heads, -1).transpose(1, 2)


def shaped(room: Tensor, frames: int, rows: int) -> Tensor:
    """(2, heads, tokens, size of a head) -> (2, heads, T, H, W, size of a head), a view."""
    kinds, heads, tokens, size = room.shape
    return room.view(kinds, heads, frames, rows, tokens // (frames * rows), size)


@functools.cache
def _side_streams(device: torch.device) -> tuple[Any, ...]:
    """The same ones each time: each has blocks of the allocator's of its own."""
    return tuple(torch.cuda.Stream(device) for _ in range(1, MOST_STREAMS))  # type: ignore[no-untyped-call]


@contextmanager
def _streams(device: torch.device, queries: int) -> Iterator[Callable[[], Any]]:
    """Streams of a GPU for things that do not depend on each other and leave most of it idle: one
    frame's attention is a program for some 64 of its `queries`. All together take what one
    attention does that fills the GPU, some 25 MB on an H200, within the margin. queries 0: the
    current stream alone, for what takes more. Before and after, that has them all behind it.
    Gives what each of the things is begun in."""
    if device.type != "cuda" or not queries:
        yield nullcontext
        return
    here = torch.cuda.current_stream(device)
    units = torch.cuda.get_device_properties(device).multi_processor_count
    count = min(MOST_STREAMS, max(1, round(units / max(queries // _QUERIES, 1))))
    sides = _side_streams(device)[: count - 1]
    for stream in sides:
        stream.wait_stream(here)
    every: Iterator[Any] = itertools.cycle((*map(torch.cuda.stream, sides), nullcontext()))
    try:
        yield lambda: next(every)
    finally:
        for stream in sides:
            here.wait_stream(stream)
