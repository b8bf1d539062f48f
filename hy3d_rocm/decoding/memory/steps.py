"""What calls of a decode's steps take inside: what the core can't know, it asks.

It has the rules of steps (csrc/schedule/step_memory.c), and is given here how each layer is
computed. A convolution is asked of the backend that computes it; a function of frames is run on
shapes. Nothing is computed, and nothing larger than a few numbers is made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.utils._python_dispatch import _disable_current_modes

from hy3d_rocm.conv import attention
from hy3d_rocm.conv.triton.work import FEWEST_SHUFFLED
from hy3d_rocm.decoding.backends.native import NativeBackend
from hy3d_rocm.decoding.backends.statistics import block_elements
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend
from hy3d_rocm.decoding.graph import ATTENTION, CONV, Graph
from hy3d_rocm.decoding.layers import Attention, Conv, Local, Norm, Pieces, Range
from hy3d_rocm.decoding.memory.dry_run import Live, standing_for
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace
from hy3d_rocm.decoding.run import own_memory

Size = tuple[int, int, int, int]  # channels, frames, rows, columns

_MOST_SHAPES = 1 << 16  # HY3D_SCHEDULE_MAX_SHAPES
_OUT = 2  # HY3D_PART_OUT
# hy3d_dtype
_DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}


class StepWorkspace:
    """The inside function of a request. backend: what computes on the device; it is asked, never
    run. rules: what operators take inside there. dtype: of all values. host: backend and rules of
    the host beside a device, where candidates of it are allowed. into: results of convolutions may
    be made in memory that has rows beside them.
    """

    def __init__(
        self, graph: Graph, backend: TorchBackend, rules: OperatorWorkspace, dtype: torch.dtype,
        host: tuple[TorchBackend, OperatorWorkspace] | None = None, into: bool = False,
    ) -> None:  # fmt: skip
        self.take(graph, [(backend, rules), *([host] if host else [])])
        self._dtype, self._into = dtype, {"into": True} if into else {}
        self._first = next((  # of those that torch computes as matrix products
            n for n, node in enumerate(graph.nodes)
            if node.op == ATTENTION or (node.op == CONV and node.kernel == (1, 1, 1))
        ), -1)  # fmt: skip
        kinds: dict[Any, int] = {}  # equal for layers that differ in their weights only
        converted = [self._converted(n) for n in range(len(graph.nodes))]
        self._alike = tuple(
            kinds.setdefault((*self._kind(n), *bytes_), n) for n, bytes_ in enumerate(converted)
        )
        layers = {n: self._layer(n, converted[n]) for n in kinds.values()}
        self._layers = tuple(zip(*(layers[n] for n in self._alike), strict=True))  # of each place
        self._known: dict[tuple[Any, ...], tuple[int, int, int, int]] = {}
        self._shapes: dict[frozenset[Any], int] = {}  # their numbers

    def take(self, graph: Graph, places: list[tuple[TorchBackend, OperatorWorkspace]]) -> None:
        """The same graph over other layers, and places that are like those before; none where
        nothing is to be asked: a backend holds the modules whose weights it was asked about."""
        self.graph, self._places = graph, places

    @property
    def request(self) -> dict[str, Any]:
        """What the core is given, by the threads that torch has now: fields of a request."""
        dtype, places = _DTYPES[self._dtype], []
        for (_, rules), layers in zip(self._places, self._layers, strict=True):
            threads = torch.get_num_threads() if rules.device.type == "cpu" else 0
            block = block_elements(rules.device)
            places.append((dtype, threads, FEWEST_SHUFFLED, block, attention.SCORE_BYTES, layers))
        return {"inside": self, "alike": self._alike, "places": tuple(places)}

    def __call__(
        self, node: int, part: int, on_host: bool, source: Size, row_padding: Range,
        is_made: bool, reads: Range, makes: Range,
    ) -> tuple[int, int, int, int]:  # fmt: skip
        """Of a hy3d_call: bytes inside, whether it is in place, bytes of generated code, and the
        number of the shape that this is for. What was given is given again when another schedule of
        the graph asks."""
        row_padding = max(row_padding), min(row_padding)  # it takes the same the other way round
        question = node, part, on_host, source, row_padding, is_made, reads, makes
        found = self._known.get(question)
        if found is None:
            backend, rules = self._places[-1 if on_host else 0]
            channels, total, rows, columns = source
            is_last = is_made and backend.is_channels_last and channels >= 8
            form = torch.channels_last_3d if is_last else torch.contiguous_format
            size = 1, channels, reads[1] - reads[0], rows, columns
            x = torch.empty(size, dtype=self._dtype, device="meta", memory_format=form)
            layer: Any = self.graph.layers[node]
            if isinstance(layer, Attention):
                layer = Conv(layer.out) if part == _OUT else Conv(layer.q, norm=layer.norm)
            elif isinstance(layer, Conv):
                layer = layer.with_row_padding(row_padding)
            with standing_for(rules):
                rules.forget()
                if isinstance(layer, Local):
                    inside, in_place = _run_on_shapes(layer, x, reads[0], rules), False
                else:
                    pieces = Pieces((x,), reads[0], total)
                    inside, in_place = backend.workspace(layer, pieces, makes, **self._into)
            shapes = frozenset(rules.shapes)
            number = self._shapes.setdefault(shapes, min(len(self._shapes), _MOST_SHAPES - 1))
            found = self._known[question] = inside, int(in_place), rules.code_bytes, number
        return found

    def _kind(self, number: int) -> tuple[Any, ...]:
        """What a node's answers depend on, but for how its sources are laid out."""
        node, layer = self.graph.nodes[number], self.graph.layers[number]
        fields = node._replace(source=0, other=min(node.other, 0))
        return fields, number == self._first, *map(_likeness, _parts(layer))

    def _converted(self, number: int) -> list[int]:
        """At each place, bytes of the node's parameters that are not as it computes with them."""
        parts = _parts(self.graph.layers[number])
        modules = [part.module if isinstance(part, Norm) else part for part in parts]
        named = (getattr(m, name, None) for m in modules for name in ("weight", "bias", "gamma"))
        own = [p for p in named if isinstance(p, torch.Tensor)]
        return [
            sum(
                p.numel() * self._dtype.itemsize for p in own
                if p.dtype != self._dtype or p.device.type not in (rules.device.type, "meta")
            )
            for _, rules in self._places
        ]  # fmt: skip

    def _layer(self, number: int, converted: list[int]) -> list[tuple[Any, ...]]:
        """hy3d_layer at each place."""
        node, layer, found = self.graph.nodes[number], self.graph.layers[number], []
        for (backend, rules), own in zip(self._places, converted, strict=True):
            flags, convolutions = (0, 0, 0), [layer] if isinstance(layer, Conv) else []
            if isinstance(layer, Attention):
                head = self._dtype, node.width // node.heads
                composed = not backend.attends(*head) and rules.composes(*head)
                flags = int(layer.k is None), int(composed), int(layer.rescale != 1)
                parts = (m for m in (layer.q, layer.k, layer.v) if m is not None)
                convolutions = [*(Conv(m, norm=layer.norm) for m in parts), Conv(layer.out)]
            with standing_for(rules):
                kept = sum(
                    backend.kept_bytes(one, number == self._first and one is convolutions[0])
                    for one in convolutions
                )
            native = bool(convolutions) and all(
                isinstance(backend, NativeBackend) and backend.is_native(c) for c in convolutions
            )
            modes = layer.modes[1:] if isinstance(layer, Conv) else ("zeros", "zeros")
            pads = int(modes[0] == "replicate"), int(modes[1] == "replicate")
            packed = kept if backend.packs_weights else 0
            found.append((int(native), pads, *flags, own + kept, packed))
        return found


def _parts(layer: Any) -> tuple[Any, ...]:
    return () if layer is None else tuple(vars(layer).values())


def _likeness(part: Any) -> Any:
    """Of what a layer is made of; not the weights themselves."""
    if isinstance(part, Norm):
        return part.kind, part.weight, part.bias, part.scale is None, part.shift is None
    weight = getattr(part, "weight", None)
    return part if weight is None else (tuple(weight.shape), getattr(part, "bias", None) is None)


def _run_on_shapes(layer: Local, x: Tensor, first: int, rules: OperatorWorkspace) -> int:
    """What a function of frames takes beside x and its result."""
    live = Live([x], rules)
    # What the caller watches operators with is not to see these.
    with torch.no_grad(), DisableTorchFunction(), _disable_current_modes(), live:
        made = own_memory(layer.run(x, first), x)
    known = int(made.nbytes) + rules.code_bytes  # the code stays, for its shape
    return max(int(live.device_peak) - known, 0)
