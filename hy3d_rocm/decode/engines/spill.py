"""Slices of activations on the device, and on the host where the device has no room for them.

A slice that is over goes out as soon as it is made, on a stream of its own, while the next grain
computes; it comes back one grain before it is read. Which slice goes: the one that is read last
(the newest result, since the next layer begins at the first frame).

Lifetimes on a GPU: a tensor on its way out is kept until the copy's event is done, so its memory
can't be given to somebody else before (no record_stream: that would also wait for copies queued
later). A tensor on its way in was allocated for the computing stream, whose earlier owner of that
memory may still be running; so the copy first waits for what that stream has been given.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.faults import is_out_of_memory

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.engines.movers import Mover, Ticket

logger = logging.getLogger("hy3d_rocm")

#: copies to the host under way at a time
MAX_LEAVING = 2


class Slice:
    """Frames first .. first + frames of an activation.

    owned: the memory is ours: it may be overwritten, and counts. turn: 0 while the running call is
    still going to read it, else 1; with the place in the video it tells which slice is read last.
    """

    def __init__(self, tensor: Tensor, first: int, total: int, owned: bool = True) -> None:
        self.tensor: Tensor | None = tensor
        self.first = first
        self.frames = int(tensor.shape[2])
        self.place = first / max(total, 1)
        self.nbytes = tensor.nbytes if owned else 0
        self.owned = owned
        self.turn = 1
        self.pinned = False
        self.parked: Any = None
        self.leaving: tuple[Any, Ticket] | None = None
        self.coming: Ticket | None = None

    @property
    def stop(self) -> int:
        return self.first + self.frames


class Keeper:
    """Where the slices are. limit: bytes of slices on the device (None: no limit), never exceeded
    but by what one grain reads and makes. Not thread-safe: one computing thread."""

    def __init__(self, mover: Mover | None = None, limit: int | None = None) -> None:
        if limit is not None and mover is None:
            raise ValueError("slices can't be moved out without a mover: give no limit, or both")
        self.mover = mover
        self.limit = limit
        self.resident = self.peak_resident = 0
        self.parked = self.peak_parked = 0
        self.sent = self.brought = 0
        self.let_go = 0
        self._slices: dict[int, Slice] = {}
        self._leaving: list[Slice] = []
        self._making = 0

    def put(self, piece: Slice) -> None:
        """A slice that was just made."""
        self._slices[id(piece)] = piece
        self._grow(piece.nbytes)
        if self.limit is None:
            return
        # With room for the next result and what is read after it, copies overlap with making it.
        ahead = 2 * piece.nbytes if self.mover is not None and self.mover.overlaps else 0
        try:
            self._send_until(ahead)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            logger.debug("no memory to send a slice ahead of time; it is sent when it must")

    def hold(self, pieces: Sequence[Slice], making: int) -> list[Tensor]:
        """Their tensors, on the device and ready for the computing stream, with room for a result
        of `making` bytes. They stay until `loosen`. Raises with nothing changed but places."""
        for piece in pieces:
            piece.pinned = True
        self._making = making
        if self.limit is not None:
            missing = sum(p.nbytes for p in pieces if p.tensor is None)
            self._make_room(missing + making)
        for piece in pieces:
            self._bring(piece)
        self.peak_resident = max(self.peak_resident, self.resident + making)
        return [self._ready(piece) for piece in pieces]

    def loosen(self, pieces: Iterable[Slice]) -> None:
        """The grain is over, or has failed."""
        for piece in pieces:
            piece.pinned = False
        self._making = 0

    def want(self, pieces: Iterable[Slice]) -> None:
        """Begins to bring what the next grain reads, where there is room or slices that are read
        later than it can go; never waits."""
        if self.limit is None or self.mover is None or not self.mover.overlaps:
            return
        try:
            for piece in pieces:
                if piece.tensor is None:
                    self._send_until(self._making + piece.nbytes, later_than=piece)
                    if self.resident + self._making + piece.nbytes <= self.limit:
                        self._bring(piece)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise  # else: the grain that reads it will ask again

    def drop(self, piece: Slice) -> None:
        """Nobody reads it any more."""
        if self._slices.pop(id(piece), None) is None:
            return
        if piece.coming is not None:
            piece.coming.wait()
        if piece.leaving is not None:
            parked, ticket = piece.leaving
            ticket.abandon()
            self._leaving.remove(piece)
            self._free(parked, piece.nbytes)
        if piece.parked is not None:
            self._free(piece.parked, piece.nbytes)
        if piece.tensor is not None:
            self._forget(piece)
        piece.tensor = piece.parked = piece.leaving = piece.coming = None

    def press(self) -> None:
        """An allocation failed: everything that no running grain reads goes out, if it can."""
        self.drain()
        if self.mover is None or self.limit is None:
            return
        try:
            while (victim := self._victim()) is not None:
                self._evict(victim)
            self.drain()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise

    def drain(self) -> None:
        """Waits for all copies under way."""
        while self._leaving:
            self._finish_oldest()
        for piece in self._slices.values():
            if piece.coming is not None:
                piece.coming.wait()

    def _grow(self, count: int) -> None:
        self.resident += count
        self.peak_resident = max(self.peak_resident, self.resident)

    def _free(self, parked: Any, nbytes: int) -> None:
        assert self.mover is not None
        self.mover.free(parked)
        self.parked -= self.mover.host_bytes(nbytes)

    def _ready(self, piece: Slice) -> Tensor:
        if piece.coming is not None:
            piece.coming.join()
            piece.coming = None
        assert piece.tensor is not None
        return piece.tensor

    def _bring(self, piece: Slice) -> None:
        if piece.tensor is not None:
            return
        assert self.mover is not None
        piece.tensor, piece.coming = self.mover.bring(piece.parked)
        self.brought += piece.nbytes
        self._grow(piece.nbytes)

    def _make_room(self, need: int) -> None:
        """Waits until `need` more bytes fit the limit, or nothing more can go."""
        assert self.limit is not None
        self._reap()
        self._send_until(need)
        while self._leaving and self.resident + need > self.limit:
            self._finish_oldest()

    def _send_until(self, need: int, later_than: Slice | None = None) -> None:
        """Sends slices out until `need` more bytes will fit once the copies are done; given
        later_than, only such that are read after it and without waiting."""
        assert self.limit is not None
        while True:
            going = sum(p.nbytes for p in self._leaving if not p.pinned)
            if self.resident - going + need <= self.limit:
                return
            victim = self._victim()
            if victim is None:
                return
            if later_than is not None and (
                _order(victim) <= _order(later_than) or len(self._leaving) >= MAX_LEAVING
            ):
                return
            self._evict(victim)

    def _victim(self) -> Slice | None:
        """The slice that is read last of those that can go."""
        free = [
            p
            for p in self._slices.values()
            if p.tensor is not None
            and p.owned
            and not p.pinned
            and p.leaving is None
            and p.coming is None
        ]
        return max(free, key=_order, default=None)

    def _evict(self, piece: Slice) -> None:
        if piece.parked is None:
            while len(self._leaving) >= MAX_LEAVING:
                self._finish_oldest()
            assert self.mover is not None
            assert piece.tensor is not None
            piece.leaving = self.mover.send(piece.tensor)
            self.sent += piece.nbytes
            self.parked += self.mover.host_bytes(piece.nbytes)
            self.peak_parked = max(self.peak_parked, self.parked)
            self._leaving.append(piece)
            self._reap()
        else:  # the copy from before still holds: slices are never written while they are kept
            self._forget(piece)

    def _forget(self, piece: Slice) -> None:
        piece.tensor = None
        self.resident -= piece.nbytes
        self.let_go += piece.nbytes

    def _reap(self) -> None:
        while self._leaving:
            leaving = self._leaving[0].leaving
            assert leaving is not None
            if not leaving[1].done():
                return
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        piece = self._leaving[0]
        assert piece.leaving is not None
        parked, ticket = piece.leaving
        ticket.wait()
        self._leaving.pop(0)
        piece.parked, piece.leaving = parked, None
        if not piece.pinned:
            self._forget(piece)


def _order(piece: Slice) -> tuple[int, float]:
    """The larger, the later it is read."""
    return piece.turn, piece.place
