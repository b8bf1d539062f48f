"""What the plan node found out: read by the text and the picture of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hy3d_rocm.decode.memory.budget import Budget
    from hy3d_rocm.decode.planning.jobs import Job
    from hy3d_rocm.decode.planning.planner import Candidate, Plan


@dataclass(frozen=True)
class Planned:
    """candidates: in the order of preference. plan: None where nothing fits (`why` says so)."""

    job: Job
    budget: Budget
    candidates: list[Candidate]
    plan: Plan | None
    why: str = ""
