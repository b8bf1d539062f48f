"""The convolutions of two builds of the C core, side by side in one process: speed and bits.

    python tests/bench/compare_cores.py OTHER/hy3d_rocm/_core.abi3.so [--dtype float32]

OTHER is another checkout that was built (`make env` there, or `python setup.py build_ext
--inplace`). Both take the same tensors on one thread, in turn, each on weights that it has prepared
itself; a ratio is the median of a layer's rounds, above 1 where this checkout is faster. By class
of layer the geometric mean and the lowest are printed, and of how many layers the bytes differ.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hy3d_rocm import _core  # noqa: E402
from tools.dev.bench.cpu_layers import CPU_SETS, DTYPES, Choice, choose_layers, make_operands  # noqa: E402
from tools.dev.bench.cpu_timing import CLOCKS, timed_rounds  # noqa: E402
from tools.dev.bench.gpu_layers import Layer  # noqa: E402

NAMES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}


def loaded(path: Path) -> ModuleType:
    """Another build's extension module, beside this one's."""
    spec = importlib.util.spec_from_file_location("other._core", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def three(values: tuple[int, ...], filling: int) -> tuple[int, int, int]:
    """(T, H, W) of a 3D or a 2D layer's numbers."""
    found: Any = (filling,) * (3 - len(values)) + tuple(values)
    return found


def call_of(core: Any, layer: Layer, dtype: str, accuracy: str, out: Any, tensors: Any) -> Any:
    """The convolution by this core, its weights prepared where it has a layout for them."""
    x, weight, bias = tensors
    stride, dilation, padding = (
        three(v, n) for v, n in ((layer.stride, 1), (layer.dilation, 1), (layer.padding, 0))
    )
    shape = stride, dilation, padding, padding, ("zeros",) * 3, layer.groups
    if dtype == "float64":
        prepared = None
    else:
        size, kernel = tuple(x.shape[2:]), tuple(weight.shape[2:])
        form, _, _ = core.conv3d_format(
            size, x.shape[1], weight.shape[0], kernel, *shape, NAMES[dtype], accuracy
        )
        prepared = core.conv3d_prepare(weight, form, 1) if form else None
    return partial(
        core.conv3d, x, weight, bias, out, *shape, 1, accuracy=accuracy, prepared=prepared
    )


def class_of(layer: Layer) -> str:
    """The kernel, and the strides where there are any."""
    kernel = "x".join(map(str, layer.weight[2:]))
    narrow = min(layer.weight[0], layer.input[1]) < 16
    strided = any(s != 1 for s in layer.stride)
    return kernel + ", stride" * strided + ", under 16 channels" * narrow


def in_three(tensor: torch.Tensor) -> torch.Tensor:
    """(N, C, T, H, W) of (N, C, H, W)."""
    return tensor if tensor.ndim == 5 else tensor.unsqueeze(2)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--dtype", choices=NAMES, default="float32")
    parser.add_argument("--accuracy", choices=("fast", "exact"), default="fast")
    parser.add_argument("--entries", nargs="+", default=CPU_SETS)
    parser.add_argument("--max-gflop", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", action="store_true", help="a line a layer, too")
    asked = parser.parse_args()
    DTYPES["float64"] = torch.float64
    cores = {"other": loaded(asked.other.resolve()), "this": _core}
    ratios: dict[str, list[float]] = defaultdict(list)
    differing = []
    choice = Choice(entries=asked.entries, max_gflop=asked.max_gflop)
    for layer in choose_layers(choice):
        made = make_operands(layer, asked.dtype)
        tensors = [in_three(made.x), in_three(made.weight), made.bias]
        size = layer.out if layer.ndim == 3 else (*layer.out[:2], 1, *layer.out[2:])
        outs = {name: torch.empty(size, dtype=made.x.dtype) for name in cores}
        calls: dict[str, Callable[[], Any]] = {
            name: call_of(core, layer, asked.dtype, asked.accuracy, outs[name], tensors)
            for name, core in cores.items()
        }
        strategies = {name: call()[0] for name, call in calls.items()}
        both = [out.view(torch.uint8).numpy() for out in outs.values()]
        if not np.array_equal(*both):
            differing.append(layer.text)
        times, _ = timed_rounds(calls, asked.rounds, CLOCKS["cpu"])
        ratio = statistics.median(a / b for a, b in zip(times["other"], times["this"], strict=True))
        ratios[class_of(layer)].append(ratio)
        if asked.layers:
            names = " -> ".join(dict.fromkeys(strategies.values()))
            rate = layer.flops / statistics.median(times["this"]) / 1e9
            print(f"{ratio:6.3f}  {rate:6.1f} GFLOP/s  {layer.text}  {names}", flush=True)
    for name, found in sorted(ratios.items()):
        mean = math.exp(statistics.fmean(map(math.log, found)))
        print(f"{mean:6.3f} (lowest {min(found):.3f})  {len(found):3} layers of {name}")
    print(f"other bytes in {len(differing)} layers of {sum(map(len, ratios.values()))}", *differing,
          sep="\n  ")  # fmt: skip


if __name__ == "__main__":
    main()
