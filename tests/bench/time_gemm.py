"""Every plan by which `gemm` could compute a layer, timed on a GPU beside PyTorch's own call.

    python tests/bench/time_gemm.py [--set wan21_17x320x320] [--layout plain] [--dtype bf16]
        [--layer 1x384x] [--repeats 20] [--piece-mb 96] [--sum-mb 40]

For each layer: microseconds of PyTorch's call, then of each plan with its ratio. `*` marks the one
that is chosen. Medians; calls of all plans alternate.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "bench"), str(ROOT / "tests" / "support")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from gemm_plans import plans_of  # noqa: E402
from gemm_steps import DTYPES, SHAPES, plan_text  # noqa: E402
from tier_calls import make_call  # noqa: E402

from hy3d_rocm.conv.call import ConvCall  # noqa: E402
from hy3d_rocm.conv.tiers import GemmTier, columns, gemm, im2col  # noqa: E402


def calls(name: str, dtype: torch.dtype, layout: str, only: str) -> Iterator[ConvCall]:
    """The layers of a set, with random data."""
    for layer in json.loads(SHAPES.read_text(encoding="utf-8"))[name]["layers"]:
        if not "x".join(map(str, layer["input"])).startswith(only):
            continue
        made = {"dtype": dtype, "device": "cuda"}
        x, weight = torch.randn(layer["input"], **made), torch.randn(layer["weight"], **made)
        if layout == "last":
            kept = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
            x, weight = x.to(memory_format=kept), weight.to(memory_format=kept)
        bias = torch.randn(layer["weight"][:1], **made)
        yield make_call(x, weight, bias, layer["stride"], layer["padding"])


def choices(call: ConvCall) -> dict[str, Callable[[], object]]:
    """PyTorch's call and each of ours."""
    conv = F.conv3d if call.spec.ndim == 3 else F.conv2d
    options = {"stride": call.spec.stride, "padding": call.spec.pad_before}
    found: dict[str, Callable[[], object]] = {
        "PyTorch": lambda: conv(call.x, call.weight, call.bias, **options)
    }
    for index, plan in enumerate(plans_of(call.spec)):
        one = dataclasses.replace(call, spec=dataclasses.replace(call.spec))
        found[plan_text(plan) + ("" if index else " *")] = functools.partial(run_plan, plan, one)
    return found


def run_plan(plan: columns.Plan | im2col.Plan, call: ConvCall) -> torch.Tensor:
    with mock.patch.object(gemm, "plan", return_value=plan):
        return GemmTier().run(call)


def microseconds(functions: list[Callable[[], object]], repeats: int) -> list[float]:
    """Medians of the time from an idle GPU until a call is done, the calls in turns."""
    times: list[list[float]] = [[] for _ in functions]
    for index in range(repeats + 2):
        for function, taken in zip(functions, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            function()
            end.record()
            torch.cuda.synchronize()
            if index > 1:
                taken.append(start.elapsed_time(end) * 1e3)
    return [statistics.median(taken) for taken in times]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--set", default="wan21_17x320x320")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--layout", default="plain", choices=("plain", "last"))
    parser.add_argument("--layer", default="", help="how the input's size begins")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--piece-mb", type=int, default=columns._PIECE_BYTES >> 20)
    parser.add_argument("--sum-mb", type=int, default=im2col._SUM_BYTES >> 20)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack, torch.inference_mode():
        for module, name, size in ((columns, "_PIECE_BYTES", given.piece_mb),
                                   (im2col, "_SUM_BYTES", given.sum_mb)):  # fmt: skip
            stack.enter_context(mock.patch.object(module, name, size << 20))
        for call in calls(given.set, DTYPES[given.dtype], given.layout, given.layer):
            found = choices(call)
            times = microseconds(list(found.values()), given.repeats)
            print("x".join(map(str, call.spec.x_size)), "->", call.spec.weight_size)
            for name, taken in zip(found, times, strict=True):
                print(f"  {taken:9.0f} us {taken / times[0]:6.2f}x  {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
