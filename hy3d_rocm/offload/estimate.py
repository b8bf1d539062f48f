"""How much memory a pipeline needs: weights counted from its tensors, activations if measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hy3d_rocm.offload import measure
from hy3d_rocm.offload.components import bytes_on, components_of, count_components, current_mode
from hy3d_rocm.offload.policy import HEADROOM_BYTES, Estimate

if TYPE_CHECKING:
    import torch


def estimate(pipeline: Any, size: measure.Size | None = None) -> Estimate:
    """Bytes of the pipeline's weights by component, and of its activations where known.

    Parameters and buffers count with the bytes that they take when moved. What is shared, inside
    a component or between two, counts once, for the first that has it. Weights that sequential
    offload keeps elsewhere count too. Not seen: weights inside torch.ao's packed modules, which
    run on a CPU only.
    size: (height, width) of the picture to come. Activations are then those measured at this size
    or, for want of it, at a larger one; without `size` the largest ever measured.
    """
    component_bytes = count_components(pipeline)
    known = measure.recorded(pipeline, component_bytes, size)
    return Estimate(
        parameter_bytes=sum(component_bytes.values()),
        component_bytes=component_bytes,
        activation_bytes=None if known is None else known.activation_bytes,
        source="not measured" if known is None else known.source,
    )


def needed_bytes(pipeline: Any, device: torch.device, size: measure.Size | None = None) -> int:
    """Bytes that must be free on `device` for a call of the pipeline as its weights are placed now.

    Resident: weights, activations and headroom, less what lies there already. Under model offload
    the largest component in place of all weights. 0 under sequential offload, whose need nobody
    has estimated. Activations that were not measured count as much as all weights, as in decide().
    """
    mode = current_mode(pipeline)
    if mode == "sequential":
        return 0
    known = estimate(pipeline, size)
    if known.parameter_bytes == 0:
        return 0
    beside = known.assumed_activation_bytes + HEADROOM_BYTES
    if mode == "model":
        return known.largest_component[1] + beside
    return max(known.parameter_bytes + beside - bytes_on(components_of(pipeline), device), 0)
