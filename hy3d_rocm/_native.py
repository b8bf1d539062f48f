"""The one door to the C core: `_core` where it is built, its pure-Python twins where it is not.

`available` tells which. Without the core the CPU convolution, the rasteriser and exact decodes
within a budget are missing (a VAE's own code runs then, whole or in tiles), and one line in the
log, at the first import of this module, says so and what brings it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

_NAMES = (
    "Admission CancelFlag Hy3dError KnownCalls PreparedWeights Program Rates Schedule blas_info "
    "blend_accumulate channel_moments compile_schedule conv3d conv3d_format conv3d_out_size "
    "conv3d_prepare cpu_info fingerprint graph_sizes inpaint_vertices interpolate rasterize "
    "resolve_device route scatter schedule_plan schedule_tile schedule_window seed_image trim "
    "vertex_normals"
).split()
__all__ = ["available", "missing", "why_missing", *_NAMES]

logger = logging.getLogger("hy3d_rocm")

available: bool
missing: str  # why the core is not there; "" when it is

if TYPE_CHECKING:
    from hy3d_rocm._core import *  # noqa: F403
else:
    try:
        import hy3d_rocm._core as _source

        globals().update({name: getattr(_source, name) for name in _NAMES})
        available, missing = True, ""
    except (ImportError, AttributeError) as error:  # AttributeError: it is of another version
        from hy3d_rocm import _fallback
        from hy3d_rocm._fallback import device, route, schedule, seed

        # The package's own names first: its submodule is called route, as the function in it is.
        _twins = {**vars(_fallback), **vars(device), **vars(route), **vars(schedule), **vars(seed)}
        globals().update({name: _twins[name] for name in _NAMES})
        available, missing = False, str(error)
        # No warning: a pack cloned without a compiler is a supported way to use it.
        logger.info(
            "hy3d_rocm: the C core is not there (%s): everything but the CPU convolution, the "
            "rasteriser and exact decodes within a budget works; to get those too, %s.",
            missing,
            _fallback.INSTALL,
        )


def why_missing() -> str:
    """For the end of a sentence about the missing core: why it is, and what brings it."""
    from hy3d_rocm._fallback import INSTALL  # looks through sys.path

    return f"({missing}): {INSTALL}"
