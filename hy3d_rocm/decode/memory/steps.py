"""What a step of a decode's program takes beside what it reads and makes: the compiler asks.

Convolutions are asked of the backend, the rest follows from what run.py does. Nothing is computed,
and nothing larger than a few numbers is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C import DisableTorchFunction
from torch.utils._python_dispatch import _disable_current_modes

from hy3d_rocm.decode.backends.native import NativeBackend
from hy3d_rocm.decode.backends.statistics import CPU_BLOCK, block_elements, wide_type
from hy3d_rocm.decode.backends.torch_ops import not_fused
from hy3d_rocm.decode.backends.triton.work import FEWEST_SHUFFLED
from hy3d_rocm.decode.geometry import kernel_size, own_size, shuffled_frames
from hy3d_rocm.decode.graph import ATTENTION, CONV
from hy3d_rocm.decode.layers import Attention, Conv, Local, Norm, Pieces, Range
from hy3d_rocm.decode.memory.dry_run import Live, standing_for
from hy3d_rocm.decode.run import OPS, SCORE_BYTES, ProgramStep, own_memory, query_rows

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.graph import Graph
    from hy3d_rocm.decode.layers import Backend
    from hy3d_rocm.decode.memory.workspace import OperatorWorkspace

__all__ = ["StepWorkspace"]

Size = tuple[int, int, int, int]


class StepWorkspace:
    """The workspace function of a request: of a step, the size (channels, frames, rows, columns) of
    its source and whether it runs on the host, it tells bytes beside slices, bytes that stay until
    the end for its node, and those for its shape (generated code), with the shape's number.

    backend: what computes on the device; it is asked, never run. rules: what operators take inside
    there. dtype: of all values. host: backend and rules of the host, where candidates of it are
    allowed. alike: of each node the first of which the same is told: they differ in their weights
    only.
    """

    def __init__(
        self, graph: Graph, backend: Backend, rules: OperatorWorkspace, dtype: torch.dtype,
        host: tuple[Backend, OperatorWorkspace] | None = None,
    ) -> None:  # fmt: skip
        given = [(backend, rules), *([host] if host else [])]
        first = next((  # of those that torch computes as matrix products
            n for n, node in enumerate(graph.nodes)
            if node.op == ATTENTION or (node.op == CONV and node.kernel == (1, 1, 1))
        ), -1)  # fmt: skip
        self._places = [_Place(graph, *one, dtype, first) for one in given]
        kinds: dict[Any, int] = {}
        kept = [[place.converted(n) for place in self._places] for n in range(len(graph.nodes))]
        self.alike = tuple(
            kinds.setdefault((*_kind(graph, n), n == first, *more), n)
            for n, more in enumerate(kept)
        )
        self._known: dict[tuple[Any, ...], tuple[int, int, int, int]] = {}
        self._shapes: dict[frozenset[tuple[Any, ...]], int] = {}  # their numbers

    def host_layers(self) -> tuple[Any, ...] | None:
        """hy3d_host_layers: what the core can't see of a node whose steps it knows on the host, by
        the threads that torch has now; None where it knows none."""
        place = self._places[-1]
        name = _CORE_TYPES.get(place.dtype)
        if name is None or not isinstance(place.backend, NativeBackend):
            return None
        layers = tuple(map(place.host_layer, range(len(place.graph.nodes))))
        return name, torch.get_num_threads(), FEWEST_SHUFFLED, CPU_BLOCK, SCORE_BYTES, layers

    def __call__(
        self, fields: tuple[Any, ...], source: Size, on_host: bool
    ) -> tuple[int, int, int, int]:
        """(workspace_bytes, kept_bytes, shape_bytes, shape), as hy3d_workspace_function. What was
        told is told again when another schedule of the graph asks."""
        key = fields, source, on_host
        found = self._known.get(key)
        if found is None:
            step = ProgramStep._make(fields)
            place = self._places[1 if on_host else 0]
            inside, kept, code, shapes = place.answer(step, source, self.alike[step.node])
            number = self._shapes.setdefault(shapes, min(len(self._shapes), _MOST_SHAPES - 1))
            found = self._known[key] = inside, kept, code, number
        return found


def _is_computed(graph: Graph, number: int) -> bool:
    """Whether a node's value is laid out as the backend's results are: not what enters, functions
    of frames make or a narrow shuffle, which is a copy."""
    node = graph.nodes[max(number, 0)]
    narrow = node.shuffle not in ((0, 0, 0), (1, 1, 1)) and node.channels < FEWEST_SHUFFLED
    return node.op in (CONV, ATTENTION) and not narrow


def _kind(graph: Graph, number: int) -> tuple[Any, ...]:
    """What a node's answers depend on: equal for layers that differ in their weights only."""
    node, layer = graph.nodes[number], graph.layers[number]
    fields = node._replace(
        source=int(_is_computed(graph, node.source)),
        other=int(_is_computed(graph, node.other)) if node.other >= 0 else -1,
    )
    return fields, *map(_likeness, _parts(layer))


def _parts(layer: Any) -> tuple[Any, ...]:
    return () if layer is None else tuple(vars(layer).values())


def _likeness(part: Any) -> Any:
    """Of what a layer is made of; not the weights themselves."""
    if isinstance(part, Norm):
        return part.kind, part.weight, part.bias, part.scale is None, part.shift is None
    weight = getattr(part, "weight", None)
    return part if weight is None else (tuple(weight.shape), getattr(part, "bias", None) is None)


class _Place:
    """What steps take where one backend computes: one question at a time, about `step`, whose node,
    layer and source's size are kept beside it. count: frames that it makes or fills."""

    def __init__(
        self, graph: Graph, backend: Backend, rules: OperatorWorkspace, dtype: torch.dtype,
        first_product: int,
    ) -> None:  # fmt: skip
        self.graph, self.backend, self.rules, self.dtype = graph, backend, rules, dtype
        self._first_product = first_product
        self._kept: dict[int, int] = {}
        # Of functions of frames: rows times columns and bytes inside; whether these grow alike.
        self._mapped: dict[tuple[int, bool, int], tuple[int, int]] = {}
        self._grows: dict[int, bool] = {}

    def answer(
        self, step: ProgramStep, source: Size, kind: int
    ) -> tuple[int, int, int, frozenset[tuple[Any, ...]]]:
        """Bytes inside; that are kept; of generated code, and the shapes that it is for."""
        graph = self.graph
        self.node, self.layer = graph.nodes[step.node], graph.layers[step.node]
        self.step, self.source = step, source
        self.count = step.frames[1] - step.frames[0]
        self.is_computed = _is_computed(graph, self.node.source)
        self.adds_computed = _is_computed(graph, self.node.other)
        rules = self.rules
        told = {
            "conv": self._conv, "pass": self._sum, "keys": self._keys, "attend": self._attend,
            "map": self._map, "opaque": self._map, "add": self._sum, "moments": self._moments,
        }.get(OPS[step.op])  # fmt: skip
        with standing_for(rules):
            rules.forget()
            found = 0 if told is None else told()
            code, shapes = rules.code_bytes, frozenset(rules.shapes)
            if kind not in self._kept:
                self._kept[kind] = self._kept_bytes()
        return found, self._kept[kind], code, shapes

    def _kept_bytes(self) -> int:
        """Of a node, whichever of its steps is the first: converted and packed weights; a
        GroupNorm's factor and summand; the workspace of a library."""
        layer, layers = self.layer, list[Conv]()
        if isinstance(layer, Conv):
            layers = [layer]
        elif isinstance(layer, Attention):
            parts = (m for m in (layer.q, layer.k, layer.v) if m is not None)
            layers = [*(Conv(module, norm=layer.norm) for module in parts), Conv(layer.out)]
        found = self.converted(self.step.node)
        for one in layers:
            weight = self._weight(one.module)
            frames = self._frames(kernel_size(weight)[0] + one.stride[0], int(weight.shape[1]))
            found += self._backend_bytes(one, Pieces((frames,), 0, None), (0, 2))[2]
        if self.node.norm == _GROUP:
            found += 2 * self.source[0] * wide_type(self.dtype).itemsize
        if self.step.node == self._first_product and not hasattr(self.backend, "step_bytes"):
            found += self.rules.once(torch.ops.aten.mm.default)
        return found

    def converted(self, number: int) -> int:
        """Of a node's parameters that are not as the device computes with them."""
        parts = _parts(self.graph.layers[number])
        modules = [part.module if isinstance(part, Norm) else part for part in parts]
        own = (getattr(m, name, None) for m in modules for name in ("weight", "bias", "gamma"))
        places = (self.rules.device.type, "meta")
        return sum(
            p.numel() * self.dtype.itemsize for p in own if isinstance(p, torch.Tensor)
            and (p.dtype != self.dtype or p.device.type not in places)
        )  # fmt: skip

    def host_layer(self, number: int) -> tuple[Any, ...]:
        """hy3d_host_layer of a node that the C convolution computes, or nothing does."""
        node, layer = self.graph.nodes[number], self.graph.layers[number]
        if isinstance(layer, Attention):
            composed = self.rules.composes(self.dtype, node.width // node.heads)
            kinds = layer.k is None, composed, layer.rescale != 1
            return 1, (0, 0), *map(int, kinds), self.converted(number)
        modes = layer.modes if isinstance(layer, Conv) else ("zeros",) * 3
        known = layer is None or (isinstance(layer, Conv) and (
            not_fused(layer, Pieces((), 0, None), "") is None and set(modes) <= _MODES
        ))  # fmt: skip
        pads = tuple(int(mode == "replicate") for mode in modes[1:])
        return int(known), pads, 0, 0, 0, self.converted(number)

    # Rules

    def _conv(self) -> int:
        layer, step = self.layer, self.step
        assert isinstance(layer, Conv)
        if step.slice < 0:
            return 0  # nobody wants its frames: it is not made
        inside, in_place, _ = self._backend_bytes(layer, self._read(), step.own)
        if not step.drop and (not step.others or (in_place and self.adds_computed)):
            return inside
        # The result beside the residual, be it copied or not; or all frames that the convolution
        # gives, beside a copy of those that stay.
        weight = self._weight(layer.module)
        rows, columns = own_size(layer, self.source[2:], kernel_size(weight))
        made, channels = step.own[1] - step.own[0], int(weight.shape[0])
        if layer.shuffle is not None:
            channels //= layer.shuffle.factor[0]
            made = shuffled_frames(layer.shuffle, step.own)
        return inside + made * channels * rows * columns * self.dtype.itemsize

    def _sum(self) -> int:
        """Of PASS and ADD."""
        step = self.step
        both = (step.sources, step.others) if step.others else ()
        return sum(self._joined(slices, self.count) for slices in both)

    def _moments(self) -> int:
        numbers = self.node.channels * self.count * self.source[2] * self.source[3]
        return 2 * wide_type(self.dtype).itemsize * min(block_elements(_META), numbers)

    def _map(self) -> int:
        """What a function of frames takes grows with their rows and columns, where it did from one
        size to another; else it is run on the shape."""
        layer, step = self.layer, self.step
        assert isinstance(layer, Local)
        first, number = step.reads[0], step.node
        x = self._frames(step.reads[1] - first)
        area = self.source[2] * self.source[3]
        before = self._mapped.get((number, first == 0, x.shape[2]))
        if before is not None and self._grows.get(number):
            inside = before[1] * area // before[0]
        else:
            inside = self._run_on_shapes(layer, x, first)
            self._mapped[number, first == 0, x.shape[2]] = area, inside
            if before is not None and before[0] != area:
                grows = inside * before[0] == before[1] * area
                self._grows[number] = grows and self._grows.get(number, True)
        return inside + self._joined(step.sources, x.shape[2])

    def _run_on_shapes(self, layer: Local, x: Tensor, first: int) -> int:
        live = Live([x], self.rules)
        # What the caller watches operators with is not to see these.
        with torch.no_grad(), DisableTorchFunction(), _disable_current_modes(), live:
            made = own_memory(layer.run(x, first), x)
        known = int(made.nbytes) + self.rules.code_bytes  # the code stays, for its shape
        return max(int(live.device_peak) - known, 0)

    def _keys(self) -> int:
        return self._joined(self.step.sources, self.count) + self._queries()

    def _attend(self) -> int:
        """In turn: keys and values, where frames see themselves alone; queries; the frames one by
        one; the projection behind them."""
        layer, count = self.layer, self.count
        assert isinstance(layer, Attention)
        positions = count * self.source[2] * self.source[3] * self.dtype.itemsize
        one = self.node.width * positions
        keys = 2 * one if layer.span == "frame" else 0
        queries = keys + self._queries() + one
        mixing = keys + 2 * one + self._mixed(layer)
        whole = Pieces((self._frames(count, self.node.width),), 0, count)
        inside, in_place, _ = self._backend_bytes(Conv(layer.out), whole, (0, count))
        leaving = one + inside
        if layer.rescale == 1 and not (in_place and self.is_computed):
            leaving += self.source[0] * positions  # a copy of x, or the result beside it
        return self._joined(self.step.sources, count) + max(queries, mixing, leaving)

    def _mixed(self, layer: Attention) -> int:
        """Beside the queries and the result, for the last frame, which sees the most."""
        tokens, heads = self.source[2] * self.source[3], self.node.heads
        seen = {"frame": 1, "causal": self.step.frames[1], "video": self.source[1]}[layer.span]
        q, keys = (
            torch.empty((1, heads, n, self.node.width // heads), dtype=self.dtype, device="meta")
            for n in (tokens, seen * tokens)
        )
        q = q[:, :, : query_rows(q, keys, keys, tokens)]
        return int(q.nbytes) + self.rules.attention(q, keys, keys, None)

    def _queries(self) -> int:
        """Queries (keys and values, too, where one product makes them all), with making them."""
        layer, x = self.layer, self._frames(self.count)
        assert isinstance(layer, Attention)
        made = int(self._weight(layer.q).shape[0]) * x[0, 0].numel() * self.dtype.itemsize
        conv, frames = Conv(layer.q, norm=layer.norm), (0, self.count)
        return made + self._backend_bytes(conv, Pieces((x,), 0, self.count), frames)[0]

    # Parts

    def _backend_bytes(self, layer: Conv, source: Pieces, frames: Range) -> tuple[int, bool, int]:
        """What the backend takes inside, whether it makes its result in the residual's memory, and
        what it keeps."""
        ask = getattr(self.backend, "step_bytes", None)
        if ask is None:
            return self.backend.workspace_bytes(layer, source, frames), False, 0
        found: tuple[int, bool, int] = ask(layer, source, frames)
        return found

    def _weight(self, module: Any) -> Tensor:
        weight = self.backend.weights.of(module, "weight")
        assert weight is not None
        return weight

    def _read(self) -> Pieces:
        """What a convolution reads, counted from where its own video begins."""
        layer, step = self.layer, self.step
        assert isinstance(layer, Conv)
        begin = layer.skip_first - layer.reread
        first = max(step.reads[0] - begin, 0)
        return Pieces((self._frames(step.reads[1] - begin - first),), first, self.source[1] - begin)

    def _frames(self, count: int, channels: int = 0) -> Tensor:
        """Frames of the source, laid out as the backend does that made them."""
        size = (1, channels or self.source[0], count, *self.source[2:])
        last = getattr(self.backend, "is_channels_last", False) and size[1] >= 8
        last = last and (bool(channels) or self.is_computed)
        form = torch.channels_last_3d if last else torch.contiguous_format
        return torch.empty(size, dtype=self.dtype, device="meta", memory_format=form)

    def _joined(self, slices: Sequence[int], frames: int) -> int:
        """Frames of the source put together of several slices."""
        size = frames * self.source[0] * self.source[2] * self.source[3] * self.dtype.itemsize
        return size if len(slices) > 1 else 0


_GROUP = 2  # HY3D_NORM_GROUP
_MOST_SHAPES = 1 << 16  # HY3D_SCHEDULE_MAX_SHAPES
_META = torch.device("meta")
_MODES = {"zeros", "replicate"}
# hy3d_dtype
_CORE_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 3}
