"""Carries a decode's program out: one step, one operation on tensors.

The C core has decided everything (include/hy3d/schedule.h): which frames a step makes of which
slices, what is freed after it, what leaves for the host and comes back, what is a section. Here
each step becomes one call of a backend or a torch operator. A step that fails leaves no trace: what
it writes in place it writes with its last operation, so it can be made again, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from hy3d_rocm import _native, meter
from hy3d_rocm.decoding.backends.attention import KeyRanges, shaped, tokens_of
from hy3d_rocm.decoding.backends.statistics import channel_moments
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend
from hy3d_rocm.decoding.faults import Recover, Result, attempt, retry_out_of_memory
from hy3d_rocm.decoding.graph import Graph
from hy3d_rocm.decoding.layers import Attention, Conv, Local, Moments, Norm, Pieces, Range
from hy3d_rocm.decoding.placing import Ticket, Transfers
from hy3d_rocm.decoding.report import Step
from hy3d_rocm.decoding.stages import Counter

Made = tuple[Tensor, Moments | None]

#: hy3d_step_op by number
OPS = (
    "enter", "conv", "pass", "keys", "attend", "map", "add", "trim", "opaque", "moments", "reduce",
    "emit", "store", "drop", "load", "send", "recv",
)  # fmt: skip
TRIM, _ENTER, _ADD, _EMIT = (OPS.index(name) for name in ("trim", "enter", "add", "emit"))
# HY3D_STEP_GATHER, HY3D_STEP_OVERWRITE
GATHER, OVERWRITE = 1, 2
_FEW_FRAMES = 16  # that are copied one by one
#: bytes of slices freed on the CPU until free pages are returned to the system
TRIM_BYTES = 64 << 20


class ProgramStep(NamedTuple):
    """A hy3d_step; sources, others and frees are numbers of slices."""

    op: int
    node: int
    slice: int
    flags: int
    own: Range
    frames: Range
    reads: Range
    rows: Range
    drop: int
    peer: int
    read_rows: Range
    row_padding: Range
    sources: tuple[int, ...]
    others: tuple[int, ...]
    frees: tuple[int, ...]
    macs: int
    workspace_bytes: int


@dataclass(slots=True, eq=False)
class _Slice:
    """Frames and rows of a value, or an attention's keys and values (2, heads, tokens, size of a
    head).

    tensor: on the device, None while it is on the host only. owned: the memory is ours, so it may
    be written over. leaving, coming: copies under way; filling: rows that other ranks send.
    """

    tensor: Tensor | None
    frames: Range
    rows: Range
    owned: bool = True
    host: Any = None
    leaving: Ticket | None = None
    coming: Ticket | None = None
    filling: Any = None  # a Ticket

    def ready(self) -> Tensor:
        """The tensor, for the computing stream."""
        if self.filling is not None:
            self.filling.join()
            self.filling = None
        return self.made()

    def made(self) -> Tensor:
        """The same where no rows are read that other ranks send."""
        if self.coming is not None:
            self.coming.join()
            self.coming = None
        assert self.tensor is not None, "a step reads a slice that is not on the device"
        return self.tensor

    def settle(self) -> None:
        for copy in (self.leaving, self.coming, self.filling):
            if copy is not None:
                copy.wait()
        self.leaving = self.coming = self.filling = None


class Run:
    """Carries sections of programs out, one at a time.

    transfers: to the host and back; needed only by programs that store slices. counter: check()
    before each attempt at a step, tick(Step) after it. recover(step, attempts, error):
    after a step (of the section) failed so often; True where it is to be made again; it raises, or
    gives False, where not. affines: factor and summand (C,) of each node with a GroupNorm, given or
    left by the section that reduced them.
    """

    #: of the section's input, that of what fetch gives
    _first_row = 0
    #: around each step, (work, step) -> what it made, where there is more to it than attempts
    _around: Any = None

    def __init__(
        self, graph: Graph, backend: TorchBackend, device: torch.device, dtype: torch.dtype, *,
        transfers: Transfers | None = None, counter: Counter | None = None,
        recover: Recover | None = None, sample: int = 0,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.backend = backend
        self.device = device
        self.dtype = dtype
        self.transfers = transfers
        self.counter = counter
        self.recover = recover or retry_out_of_memory(lambda: meter.give_back(device))
        self.sample = sample
        self.affines: dict[int, tuple[Tensor, Tensor]] = {}
        self._check = None if counter is None else counter.check
        self._section: dict[str, Any] = {}
        self._source: Callable[[Range], Tensor] | None = None
        self._is_ours = True  # whether what entered is a copy
        self._slices: dict[int, _Slice] = {}
        self._freed_bytes = 0

    def section(
        self, program: _native.Program, number: int, fetch: Callable[[Range], Tensor],
        section: dict[str, Any] | None = None,
    ) -> Generator[tuple[int, Tensor]]:  # fmt: skip
        """Carries section `number` out; fetch((first, stop)) gives frames of its input (1, C, t, H,
        W). (first frame, frames) of its output in order, which may be read until the next is asked
        for. Raises what a step raised at last. section: program.sections[number], where that is
        known."""
        self._section = section = program.sections[number] if section is None else section
        index, rows, columns = self._counted_as()
        repacks = program.candidate["repacks"]
        # Bound here: a Run that held them itself would outlive its decode with all that it has.
        works: list[Any] = [getattr(self, "_" + name) for name in OPS]
        self._begin(program.slices(number), fetch)
        try:
            with torch.no_grad():
                for at in range(section["steps"]):
                    step = ProgramStep._make(program.step(number, at))
                    work, recover, made = works[step.op], self.recover, None
                    if self._around is None:
                        made = attempt(work, step, recover=recover, check=self._check, step=at)
                    else:
                        made = self._around(work, step)
                    if step.op == _EMIT:
                        yield step.frames[0], made
                    elif made is not None:
                        self._keep(step, made)
                    made = None
                    for freed in step.frees:
                        self._free(freed)
                    if repacks:
                        self.backend.forget_weights()
                    if self.counter is not None:
                        kind = "statistics" if section["pass"] else OPS[step.op]
                        self._tell(Step(kind, self.sample, index, at, step.frames, rows, columns))
        finally:
            for freed in list(self._slices):  # no copy is under way, nothing is held
                self._free(freed)
            self._source = None

    def _counted_as(self) -> tuple[int, Range, Range]:
        """Of what is made, as who counts steps is told: which tile it is, its rows and columns."""
        _, rows, columns = self._section["size"]
        return 0, (0, rows), (0, columns)

    def _tell(self, done: Step) -> None:
        assert self.counter is not None
        self.counter.tick(done)

    def _keep(self, step: ProgramStep, made: Made) -> None:
        """What was made goes into the table when nothing can fail any more."""
        tensor, moments = made
        owned = step.op != _ENTER or self._is_ours
        self._slices[step.slice] = _Slice(tensor, step.frames, self._rows[step.slice], owned)
        if moments is not None:
            self._gathered[step.slice] = moments
        elif step.flags & GATHER:
            attempt(self._moments, step, recover=self.recover)  # a part of the step: no check

    def _begin(self, slices: Sequence[tuple[Any, ...]], fetch: Callable[[Range], Tensor]) -> None:
        self._slices, self._source = {}, fetch
        self._gathered: dict[int, Moments] = {}  # of slices, which may be gone already
        self._moments_of: dict[int, list[Moments]] = {}  # nodes: of all their slices
        # Each node's slices in order and its frames, keys left out.
        self._of_node: dict[int, list[int]] = {}
        self._frames: dict[int, int] = {}
        # Of each slice: its frames, and so on.
        self._spans: list[Range] = [frames for _, _, frames, _, _, _ in slices]
        self._rows: list[Range] = [rows for _, _, _, rows, _, _ in slices]
        self._bytes = [size for _, _, _, _, size, _ in slices]
        self._host_at = [at for *_, at in slices]
        self._are_keys = [bool(is_keys) for _, is_keys, *_ in slices]
        for index, (node, is_keys, (_, stop), *_) in enumerate(slices):
            self._frames[node] = max(self._frames.get(node, 0), stop)
            if not is_keys:
                self._of_node.setdefault(node, []).append(index)

    def _tried(self, work: Callable[..., Result], *given: Any) -> Result:
        """work(*given) as a step's is: see attempt()."""
        return attempt(work, *given, recover=self.recover, check=self._check)

    def _norm(self, node: int) -> Norm:
        norm = cast("Conv | Attention", self.graph.layers[node]).norm
        assert norm is not None
        return norm

    def _moments(self, step: ProgramStep) -> None:
        entry = self._slices[step.slice]
        self._gathered[step.slice] = channel_moments(_lines(entry.made(), entry.rows, step.rows))

    def _reduce(self, step: ProgramStep) -> None:
        source = self.graph.nodes[step.node].source
        if source not in self._moments_of:
            slices = self._of_node[source]
            self._moments_of[source] = [self._gathered.pop(number) for number in slices]
        self.affines[step.node] = self._affine(step.node, source, self._moments_of[source])

    def _affine(self, node: int, source: int, moments: Sequence[Moments]) -> tuple[Tensor, Tensor]:
        return self.backend.factors(self._norm(node), moments, self.dtype)

    # Steps: each gives (what it made, its moments or None), or None where no slice is made

    def _enter(self, step: ProgramStep) -> Made:
        assert self._source is not None
        given = self._source(step.frames)
        first = self._first_row
        given = _lines(given, (first, first + given.shape[3]), step.rows)
        entered = given.to(self.device, self.dtype)
        self._is_ours = entered is not given
        return entered, None

    def _conv(self, step: ProgramStep) -> Made | None:
        if step.slice < 0:
            return None  # frames that nobody wants
        layer = cast("Conv", self.graph.layers[step.node]).with_row_padding(step.row_padding)
        begin = layer.skip_first - layer.reread  # where the convolution's own video begins
        entries = [self._slices[n] for n in step.sources]
        parts = [_lines(entry.ready(), entry.rows, step.read_rows) for entry in entries]
        first = self._slices[step.sources[0]].frames[0] - begin
        if first < 0:
            parts[0], first = parts[0][:, :, -first:], 0
        total = self._frames[self.graph.nodes[step.node].source] - begin
        source, affine = Pieces(tuple(parts), first, total), self.affines.get(step.node)
        room, extra, where = self._room(step), None, {}
        if step.others:  # the backend may write over it
            extra = self._addend(step, room)
        elif room is not None:
            where["out"] = self._made_in(room, step)
        if step.drop == 0:
            wants = bool(step.flags & GATHER)
            made, moments = self.backend.convolve(
                layer, source, step.own, affine=affine, add=extra, moments=wants, **where
            )
            return self._housed(step, made, room), moments
        result, _ = self.backend.convolve(layer, source, step.own, affine=affine)
        result = result[:, :, step.drop :]
        if extra is not None:
            return self._housed(step, extra.add_(result), room), None
        return (result.clone() if room is None else self._housed(step, result, room)), None

    def _pass(self, step: ProgramStep) -> Made | None:
        """Frames as they are, or the sum of two values."""
        if step.slice < 0:
            return None
        room = self._room(step)
        if not step.others:
            x = self._cut(step.sources, step.frames, step.rows, copy=room is None)
            return self._housed(step, x, room), None
        x = self._cut(step.sources, step.frames, step.rows)
        y = self._cut(step.others, step.frames, step.rows)
        if self._may_write(step, step.sources):
            made = x.add_(y)
        elif room is None:
            made = x + y
        else:
            made = torch.add(x, y, out=self._made_in(room, step))
        return self._housed(step, made, room), None

    _add = _trim = _pass

    def _map(self, step: ProgramStep) -> Made:
        layer = cast("Local", self.graph.layers[step.node])
        part = self._cut(step.sources, step.reads, step.read_rows)
        made, room = layer.run(part, step.reads[0]), self._room(step)
        return self._housed(step, own_memory(made, part) if room is None else made, room), None

    def _send(self, step: ProgramStep) -> None:
        raise NotImplementedError("a step that one device does not do")

    _recv = _opaque = _send

    # Rows of several ranks

    def _room(self, step: ProgramStep) -> Tensor | None:
        """Memory for the step's slice, where that has rows beside those that the step makes: what
        the result is written over, or new. None: the result is the slice."""
        rows = self._rows[step.slice]
        if rows == step.rows:
            return None
        over = step.sources if step.op == _ADD else step.others
        if over and self._may_write(step, over):
            return self._slices[over[0]].made()
        channels, frames = self.graph.nodes[step.node].channels, step.frames[1] - step.frames[0]
        lines = channels * frames * (rows[1] - rows[0])
        columns = self._bytes[step.slice] // (lines * self.dtype.itemsize)
        size = 1, channels, frames, rows[1] - rows[0], columns
        is_last = self.backend.is_channels_last and channels >= 8
        form = torch.channels_last_3d if is_last else torch.contiguous_format
        return torch.empty(size, dtype=self.dtype, device=self.device, memory_format=form)

    def _made_in(self, room: Tensor, step: ProgramStep) -> Tensor:
        """The rows of the slice's memory that the step makes."""
        return _lines(room, self._rows[step.slice], step.rows)

    def _housed(self, step: ProgramStep, made: Tensor, room: Tensor | None) -> Tensor:
        """The slice's tensor, with what was made in its rows."""
        if room is None:
            return made
        place = self._made_in(room, step)
        if made.data_ptr() != place.data_ptr():
            _copy(place, made)
        return room

    def _addend(self, step: ProgramStep, room: Tensor | None) -> Tensor:
        """The residual, to be written over."""
        may_write = self._may_write(step, step.others)
        extra = self._cut(step.others, step.frames, step.rows, room is None and not may_write)
        if room is None or may_write:
            return extra
        return _copy(self._made_in(room, step), extra)

    # Attention

    def _keys(self, step: ProgramStep) -> None:
        """Keys and values of some frames and rows, at their place."""
        x = self._cut(step.sources, step.reads, step.read_rows)
        if step.slice not in self._slices:
            frames, rows = (0, self._frames[step.node]), self._rows[step.slice]
            room = self._room_for_keys(step, x, frames[1], rows[1])
            self._slices[step.slice] = _Slice(room, frames, rows)
        entry = self._slices[step.slice]
        self._fill(step, x, self._of_frames(entry.made(), entry, step.reads, step.rows))

    def _room_for_keys(self, step: ProgramStep, x: Tensor, frames: int, rows: int) -> Tensor:
        node = self.graph.nodes[step.node]
        tokens = frames * rows * int(x.shape[4])
        return x.new_empty((2, node.heads, tokens, node.width // node.heads))

    @staticmethod
    def _of_frames(room: Tensor, entry: _Slice, frames: Range, rows: Range) -> Tensor:
        """Some frames and rows of keys and values: (2, heads, T, H, W, size of a head)."""
        every = shaped(room, entry.frames[1] - entry.frames[0], entry.rows[1] - entry.rows[0])
        return every[:, :, slice(*frames), slice(*rows)]

    def _fill(self, step: ProgramStep, x: Tensor, room: Tensor) -> None:
        """room: (2, heads, T, H, W, size of a head), of the frames and rows of x."""
        layer, affine = cast("Attention", self.graph.layers[step.node]), self.affines.get(step.node)
        norm, video = self._norm(step.node), _video(x)
        if layer.k is None:
            made, _ = self.backend.convolve(Conv(layer.q, norm=norm), *video, affine=affine)
            for place, part in zip(room, made.chunk(3, dim=1)[1:], strict=True):
                place.copy_(tokens_of(part, layer.heads).reshape(place.shape))
            return
        for place, module in zip(room, (layer.k, layer.v), strict=True):
            made, _ = self.backend.convolve(Conv(module, norm=norm), *video, affine=affine)
            place.copy_(tokens_of(made, layer.heads).reshape(place.shape))
            del made

    def _attend(self, step: ProgramStep) -> Made:
        """x + out(softmax(q k^T) v) of some frames; there is no mask, a span is a range of keys."""
        layer = cast("Attention", self.graph.layers[step.node])
        x = self._cut(step.sources, step.frames, step.rows)
        first = 0  # frame of the first key
        if layer.span == "frame":
            every = self._cut(step.sources, step.frames, step.read_rows)
            frames, high, first = int(every.shape[2]), int(every.shape[3]), step.frames[0]
            keys = self._room_for_keys(step, every, frames, high)
            self._fill(step, every, shaped(keys, frames, high))
            del every
        else:
            entry = self._slices[step.others[0]]
            keys, high = entry.ready(), entry.rows[1] - entry.rows[0]
        mixed, conv = _video(self._mixed(step, x, keys, high, first)), Conv(layer.out)
        del keys  # a frame's own are memory
        room = self._room(step)
        if layer.rescale != 1:
            made = self.backend.convolve(conv, *mixed)[0].add_(x).div_(layer.rescale)
            return self._housed(step, made, room), None
        if room is not None:
            x = _copy(self._made_in(room, step), x)
        elif not self._may_write(step, step.sources):
            x = x.clone()
        wants = bool(step.flags & GATHER)
        made, moments = self.backend.convolve(conv, *mixed, add=x, moments=wants)
        return self._housed(step, made, room), moments

    def _mixed(self, step: ProgramStep, x: Tensor, room: Tensor, high: int, first: int) -> Tensor:
        """softmax(q k^T) v, (1, width, t, H, W). room: keys and values of rows `high` from frame
        `first` on."""
        layer = cast("Attention", self.graph.layers[step.node])
        width = self.graph.nodes[step.node].width
        tokens, frames = int(x.shape[3] * x.shape[4]), int(x.shape[2])
        keys = high * int(x.shape[4])  # of a frame
        conv, affine = Conv(layer.q, norm=self._norm(step.node)), self.affines.get(step.node)
        q = self.backend.convolve(conv, *_video(x), affine=affine)[0][:, :width]
        q = tokens_of(q, layer.heads).contiguous()[None]
        form = torch.channels_last_3d if self.backend.is_channels_last else torch.contiguous_format
        size = (1, width, frames, *x.shape[3:])
        mixed = torch.empty(size, dtype=q.dtype, device=q.device, memory_format=form)
        target = tokens_of(mixed, layer.heads)
        ranges = KeyRanges(frames, tokens, keys, step.frames[0] - first, layer.span)
        self.backend.attend(q, room, target, ranges, self._check or (lambda: None))
        return mixed

    # Slices

    def _cut(
        self, numbers: Sequence[int], frames: Range, rows: Range, copy: bool = False
    ) -> Tensor:
        """Some frames and rows out of the slices that hold them; copy: memory of their own in any
        case."""
        entries = [self._slices[number] for number in numbers]
        made = joined(
            [
                (entry.frames[0], entry.ready() if rows == entry.rows
                 else _lines(entry.made(), entry.rows, rows))
                for entry in entries
            ],
            frames,
        )  # fmt: skip
        return made.clone() if copy and len(entries) == 1 else made

    def _may_write(self, step: ProgramStep, numbers: Sequence[int]) -> bool:
        entry = self._slices[numbers[0]]
        if not (step.flags & OVERWRITE and entry.owned):
            return False
        if entry.filling is not None:  # its rows are still being sent
            entry.ready()
        return True

    def _emit(self, step: ProgramStep) -> Tensor | None:
        entry = self._slices[step.slice]
        return _lines(entry.made(), entry.rows, step.rows)

    def _store(self, step: ProgramStep) -> None:
        assert self.transfers is not None, "a program that stores slices needs a transfers"
        entry = self._slices[step.slice]
        tensor = entry.ready()
        assert tensor.nbytes <= self._bytes[step.slice], "a slice is larger than was planned"
        entry.host, entry.leaving = self.transfers.store(tensor, self._host_at[step.slice])

    def _drop(self, step: ProgramStep) -> None:
        self._forget(self._slices[step.slice])

    def _load(self, step: ProgramStep) -> None:
        assert self.transfers is not None
        entry = self._slices[step.slice]
        entry.tensor, entry.coming = self.transfers.load(entry.host)

    def _free(self, number: int) -> None:
        """Nobody reads the slice any more."""
        self._forget(self._slices.pop(number))

    def _forget(self, entry: _Slice) -> None:
        """Its copies are waited for, the device's memory is given back; to the system, too: glibc
        keeps freed slices below 32 MiB otherwise."""
        entry.settle()
        tensor, entry.tensor = entry.tensor, None
        if self.device.type == "cpu" and tensor is not None and entry.owned:
            self._freed_bytes += tensor.nbytes
            if self._freed_bytes >= TRIM_BYTES:
                self._freed_bytes = 0
                del tensor
                meter.trim_malloc()


def at_once(graph: Graph, backend: TorchBackend, x: Tensor) -> Tensor:
    """What the graph makes of x (1, C, T, H, W), on x's device: all frames at a time."""
    machine = (1 << 62, 0), (int(x.shape[2]), 0, 0), 1.0, 1.0, 1.0, 1.0
    program = _native.compile_schedule(
        graph.nodes, workspace=lambda *step: (0, 0, 0, 0), size=tuple(x.shape[2:]),
        element_bytes=x.element_size(), is_host=1, strategies=1 << 1, device=machine, host=machine,
        copy_bytes_per_second=1.0,
    ).program  # fmt: skip
    assert program is not None, "without a budget every program fits"
    run = Run(graph, backend, x.device, x.dtype)
    parts = [made.clone() for _, made in run.section(program, 0, lambda r: x[:, :, slice(*r)])]
    return torch.cat(parts, 2)


def joined(parts: Sequence[tuple[int, Tensor]], frames: Range) -> Tensor:
    """Frames out of the parts of a video (each with its first one's number) that hold them: a view
    where that is one of them."""
    first, stop = frames
    found = [
        part[:, :, max(first - at, 0) : stop - at]
        for at, part in parts
        if at < stop and at + part.shape[2] > first
    ]
    return found[0] if len(found) == 1 else torch.cat(found, 2)


def _copy(place: Tensor, x: Tensor) -> Tensor:
    """x into rows of a larger tensor: frame by frame, since a frame's rows lie in one piece there,
    where copies are twice as fast on a GPU."""
    if place.device.type == "cpu" or place.shape[2] > _FEW_FRAMES:
        return place.copy_(x)
    for frame in range(place.shape[2]):
        place[:, :, frame].copy_(x[:, :, frame])
    return place


def _lines(x: Tensor, rows: Range, wanted: Range) -> Tensor:
    """Rows `wanted` of x (1, C, T, H, W), which has `rows`: a view."""
    if rows == wanted:
        return x
    return x[:, :, :, wanted[0] - rows[0] : wanted[1] - rows[0]]


def own_memory(made: Tensor, source: Tensor) -> Tensor:
    """What was made of `source`, copied where it is a view of that or of more than itself."""
    storage = made.untyped_storage()
    shared = storage._cdata == source.untyped_storage()._cdata
    return made.clone() if shared or storage.nbytes() > made.nbytes else made


def _video(x: Tensor) -> tuple[Pieces, Range]:
    """All frames of x, a video of their own."""
    frames = 0, int(x.shape[2])
    return Pieces((x,), *frames), frames
