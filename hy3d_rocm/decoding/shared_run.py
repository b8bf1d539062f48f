"""One rank's part of a program that several ranks carry out: its rows of every value, what rank 0
sends it of the latents, and what it hears while it has no rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from hy3d_rocm import _native
from hy3d_rocm.decoding.backends.statistics import combine
from hy3d_rocm.decoding.group import Group, GroupLostError, Meeting, Parts, Pending
from hy3d_rocm.decoding.layers import Moments, Range
from hy3d_rocm.decoding.report import Step
from hy3d_rocm.decoding.run import OPS, ProgramStep, Run

# Of these, and fewer, each is a message of its own.
_FEW_FRAMES = 4
_SEND, _RECV, _REDUCE, _EMIT = (OPS.index(name) for name in ("send", "recv", "reduce", "emit"))
_GOES_ON, _MEETS = 0, 1
# Of the time-out passes at most so much, and a step, until a rank without rows hears something.
_SHARE = 0.1
#: of the frames that are on their way at a time, but one frame at least
AT_ONCE_BYTES = 32 << 20
_ASKED_EVERY = 4  # norms: whether a rank has failed


class KeepAlive:
    """What a rank says to those without rows, or hears. Nothing where every rank has some.

    Between two meetings the others may compute for longer than the group's time-out, each step
    within it. The first rank that has rows tells those without any now and then that it goes on,
    and when all meet. So each wait has an end: where that rank died or hangs, or lost another,
    nothing is heard of it any more.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._others: list[int] = []  # that hear of this rank
        self._heard_of: int | None = None
        self._last = 0.0
        self._said: list[Pending] = []

    def begin(self, shares: Sequence[Range]) -> None:
        """All ranks have just met: before the first step, at the end of the last sample, or when
        rank 0 had sent them their rows. shares: each one's rows."""
        rank, have_rows = self._group.rank, [stop > first for first, stop in shares]
        speaker = have_rows.index(True)
        self._heard_of = None if have_rows[rank] else speaker
        self._others = [n for n, has in enumerate(have_rows) if rank == speaker and not has]
        self._last = time.monotonic()

    def goes_on(self) -> None:
        """This rank computes, or waits for another that does: for between steps."""
        if self._others and time.monotonic() > self._last + _SHARE * self._group.timeout:
            self._say(_GOES_ON)

    def meets(self) -> None:
        """Before this rank is where all meet: those without rows come, too, and one of them is back
        once that is so."""
        while self._heard_of is not None and self._hear(self._heard_of) != _MEETS:
            pass
        if self._others:
            self._say(_MEETS)
            said, self._said = self._said, []
            for one in said:
                one.wait()

    def _say(self, what: int) -> None:
        self._last = time.monotonic()
        word = torch.tensor([what], dtype=torch.uint8, device="cpu")
        self._said.append(self._group.post([(rank, word) for rank in self._others], ()))

    def _hear(self, speaker: int) -> int:
        word = torch.empty(1, dtype=torch.uint8, device="cpu")
        self._group.post((), [(speaker, word)]).wait()
        return int(word)


class SharedRun(Run):
    """As Run, of the rank's own program (hy3d_schedule_request.rank). Rank 0's section() gives the
    frames of all rows, that of the others nothing.

    Where a step failed at last, this rank raises at the next meeting, as all do; up to there it
    sends what others wait for, whatever it is. fail() is for the caller whose frames can't be kept:
    it has to go on with section() then. first_row: of the input, that of what section's fetch
    gives, where this rank has some rows of it only.
    """

    def __init__(self, group: Group, first_row: int, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.group = group
        self._first_row = first_row
        self._alive = alive = KeepAlive(group)
        check = self._check or (lambda: None)

        def checked() -> None:
            alive.goes_on()
            check()

        self._check = checked
        self._error: BaseException | None = None
        self._behind: list[ProgramStep] = []  # SENDs and RECVs behind one step
        self._filling: Pending | None = None
        self._shares: tuple[Range, ...] = ()  # of the output's rows, of each rank
        self._columns = 0  # of the output
        self._asked: Meeting | None = None
        self._reduced: set[int] = set()  # values

    def fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            if self._filling is not None:
                self._filling.drop()
            for number in list(self._slices):  # what is sent on takes memory
                self._free(number)
            self._gathered.clear()

    def section(
        self, program: _native.Program, number: int, fetch: Callable[[Range], Tensor],
        section: dict[str, Any] | None = None,
    ) -> Generator[tuple[int, Tensor]]:  # fmt: skip
        """See Run.section. What is thrown in where frames are given is fail()'s."""
        self._shares, size = program.shares, program.sections[number]["size"]
        self._columns = _native.graph_sizes(self.graph.nodes, size)[-1][3]
        self._alive.begin(self._shares)
        for first, frames in super().section(program, number, fetch, section):
            if frames is not None:
                try:
                    yield first, frames
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001
                    self.fail(error)
            del frames
        self._meet(f"the end of sample {self.sample}", None)

    def _around(self, work: Callable[[ProgramStep], Any], step: ProgramStep) -> Any:
        self._alive.goes_on()
        if step.op in (_SEND, _RECV):
            self._behind.append(step)
            return None
        if self._behind:
            self._exchange()
        if step.op == _EMIT:
            return self._shown(step)
        if step.op == _REDUCE:
            self._combine(step)
        return self._unless_failed(self._tried, work, step) if self._spans else None

    def _unless_failed(self, work: Callable[..., Any], *given: Any) -> Any:
        """work(*given), None where this rank fails in it or did before."""
        if self._error is None:
            try:
                return work(*given)
            except GroupLostError:
                raise
            except BaseException as error:  # noqa: BLE001 - all ranks raise at the next meeting
                self.fail(error)
        return None

    def _keep(self, step: ProgramStep, made: Any) -> None:
        self._unless_failed(super()._keep, step, made)

    def _tell(self, done: Step) -> None:
        try:
            super()._tell(done)
        except BaseException as error:  # noqa: BLE001 - the others wait for this rank
            self.fail(error)

    def _free(self, number: int) -> None:
        entry = self._slices.get(number)
        if entry is not None:
            if entry.filling is not None:
                entry.filling.drop()
            super()._free(number)

    # What neighbours have

    def _exchange(self) -> None:
        """Begins what stands behind a step: all of one slice. One exchange is under way at most,
        as is planned."""
        steps, self._behind = self._behind, []
        if self._filling is not None:
            self._unless_failed(self._tried, self._filling.wait)
            self._filling.wait()  # also where this rank fails in it
            self._alive.goes_on()
        parts = self._unless_failed(self._tried, self._parts, steps)
        sends, comes, copies = self._parts(steps) if parts is None else parts
        self._filling = self.group.post(sends, comes, copies)
        if (entry := self._slices.get(steps[0].slice)) is not None:
            entry.filling = self._filling

    def _parts(self, steps: Sequence[ProgramStep]) -> tuple[Parts, Parts, list[Any]]:
        """What is sent, what is filled, and what of that has to be copied to its place."""
        sends, comes, copies = list[Any](), list[Any](), list[Any]()
        before, sent = (-1, -1), list[Tensor]()
        for step in steps:
            if step.op == _SEND and step.rows == before:  # the same for several is one copy
                sends += [(step.peer, part) for part in sent]
                continue
            parts, places = self._pieces(step)
            if step.op == _RECV:
                comes += [(step.peer, part) for part in parts]
                copies += [(p, a) for p, a in zip(places, parts, strict=False) if p is not a]
                continue
            for place, part in zip(places, parts, strict=False):
                if place is not part:
                    part.copy_(place)
            sent, before = parts, step.rows
            sends += [(step.peer, part) for part in sent]
        return sends, comes, copies

    def _pieces(self, step: ProgramStep) -> tuple[list[Tensor], list[Tensor]]:
        """Dense memory for what a SEND or RECV is of, and the places in the slice (none where that
        is not there). On a GPU a few frames go one by one, as they lie there: a small copy takes as
        long as a small message. In how many pieces follows from the step alone, so that it is the
        same on both sides."""
        frames = step.frames[1] - step.frames[0]
        by_frames = self.device.type != "cpu" and frames <= _FEW_FRAMES
        by_frames = by_frames and not self._are_keys[step.slice]
        if step.slice not in self._slices:
            return list(self._empty(step).chunk(frames if by_frames else 1)), []
        place = self._place(step)
        places = list(place.unbind(1)) if by_frames else [place]
        if by_frames and all(p.is_contiguous() for p in places):
            return places, places
        parts = self._empty(step).chunk(len(places))
        return [a.view(p.shape) for a, p in zip(parts, places, strict=True)], places

    def _empty(self, step: ProgramStep) -> Tensor:
        frames, rows = self._spans[step.slice], self._rows[step.slice]
        lines = (frames[1] - frames[0]) * (rows[1] - rows[0])
        wanted = (step.frames[1] - step.frames[0]) * (step.rows[1] - step.rows[0])
        count = self._bytes[step.slice] // self.dtype.itemsize // lines * wanted
        return torch.empty(count, dtype=self.dtype, device=self.device)

    def _place(self, step: ProgramStep) -> Tensor:
        """These frames and rows of the slice, in the order in which they are sent."""
        entry = self._slices[step.slice]
        tensor = entry.made()
        if tensor.dim() == 4:  # keys and values
            return self._of_frames(tensor, entry, step.frames, step.rows)
        (at, _), (low, _) = entry.frames, entry.rows
        frames, rows = (n - at for n in step.frames), (n - low for n in step.rows)
        part = tensor[:, :, slice(*frames), slice(*rows)]
        return (
            part.permute(0, 2, 3, 4, 1) if self.backend.is_channels_last else part.transpose(1, 2)
        )

    # Where all ranks meet

    def _meet(self, about: str, values: Any) -> list[Any]:
        self._hear()
        return self.group.meet(about, self._error, values)

    def _hear(self) -> None:
        """What comes of the last question; before all raise nothing may be under way."""
        self._alive.meets()
        if self._check is not None and not self._spans:  # no step looks for a cancel
            self._unless_failed(self._check)
        if self._error is not None and self._filling is not None:
            self._filling.wait()  # which no slice of this rank does
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.answer()

    def _combine(self, step: ProgramStep) -> None:
        """The moments of the value that a REDUCE is of, of all ranks in their order: the same on
        each. Whether a rank has failed is asked at every fourth norm, and looked at where they meet
        next, so that none waits."""
        source = self.graph.nodes[step.node].source
        if source in self._reduced:
            return
        self._reduced.add(source)
        self._hear()
        if len(self._reduced) % _ASKED_EVERY == 1:
            about = f"norm {step.node} of sample {self.sample}"
            self._asked = Meeting(self.group, about, self._error)
        own = self._unless_failed(self._tried, self._own_moments, source) if self._spans else None
        channels = self.graph.nodes[source].channels
        told = self._unless_failed(self._tried, self._told, channels, own)
        if told is None:  # the others wait for some
            told = self._told(channels, None)
        every = self.group.gather(told)
        if own is not None:  # who has none needs none
            rows, count = [stop - first for first, stop in self._shares], own.count
            self._moments_of[source] = [
                Moments(count * n // rows[self.group.rank], one)
                for n, one in zip(rows, every, strict=True) if n
            ]  # fmt: skip

    def _told(self, channels: int, own: Moments | None) -> Tensor:
        """A rank without rows sends zeros, which nobody reads."""
        if own is None:
            return torch.zeros((2, channels), dtype=torch.float64, device=self.device)
        return own.rows

    def _own_moments(self, source: int) -> Moments:
        return combine([self._gathered[number] for number in self._of_node[source]])

    def _shown(self, step: ProgramStep) -> Tensor | None:
        """Frames that are given away: of all ranks' rows, on rank 0."""
        own = None
        if step.slice in self._slices:
            own = self._unless_failed(self._emit, step)
        made, sends, comes = None, list[Any](), list[Any]()
        if self.group.rank == 0:
            room = self._unless_failed(self._tried, self._room_for_frames, step)
            made, comes = room or (None, [])
        elif own is not None:
            part = self._unless_failed(self._tried, own.contiguous)
            sends = [] if part is None else [(0, part.view(-1))]
        self._meet(f"frames {step.frames} of sample {self.sample}", None)
        self.group.post(sends, comes).wait()
        if made is None:
            return None
        found = self._unless_failed(_put_together, made, own, self._shares, comes)
        return cast("Tensor | None", found)

    def _room_for_frames(self, step: ProgramStep) -> tuple[Tensor, list[tuple[int, Tensor]]]:
        """Rank 0's: all rows, and those of each other rank."""
        channels, frames = self.graph.nodes[step.node].channels, step.frames[1] - step.frames[0]
        new = torch.empty(0, dtype=self.dtype, device=self.device).new_empty
        made = new((1, channels, frames, self._shares[-1][1], self._columns))
        comes = [
            (rank, new((channels * frames * (stop - first) * self._columns,)))
            for rank, (first, stop) in enumerate(self._shares) if rank and stop > first
        ]  # fmt: skip
        return made, comes


def _put_together(
    made: Tensor, own: Tensor | None, rows: Sequence[Range], comes: Parts
) -> Tensor:  # fmt: skip
    """made, with every rank's rows in their places."""
    parts = dict(comes)
    for rank, (first, stop) in enumerate(rows):
        place = made[:, :, :, first:stop]
        if rank == 0 and own is not None:
            place.copy_(own)
        elif stop > first:
            place.copy_(parts[rank].view(place.shape))
    return made


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
