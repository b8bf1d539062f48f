"""What protect() costs for each call when nothing fails, in microseconds.

    python tests/bench/bench_protect.py [--calls 20000] [--rounds 15] [--json]

Plain and protected rounds alternate, and what is added is the median of the differences of such
pairs, in CPU time of this thread: other load on the machine counts little. Timed are a function
that is no convolution (what the mode costs everything else), a convolution of one element (look-up
and statistics), and the convolution that a tier remembered as failing computes natively (its extra
bookkeeping). Two more have gradients on: a convolution whose weight requires them, and one with its
backward.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from hy3d_rocm.conv import forget
from hy3d_rocm.conv.faults import Fault, inject_faults
from hy3d_rocm.conv.protection import protect


def seconds(function: Callable[[], Any], calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        function()
    return (time.thread_time() - start) / calls


def compare(
    function: Callable[[], Any], scope: Callable[[], Any], calls: int, rounds: int
) -> dict[str, float]:
    """Medians of a call without and within `scope`, and of what that adds, in microseconds."""
    plain, within = [], []
    for _ in range(rounds):
        plain.append(seconds(function, calls))
        with scope():
            function()
            within.append(seconds(function, calls))
    added = [after - before for before, after in zip(plain, within, strict=True)]
    medians = {"plain": plain, "protected": within, "added": added}
    return {name: statistics.median(values) * 1e6 for name, values in medians.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20000, help="calls a round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    x, weight = torch.ones(1, 1, 1, 1, 1), torch.ones(1, 1, 1, 1, 1)

    def convolution() -> torch.Tensor:
        return F.conv3d(x, weight, None, 1, 0, 1, 1)

    def both() -> torch.Tensor:
        return torch.autograd.grad(convolution(), weight, x)[0]

    def other() -> torch.Tensor:
        return torch.neg(x)

    cases: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "not a convolution": (other, protect),
        "convolution": (convolution, protect),
        "convolution, two nested scopes": (convolution, Nested),
    }
    result = {}
    with torch.inference_mode():
        for name, (function, scope) in cases.items():
            result[name] = compare(function, scope, options.calls, options.rounds)
        forget()
        with inject_faults(Fault("current", count=1)), protect():
            convolution()
        name = "convolution, remembered as failing"
        result[name] = compare(convolution, protect, options.calls // 20, options.rounds)
        forget()
    weight.requires_grad_()
    for name, function in (("gradients on", convolution), ("forward and backward", both)):
        result[name] = compare(function, protect, options.calls // 4, options.rounds)
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
        return 0
    for name, row in result.items():
        figures = ", ".join(f"{key} {value:.2f} us" for key, value in row.items())
        sys.stdout.write(f"{name}: {figures}\n")
    return 0


class Nested:
    """protect() twice."""

    def __enter__(self) -> None:
        self.scopes = (protect(), protect())
        for scope in self.scopes:
            scope.__enter__()

    def __exit__(self, *error: Any) -> None:
        for scope in reversed(self.scopes):
            scope.__exit__(None, None, None)


if __name__ == "__main__":
    raise SystemExit(main())
