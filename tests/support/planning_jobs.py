"""Made-up jobs of a decode, for the rules of its planning."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace as Thing
from typing import Any

import torch

from hy3d_rocm.decoding.planning.jobs import Job, torch_backend

GB, MB = 2**30, 2**20
CPU, CARD, META = torch.device("cpu"), torch.device("cuda", 0), torch.device("meta")
F32 = torch.float32


def job(device: Any = CPU, **changes: Any) -> Job:
    family = Thing(
        factor=(4, 8), has_global_norms=False, out_shape=lambda s, encode: (*s, 1 + encode)
    )  # fmt: skip
    made = Job(family, (1, 16, 9, 16, 16), device, F32, F32, torch_backend)
    return replace(made, **changes)


def family(**changes: Any) -> Any:
    return Thing(**{**vars(job().family), **changes})
