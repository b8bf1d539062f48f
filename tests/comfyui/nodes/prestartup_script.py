"""Only with HY3D_HARNESS_CUDA=answers: torch's queries about a CUDA device answer on a CPU.

FramePackWrapper asks three of them, one when it is imported, and does not load without. The
answers are those of a card of 16 GiB with nothing on it; ComfyUI itself computes on the CPU and
asks none. Without the variable nothing is replaced: so it is where the queries fail.
"""

from __future__ import annotations

import os
from typing import Any

TOTAL_BYTES = 16 << 30


def _answer() -> None:
    import torch

    def memory_stats(device: Any = None) -> dict[str, int]:
        return {"active_bytes.all.current": 0, "reserved_bytes.all.current": 0}

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        return TOTAL_BYTES, TOTAL_BYTES

    torch.cuda.current_device = lambda: 0
    torch.cuda.memory_stats = memory_stats
    torch.cuda.mem_get_info = mem_get_info


if os.environ.get("HY3D_HARNESS_CUDA") == "answers":
    _answer()
