"""What "protect every node" costs a node when nothing fails, in ComfyUI's own executor.

    PYTHON tests/bench/bench_prompt.py --comfyui DIR [--rounds 40] [--json]

PYTHON has ComfyUI's packages; the CPU is used. Rounds with the setting off and on alternate, and
the fastest of each are compared, so that other load on the machine counts little. Four nodes: one
that does nothing (the price of a node), one of 1000 small functions of torch (the price of the mode
for everything that is no convolution), one of 200 convolutions of one element (the price of a
convolution), and an up-scaler of eight convolutions (64 channels, 96x96).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
SMALL_CALLS, TINY_CONVOLUTIONS = 1000, 200


class Node:
    """A V1 node around a function."""

    FUNCTION, RETURN_TYPES = "go", ("X",)

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work

    def go(self) -> tuple[Any]:
        return (self.work(),)


def works() -> dict[str, Callable[[], Any]]:
    import torch
    from torch.nn import functional

    one, kernel = torch.ones(4), torch.ones(1, 1, 1, 1)
    point = torch.ones(1, 1, 1, 1)
    image, weight = torch.rand(1, 64, 96, 96), torch.rand(64, 64, 3, 3) / 576

    def small() -> None:
        for _ in range(SMALL_CALLS):
            torch.add(one, one)

    def tiny() -> None:
        for _ in range(TINY_CONVOLUTIONS):
            functional.conv2d(point, kernel)

    def upscaler() -> Any:
        x = image
        for _ in range(8):
            x = functional.conv2d(x, weight, padding=1)
        return x

    return {"empty": lambda: None, "small": small, "tiny": tiny, "upscaler": upscaler}


def seconds(execution: Any, node: Node) -> float:
    start = time.perf_counter()
    asyncio.run(execution.get_output_data("p", "1", node, {}))
    return time.perf_counter() - start


def measured(execution: Any, rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds a node with the setting off and on, and what it adds."""
    found = {}
    for name, work in works().items():
        node, times = Node(work), {"off": [], "on": []}  # type: ignore[var-annotated]
        for _ in range(rounds + 2):
            for state, seen in times.items():
                os.environ["HY3D_ROCM_PROTECT_PROMPTS"] = state
                seen.append(seconds(execution, node))
        off, on = (1e6 * min(seen) for seen in times.values())
        found[name] = {"off": off, "on": on, "added": on - off}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--comfyui", required=True, help="a checkout of ComfyUI")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sys.argv = [sys.argv[0], "--cpu"]
    sys.path[:0] = [options.comfyui, str(HERE)]
    import comfy.options

    comfy.options.enable_args_parsing()
    import execution
    import torch

    from hy3d_rocm.comfy.patches import upstream, vaes
    from hy3d_rocm.comfy.patches.engine import PatchSet

    torch.set_num_threads(1)
    (place,) = upstream.find("comfyui", {})
    patches = PatchSet("prompts")
    patches.apply(vaes.PROMPTS.changes(place))
    found = measured(execution, options.rounds)
    patches.revert()
    if options.json:
        print(json.dumps(found))
        return 0
    for name, row in found.items():
        print(f"{name:9} off {row['off']:10.0f} us, on {row['on']:10.0f} us: +{row['added']:.0f}")
    small, tiny = found["small"]["added"], found["tiny"]["added"]
    node = found["empty"]["added"]
    print(
        f"a node {node:.0f} us, a function of torch {(small - node) / SMALL_CALLS:.2f} us, "
        f"a convolution {(tiny - node) / TINY_CONVOLUTIONS:.1f} us"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
