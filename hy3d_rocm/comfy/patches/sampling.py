"""Around a node that samples with a pipeline: the proxy, the scopes, what the user sees."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from hy3d_rocm import offload
from hy3d_rocm.comfy import settings, status
from hy3d_rocm.comfy.patches.common import Call
from hy3d_rocm.comfy.patches.progress import Steps, Transfers
from hy3d_rocm.device import as_device, resolve_device
from hy3d_rocm.pipeline import PipelineProxy, seed_mode_of, unwrap
from hy3d_rocm.scopes import cuda_literals
from hy3d_rocm.seed import SeedMode

logger = logging.getLogger("hy3d_rocm")


@contextmanager
def sampling(
    call: Call, pipeline: Any, images: int = 1, size: tuple[int, int] | None = None
) -> Iterator[PipelineProxy]:
    """Yields what the node is given in place of `pipeline`, with everything around it in order.

    While open: inputs go to the device where the pipeline computes, "cuda" written out means that
    device, all calls are one batch, transfers and steps are shown, activations are measured. Then
    the global random states are put back, except in "legacy".
    images: how many calls will come. size: (height, width) of each, for the measurement.
    TypeError, in a sentence, for something that is no pipeline.
    """
    real, mode = unwrap(pipeline), seed_mode(call, pipeline)
    default = main_device(real) or call.device
    status.know(real)
    first = getattr(pipeline, "_hy3d_first", 0) if mode == "per_image" else 0
    proxy = PipelineProxy(real, default, mode, call.patch.node, first, Steps(images))
    device = resolve_device(real, default).device
    transfers = Transfers(call.patch.node)
    with ExitStack() as stack:
        stack.callback(transfers.summary)
        stack.enter_context(cuda_literals(device))
        stack.enter_context(offload.reporting_transfers(real, transfers))
        stack.enter_context(offload.measuring(real, device, size))
        if mode != "legacy":
            stack.enter_context(proxy.batch())
        yield proxy


def seed_mode(call: Call, pipeline: Any) -> SeedMode:
    """The node's own input, else the mode of a proxy that was handed in, else the settings'."""
    asked = call.own.get("seed_mode", settings.SETTING)
    if asked == settings.SETTING:
        own = seed_mode_of(pipeline)
        if own is not None:
            return own
    return settings.seed_mode_for(asked)


def main_device(pipeline: Any) -> torch.device | None:
    """Where a shape pipeline computes (it has no `_execution_device`); None for any other."""
    try:
        return as_device(getattr(pipeline, "main_device", None))
    except Exception as error:  # noqa: BLE001  (a property may do anything)
        logger.debug("main_device of %s raised %s", type(pipeline).__name__, error)
        return None
