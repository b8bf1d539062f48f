"""What a step of a decode's program takes beside what it reads and makes: the compiler asks.

Convolutions are asked of the backend, the rest follows from what run.py does. Nothing is computed,
and nothing larger than a few numbers is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.backends.statistics import block_elements, wide_type
from hy3d_rocm.decode.backends.triton.work import FEWEST_SHUFFLED
from hy3d_rocm.decode.geometry import kernel_size, own_size
from hy3d_rocm.decode.graph import ATTENTION, CONV
from hy3d_rocm.decode.layers import Attention, Conv, Local, Pieces, Range, shuffled_frames
from hy3d_rocm.decode.memory.live import standing_for
from hy3d_rocm.decode.memory.predict import predict
from hy3d_rocm.decode.run import OPS, ProgramStep, own_memory, query_rows

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.graph import Graph, Node
    from hy3d_rocm.decode.layers import Backend
    from hy3d_rocm.decode.memory.workspace import OperatorWorkspace

__all__ = ["StepWorkspace"]

Size = tuple[int, int, int, int]


class StepWorkspace:
    """The workspace function of a request: of a step, the size (channels, frames, rows, columns) of
    its source and whether it runs on the host, it tells bytes beside slices, and bytes that stay
    until the end.

    backend: what computes on the device; it is asked, never run. rules: what operators take inside
    there. dtype: of all values. host: backend and rules of the host, where candidates of it are
    allowed.
    """

    def __init__(
        self, graph: Graph, backend: Backend, rules: OperatorWorkspace, dtype: torch.dtype,
        host: tuple[Backend, OperatorWorkspace] | None = None,
    ) -> None:  # fmt: skip
        self._graph = graph
        self._dtype = dtype
        self._places = ((backend, rules), host)
        self._kinds = [_kind(graph, number) for number in range(len(graph.nodes))]
        self._known: dict[tuple[Any, ...], int] = {}
        self._kept: dict[tuple[int, bool], int] = {}
        products = (n for n, layer in enumerate(graph.layers) if _is_product(graph.nodes[n], layer))
        self._first_product = next(products, -1)

    def __call__(self, fields: tuple[Any, ...], source: Size, on_host: bool) -> tuple[int, int]:
        """(workspace_bytes, kept_bytes), as hy3d_workspace_function. Steps that differ in their
        place only, of layers that differ in their weights only, are looked at once."""
        step = ProgramStep._make(fields)
        own, frames, reads = step.own, step.frames, step.reads
        key = (
            self._kinds[step.node], step.op, source, on_host, own[1] - own[0], own[0] == 0,
            frames[1] - frames[0], reads[1] - reads[0], reads[0] == 0, reads[1] == source[1],
            step.drop, step.flags, len(step.sources) > 1, len(step.others), step.slice < 0,
            frames[1] if OPS[step.op] == "attend" else 0,
        )  # fmt: skip
        found = self._known.get(key)
        if found is None:
            question = self._question(step, source, on_host)
            with standing_for(question.rules):
                found = self._known[key] = question.workspace_bytes()
        where = step.node, on_host
        if where not in self._kept:
            self._kept[where] = self._kept_bytes(step, source, on_host)
        return found, self._kept[where]

    def _place(self, on_host: bool) -> tuple[Backend, OperatorWorkspace]:
        place = self._places[1 if on_host else 0]
        assert place is not None, "a candidate of the host was offered without its backend"
        return place

    def _question(self, step: ProgramStep, source: Size, on_host: bool) -> _Question:
        backend, rules = self._place(on_host)
        return _Question(self._graph, backend, rules.anew(), self._dtype, step, source)

    def _kept_bytes(self, step: ProgramStep, source: Size, on_host: bool) -> int:
        """Of a node, whichever of its steps is the first: converted weights; a GroupNorm's factor
        and summand; what its layer keeps, of which any step tells."""
        layer, (backend, rules) = self._graph.layers[step.node], self._place(on_host)
        question = self._question(step, source, on_host)
        with standing_for(question.rules):
            found = question.layer_bytes()
        found += _converted_bytes(layer, self._dtype, rules.device)
        if self._graph.nodes[step.node].norm == _GROUP:
            found += 2 * source[0] * wide_type(self._dtype).itemsize
        if step.node == self._first_product and not hasattr(backend, "step_bytes"):
            found += rules.once(torch.ops.aten.mm.default)
        return found


def _is_product(node: Node, layer: Any) -> bool:
    """Whether torch computes the layer as a matrix product."""
    return isinstance(layer, Attention) or (isinstance(layer, Conv) and node.kernel == (1, 1, 1))


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
    norm = getattr(layer, "norm", None)
    kept = None if norm is None else (
        norm.kind, norm.weight, norm.bias, norm.scale is None, norm.shift is None
    )  # fmt: skip
    if isinstance(layer, Conv):
        module = layer.module
        bias = getattr(module, "bias", None) is None
        return fields, kept, tuple(module.weight.shape), bias, layer.act, layer.modes, layer.shuffle
    if isinstance(layer, Attention):
        shapes = tuple(layer.q.weight.shape), tuple(layer.out.weight.shape)
        return fields, kept, shapes, layer.k is None, layer.scale, layer.rescale
    return fields, None if layer is None else id(layer)


def _converted_bytes(layer: Any, dtype: torch.dtype, device: torch.device) -> int:
    """Of a layer's parameters that are not as the device computes with them."""
    modules: list[Any] = []
    if isinstance(layer, Conv):
        modules = [layer.module]
    elif isinstance(layer, Attention):
        modules = [m for m in (layer.q, layer.k, layer.v, layer.out) if m is not None]
    norm = getattr(layer, "norm", None)
    if norm is not None:
        modules.append(norm.module)
    found = 0
    for module in modules:
        for name in ("weight", "bias", "gamma"):
            own = getattr(module, name, None)
            if not isinstance(own, torch.Tensor):
                continue
            if own.dtype != dtype or own.device.type not in (device.type, "meta"):
                found += own.numel() * dtype.itemsize
    return found


class _Question:
    """One of them. count: frames that the step makes or fills."""

    def __init__(
        self, graph: Graph, backend: Backend, rules: OperatorWorkspace, dtype: torch.dtype,
        step: ProgramStep, source: Size,
    ) -> None:  # fmt: skip
        self.node, self.layer = graph.nodes[step.node], graph.layers[step.node]
        self.backend, self.rules, self.dtype = backend, rules, dtype
        self.step, self.source = step, source
        self.count = step.frames[1] - step.frames[0]
        self.is_computed = _is_computed(graph, self.node.source)
        self.adds_computed = _is_computed(graph, self.node.other)

    def workspace_bytes(self) -> int:
        rules = {
            "conv": self._conv, "pass": self._sum, "keys": self._keys, "attend": self._attend,
            "map": self._map, "opaque": self._map, "add": self._sum, "moments": self._moments,
        }  # fmt: skip
        rule = rules.get(OPS[self.step.op])
        return 0 if rule is None else rule()

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
        if not step.others:
            return 0
        x = self._frames(self.count)
        return self._joined(step.sources, x) + self._joined(step.others, x)

    def _moments(self) -> int:
        numbers = self.node.channels * self.count * self.source[2] * self.source[3]
        return 2 * wide_type(self.dtype).itemsize * min(block_elements(_META), numbers)

    def _map(self) -> int:
        """The function is run on shapes."""
        layer = self.layer
        assert isinstance(layer, Local)
        first = self.step.reads[0]
        x = self._frames(self.step.reads[1] - first)
        made: list[Tensor] = []

        def run() -> None:
            made.append(own_memory(layer.run(x, first), x))

        peak = predict(run, known=[x], workspace=self.rules).device_bytes
        return peak - int(made[0].nbytes) + self._joined(self.step.sources, x)

    def _keys(self) -> int:
        layer = self.layer
        assert isinstance(layer, Attention)
        x = self._frames(self.count)
        return self._joined(self.step.sources, x) + self._projected(layer, x, layer.q)

    def _attend(self) -> int:
        """In turn: keys and values, where frames see themselves alone; queries; the frames one by
        one; the projection behind them."""
        layer, step = self.layer, self.step
        assert isinstance(layer, Attention)
        x = self._frames(self.count)
        one = self.node.width * self.count * x.shape[3] * x.shape[4] * self.dtype.itemsize
        keys = 2 * one if layer.span == "frame" else 0
        queries = keys + self._projected(layer, x, layer.q) + one
        mixing = keys + 2 * one + self._mixed(layer, x)
        whole = Pieces((self._frames(self.count, self.node.width),), 0, self.count)
        out = Conv(layer.out)
        inside, in_place, _ = self._backend_bytes(out, whole, (0, self.count))
        leaving = one + inside
        if layer.rescale == 1 and not (in_place and self.is_computed):
            leaving += x.nbytes  # a copy of x, or the result beside it
        return self._joined(step.sources, x) + max(queries, mixing, leaving)

    def _mixed(self, layer: Attention, x: Tensor) -> int:
        """Beside the queries and the result, for the last frame of x, which sees the most."""
        tokens, heads = int(x.shape[3] * x.shape[4]), self.node.heads
        seen = {"frame": 1, "causal": self.step.frames[1], "video": self.source[1]}[layer.span]
        size = self.node.width // heads
        q, keys = (
            torch.empty((1, heads, n, size), dtype=self.dtype, device="meta")
            for n in (tokens, seen * tokens)
        )
        q = q[:, :, : query_rows(q, keys, keys, tokens)]
        return int(q.nbytes) + self.rules.attention(q, keys, keys, None)

    def _projected(self, layer: Attention, x: Tensor, module: Any) -> int:
        """A projection of x, and what making it takes."""
        frames = (0, int(x.shape[2]))
        made = int(self._weight(module).shape[0]) * x[0, 0].numel() * self.dtype.itemsize
        conv = Conv(module, norm=layer.norm)
        return made + self._backend_bytes(conv, Pieces((x,), 0, frames[1]), frames)[0]

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

    def _joined(self, slices: Sequence[int], x: Tensor) -> int:
        """x put together of several slices."""
        return int(x.nbytes) if len(slices) > 1 else 0

    def layer_bytes(self) -> int:
        """Packed weights; code that oneDNN generates, for the steps at the video's beginning, in
        the middle and at its end."""
        layer = self.layer
        layers: list[Conv] = [layer] if isinstance(layer, Conv) else []
        if isinstance(layer, Attention):
            parts = (m for m in (layer.q, layer.k, layer.v) if m is not None)
            layers = [Conv(module, norm=layer.norm) for module in parts]
            layers.append(Conv(layer.out))
        found = 0
        for one in layers:
            weight = self._weight(one.module)
            frames = self._frames(kernel_size(weight)[0] + one.stride[0], int(weight.shape[1]))
            found += self._backend_bytes(one, Pieces((frames,), 0, None), (0, 2))[2]
        return found + 3 * self.rules.code_bytes


_GROUP = 2  # HY3D_NORM_GROUP
_META = torch.device("meta")
