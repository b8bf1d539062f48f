"""What a decode would do, without doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hy3d_rocm.decode.memory import meter
from hy3d_rocm.decode.memory.budget import make_budget
from hy3d_rocm.decode.planning.compiled import plan_job
from hy3d_rocm.decode.planning.ways import (
    Job,
    best_backend,
    is_opaque,
    runs_first,
    torch_backend,
)

if TYPE_CHECKING:
    from hy3d_rocm.decode.planning.planner import Plan
    from hy3d_rocm.decode.tools.subjects import Subject


def plan_of(subject: Subject, budget: int | str | None = None, strategy: str = "auto") -> Plan:
    """The plan that decode() would make now. ValueError (a sentence) where nothing fits."""
    family, device = subject.family, subject.device
    opaque = is_opaque(family)
    backend = torch_backend if opaque else best_backend(device, family.dtype)
    made = family.result_dtype if opaque else family.dtype
    job = Job(
        family, tuple(subject.latents.shape), device, family.dtype, made, backend,
        is_fused=runs_first(backend),
    )  # fmt: skip
    room = make_budget(budget, meter.machine_of(device))
    return plan_job(job, room, strategy)
