"""Every tier against float64 on random convolutions, in pieces of ordinary and of tiny size.

    python tests/bench/differential_tiers.py [--tiers gemm conv2d native cpu] [--count 2000]
        [--device cpu] [--seed 1] [--first 0]

Real data must stay within the bound proven in docs/numerics.md. Tiers whose algorithm is a vendor
library's choice (Winograd has another bound) get whole numbers instead: the nearest whole number
of each result must be the exact sum, so an error of half a unit fails. torch computes the truth in
float64 on explicitly padded input. A failure prints the case; --seed, --first and --count 1 replay
it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from hy3d_rocm.conv.errors import RETRIED, classify  # noqa: E402
from hy3d_rocm.conv.tiers import (  # noqa: E402
    Tier,
    columns_plan,
    conv2d,
    gemm,
    make_call,
    make_tier,
    native,
    spread,
    staging,
    vendor,
)  # fmt: skip

DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
UNIT = {torch.float64: 2.0**-53}  # of the sums: the others are summed in f32
FINAL = {torch.float16: (2.0**-11, 2.0**-25), torch.bfloat16: (2.0**-8, 2.0**-134)}
# What a tier's pieces are cut to, and what of it a case gets where they are to be tiny.
PIECES = ((columns_plan, "_PIECE_BYTES", 4), (columns_plan, "_COPY_BYTES", 4),
          (spread, "_PIECE_BYTES", 4), (conv2d, "_PIECE_BYTES", 16), (native, "_PIECE_BYTES", 16),
          (vendor, "_MAX_ELEMS", 1), (columns_plan, "_WEIGHT_BYTES", 1),
          (gemm, "_SUM_BYTES", 1))  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """One convolution; tuples are (T,) H, W."""

    index: int
    dtype: torch.dtype
    batch: int
    channels: tuple[int, int]  # of one group: in, out
    groups: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    modes: tuple[str, ...]
    bias: bool
    layout: str
    piece: int | None


def random_case(seed: int, index: int) -> Case:
    rng = random.Random(f"{seed}/{index}")
    ndim = rng.choice((2, 3, 3, 3))

    def some(*values: Any) -> tuple[Any, ...]:
        return tuple(rng.choice(values) for _ in range(ndim))

    kernel, dilation = some(1, 1, 2, 3, 3, 4), some(1, 1, 1, 2, 3)
    pads = tuple(zip(some(0, 0, 1, 2, 3), some(0, 0, 1, 2, 3), strict=True))
    room = some(0, 1, 2, 5, 9)
    size = tuple(
        max(1, (k - 1) * d + 1 - a - b) + extra
        for k, d, (a, b), extra in zip(kernel, dilation, pads, room, strict=True)
    )
    return Case(
        index=index, dtype=rng.choice(DTYPES), batch=rng.choice((0, 1, 1, 1, 1, 2)),
        channels=(rng.choice((1, 2, 3, 8, 16)), rng.choice((1, 2, 3, 8, 13))),
        groups=rng.choice((1, 1, 1, 2, 3)), size=size, kernel=kernel,
        stride=some(1, 1, 1, 2, 3), dilation=dilation, pads=pads,
        modes=some("zeros", "replicate"), bias=rng.random() < 0.6,
        layout=rng.choice(("plain", "plain", "last", "slice", "unbatched")),
        piece=rng.choice((None, 3000, 20000)),
    )  # fmt: skip


@contextlib.contextmanager
def pieces_of(piece: int | None) -> Iterator[None]:
    """Cuts every tier to about `piece` elements."""
    with contextlib.ExitStack() as stack:
        for module, name, factor in PIECES if piece else ():
            assert piece is not None
            stack.enter_context(mock.patch.object(module, name, piece * factor))
        for plan in (columns_plan._plan, spread._plan):
            plan.cache_clear()
            stack.callback(plan.cache_clear)
        yield


def make_tensors(case: Case, seed: int, whole: bool) -> tuple[Any, Any, Any]:
    """x, weight, bias: reals in (-1, 1), or -1, 0, 1 with at most 256 of them not 0 in a sum."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + case.index)

    def values(*shape: int) -> torch.Tensor:
        if whole:
            return torch.randint(-1, 2, shape, generator=generator).to(case.dtype)
        data = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (data * 2 - 1).to(case.dtype)

    cin, cout = case.channels
    x = values(case.batch, cin * case.groups, *case.size)
    weight = values(cout * case.groups, cin, *case.kernel)
    depth = weight[0].numel()
    if whole and depth > 200:  # sums must be exact in bfloat16
        weight *= torch.rand(weight.shape, generator=generator) < 200 / depth / 1.5
    bias = values(cout * case.groups) if case.bias else None
    if case.layout == "last":
        kept = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        x = x.contiguous(memory_format=kept)
    if case.layout == "slice":
        wide = torch.full([n + 2 for n in x.shape], math.nan, dtype=x.dtype)
        view = wide[tuple(slice(1, -1) for _ in x.shape)]
        x = view.copy_(x)
    if case.layout == "unbatched" and case.batch == 1:
        x = x[0]
    return x, weight, bias


def truth(case: Case, x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
    """In float64; `x` batched."""
    x, weight = x.double(), weight.double()
    ndim = weight.dim() - 2
    for axis, pair in enumerate(case.pads):
        pad = [0] * (2 * ndim)
        pad[2 * (ndim - 1 - axis) : 2 * (ndim - axis)] = pair
        x = F.pad(x, pad, mode="replicate" if case.modes[axis] == "replicate" else "constant")
    conv: Any = F.conv3d if ndim == 3 else F.conv2d
    addend = None if bias is None else bias.double()
    with torch.backends.mkldnn.flags(enabled=False):
        return conv(x, weight, addend, case.stride, 0, case.dilation, case.groups)


def fraction(case: Case, got: torch.Tensor, tensors: tuple[Any, Any, Any], whole: bool) -> float:
    """The largest error over what is allowed; above 1 (or infinite) it is wrong."""
    x, weight, bias = tensors
    exact = truth(case, x, weight, bias)
    error = (got - exact).abs()
    if whole:
        return float((error * 2).nan_to_num(nan=math.inf).max())
    sizes = truth(case, x.abs(), weight.abs(), None if bias is None else bias.abs())
    n = weight[0].numel() + 1
    u = UNIT.get(case.dtype, 2.0**-24)
    bound = (n * u / (1 - n * u) + n * 2.0**-53 / (1 - n * 2.0**-53)) * sizes
    if case.dtype in FINAL:
        unit, tiny = FINAL[case.dtype]
        bound = bound + unit * (exact.abs() + bound) + tiny
    ratio = (error / bound).masked_fill((error == 0) & (bound == 0), 0.0)
    return float(ratio.nan_to_num(nan=math.inf).max())


def is_whole(tier: str, device: str) -> bool:
    """Whether the tier gets whole numbers instead of reals."""
    return device != "cpu" and tier in ("vendor", "conv2d", "native")


def staged(call: Any, cpu: Any) -> torch.Tensor:
    """The cpu tier's way for tensors of other devices, on host tensors."""
    from hy3d_rocm.conv.tiers.base import empty_result
    from hy3d_rocm.conv.tiers.windows import lifted, lowered

    x, weight, bias = call.operands()
    out = empty_result(call.spec)
    steps = staging.steps_within(call.spec, 40_000) or (1, 1, 1)

    def compute(window: torch.Tensor, result: torch.Tensor) -> None:
        cpu._compute(call.spec, lifted(weight), bias, window, result, padded=False)

    staging.run(call.spec, lifted(x), lifted(out), steps, staging.PlainLanes(), compute)
    return lowered(out, call.spec)


def check(case: Case, seed: int, name: str, device: str) -> tuple[float, str | None]:
    """(fraction of what is allowed, the tier's refusal)."""
    tier: Tier = make_tier("cpu" if name == "staged" else name)
    whole = is_whole(name, device)
    x, weight, bias = make_tensors(case, seed, whole)
    moved = [None if t is None else t.to(device) for t in (x, weight, bias)]
    with pieces_of(case.piece), torch.inference_mode():
        call = make_call(*moved, case.stride, case.pads, case.dilation, case.groups,
                         pad_modes=case.modes)  # fmt: skip
        reason = tier.refusal(call, call.limits)
        if reason is not None:
            return 0.0, reason
        use_staging = name == "staged" and call.spec.x_size[0] > 0
        try:
            got = staged(call, tier) if use_staging else tier.run(call)
        except RuntimeError as error:
            found = classify(error)  # a library that says it can't is not wrong
            if device == "cpu" or found is None or found.kind not in RETRIED:
                raise
            return 0.0, f"it failed: {error}"
    fits = got.shape == call.spec.result_size and got.dtype is case.dtype
    if not fits or got.device != call.spec.device:
        return math.inf, None
    batched = got if call.spec.batched else got[None]
    if not batched.is_contiguous(memory_format=call.spec.memory_format):
        return math.inf, None
    if case.batch == 0:
        return 0.0, None
    x = x if call.spec.batched else x[None]
    return fraction(case, batched.double().cpu(), (x, weight, bias), whole), None


def run(
    name: str, device: str, seed: int, first: int, count: int, dtypes: tuple[Any, ...] = DTYPES
) -> dict[str, Any]:
    """The cases of those dtypes; index, seed and tier replay one."""
    start = time.perf_counter()
    result: dict[str, Any] = {"ran": 0, "refused": {}, "worst": 0.0, "failed": []}
    for index in range(first, first + count):
        case = random_case(seed, index)
        if case.dtype not in dtypes:
            continue
        worst, reason = check(case, seed, name, device)
        if reason is not None:
            result["refused"][reason[:50]] = result["refused"].get(reason[:50], 0) + 1
            continue
        result["ran"] += 1
        result["worst"] = max(result["worst"], worst)
        if not worst <= 1:
            result["failed"].append(f"{worst:.3g} of the bound: {case}")
    result["seconds"] = round(time.perf_counter() - start, 1)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiers", nargs="+", default=["gemm", "conv2d", "native", "cpu", "staged"])
    parser.add_argument("--count", type=int, default=2000, help="cases a tier")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bad = 0
    # TF32 is another precision, with another bound.
    with torch.backends.cudnn.flags(enabled=False, allow_tf32=False):
        for name in options.tiers:
            result = run(name, options.device, options.seed, options.first, options.count)
            print(
                f"{name} on {options.device}: {result['ran']} cases, worst {result['worst']:.3f} of"
                f" what is allowed, refused {result['refused']}, {result['seconds']} s"
            )
            for line in result["failed"][:5]:
                print("  FAILED", f"(--seed {options.seed})", line)
            bad += len(result["failed"])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
