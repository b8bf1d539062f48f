"""What rank 0 sends the other ranks of latents or pixels that it alone has: to each its rows, or
its samples, in host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hy3d_rocm.decoding.group import Group
from hy3d_rocm.decoding.layers import Range

#: of the frames that are on their way at a time, but one frame at least
AT_ONCE_BYTES = 32 << 20


def sent_rows(
    group: Group, about: str, source: Tensor, rows: Sequence[Range], dtype: torch.dtype,
    check: Callable[[], object],
) -> tuple[Tensor, int]:  # fmt: skip
    """A sample's rows of each rank, of that type, and the first one's number; on rank 0 `source`
    (1, C, T, H, W), of which the other ranks have nothing but the shape (on "meta")."""
    parts = [source[:, :, :, slice(*here)] for here in rows]
    made = _sent(group, about, source, parts, dtype, check)
    return made, rows[group.rank][0] if group.rank else 0


def sent_samples(group: Group, source: Tensor, check: Callable[[], object]) -> Tensor:
    """Each size-th sample from number `rank` on; on rank 0 `source` (B, C, T, H, W). The other
    ranks have nothing but its shape."""
    parts = [source[rank :: group.size] for rank in range(group.size)]
    return _sent(group, "the samples that are sent", source, parts, source.dtype, check)


def _sent(
    group: Group, about: str, source: Tensor, parts: Sequence[Tensor], dtype: torch.dtype,
    check: Callable[[], object],
) -> Tensor:  # fmt: skip
    """parts: of `source`, by rank. Some frames at a time, to all ranks: so none waits for long. A
    rank that fails goes on, whatever it sends, to where all meet."""
    error: BaseException | None = None
    mine, made, rooms = parts[group.rank], source, dict[int, Tensor]()
    frames, others = source.shape[2], [n for n, part in enumerate(parts) if n and part.numel()]
    each = sum(parts[n].numel() for n in others) * dtype.itemsize // frames
    count = min(max(AT_ONCE_BYTES // max(each, 1), 1), frames)
    try:
        if group.rank:
            made = torch.empty(mine.shape, dtype=dtype, device="cpu")
        rooms = {
            n: torch.empty(parts[n].numel() // frames * count, dtype=dtype, device="cpu")
            for n in others if group.rank in (0, n)
        }  # fmt: skip
    except BaseException as failed:  # noqa: BLE001 - all ranks raise
        error = failed
    group.meet(about, error)
    for first in range(0, frames, count):
        sends, comes, copies = list[tuple[int, Tensor]](), list[tuple[int, Tensor]](), []
        for n, room in rooms.items():
            place = (made if group.rank else parts[n])[:, :, first : first + count]
            part = room[: place.numel()].view(place.shape)
            try:
                check()
                if group.rank == 0:
                    part.copy_(place)
            except BaseException as failed:  # noqa: BLE001
                error = error or failed
            if group.rank:
                comes, copies = [(0, part)], [(place, part)]
            else:
                sends.append((n, part))
        group.post(sends, comes, copies).wait()
    # Who has no part waits here for the others.
    group.meet(f"the end of {about}", error, timeouts=1 + -(-frames // count))
    return made
