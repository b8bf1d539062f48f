"""The Triton tier's packed weight on random weights and layouts, by Triton's interpreter.

    python tests/long/check_triton_packing.py --count 300 [--seed 1] [--first 0]

For each configuration the product computes a convolution; afterwards the weight that its kernels
read must equal PyTorch's permuted copy in every bit, with zeros where channels were added. Each
convolution may allocate once, and launches what packs the weight once, or not at all where the
weight lies as it is read, or torch packs it. Addresses are watched and memory starts as NaN, as in
check_triton_numerics.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "long")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

from check_triton_numerics import laid_out  # noqa: E402
from triton_interpreter import convolve, prepare_interpreter  # noqa: E402

LAYOUTS = ("plain", "plain", "last", "last", "steps", "permuted", "expanded", "offset")


@dataclass(frozen=True)
class Case:
    """A weight (o, c, *kernel) of `groups` and how it lies; pad: of the input, on each side."""

    outputs: int
    channels: int
    groups: int
    kernel: tuple[int, int, int]
    stride: int
    pad: int
    dtype: str
    layout: str
    shifted: bool
    x_last: bool


def random_case(seed: int, index: int) -> Case:
    """The index-th case of a seed, independent of all others."""
    rng = random.Random(f"{seed}/{index}")
    groups = rng.choice((1, 1, 1, 2))
    channels = rng.choice((8, 24) if groups > 1 else (1, 3, 8, 17, 24, 130, 264))
    kernel = rng.choice(((1, 1, 1), (1, 1, 1), (3, 1, 1), (1, 3, 3), (3, 3, 3), (2, 1, 3),
                         (1, 1, 2), (1, 7, 7), (4, 3, 5)))  # fmt: skip
    if kernel[1] > 3 or kernel[2] > 3:
        channels = min(channels, 24)
    return Case(
        outputs=rng.choice((8, 9) if groups > 1 else (1, 2, 3, 5, 16, 20)), channels=channels,
        groups=groups, kernel=kernel, stride=rng.choice((1, 1, 1, 2)), pad=rng.choice((0, 0, 1)),
        dtype=rng.choice(("float32", "float16", "bfloat16")), layout=rng.choice(LAYOUTS),
        shifted=rng.random() < 0.2, x_last=rng.random() < 0.5,
    )  # fmt: skip


def expected(weight: Any, p: Any, narrow: bool) -> Any:
    """What the kernels read, flat: (o, taps, channels), or (kw, o, kt * kh, channels)."""
    order = weight.permute(4, 0, 2, 3, 1) if narrow else weight.permute(0, 2, 3, 4, 1)
    channels = p.channels if p.groups > 1 else p.row_channels
    packed = weight.new_zeros((*order.shape[:4], channels))
    packed[..., : p.channels] = order
    return packed.flatten()


def make_weight(case: Case, seed: int) -> Any:
    import torch

    size = (case.outputs * case.groups, case.channels, *case.kernel)
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    weight = laid_out(values.to(getattr(torch, case.dtype)), case.layout)
    if not case.shifted:
        return weight
    # The same memory from an address that is no multiple of 16.
    whole = torch.empty(0, dtype=weight.dtype).set_(weight.untyped_storage())
    memory = torch.cat((whole.new_zeros(1), whole))
    return memory.as_strided(size, weight.stride(), 1 + weight.storage_offset())


class Watch:
    """What one convolution allocates and launches, and the weight that its kernels read."""

    def __init__(self) -> None:
        import torch

        from hy3d_rocm.conv.triton import jit

        self.allocated = 0
        self.kernels: list[str] = []
        self.packs: list[str] = []
        self.is_uneven = self.is_narrow = False
        self.weight: Any = None
        empty, launch_all = torch.empty, jit.launch_all

        def counted(*args: Any, **options: Any) -> Any:
            self.allocated += 1
            return empty(*args, **options)

        def watched(made: Any, form: Any, operands: Any, done: int) -> None:
            self.packs = [item.kernel for item in made.launches if ("unpacked", 0) in item.operands]
            self.kernels = [item.kernel for item in made.launches]
            self.is_uneven, self.is_narrow = made.is_uneven, made.view.is_narrow
            launch_all(made, form, operands, done)
            self.weight = operands.tensors[operands.names.index("weight")]

        torch.empty, jit.launch_all = counted, watched


def check(case: Case, seed: int, watch: Watch) -> str | None:
    """What is wrong with one case, or None."""
    import torch

    from hy3d_rocm.conv.problem import Problem
    from hy3d_rocm.conv.triton import configs, plan

    ones, pads = (1, 1, 1), (case.pad,) * 3
    weight = make_weight(case, seed)
    kt, kh, kw = (max(1, k - 2 * case.pad) for k in case.kernel)
    size = (kt, kh, -(-kw // 8) * 8)  # whole vectors, so that 1x1x1 is read as it lies
    p = Problem(
        1, case.channels, case.outputs, case.groups, size, case.kernel, (case.stride,) * 3, ones,
        pads, pads, weight.element_size(),
    )  # fmt: skip
    x = torch.zeros(1, case.channels * case.groups, *size, dtype=weight.dtype)
    if case.x_last:
        x = x.to(memory_format=torch.channels_last_3d)
    out = torch.zeros(1, case.outputs * case.groups, *p.out, dtype=weight.dtype)
    watch.allocated = 0
    convolve(p, x, weight, out, configs.Config.parse("32x32x64w4s2g8"))
    narrow, packs = watch.is_narrow, watch.packs
    lies = plan.is_packed(p, narrow, weight.stride()) and weight.data_ptr() % 16 == 0
    flat = watch.weight.as_strided((expected(weight, p, narrow).numel(),), (1,))
    if not torch.equal(flat, expected(weight, p, narrow)):
        return "is not the permuted weight"
    if lies and (packs or watch.weight.data_ptr() != weight.data_ptr()):
        return "is copied, though it lies as it is read"
    if not lies and len(packs) != (0 if watch.is_uneven else 1):
        return f"is packed by {len(packs)} launches"
    if packs == ["load_rows"] and watch.kernels.count("load_rows") > 1:
        return "has a launch of its own beside rows"
    return f"{watch.allocated} allocations" if watch.allocated > 1 else None


def run_child(seed: int, first: int, count: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    addresses = prepare_interpreter()
    watch = Watch()
    failed: list[str] = []
    kinds: dict[str, int] = {}
    for index in range(first, first + count):
        case = random_case(seed, index)
        try:
            wrong = check(case, seed + index, watch)
        except Exception as error:  # noqa: BLE001 - a failed case, told with the others
            wrong = f"{type(error).__name__}: {error.__cause__ or error}"
        if wrong is not None:
            failed.append(f"index {index}: {wrong}: {case}")
        kind = "by torch" if watch.is_uneven else (*watch.packs, "as it lies")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    return {"failed": failed, "kinds": kinds, "addresses": addresses.checked}


def spawn(seed: int, first: int, count: int) -> dict[str, Any]:
    """run_child in a process with the interpreter on. RuntimeError if that fails."""
    child = subprocess.run(
        [sys.executable, __file__, "--child", "--seed", str(seed), "--first", str(first),
         "--count", str(count)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if child.returncode:
        raise RuntimeError(f"the child ended with {child.returncode}\n{child.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first case")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_child(options.seed, options.first, options.count)))
        return 0
    result = spawn(options.seed, options.first, options.count)
    for line in result["failed"][:10]:
        print(f"FAILED (--seed {options.seed} --first INDEX --count 1)", line)
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(result["kinds"].items()))
    print(
        f"{options.count} weights ({kinds}), {len(result['failed'])} wrong,"
        f" {result['addresses']} addresses checked: {'FAIL' if result['failed'] else 'pass'}"
    )
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
