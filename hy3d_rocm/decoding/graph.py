"""A VAE's decoder or encoder as a graph of integers, and what carries its nodes out.

`record` runs a family's function once over an engine that computes nothing: each call becomes a
node of include/hy3d/graph.h, which the C core makes a program of (schedule.h), and beside it stands
the Conv, Attention or Local that the interpreter (run.py) carries its steps out with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import torch

from hy3d_rocm.decoding.geometry import kernel_size, out_frames, own_size
from hy3d_rocm.decoding.layers import Attention, Conv, Local, Norm, StrangeModuleError, Triple

# hy3d_op
INPUT, CONV, ATTENTION, MAP, ADD, OPAQUE, OUTPUT = range(7)
# hy3d_span
SPANS = ("frame", "causal", "video")
# hy3d_norm
_NO_NORM, _POSITION, GROUP, FRAME = range(4)

_ONES: Triple = (1, 1, 1)
_NONE: Triple = (0, 0, 0)
# The picture that a family is recorded with, in rows and columns of the latent; in frames the
# fewest of which the first and a later one differ, and that every encoder takes.
_ROWS, _LATENTS = 8, 3
_Size = tuple[int, int, int, int]
_Layer = Conv | Attention | Local | None


class Node(NamedTuple):
    """A hy3d_node; the fields stand in its order, and mean what graph.h says."""

    op: int
    source: int = -1
    other: int = -1
    norm: int = _NO_NORM
    channels: int = 0
    kernel: Triple = _NONE
    stride: Triple = _NONE
    dilation: Triple = _NONE
    up: Triple = _NONE
    before: Triple = _NONE
    after: Triple = _NONE
    shuffle: Triple = _NONE
    groups: int = 0
    keep_first: int = 0
    skip_first: int = 0
    reread: int = 0
    shuffle_first: int = 0
    drop: int = 0
    span: int = 0
    heads: int = 0
    width: int = 0
    frames_first: int = 0
    frames_rest: int = 0
    frames_per: int = 0
    space_up: tuple[int, int] = (0, 0)
    space_down: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class Graph:
    """layers: for each node what carries it out, None for INPUT, ADD and OUTPUT. The nodes of a VAE
    are always the same; the layers are those of one decode (LTX's norms have its timestep). made:
    (C, T, H, W) of the recorded picture's output."""

    nodes: tuple[Node, ...]
    layers: tuple[_Layer, ...]
    made: _Size = (0, 0, 0, 0)


class Value(NamedTuple):
    """The recorder's handle: what a node makes, of the recorded picture."""

    node: int
    channels: int
    frames: int
    rows: int
    columns: int

    @property
    def size(self) -> _Size:
        return self.channels, self.frames, self.rows, self.columns


def record(family: Any, encode: bool = False, sizes_only: bool = False) -> Graph:
    """The decode(), or the encode(), of a family (families/base.py) as a graph, in 1 to 5 ms: it is
    made anew for each decode, since a timestep is in its layers. Of a VAE that was examined the
    nodes may be known: then no function of frames is run. sizes_only: as graph_of() does.
    TypeError or ValueError (sentences) as the family's function raises them."""
    time, space = family.factor if encode else (1, 1)
    channels = family.out_channels if encode else family.latent_channels
    frames = 1 if family.is_image else 1 + (_LATENTS - 1) * time
    size = (channels, frames, _ROWS * space, _ROWS * space)
    seen = getattr(family, "seen", None)
    known = () if seen is None else seen.nodes.get(encode, ())
    return graph_of(family.encode if encode else family.decode, size, sizes_only, known)


def graph_of(
    function: Callable[[Any, Value], Value], size: tuple[int, ...], sizes_only: bool = False,
    known: Sequence[Node] = (),
) -> Graph:  # fmt: skip
    """A function over an engine as a graph, recorded with an input of `size` (C, T, H, W).
    sizes_only: nothing is computed with its layers. known: its nodes. StrangeModuleError where
    layers do not fit."""
    recorder = Recorder(sizes_only, known)
    start = recorder.add_node(Node(INPUT, channels=size[0]), None, size)
    result = function(recorder, start)
    recorder.add_node(Node(OUTPUT, result.node, channels=result.channels), None, result.size)
    return Graph(tuple(recorder.nodes), tuple(recorder.layers), result.size)


class Recorder:
    """Engine of layers.py that computes nothing; handles are Values."""

    def __init__(self, sizes_only: bool = False, known: Sequence[Node] = ()) -> None:
        self.sizes_only, self._known = sizes_only, known
        self.nodes: list[Node] = []
        self.layers: list[_Layer] = []

    def add_node(self, node: Node, layer: _Layer, size: tuple[int, ...]) -> Value:
        """The value of a new node, (C, T, H, W)."""
        self.nodes.append(node)
        self.layers.append(layer)
        return Value(len(self.nodes) - 1, *size)

    def conv(self, x: Value, layer: Conv, *, add: Value | None = None) -> Value:
        weight, shuffle = layer.module.weight, layer.shuffle
        if weight.shape[1] != x.channels:
            raise StrangeModuleError(
                f"a convolution takes {int(weight.shape[1])} channels where {x.channels} come"
            )
        kernel = kernel_size(weight)
        factor = _ONES if shuffle is None else shuffle.factor
        rows, columns = own_size(layer, (x.rows, x.columns), kernel)
        size = (
            int(weight.shape[0]) // math.prod(factor), out_frames(layer, x.frames, kernel[0]),
            rows * factor[1], columns * factor[2],
        )  # fmt: skip
        if add is not None and add.size != size:
            raise StrangeModuleError(f"a sum has sides of {(1, *size)} and {(1, *add.size)}")
        node = Node(
            CONV, x.node, -1 if add is None else add.node, _norm_of(layer.norm), size[0],
            kernel=kernel, stride=layer.stride, dilation=_ONES, up=layer.up, before=layer.before,
            after=layer.after, shuffle=factor, groups=1, keep_first=int(layer.keep_first),
            skip_first=layer.skip_first, reread=layer.reread,
            shuffle_first=shuffle.first[0] if shuffle is not None and shuffle.first else 0,
            drop=0 if shuffle is None else shuffle.drop,
        )  # fmt: skip
        return self.add_node(node, layer, size)

    def attention(self, x: Value, layer: Attention) -> Value:
        if layer.span not in SPANS:
            known = ", ".join(SPANS)
            raise ValueError(f"the span {layer.span!r} is not known; known are {known}")
        width = int(layer.q.weight.shape[0]) // (3 if layer.k is None else 1)
        node = Node(
            ATTENTION, x.node, -1, _norm_of(layer.norm), x.channels,
            span=SPANS.index(layer.span), heads=layer.heads, width=width,
        )  # fmt: skip
        return self.add_node(node, layer, x.size)

    def local(self, x: Value, layer: Local) -> Value:
        at = len(self.nodes)
        is_known = at < len(self._known) and self._known[at][:2] == (MAP, x.node)
        node = self._known[at] if is_known else self._map_of(x, layer)
        rows, columns = (
            n * up // down
            for n, up, down in zip(x.size[2:], node.space_up, node.space_down, strict=True)
        )
        return self.add_node(node, layer, (node.channels, layer.frames_of(x.frames), rows, columns))

    @staticmethod
    def _map_of(x: Value, layer: Local) -> Node:
        """Found by running it on shapes."""
        made = layer.run(torch.empty((1, *x.size), device="meta"), 0)
        _, channels, frames, rows, columns = (int(n) for n in made.shape)
        if frames != layer.frames_of(x.frames):
            raise ValueError(
                f"a function of frames makes {frames} of {x.frames}, not the "
                f"{layer.frames_of(x.frames)} it had said"
            )
        first = layer.frames_of(1)
        ratios = Fraction(rows, x.rows), Fraction(columns, x.columns)
        return Node(
            MAP, x.node, channels=channels, frames_first=first,
            frames_rest=layer.frames_of(2) - first, frames_per=1,
            space_up=(ratios[0].numerator, ratios[1].numerator),
            space_down=(ratios[0].denominator, ratios[1].denominator),
        )  # fmt: skip

    def add(self, x: Value, y: Value) -> Value:
        if x.size != y.size:
            raise StrangeModuleError(f"a sum has sides of {(1, *x.size)} and {(1, *y.size)}")
        return self.add_node(Node(ADD, x.node, y.node, channels=x.channels), None, x.size)


def _norm_of(norm: Norm | None) -> int:
    if norm is None:
        return _NO_NORM
    return {"group": GROUP, "frame": FRAME}.get(norm.kind, _POSITION)
