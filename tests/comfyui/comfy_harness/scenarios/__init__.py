"""The scenarios, by the name that --only takes, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable

from comfy_harness.context import Context
from comfy_harness.scenarios import (
    baseline,
    cancel,
    changed,
    decode,
    devices,
    endurance,
    framepack,
    gpu_cap,
    gpu_errors,
    gpu_kinds,
    gpu_offload,
    growth,
    loading,
    manager,
    modes,
    raster,
    removal,
    render,
    update,
    vae_faults,
    vae_nodes,
    vaes,
    workers,
    workflows,
    wrapper_vaes,
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
    "update": update.run,
    "render": render.run,
    "raster": raster.run,
    "workflows": workflows.run,
    "framepack": framepack.run,
    "vaes": vaes.run,
    "vae_faults": vae_faults.run,
    "vae_nodes": vae_nodes.run,
    "workers": workers.run,
    "wrapper_vaes": wrapper_vaes.run,
    "cancel": cancel.run,
    "growth": growth.run,
    "manager": manager.run,
}
# What a scenario needs besides the wrapper's checkout, by run.py's options.
NEEDS: dict[str, tuple[str, ...]] = {
    "framepack": ("framepack",),
    "growth": ("framepack",),
    "manager": ("wheels",),
    "wrapper_vaes": ("wan", "hunyuanvideo"),
}
# On a GPU: what the CPU cannot show, and the workflows once more.
GPU_SCENARIOS: dict[str, Callable[[Context], None]] = {
    "gpu-errors": gpu_errors.run,
    "gpu-kinds": gpu_kinds.run,
    "gpu-offload": gpu_offload.run,
    "gpu-cap": gpu_cap.run,
    "workflows": workflows.run,
}
