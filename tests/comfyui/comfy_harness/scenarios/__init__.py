"""The scenarios, by the name that --only takes, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable

from comfy_harness.context import Context
from comfy_harness.scenarios import (
    baseline,
    changed,
    decode,
    devices,
    endurance,
    framepack,
    gpu_cap,
    gpu_errors,
    gpu_kinds,
    gpu_offload,
    loading,
    modes,
    removal,
    render,
    vae_faults,
    vaes,
    workflows,
)

SCENARIOS: dict[str, Callable[[Context], None]] = {
    "baseline": baseline.run,
    "modes": modes.run,
    "devices": devices.run,
    "loading": loading.run,
    "changed": changed.run,
    "decode": decode.run,
    "endurance": endurance.run,
    "removal": removal.run,
    "render": render.run,
    "workflows": workflows.run,
    "framepack": framepack.run,
    "vaes": vaes.run,
    "vae_faults": vae_faults.run,
}
# Checkouts that a scenario needs besides the wrapper's, by run.py's options.
NEEDS: dict[str, tuple[str, ...]] = {
    "framepack": ("framepack",),
}
# On a GPU: what the CPU cannot show, and the workflows once more.
GPU_SCENARIOS: dict[str, Callable[[Context], None]] = {
    "gpu-errors": gpu_errors.run,
    "gpu-kinds": gpu_kinds.run,
    "gpu-offload": gpu_offload.run,
    "gpu-cap": gpu_cap.run,
    "workflows": workflows.run,
}
