"""What the children of the CPU benches do (cpu_child starts them)."""

from __future__ import annotations

import json
import sys
from typing import Any


def main(text: str) -> int:
    """One job; the exit code."""
    job = json.loads(text)
    if job["job"] == "bench":
        from hy3d_rocm.bench.cpu_command import run_again

        return run_again(job)
    sys.stdout.write(json.dumps(_measured(job)) + "\n")
    return 0


def _measured(job: dict[str, Any]) -> dict[str, Any]:
    if job["job"] == "memory":
        from hy3d_rocm.bench.cpu_memory import run_memory

        return {"bytes": run_memory(job)}
    from hy3d_rocm.bench.cpu_decode import run_alone

    return run_alone(job)
