"""A few lines in the log once ComfyUI has started, by which an installation can be verified. One
that cannot be made says so and costs nothing else."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

from hy3d_rocm import __version__, _native
from hy3d_rocm.comfy import comfy_server, memory, settings, when_started
from hy3d_rocm.comfy.patches import install
from hy3d_rocm.diagnose.miopen.places import in_a_line
from hy3d_rocm.framepack.preservation import recommend
from hy3d_rocm.memory import CAP_GB, CAP_SHARE, host_free_bytes
from hy3d_rocm.units import short_text, size_text

logger = logging.getLogger("hy3d_rocm")


def arrange() -> None:
    """Has the lines logged once all packs are loaded and corrected. To be called after the
    patches' hook, whose work is looked at. Nothing where ComfyUI is used without its server."""
    if server := comfy_server():
        when_started(server, say)


def say(environ: Mapping[str, str] = os.environ) -> str:
    """Logs the lines as one entry, and returns them."""
    text = "\n".join(lines(environ))
    logger.info("%s", text)
    return text


def lines(environ: Mapping[str, str]) -> list[str]:
    """The lines: a head, then one a subject."""
    subjects: tuple[tuple[str, Callable[[Mapping[str, str]], str]], ...] = (
        ("C core", _core),
        ("corrected in place", _corrected),
        ("memory", _memory),
        ("MIOpen", in_a_line),
        ("FramePack", _framepack),
    )
    return [
        f"hy3d_rocm {__version__}:",
        *(f"  {title}: {_made(make, environ)}" for title, make in subjects),
    ]


def _made(make: Callable[[Mapping[str, str]], str], environ: Mapping[str, str]) -> str:
    try:
        return make(environ)
    except Exception as error:  # noqa: BLE001  (a line must not cost ComfyUI's start)
        return f"cannot be told ({type(error).__name__}: {error})"


def _core(_environ: Mapping[str, str]) -> str:
    if _native.available:
        return f"there, {_native.cpu_info()['level']}"
    return "missing: no CPU convolution, no rasteriser, no exact decodes within a budget"


def _corrected(environ: Mapping[str, str]) -> str:
    found = install.installed()
    applied = {} if found is None else found.applied()
    if applied:
        return "; ".join(f"{name} ({', '.join(names)})" for name, names in applied.items())
    permitted, reason = install.should_patch(environ)
    if permitted:
        return "nothing that is known is loaded, or the settings switch it off"
    is_said = found is not None and found.said_alone
    return "nothing" if is_said else f"nothing: {reason}"


def _memory(_environ: Mapping[str, str]) -> str:
    now = memory.usage()
    where = f"{size_text(max(now.free, 0))} free on {now.device}"
    if now.kind == "limit":
        return f"{where}, VRAM limit {short_text(now.limit)}"
    return f"{where}, no VRAM limit ({CAP_GB}, {CAP_SHARE})"


def _framepack(_environ: Mapping[str, str]) -> str:
    device = memory.comfy_device()
    if device.type != "cuda":
        return f"computes on {device}, nothing is preserved"
    if "framepack-memory" in settings.current().patches_off:
        return "gpu_memory_preservation is upstream's (switched off in the settings)"
    free, total = memory.free_and_total(device)
    return recommend(free, total, host_free_bytes() or 0).text()
