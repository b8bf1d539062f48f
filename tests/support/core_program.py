"""A graph of two convolutions as the extension takes it, and its program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hy3d_rocm import _core

ONES, NONE, AROUND = (1, 1, 1), (0, 0, 0), (0, 1, 1)
INPUT = (0, -1, -1, 0, 4, *(NONE,) * 7, *(0,) * 12, (0, 0), (0, 0))
CONV = (
    1, 0, -1, 0, 8, (3, 3, 3), ONES, ONES, ONES, (2, 1, 1), AROUND, ONES, 1, *(0,) * 11,
    (0, 0), (0, 0),
)  # fmt: skip
OUTPUT = (6, 2, -1, 0, 8, *(NONE,) * 7, *(0,) * 12, (0, 0), (0, 0))
NODES = (INPUT, CONV, (1, 1, 1, 2, *CONV[4:]), OUTPUT)
MACHINE = ((4000, 0), (1, 0, 0), 1e12, 1e11, 1e-5, 1.0)
REQUEST: dict[str, Any] = {
    "size": (5, 6, 7), "element_bytes": 4, "strategies": 2, "copy_bytes_per_second": 1e10,
    "device": MACHINE, "host": MACHINE,
}  # fmt: skip


def nothing(step: Any, source: Any, on_host: bool) -> tuple[int, int, int, int]:
    return 0, 0, 0, 0


def compiled(workspace: Callable[..., Any] = nothing, nodes: Any = NODES, **more: Any) -> Any:
    return _core.compile_schedule(nodes, workspace=workspace, **(REQUEST | more))


def everything() -> Any:
    schedule = compiled(device=((4000, 2000), *MACHINE[1:]))
    program = schedule.program
    lists = program.steps(0), program.step(0, 0), program.slices(0), program.sections
    told = *lists, program.candidate, program.cut
    return told, program.fallback(1, "no kernel"), schedule.candidates, schedule.smallest_budget
