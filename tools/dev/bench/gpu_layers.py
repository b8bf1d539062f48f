"""The convolutions of real video VAE decodes: the checkout's list, or a file of the same form."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hy3d_rocm.bench.timing import BenchError

# Recorded from the decoders on shapes alone.
SHIPPED = Path(__file__).resolve().parents[3] / "tests" / "shapes" / "video_vae_layers.json"
DEFAULT_SETS = ("hunyuan_video_33x640x608_framewise", "wan21_17x320x320")
_Ints = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One convolution. Sizes (N, C, [T,] H, W); `count`: how often a decode of `set` runs it."""

    set: str
    input: _Ints
    weight: _Ints
    stride: _Ints
    padding: _Ints
    dilation: _Ints
    groups: int
    count: int

    @property
    def ndim(self) -> int:
        return len(self.weight) - 2

    @property
    def out(self) -> _Ints:
        sides = zip(
            self.input[2:], self.weight[2:], self.stride, self.padding, self.dilation, strict=True
        )
        sizes = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides)
        return (self.input[0], self.weight[0], *sizes)

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.out) * math.prod(self.weight[1:])

    def moved_bytes(self, itemsize: int) -> int:
        """Input, weight and output, each once."""
        return itemsize * sum(map(math.prod, (self.input, self.weight, self.out)))

    @property
    def text(self) -> str:
        """'1x128x19x642x610 -> 128 k3x3x3'."""
        size, kernel = ("x".join(map(str, s)) for s in (self.input, self.weight[2:]))
        return f"{size} -> {self.weight[0]} k{kernel}"


def load_layers(path: Path | None, sets: Sequence[str], min_gflop: float) -> list[Layer]:
    """The layers of `sets` of at least `min_gflop`, each once, in the file's order.

    path: None for the checkout's own. BenchError with a sentence for a file or set that is none.
    """
    source = SHIPPED if path is None else path
    try:
        data = json.loads(source.read_text(encoding="utf-8"))
        found = [_layer(name, row) for name in sets for row in _rows(data, name, source)]
    except OSError as error:
        raise BenchError(f"{source} can't be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(
            f"{source} is no list of layers ({type(error).__name__}: {error}); each set needs"
            ' "layers", each layer input, weight, stride, padding, dilation, groups, count'
        ) from error
    kept: dict[tuple[Any, ...], Layer] = {}
    for layer in found:
        if layer.flops >= min_gflop * 1e9:
            same = (layer.input, layer.weight, layer.stride, layer.padding, layer.dilation)
            kept.setdefault((*same, layer.groups), layer)
    if not kept:
        raise BenchError(f"no layer of {', '.join(sets)} has {min_gflop:g} GFLOP")
    return list(kept.values())


def _rows(data: Mapping[str, Any], name: str, source: Path) -> list[Any]:
    if name not in data:
        raise BenchError(f"{source} has no set {name!r}; it has {', '.join(data)}")
    return list(data[name]["layers"])


def _layer(name: str, row: Mapping[str, Any]) -> Layer:
    sizes = {key: tuple(map(int, row[key])) for key in
             ("input", "weight", "stride", "padding", "dilation")}  # fmt: skip
    if len({len(sizes["input"]), len(sizes["weight"]), len(sizes["stride"]) + 2}) != 1:
        raise ValueError(f"sizes that do not fit: {row}")
    return Layer(name, groups=int(row["groups"]), count=int(row["count"]), **sizes)
