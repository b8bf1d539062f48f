"""The fused backend on random layers and attentions, its kernels interpreted on the CPU.

    python tests/long/check_fused.py --count 300 [--seed 1] [--first 0] [--workers 2]

The backend does everything that it does on a GPU (plans, pieces, boxes, packed weights, launches)
except that each kernel is interpreted. Each layer is computed twice, and compared with the plainest
reading of decoding/layers.py in float64: on small integers, which must be equal in every bit, and
on reals, within a bound that `tolerance` derives. Moments are held to those of what was returned.
Each address is checked, and memory starts as NaN, as in check_triton_numerics.py. With every other
layer goes an attention over large heads, within a bound that `attended` derives; with each other
one the factors of a GroupNorm.

    python tests/long/check_fused.py --device cuda --count 200 --workers 8

does the same on a GPU, without the watch over addresses; most of the time goes to compiling. With
`--device gfx1100` the kernels are compiled for that architecture, in tiles that are offered there,
and their machine code is executed by the emulator (tools/dev/gfx).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "long")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

from children import run_children  # noqa: E402
from fused_cases import (  # noqa: E402
    DTYPES,
    NORMS,
    Case,
    attended,
    build,
    expected,
    laid_out,
    pieces_of,
    random_attention,
    random_case,
    random_norm,
)
from triton_device import INTERPRETER, Watch, added, architecture, in_words, is_emulated  # noqa: E402

from hy3d_rocm.conv.triton.work import FEWEST_SHUFFLED, Target  # noqa: E402

__all__ = ["DTYPES", "NORMS", "build", "pieces_of", "random_case", "spawn"]


def compute(case: Case, made: dict[str, Any], device: str) -> tuple[Any, Any, Any]:
    """Result and moments on the CPU, backend. device: a key of machine_of."""
    import torch

    from hy3d_rocm.conv.triton.configs import Config
    from hy3d_rocm.decoding.backends.triton import backend as fused
    from hy3d_rocm.decoding.backends.triton.backend import TritonBackend
    from hy3d_rocm.decoding.layers import Moments, Pieces

    arch, tf32 = machine_of(device)
    device = torch_device(device)
    machine = Target(arch, 4, tf32, case.rows_bytes, Config.parse(case.tile))
    backend = TritonBackend(Plain(device), device, machine)
    backend.checked_on = ("cpu", "cuda")  # each case finds its own check (selfcheck.py) content
    fused._sound.clear()
    source = pieces_of(case, made["x"], made["frames"])
    placed = tuple(on(device, tensor, case.layouts) for tensor in source.tensors)
    add, affine, layer = made["add"], made["affine"], made["layer"]
    add = None if add is None else on(device, add, case.add or "")
    whole, out = target(case, made, device) if case.into != "add" else (None, add)
    if layer.norm is not None and layer.norm.scale is not None:
        moved = {name: getattr(layer.norm, name).to(device) for name in ("scale", "shift")}
        layer = dataclasses.replace(layer, norm=dataclasses.replace(layer.norm, **moved))
    result, moments = backend.convolve(
        layer, Pieces(placed, source.first, source.total), made["frames"],
        affine=None if affine is None else tuple(part.to(device) for part in affine),
        add=add, moments=case.moments, out=out,
    )  # fmt: skip
    if not (fused._sound or backend.delegated):
        raise RuntimeError("the backend did not check its first result")
    if out is not None and result is not out:
        raise RuntimeError("the result is not the tensor that was given for it")
    if whole is not None:
        rest = torch.cat((whole[:, :, :, :1], whole[:, :, :, 1 + out.shape[3] :]), 3)
        if not (rest == FILL).all():
            raise RuntimeError("rows beside those of the result were written")
    if moments is not None:
        moments = Moments(moments.count, moments.rows.cpu())
    return result.cpu(), moments, backend


FILL = 7.0


def target(case: Case, made: dict[str, Any], device: str) -> tuple[Any, Any]:
    """A tensor full of FILL, and the rows of it where the result shall be; None for neither."""
    import torch

    if case.into is None:
        return None, None
    size = list(made["size"])
    size[3] += 3
    whole = laid_out(torch.full(size, FILL, dtype=made["x"].dtype, device=device), case.into)
    return whole, whole[:, :, :, 1 : 1 + made["size"][3]]


def machine_of(device: str) -> tuple[str, bool]:
    """Architecture, and whether TF32 serves for float32. device: torch's, or an architecture that
    is emulated."""
    import torch

    from hy3d_rocm.conv.triton import launch as tier

    if torch_device(device) == "cpu":
        return architecture(device), False
    target = tier.target_of(torch.device("cuda", torch.cuda.current_device()))
    return target.arch, target.tf32


def torch_device(device: str) -> str:
    """Where the tensors are."""
    return "cpu" if is_emulated(device) else device


def case_for(device: str, seed: int, index: int) -> Case:
    """The index-th case, on an emulated architecture with one of the tiles offered there."""
    import torch

    from hy3d_rocm.conv.triton import configs
    from hy3d_rocm.decoding.backends.statistics import NAMES

    case = random_case(seed, index)
    if not is_emulated(device):
        return case
    offered = configs.offered(device, NAMES[getattr(torch, case.dtype)])
    tile = random.Random(f"{seed}/{index}/tile").choice(offered)
    return dataclasses.replace(case, tile=str(tile))


def on(device: str, tensor: Any, layout: str) -> Any:
    """A copy on the device, laid out in the same way."""
    return laid_out(tensor.clone().to(device), layout)


class Plain:
    """Weights as they are, on a device."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def of(self, module: Any, name: str) -> Any:
        found = getattr(module, name, None)
        return None if found is None else found.to(self.device)


def stored_apart(case: Case) -> bool:
    """Whether torch makes the result of the kernels': a narrow shuffle, a residual of channels that
    are no whole vector."""
    each = case.outputs // math.prod(case.shuffle[0] if case.shuffle else (1,))
    return bool(case.shuffle and each < FEWEST_SHUFFLED) or bool(case.add and each % 8)


def wrong_moments(out: Any, found: Any, block: int) -> str | None:
    """How moments differ from those of what was returned, beyond what float32 tiles explain."""
    values = out.double().flatten(2)[0]
    count, mean = values.shape[1], values.mean(1)
    deviations = (values - mean[:, None]).square().sum(1)
    most = values.abs().amax(1)
    slack = (block + 16) * 2.0**-24
    if found.count != count:
        return f"{found.count} positions of {count}"
    if ((found.mean - mean).abs() > slack * most).any():
        return "a mean"
    # A tile's mean is off by slack * most, its square sum by slack of itself: each deviation of a
    # tile's mean (at most 2 * most) then by 8 * slack * most^2 at first order.
    if ((found.deviations - deviations).abs() > slack * (deviations + 12 * count * most**2)).any():
        return "a sum of squared deviations"
    return None


def check(case: Case, seed: int, real: bool, device: str) -> float:
    """The largest error over its bound; on integers the number of differing values.

    RuntimeError where anything else is wrong.
    """
    made = build(case, seed, real)
    exact, bound = expected(case, made, torch_device(device))
    out, moments, backend = compute(case, made, device)
    if backend.delegated:
        raise RuntimeError(f"delegated: {backend.delegated}")
    if tuple(out.shape) != tuple(exact.shape):
        raise RuntimeError(f"a result of {tuple(out.shape)} for {tuple(exact.shape)}")
    if case.moments and moments is None and not stored_apart(case):
        raise RuntimeError("no moments of what the kernels stored")
    if moments is not None:
        wrong = wrong_moments(out, moments, int(case.tile.split("x")[0]))
        if wrong:
            raise RuntimeError(f"moments: {wrong}")
    if not real:
        return float((out != exact.to(out.dtype)).sum())
    ratio = (out.double() - exact).abs() / bound
    return float(ratio.nan_to_num(nan=float("inf")).max())


def check_attention(seed: int, index: int, device: str) -> float:
    """The largest error of attention over its bound. RuntimeError where the kernel is not taken."""
    import torch

    from hy3d_rocm.decoding.backends.attention import tokens_of
    from hy3d_rocm.decoding.backends.triton import backend as fused
    from hy3d_rocm.decoding.backends.triton.backend import TritonBackend

    case = random_attention(seed, index)
    q, room, ranges, (exact, bound) = attended(case, seed)
    place = torch_device(device)
    size = (1, case.heads * case.size, case.frames, 1, case.tokens)
    form = torch.channels_last_3d if case.is_last else torch.contiguous_format
    mixed = torch.full(size, float("nan"), dtype=q.dtype).to(place, memory_format=form)
    arch, tf32 = machine_of(device)
    backend = TritonBackend(Plain(place), place, Target(arch, 4, tf32))
    backend.heads_of_torch, backend.checked_on = 0, ("cpu", "cuda")
    fused._sound.clear()
    target = tokens_of(mixed, case.heads)
    q, room = q.to(place), room.to(place)
    if backend.attention_of(q, room, target, ranges) is None:
        raise RuntimeError(f"the kernel is not taken for {case}")
    backend.attend(q, room, target, ranges, lambda: None)
    if not fused._sound:
        raise RuntimeError("the backend did not check its first result")
    ratio = (target.cpu().double() - exact).abs() / bound
    return float(ratio.nan_to_num(nan=float("inf")).max())


def check_factors(seed: int, index: int, device: str) -> None:
    """RuntimeError where a GroupNorm's factors are not made by the kernel and found content by the
    backend's own check, which looks at all of them."""
    from hy3d_rocm.decoding.backends.triton import backend as fused
    from hy3d_rocm.decoding.backends.triton.backend import TritonBackend
    from hy3d_rocm.decoding.layers import Moments

    norm, moments, dtype = random_norm(seed, index)
    place, (arch, tf32) = torch_device(device), machine_of(device)
    backend = TritonBackend(Plain(place), place, Target(arch, 4, tf32))
    backend.checked_on = ("cpu", "cuda")
    fused._sound.clear()
    backend.factors(norm, [Moments(m.count, m.rows.to(place)) for m in moments], dtype)
    if not fused._sound:
        raise RuntimeError(f"the kernel was not taken and checked for {norm}")


def run_child(seed: int, first: int, count: int, step: int, device: str) -> dict[str, Any]:
    """Every step-th case from `first` on, in this process."""
    import torch

    torch.set_num_threads(1)
    watch = Watch(device)
    start = time.perf_counter()
    result: dict[str, Any] = {"cases": 0, "worst_of_bound": 0.0, "failed": []}
    for index in range(first, first + count, step):
        case = case_for(device, seed, index)
        result["cases"] += 1
        try:
            torch.backends.cudnn.allow_tf32 = True  # rounds no integer of a case
            differing = check(case, seed, False, device)
            torch.backends.cudnn.allow_tf32 = False  # the bound is that of float32's products
            fraction = check(case, seed, True, device)
            if index % 2:
                fraction = max(fraction, check_attention(seed, index, device))
            else:
                check_factors(seed, index, device)
        except Exception as error:  # noqa: BLE001 - a failed case, told with the others
            cause = error.__cause__ or error
            result["failed"].append(f"{type(cause).__name__}: {cause}: {case}")
            continue
        result["worst_of_bound"] = max(result["worst_of_bound"], fraction)
        if differing:
            result["failed"].append(f"{differing:.0f} values differ on integers: {case}")
        if fraction > 1:
            result["failed"].append(f"{fraction:.3g} of the bound: {case}")
    result["seconds"] = round(time.perf_counter() - start, 1)
    return result | watch.figures()


def spawn(
    seed: int, first: int, count: int, workers: int = 1, device: str = INTERPRETER
) -> dict[str, Any]:
    """run_child in `workers` processes, on the CPU with the interpreter on. RuntimeError if one
    fails."""
    parts = run_children(
        __file__,
        ["--seed", str(seed), "--device", device],
        first,
        count,
        workers,
        interpret=device == INTERPRETER,
    )
    return {
        "cases": sum(part["cases"] for part in parts),
        **added(parts),
        "failed": [line for part in parts for line in part["failed"]],
        "worst_of_bound": max(part["worst_of_bound"] for part in parts),
        "seconds": max(part["seconds"] for part in parts),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first case")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--device", default=INTERPRETER, help="or cuda, or gfx1100: emulated")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        o = options
        print(json.dumps(run_child(o.seed, o.first, o.count, o.workers, o.device)))
        return 0
    o = options
    result = spawn(o.seed, o.first, o.count, o.workers, o.device)
    for line in result["failed"][:10]:
        print(f"FAILED (--seed {options.seed} --first INDEX --count 1)", line)
    print(
        f"{result['cases']} layers; on reals the worst error is {result['worst_of_bound']:.3f} of"
        f" the bound; {in_words(o.device, result)}; {result['seconds']} s;"
        f" {len(result['failed'])} failed: {'FAIL' if result['failed'] else 'pass'}"
    )
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
