"""The host's time for a call of the Triton tier, without a GPU: kernels are doubles.

    python tests/bench/bench_launch.py [--calls 10000] [--profile]

What is measured is our Python and PyTorch's allocations on the CPU, in time of this thread: not
Triton's C launcher, not the driver, not the allocator of a GPU. For comparisons on one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import functools
import importlib
import pstats
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "support")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import torch  # noqa: E402
from tier_calls import make_call  # noqa: E402

from hy3d_rocm.conv.call import ConvCall  # noqa: E402
from hy3d_rocm.conv.tiers import make_tier  # noqa: E402

ROUNDS = 10


class Kernel:
    """In place of a kernel: Triton's launch gives a compiled kernel whose run only counts."""

    launches = 0

    def __getitem__(self, grid: Any) -> Any:
        compiled = types.SimpleNamespace(metadata=(), packed_metadata=(), function=1, run=self.run)
        return lambda *_, **options: compiled

    def run(self, *_: Any) -> None:
        Kernel.launches += 1


def prepare(arch: str) -> None:
    """A GPU of `arch` that isn't there."""
    from hy3d_rocm.conv.triton import ahead, launch
    from hy3d_rocm.conv.triton.work import Target
    from hy3d_rocm.conv.verdict_store.store import Store

    kernel: Any = importlib.import_module("hy3d_rocm.conv.triton.kernel")
    store = Store.open(":memory:")
    for name in ("conv_rows", "load_rows", "load_rows_and_weight", "add_parts", "conv_points"):
        setattr(kernel, name, Kernel())

    replaced: dict[Any, dict[str, Any]] = {
        launch: {
            "target_of": lambda _: Target(arch, 132),
            "architecture": lambda _: arch,
            "store": lambda: store,
        },
        ahead: {"is_new": lambda _: False, "note": lambda *_, **options: None},
        torch.cuda: {"current_device": lambda: None},
        torch._C: {"_cuda_getCurrentRawStream": lambda _: 0},
    }
    for owner, changes in replaced.items():
        for name, value in changes.items():
            setattr(owner, name, value)


def calls() -> dict[str, ConvCall]:
    """Layers of an image VAE and of a video VAE that a GPU is done with in some 40 us."""

    def call(channels: int, outputs: int, size: Any, kernel: Any, **options: Any) -> ConvCall:
        x = torch.zeros(1, channels, *size, dtype=torch.bfloat16)
        weight = torch.zeros(outputs, channels, *kernel, dtype=torch.bfloat16)
        return make_call(x, weight, torch.zeros(outputs, dtype=torch.bfloat16), **options)

    return {
        "384x80x80 -> 192, 3x3": call(384, 192, (80, 80), (3, 3), padding=1),
        "384x3x40x40 -> 768, 3x1x1": call(384, 768, (3, 40, 40), (3, 1, 1)),
        "384x3x42x42 -> 384, 3x3x3": call(384, 384, (3, 42, 42), (3, 3, 3)),
        "512x3x40x40 -> 512, 1x1x1": call(512, 512, (3, 40, 40), (1, 1, 1)),
    }


def microseconds(function: Callable[[], Any], count: int) -> float:
    """Of one call, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(count):
            function()
        best = min(best, time.thread_time() - start)
    return best / count * 1e6


@contextlib.contextmanager
def kept_blocks() -> Iterator[dict[Any, torch.Tensor]]:
    """torch.empty gives the same tensor again: blocks of megabytes cost the CPU's allocator a
    system call, which no GPU's allocator makes."""
    empty, kept = torch.empty, dict[Any, torch.Tensor]()

    def kept_empty(size: Any, **how: Any) -> torch.Tensor:
        key = (size, *how.values())
        if key not in kept:
            kept[key] = empty(size, **how)
        return kept[key]

    torch.empty = kept_empty  # type: ignore[assignment]
    try:
        yield kept
    finally:
        torch.empty = empty


def measure(call: ConvCall, count: int, *, profile: bool) -> str:
    """What a call costs, in words."""
    tier = make_tier("triton")
    run = functools.partial(tier.run, call)
    for _ in range(3):
        run()
    before = Kernel.launches
    run()
    each = Kernel.launches - before
    with kept_blocks() as kept:
        spent = microseconds(run, count)
        if profile:
            with cProfile.Profile() as found:
                microseconds(run, count)
            pstats.Stats(found).sort_stats("tottime").print_stats(16)
    device = torch.device("cpu")
    alone = microseconds(lambda: torch.empty(64, dtype=torch.uint8, device=device), count)
    return (
        f"{spent:.1f} us a call, {each} launches; {len(kept)} allocations are not counted"
        f" (one takes {alone:.1f} us here)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10000)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    options = parser.parse_args()
    prepare(options.arch)
    count = max(1, options.calls // ROUNDS)
    torch.set_num_threads(1)
    for text, call in calls().items():
        print(f"{text}: {measure(call, count, profile=options.profile)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
