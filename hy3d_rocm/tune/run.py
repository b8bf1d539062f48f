"""One tuning from shapes to a report: tiers, what is risky here, where the figures go."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.conv import probe as probing
from hy3d_rocm.conv.choice import Setting
from hy3d_rocm.conv.policy import StoreMemory
from hy3d_rocm.conv.verdict_store.machine import this_machine
from hy3d_rocm.conv.verdict_store.store import store
from hy3d_rocm.tune import tasks
from hy3d_rocm.tune.measure import Lab
from hy3d_rocm.tune.session import Measuring, Probe, TuneReport, TuneSettings, run_tune

if TYPE_CHECKING:
    from hy3d_rocm.conv.policy import Memory
    from hy3d_rocm.tune.shapes import Shape

__all__ = ["DEFAULT_TIERS", "Asked", "tune_shapes"]

DEFAULT_TIERS = ("vendor", "triton", "gemm", "conv2d", "native")


@dataclass(frozen=True)
class Asked:
    """tiers: names, in order. probe: cuDNN in a child process, too. Others: see tasks.Wishes."""

    limit_s: float
    tiers: Sequence[str] = DEFAULT_TIERS
    again: bool = False
    retry_hung: bool = False
    probe: bool = False


def tune_shapes(
    shapes: Sequence[Shape],
    device: Any,
    asked: Asked,
    say: Callable[[str], None],
    *,
    lab: Measuring | None = None,
    probe: Probe = probing.probe,
    memory: Memory | None = None,
) -> tuple[TuneReport, str]:
    """The report, and the tier that computes these shapes today ("vendor" or "native").

    say: gets a line after each outcome; what it raises (a cancel) ends the tuning, and what was
    measured by then is kept. lab, probe, memory: others than the device's own.
    """
    is_rocm = torch.version.hip is not None
    default = tasks.comfyui_default(
        this_machine(device).architecture,
        is_rocm=is_rocm,
        keeps_miopen=os.environ.get("COMFYUI_ENABLE_MIOPEN") == "1",
    )
    setting = Setting(True, is_rocm, default, vendor_on=default == "vendor")
    risky = tasks.risky_tiers(tuple(asked.tiers), is_rocm=is_rocm, asked=asked.probe)
    wishes = tasks.Wishes(asked.tiers, risky, asked.again, asked.retry_hung)
    settings = TuneSettings(
        shapes, wishes, StoreMemory(device) if memory is None else memory, setting, asked.limit_s,
        say, lab=lab or Lab(), probe=probe,
    )  # fmt: skip
    try:
        return run_tune(settings), default
    finally:
        if memory is None and not store().flush():
            say(f"{store().path}: {store().trouble or 'the disk is slow'}; not all of it is kept")
