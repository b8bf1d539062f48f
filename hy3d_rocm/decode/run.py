"""Carries a decode's program out: one step, one operation on tensors.

The C core has decided everything (include/hy3d/schedule.h): which frames a step makes of which
slices, what is freed after it, what leaves for the host and comes back. Here each step becomes one
call of a backend or a torch operator. A step that fails leaves no trace: what it writes in place it
writes with its last operation, so it can be made again, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._C import _nn

from hy3d_rocm import _native, meter
from hy3d_rocm.decode.backends.statistics import channel_moments, combine, group_affine, wide_type
from hy3d_rocm.decode.faults import Recover, Result, attempt, retry_out_of_memory
from hy3d_rocm.decode.layers import Attention, Conv, Local, Moments, Pieces, Range
from hy3d_rocm.decode.report import Step

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm._core import Program
    from hy3d_rocm.decode.graph import Graph
    from hy3d_rocm.decode.layers import Backend
    from hy3d_rocm.decode.stages import Counter
    from hy3d_rocm.decode.transfers import StreamMover, Ticket

__all__ = ["OPS", "ProgramStep", "Run", "at_once", "own_memory", "query_rows"]

Affine = tuple["Tensor", "Tensor"]
Made = tuple["Tensor", Moments | None]

#: hy3d_step_op by number
OPS = (
    "enter", "conv", "pass", "keys", "attend", "map", "add", "trim", "opaque", "moments", "reduce",
    "emit", "store", "drop", "load", "send", "recv",
)  # fmt: skip
# The method of a Run by the same number, step -> Made, or None where no slice is made: it must not
# hold them itself, or it would outlive its decode with all that it has.
_WORKS = tuple("_" + name for name in OPS)
_ENTER, _EMIT = OPS.index("enter"), OPS.index("emit")
# HY3D_STEP_GATHER, HY3D_STEP_OVERWRITE
GATHER, OVERWRITE = 1, 2
#: of attention's scores where no fused kernel takes it
SCORE_BYTES = 256 << 20
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
    sources: tuple[int, ...]
    others: tuple[int, ...]
    frees: tuple[int, ...]
    macs: int
    workspace_bytes: int


class _Slice:
    """Frames of a value, or an attention's keys and values (2, heads, tokens, size of a head).

    tensor: on the device, None while it is on the host only. owned: the memory is ours, so it may
    be written over. leaving, coming: copies under way.
    """

    __slots__ = ("coming", "frames", "host", "leaving", "owned", "tensor")

    def __init__(self, tensor: Tensor, frames: Range, owned: bool = True) -> None:
        self.tensor: Tensor | None = tensor
        self.frames = frames
        self.owned = owned
        self.host: Any = None
        self.leaving: tuple[Any, Ticket] | None = None
        self.coming: Ticket | None = None

    def ready(self) -> Tensor:
        """The tensor, for the computing stream."""
        if self.coming is not None:
            self.coming.join()
            self.coming = None
        assert self.tensor is not None, "a step reads a slice that is not on the device"
        return self.tensor

    def settle(self) -> None:
        """Waits for its copies."""
        if self.leaving is not None:
            self.host, ticket = self.leaving
            ticket.wait()
            self.leaving = None
        if self.coming is not None:
            self.coming.wait()
            self.coming = None


class Run:
    """Carries sections of programs out, one at a time.

    mover: where slices go that leave the device; needed only by programs that store some. counter:
    check() before each attempt at a step, tick(Step) after it. recover(step, attempts, error):
    after a step (of the section) failed so often; True where it is to be made again; it raises, or
    gives False, where not. affines: factor and summand (C,) of each node with a GroupNorm, given or
    left by the section that reduced them.
    """

    def __init__(
        self, graph: Graph, backend: Backend, device: torch.device, dtype: torch.dtype, *,
        mover: StreamMover | None = None, counter: Counter | None = None,
        recover: Recover | None = None, sample: int = 0,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.backend = backend
        self.device = device
        self.dtype = dtype
        self.mover = mover
        self.counter = counter
        self.recover = recover or retry_out_of_memory(lambda: meter.give_back(device))
        self.sample = sample
        self.affines: dict[int, Affine] = {}
        self._check = None if counter is None else counter.check
        self._sections: tuple[Program | None, tuple[dict[str, Any], ...]] = None, ()
        self._source: Callable[[Range], Tensor] | None = None
        self._is_ours = True  # whether what entered is a copy
        self._slices: dict[int, _Slice] = {}
        self._gathered: dict[int, Moments] = {}  # of slices, which may be gone already
        self._reduced: set[int] = set()  # nodes whose norms have been
        # Of the section: each node's slices in order and its frames, keys left out.
        self._of_node: dict[int, list[int]] = {}
        self._frames: dict[int, int] = {}
        self._freed_bytes = 0

    def section(
        self, program: Program, number: int, fetch: Callable[[Range], Tensor]
    ) -> Iterator[tuple[int, Tensor]]:
        """Carries section `number` out; fetch((first, stop)) gives frames of its input (1, C, t, H,
        W). (first frame, frames) of its output in order, which may be read until the next is asked
        for. Raises what a step raised at last."""
        _, rows, columns = self.sections_of(program)[number]["size"]
        picture = (0, rows), (0, columns)
        counter, sample = self.counter, self.sample
        self._begin(program.slices(number), fetch)
        try:
            with torch.no_grad():
                for at, fields in enumerate(program.steps(number)):
                    step = ProgramStep._make(fields)
                    if step.op == _EMIT:
                        yield step.frames[0], self._attempt(at, self._emit, step)
                    else:
                        self._make(step, at)
                    for freed in step.frees:
                        self._free(freed)
                    if counter is not None:
                        done = Step(OPS[step.op], sample, 0, at, step.frames, *picture)
                        counter.tick(self._reported(done))
        finally:
            for number in list(self._slices):  # no copy is under way, nothing is held
                self._free(number)
            self._source = None

    def sections_of(self, program: Program) -> tuple[dict[str, Any], ...]:
        """The program's sections, which are made of numbers each time it is asked for them."""
        if self._sections[0] is not program:
            self._sections = program, program.sections
        return self._sections[1]

    def _begin(self, slices: Sequence[tuple[Any, ...]], fetch: Callable[[Range], Tensor]) -> None:
        self._slices, self._gathered, self._of_node, self._frames = {}, {}, {}, {}
        self._reduced, self._source = set(), fetch
        for index, (node, is_keys, frames, *_) in enumerate(slices):
            if not is_keys:
                self._of_node.setdefault(node, []).append(index)
                self._frames[node] = max(self._frames.get(node, 0), frames[1])
            else:
                self._frames.setdefault(node, frames[1])

    # Steps

    def _reported(self, step: Step) -> Step:
        """The step as a counter gets it."""
        return step

    def _made_slice(self, step: ProgramStep, tensor: Tensor) -> None:
        """A step has made a slice, or its frames have entered."""

    def _make(self, step: ProgramStep, at: int) -> None:
        """Everything but EMIT. What was made goes into the table when nothing can fail any more."""
        made = self._attempt(at, getattr(self, _WORKS[step.op]), step)
        if made is None:
            return
        tensor, moments = made
        self._made_slice(step, tensor)
        self._slices[step.slice] = _Slice(tensor, step.frames, step.op != _ENTER or self._is_ours)
        if moments is not None:
            self._gathered[step.slice] = moments
        elif step.flags & GATHER:
            del made, tensor
            self._attempt(at, self._moments, step)

    def _attempt(self, at: int, work: Callable[..., Result], *given: Any) -> Result:
        """work(*given), which leaves no trace when it fails, until it succeeds or `recover` gives
        up."""
        return attempt(work, *given, recover=self.recover, step=at, check=self._check)

    def _enter(self, step: ProgramStep) -> Made:
        assert self._source is not None
        given = self._source(step.frames)
        entered = given.to(self.device, self.dtype)
        self._is_ours = entered is not given
        return entered, None

    def _conv(self, step: ProgramStep) -> Made | None:
        if step.slice < 0:
            return None  # frames that nobody wants
        layer = self.graph.layers[step.node]
        assert isinstance(layer, Conv)
        begin = layer.skip_first - layer.reread  # where the convolution's own video begins
        parts = [self._slices[n].ready() for n in step.sources]
        first = self._slices[step.sources[0]].frames[0] - begin
        if first < 0:
            parts[0], first = parts[0][:, :, -first:], 0
        total = self._frames[self.graph.nodes[step.node].source] - begin
        source, affine = Pieces(tuple(parts), first, total), self.affines.get(step.node)
        extra = self._residual(step)
        if step.drop == 0:
            return self.backend.convolve(
                layer, source, step.own, affine=affine, add=extra,
                moments=bool(step.flags & GATHER),
            )  # fmt: skip
        result, _ = self.backend.convolve(layer, source, step.own, affine=affine)
        result = result[:, :, step.drop :]
        return result.clone() if extra is None else extra.add_(result), None

    def _pass(self, step: ProgramStep) -> Made | None:
        if step.slice < 0:
            return None
        if not step.others:
            return self._cut(step.sources, step.frames, copy=True), None
        return self._cut(step.sources, step.frames) + self._cut(step.others, step.frames), None

    def _map(self, step: ProgramStep) -> Made:
        layer = self.graph.layers[step.node]
        assert isinstance(layer, Local)
        part = self._cut(step.sources, step.reads)
        made = layer.run(part, step.reads[0])
        if made.shape[2] != step.frames[1] - step.frames[0]:
            raise ValueError(
                f"a function of frames made {made.shape[2]} of frames {step.reads}, not the "
                f"{step.frames[1] - step.frames[0]} it had said"
            )
        return own_memory(made, part), None

    def _add(self, step: ProgramStep) -> Made:
        x, y = self._cut(step.sources, step.frames), self._cut(step.others, step.frames)
        return (x.add_(y) if self._may_write(step, step.sources) else x + y), None

    def _trim(self, step: ProgramStep) -> Made:
        return self._cut(step.sources, step.frames, copy=True), None

    def _send(self, step: ProgramStep) -> None:
        raise NotImplementedError("rows of other devices are not exchanged yet")

    _recv = _opaque = _send

    def _moments(self, step: ProgramStep) -> None:
        self._gathered[step.slice] = channel_moments(self._slices[step.slice].ready())

    def _reduce(self, step: ProgramStep) -> None:
        layer, node = self.graph.layers[step.node], self.graph.nodes[step.node]
        assert isinstance(layer, (Conv, Attention))
        assert layer.norm is not None
        slices = self._of_node[node.source]
        found = combine([self._gathered[n] for n in slices])
        self.affines[step.node] = group_affine(layer.norm, found, self.backend.weights, self.dtype)
        self._reduced.add(step.node)
        same = {n for n, other in enumerate(self.graph.nodes)
                if (other.source, other.norm) == (node.source, node.norm)}  # fmt: skip
        if same <= self._reduced:
            for number in slices:
                del self._gathered[number]

    # Attention

    def _keys(self, step: ProgramStep) -> None:
        """Keys and values of some frames, at their place."""
        layer = self.graph.layers[step.node]
        assert isinstance(layer, Attention)
        x = self._cut(step.sources, step.reads)
        tokens = int(x.shape[3] * x.shape[4])
        if step.slice not in self._slices:
            frames = (0, self._frames[step.node])
            self._slices[step.slice] = _Slice(self._room(step, x, frames[1]), frames)
        place = slice(step.reads[0] * tokens, step.reads[1] * tokens)
        self._fill(step, layer, x, self._slices[step.slice].ready()[:, :, place])

    def _room(self, step: ProgramStep, x: Tensor, frames: int) -> Tensor:
        node = self.graph.nodes[step.node]
        tokens = frames * int(x.shape[3] * x.shape[4])
        return x.new_empty((2, node.heads, tokens, node.width // node.heads))

    def _fill(self, step: ProgramStep, layer: Attention, x: Tensor, room: Tensor) -> None:
        if layer.k is None:
            made = self._projected(step, layer, x, layer.q).chunk(3, dim=1)[1:]
            for place, part in zip(room, made, strict=True):
                place.copy_(_tokens(part, layer.heads))
            return
        for place, module in zip(room, (layer.k, layer.v), strict=True):
            place.copy_(_tokens(self._projected(step, layer, x, module), layer.heads))

    def _projected(self, step: ProgramStep, layer: Attention, x: Tensor, module: Any) -> Tensor:
        conv, frames = Conv(module, norm=layer.norm), (0, int(x.shape[2]))
        affine = self.affines.get(step.node)
        return self.backend.convolve(conv, Pieces((x,), *frames), frames, affine=affine)[0]

    def _attend(self, step: ProgramStep) -> Made:
        """x + out(softmax(q k^T) v) of some frames; there is no mask, a span is a range of keys."""
        layer = self.graph.layers[step.node]
        assert isinstance(layer, Attention)
        x = self._cut(step.sources, step.frames)
        mixed = self._mixed(step, layer, x)
        conv, whole = Conv(layer.out), (0, int(x.shape[2]))
        source = Pieces((mixed,), *whole)
        if layer.rescale != 1:
            result, _ = self.backend.convolve(conv, source, whole)
            return result.add_(x).div_(layer.rescale), None
        if not self._may_write(step, step.sources):
            x = x.clone()
        gather = bool(step.flags & GATHER)
        return self.backend.convolve(conv, source, whole, add=x, moments=gather)

    def _mixed(self, step: ProgramStep, layer: Attention, x: Tensor) -> Tensor:
        """softmax(q k^T) v, (1, width, t, H, W)."""
        width = self.graph.nodes[step.node].width
        tokens, frames = int(x.shape[3] * x.shape[4]), int(x.shape[2])
        first = 0  # frame of the first key
        if layer.span == "frame":
            room, first = self._room(step, x, frames), step.frames[0]
            self._fill(step, layer, x, room)
        else:
            room = self._slices[step.others[0]].ready()
        q = self._projected(step, layer, x, layer.q)[:, :width]
        q = _tokens(q, layer.heads).contiguous()[None]
        mixed = q.new_empty((1, width, frames, *x.shape[3:]))
        target = _tokens(mixed, layer.heads)
        for frame in range(frames):
            if self._check is not None:
                self._check()
            at = step.frames[0] + frame - first
            stop = room.shape[2] if layer.span == "video" else (at + 1) * tokens
            seen = slice(at * tokens if layer.span == "frame" else 0, stop)
            k, v = room[0, None, :, seen], room[1, None, :, seen]
            rows = query_rows(q, k, v, tokens)
            for start in range(frame * tokens, (frame + 1) * tokens, rows):
                part = slice(start, min(start + rows, (frame + 1) * tokens))
                # torch's own: one that somebody put in its place is a VAE of unknown layers.
                made = _nn.scaled_dot_product_attention(q[:, :, part], k, v, scale=layer.scale)
                target[:, part].copy_(made[0])
        return mixed

    # Slices

    def _cut(self, numbers: Sequence[int], frames: Range, copy: bool = False) -> Tensor:
        """Some frames out of the slices that hold them: one tensor, a copy where they are several
        (or it is asked for)."""
        parts = []
        for number in numbers:
            entry = self._slices[number]
            first, stop = entry.frames
            part = entry.ready()
            if first < frames[0] or stop > frames[1]:
                part = part[:, :, max(frames[0] - first, 0) : frames[1] - first]
            parts.append(part)
        if len(parts) > 1:
            return torch.cat(parts, dim=2)
        return parts[0].clone() if copy else parts[0]

    def _residual(self, step: ProgramStep) -> Tensor | None:
        """That of a convolution, which its backend may write over."""
        if not step.others:
            return None
        return self._cut(step.others, step.frames, copy=not self._may_write(step, step.others))

    def _may_write(self, step: ProgramStep, numbers: Sequence[int]) -> bool:
        return bool(step.flags & OVERWRITE) and self._slices[numbers[0]].owned

    def _emit(self, step: ProgramStep) -> Tensor:
        return self._slices[step.slice].ready()

    def _store(self, step: ProgramStep) -> None:
        assert self.mover is not None, "a program that stores slices needs a mover"
        entry = self._slices[step.slice]
        entry.leaving = self.mover.send(entry.ready())

    def _drop(self, step: ProgramStep) -> None:
        entry = self._slices[step.slice]
        entry.settle()
        self._forget(entry)

    def _load(self, step: ProgramStep) -> None:
        assert self.mover is not None
        entry = self._slices[step.slice]
        entry.tensor, entry.coming = self.mover.bring(entry.host)

    def _free(self, number: int) -> None:
        """Nobody reads the slice any more."""
        entry = self._slices.pop(number)
        entry.settle()
        if entry.host is not None:
            assert self.mover is not None
            self.mover.free(entry.host)
        self._forget(entry)

    def _forget(self, entry: _Slice) -> None:
        """The device's memory is given back; to the system, too: glibc keeps freed slices below 32
        MiB otherwise."""
        tensor, entry.tensor = entry.tensor, None
        if self.device.type == "cpu" and tensor is not None and entry.owned:
            self._freed_bytes += tensor.nbytes
            if self._freed_bytes >= TRIM_BYTES:
                self._freed_bytes = 0
                del tensor
                meter.trim_malloc()


def at_once(graph: Graph, backend: Backend, x: Tensor) -> Tensor:
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


def own_memory(made: Tensor, source: Tensor) -> Tensor:
    """What was made of `source`, copied where it is a view of that or of more than itself."""
    storage = made.untyped_storage()
    shared = storage._cdata == source.untyped_storage()._cdata
    return made.clone() if shared or storage.nbytes() > made.nbytes else made


def _tokens(x: Tensor, heads: int) -> Tensor:
    """(1, width, T, H, W) -> (heads, tokens, size of a head), a view where it can be one."""
    return x.reshape(heads, x.shape[1] // heads, -1).transpose(1, 2)


def query_rows(q: Tensor, k: Tensor, v: Tensor, tokens: int) -> int:
    """Queries at a time: all where a fused kernel takes them, else what keeps the scores (float32,
    of float64 queries float64) below SCORE_BYTES. On shapes alone the scores are counted."""
    # 0 is torch's number for the composite of two products and a softmax, -1 for none.
    if q.device.type != "meta" and int(torch._fused_sdp_choice(q, k, v)) > 0:
        return tokens
    score = wide_type(q.dtype).itemsize
    return max(1, min(tokens, SCORE_BYTES // (q.shape[1] * k.shape[2] * score)))
