"""What happens to the environment before torch is imported, when ComfyUI starts.

Values that MIOpen, PyTorch or the runtime would throw on are left out of the process, the few
that help are set where nothing is set, and the rest is only named. A value that works is never
changed.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping

from hy3d_rocm.env.choices import is_off
from hy3d_rocm.env.machine import Machine, detect
from hy3d_rocm.env.streams import guard_log

LOGGER = logging.getLogger("hy3d_rocm")


def run(environ: MutableMapping[str, str], machine: Machine | None = None) -> list[str]:
    """Puts the environment in order and returns the lines that were logged. Never raises."""
    guard_log()
    lines: list[tuple[int, str]] = []
    try:
        _fill(lines, environ, machine)
    except Exception as error:  # noqa: BLE001  (a wrong guess of ours must not stop ComfyUI)
        failed = f"the check of the variables failed: {type(error).__name__}: {error}"
        lines.append((logging.WARNING, failed))
    for level, line in lines:
        LOGGER.log(level, "hy3d_rocm: %s", line)
    return [line for _, line in lines]


def _fill(
    lines: list[tuple[int, str]], environ: MutableMapping[str, str], machine: Machine | None
) -> None:
    for switch, what in (("HY3D_ROCM", "this pack"), ("HY3D_ROCM_ENV", "the variables' check")):
        if is_off(environ, switch):
            lines.append((logging.INFO, f"{switch}=off: {what} is switched off"))
            return
    machine = detect(environ) if machine is None else machine
    if machine.has_rocm_libraries:
        # Here, not above: on all other machines the table needn't even be read.
        from hy3d_rocm.env.apply import apply

        apply(lines, environ, machine)
