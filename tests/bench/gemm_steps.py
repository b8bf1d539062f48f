"""What `gemm` does for the layers of the video VAEs: operators, products, bytes; no GPU needed.

    python tests/bench/gemm_steps.py [--set wan21_17x320x320] [--dtype bf16] [--layout plain]
        [--least 1.0]

Prints the plan of each layer, PyTorch's calls from Python (views included), the kernels they would
start, and the bytes that those read and write. Tensors have sizes and no data (`meta`), products of
half types into f32 are taken for granted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "support")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import torch  # noqa: E402
from tier_calls import make_call  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from hy3d_rocm.conv.call import ConvCall, ConvSpec  # noqa: E402
from hy3d_rocm.conv.tiers import GemmTier, columns, gemm, im2col, products  # noqa: E402

SHAPES = ROOT / "tests" / "shapes" / "video_vae_layers.json"
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
# What starts no kernel: views, and memory that is only reserved.
FREE = {"as_strided", "view", "unbind", "empty", "empty_strided", "detach", "alias", "expand",
        "unsqueeze", "squeeze", "permute", "transpose", "slice", "select", "_unsafe_view",
        "narrow", "_reshape_alias", "t"}  # fmt: skip


@dataclasses.dataclass
class Counts(TorchDispatchMode):
    """Operators that reach PyTorch's dispatcher, and the bytes of what they read and write."""

    names: Counter[str] = dataclasses.field(default_factory=Counter)
    moved: Counter[str] = dataclasses.field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.names[name] += 1
        if name not in FREE:
            # Of in-place operators the result is an argument, too, as it is for out=.
            found = {id(t): t for t in (*args, *(kwargs or {}).values(), result)
                     if isinstance(t, torch.Tensor)}  # fmt: skip
            self.moved[name] += sum(_bytes(t) for t in found.values())
        return result

    @property
    def kernels(self) -> Counter[str]:
        return Counter({k: n for k, n in self.names.items() if k not in FREE})


def _bytes(tensor: torch.Tensor) -> int:
    """Elements with a stride of their own, overlaps counted once for each reader."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count * tensor.element_size()


def wide_product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """bmm of half types into f32 on `meta`, in one operator."""
    if out is None:
        out = torch.empty((a.shape[0], a.shape[1], b.shape[2]), device=a.device)
    return torch.ops.aten.bmm.dtype_out(a, b, torch.float32, out=out)


def add_wide_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    torch.ops.aten.bmm.dtype_out(a, b, torch.float32, out=total)


def specs(name: str, dtype: torch.dtype, layout: str, least: float) -> list[ConvSpec]:
    """The layers of a set of at least so many GFLOP, on `meta`."""
    one, found = torch.empty(1), []
    for layer in json.loads(SHAPES.read_text(encoding="utf-8"))[name]["layers"]:
        x, weight = one.expand(layer["input"]), one.expand(layer["weight"])
        bias = one.expand(layer["weight"][:1])
        spec = make_call(x, weight, bias, layer["stride"], layer["padding"]).spec
        if spec.flops >= least * 1e9:
            found.append(dataclasses.replace(
                spec, dtype=dtype, device=torch.device("meta"), channels_last=layout == "last"
            ))  # fmt: skip
    return found


def measured(spec: ConvSpec) -> tuple[Counts, ConvCall]:
    """What a second call of the layer does (the first one makes the plan)."""
    made = {"dtype": spec.dtype, "device": "meta"}
    x = torch.empty(spec.x_size, **made).to(memory_format=spec.memory_format)
    weight, bias = torch.empty(spec.weight_size, **made), torch.empty(spec.weight_size[0], **made)
    call = ConvCall(spec, x, weight, bias, run_current=lambda: x)
    GemmTier().run(call)
    with Counts() as counts:
        GemmTier().run(call)
    return counts, call


def plan_text(plan: columns.Plan | im2col.Plan) -> str:
    if isinstance(plan, im2col.Plan) and plan.is_view:
        return f"input as it lies, pieces {'x'.join(map(str, plan.steps))}"
    if isinstance(plan, im2col.Plan):
        return f"PyTorch's im2col, {plan.samples} products"
    pieces = f"{plan.phases} phases, pieces {'x'.join(map(str, plan.inner))}"
    taps = f"{plan.copied // plan.channels} taps copied, {plan.turns} turns"
    return f"{taps}, {pieces}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--set", default="wan21_17x320x320")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--layout", default="plain", choices=("plain", "last"))
    parser.add_argument("--least", type=float, default=1.0, help="GFLOP of a layer")
    given = parser.parse_args()
    print("operators  kernels  MB moved, MB workspace, layer and plan")
    with (
        mock.patch.object(products, "can_widen", lambda device, dtype: products.is_half(dtype)),
        mock.patch.object(products, "_wide_product", wide_product),
        mock.patch.object(products, "_add_wide_product", add_wide_product),
    ):
        for spec in specs(given.set, DTYPES[given.dtype], given.layout, given.least):
            counts, _ = measured(spec)
            plan = gemm.plan(spec)
            text = "-" if plan is None else plan_text(plan)
            moved = sum(counts.moved.values()) / 1e6
            space = GemmTier().workspace_bytes(spec) / 1e6
            size = "x".join(map(str, spec.x_size)) + f" -> {spec.weight_size[0]} "
            size += "x".join(map(str, spec.kernel))
            kernels = " ".join(f"{n} {k}" for k, n in counts.kernels.items())
            print(f"{counts.names.total():5} {counts.kernels.total():5} {moved:9.1f} {space:6.1f}"
                  f"  {size}: {text} ({kernels})")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
