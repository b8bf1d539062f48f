"""What the status node shows, and the memory of what the session's decodes reported."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import comfy.model_management as management
import torch

from hy3d_rocm.device import resolve_device
from hy3d_rocm.env.doctor import collect, format_text

KEPT = 5

_reports: deque[str] = deque(maxlen=KEPT)
_lock = threading.Lock()


def remember(report: str) -> None:
    """Keeps a decode's report for the status node; the last KEPT stay."""
    with _lock:
        _reports.append(report)


def comfy_device() -> torch.device:
    """The device that ComfyUI computes on."""
    return torch.device(management.get_torch_device())


def status_text(pipeline: Any = None) -> str:
    """Device and rule, the doctor's facts, the last decodes. `pipeline` may be None."""
    default = comfy_device()
    lines = [f"ComfyUI computes on {default}"]
    if pipeline is not None:
        found = resolve_device(pipeline, default)
        lines.append(f"{type(pipeline).__name__} computes on {found.device} (rule: {found.rule})")
    with _lock:
        reports = list(_reports)
    lines += ["", format_text(collect()), "", f"Decodes (the last {KEPT}):"]
    return "\n".join([*lines, *(reports or ["none yet"])])
