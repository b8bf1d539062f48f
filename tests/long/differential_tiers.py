"""Every tier against float64 on random convolutions, in pieces of ordinary and of tiny size.

    python tests/long/differential_tiers.py [--tiers gemm conv2d native cpu] [--count 2000]
        [--device cpu] [--seed 1] [--first 0] [--workers 1]

Real data must stay within the bound proven in docs/numerics.md. Tiers whose algorithm is a vendor
library's choice (Winograd has another bound) get whole numbers instead: the nearest whole number
of each result must be the exact sum, so an error of half a unit fails. torch computes the truth in
float64 on explicitly padded input. A failure prints the case; --seed, --first and --count 1 replay
it. `triton`, on a GPU only, has cases of its own: sizes, padding, strides and layouts are random,
but what a kernel is compiled for comes from a list, since compiling takes a second.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "long"), str(ROOT / "tests" / "support")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from gemm_plans import plans_of  # noqa: E402
from tier_calls import make_call  # noqa: E402
from tier_cases import DTYPES, Case, case_of, make_tensors, moved  # noqa: E402

from hy3d_rocm.conv.call import ConvSpec  # noqa: E402
from hy3d_rocm.conv.errors import RETRIED, classify  # noqa: E402
from hy3d_rocm.conv.tiers import (  # noqa: E402
    Tier,
    columns,
    conv2d,
    cpu,
    gemm,
    im2col,
    make_tier,
    native,
    vendor,
)
from hy3d_rocm.conv.triton import launch as triton_launch  # noqa: E402

UNIT = {torch.float64: 2.0**-53}  # of the sums: the others are summed in f32
FINAL = {torch.float16: (2.0**-11, 2.0**-25), torch.bfloat16: (2.0**-8, 2.0**-134)}
# Sums of half types on a GPU: matrix units add with truncation (see hy3d_rocm/conv/selfcheck.py).
MATRIX_UNIT = 2.0**-23
# f32 by three products of TF32: a factor a is a1 + a2 + r, a1 and a2 of ten bits cut off at worst,
# so |a2 + r| <= 2^-10 |a| and |r| <= 2^-20 |a|. What is left out of a product is r b, a r' and
# (a2 + r) (b2 + r'): below 2^-18 |a b|. Three products take the place of each one in the sum.
SPLIT_UNIT, SPLIT_PRODUCTS = 2.0**-18, 3
# What a tier's pieces are cut to, and what of it a case gets where they are to be tiny.
PIECES = ((columns, "_PIECE_BYTES", 4), (columns, "_COPY_BYTES", 4), (columns, "_WEIGHT_BYTES", 1),
          (im2col, "_MOST_BYTES", 4), (im2col, "_SUM_BYTES", 1),
          (conv2d, "_PIECE_BYTES", 16), (native, "_PIECE_BYTES", 16),
          (vendor, "_MAX_ELEMS", 1))  # fmt: skip


@contextlib.contextmanager
def pieces_of(piece: int | None, choice: int) -> Iterator[None]:
    """Cuts every tier to about `piece` elements; of the plans of gemm, the one of that number."""
    take = gemm.plan

    def chosen(spec: ConvSpec) -> Any:
        with mock.patch.object(gemm, "plan", take):
            found = plans_of(spec)
        return found[choice % len(found)] if found else None

    with contextlib.ExitStack() as stack:
        if piece:
            cut = functools.partial(triton_launch.make_steps, limit_bytes=piece * 4)
            stack.enter_context(mock.patch.object(triton_launch, "make_steps", cut))
        for module, name, factor in PIECES if piece else ():
            assert piece is not None
            stack.enter_context(mock.patch.object(module, name, piece * factor))
        stack.enter_context(mock.patch.object(gemm, "plan", chosen))
        for plan in (columns._plan, im2col._views):
            plan.cache_clear()
            stack.callback(plan.cache_clear)
        yield


def truth(case: Case, x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
    """In float64; `x` batched."""
    x, weight = x.double(), weight.double()
    ndim = weight.dim() - 2
    for axis, pair in enumerate(case.pads):
        pad = [0] * (2 * ndim)
        pad[2 * (ndim - 1 - axis) : 2 * (ndim - axis)] = pair
        x = F.pad(x, pad)
    conv: Any = F.conv3d if ndim == 3 else F.conv2d
    addend = None if bias is None else bias.double()
    with torch.backends.mkldnn.flags(enabled=False):
        return conv(x, weight, addend, case.stride, 0, case.dilation, case.groups)


def sum_units(tier: str, device: str, dtype: torch.dtype) -> tuple[float, float, int]:
    """Unit roundoff of the tier's sums, relative error of each product, additions a product."""
    if device == "cpu" or dtype is torch.float64:
        return UNIT.get(dtype, 2.0**-24), 0.0, 1
    if dtype is torch.float32:
        if tier != "triton":
            return 2.0**-24, 0.0, 1
        if torch.version.hip is None:
            return MATRIX_UNIT, SPLIT_UNIT, SPLIT_PRODUCTS
    return MATRIX_UNIT, 0.0, 1


def fraction(
    case: Case, got: torch.Tensor, tensors: tuple[Any, Any, Any], whole: bool,
    units: tuple[float, float, int],
) -> float:  # fmt: skip
    """The largest error over what is allowed; above 1 (or infinite) it is wrong."""
    x, weight, bias = tensors
    exact = truth(case, x, weight, bias)
    error = (got - exact).abs()
    if whole:
        return float((error * 2).nan_to_num(nan=math.inf).max())
    sizes = truth(case, x.abs(), weight.abs(), None if bias is None else bias.abs())
    u, each, additions = units
    n = weight[0].numel() + 1
    m = additions * n
    bound = (each + (1 + each) * m * u / (1 - m * u) + n * 2.0**-53 / (1 - n * 2.0**-53)) * sizes
    if case.dtype in FINAL:
        unit, tiny = FINAL[case.dtype]
        bound = bound + unit * (exact.abs() + bound) + tiny
    ratio = (error / bound).masked_fill((error == 0) & (bound == 0), 0.0)
    return float(ratio.nan_to_num(nan=math.inf).max())


def is_whole(tier: str, device: str) -> bool:
    """Whether the tier gets whole numbers instead of reals."""
    return device != "cpu" and tier in ("vendor", "conv2d", "native")


def staged(call: Any, tier: Any) -> torch.Tensor:
    """The cpu tier's way for tensors of other devices, on host tensors."""
    from hy3d_rocm.conv.tiers.base import empty_result
    from hy3d_rocm.conv.tiers.windows import lifted, lowered

    x, weight, bias = call.operands()
    out = empty_result(call.spec)
    steps = cpu._steps_within(call.spec, 20_000) or (1, 1, 1)
    tier._compute_pieces(call.spec, lifted(weight), bias, lifted(x), lifted(out), steps)
    return lowered(out, call.spec)


def check(case: Case, seed: int, name: str, device: str) -> tuple[float, str | None]:
    """(fraction of what is allowed, the tier's refusal)."""
    tier: Tier = make_tier("cpu" if name == "staged" else name)
    whole = is_whole(name, device)
    x, weight, bias = make_tensors(case, seed, whole)
    operands = [moved(t, device) for t in (x, weight, bias)]
    with pieces_of(case.piece, case.index), torch.inference_mode():
        call = make_call(*operands, case.stride, case.pads, case.dilation, case.groups)
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
    units = sum_units(name, device, case.dtype)
    return fraction(case, batched.double().cpu(), (x, weight, bias), whole, units), None


def run(
    name: str, device: str, seed: int, first: int, count: int, dtypes: tuple[Any, ...] = DTYPES,
    step: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Every step-th of the cases, of those dtypes; index, seed and tier replay one."""
    start = time.perf_counter()
    result: dict[str, Any] = {"ran": 0, "refused": {}, "worst": 0.0, "failed": []}
    for index in range(first, first + count, step):
        case = case_of(name, seed, index)
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


def spawn(
    name: str, device: str, seed: int, first: int, count: int, workers: int
) -> dict[str, Any]:
    """run() in `workers` processes, since compiling takes the time. RuntimeError if one fails."""
    command = [sys.executable, __file__, "--tiers", name, "--device", device]
    command += ["--seed", str(seed), "--step", str(workers)]
    children = [
        subprocess.Popen(
            [*command, "--first", str(first + k), "--count", str(count - k)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "HY3D_ROCM_DB": ":memory:"},  # no tuned tiles of this machine
        )
        for k in range(min(workers, count))
    ]  # fmt: skip
    total: dict[str, Any] = {"ran": 0, "refused": {}, "worst": 0.0, "failed": [], "seconds": 0.0}
    errors = []
    for child in children:
        out, err = child.communicate()
        if child.returncode:
            errors.append(f"a child ended with {child.returncode}\n{err[-3000:]}")
            continue
        part = json.loads(out.splitlines()[-1])
        for reason, times in part["refused"].items():
            total["refused"][reason] = total["refused"].get(reason, 0) + times
        total["ran"], total["failed"] = total["ran"] + part["ran"], total["failed"] + part["failed"]
        for key in ("worst", "seconds"):
            total[key] = max(total[key], part[key])
    if errors:
        raise RuntimeError(errors[0])
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiers", nargs="+", default=["gemm", "conv2d", "native", "cpu", "staged"])
    parser.add_argument("--count", type=int, default=2000, help="cases a tier")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first case")
    parser.add_argument("--workers", type=int, default=1, help="processes a tier")
    parser.add_argument("--step", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    span = (options.device, options.seed, options.first, options.count)
    bad = 0
    # TF32 is another precision, with another bound.
    with torch.backends.cudnn.flags(enabled=False, allow_tf32=False):
        if options.step:
            print(json.dumps(run(options.tiers[0], *span, step=options.step)))
            return 0
        for name in options.tiers:
            many = options.workers > 1
            result = spawn(name, *span, options.workers) if many else run(name, *span)
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
