"""How much memory a pipeline needs: weights counted from its tensors, activations if measured."""

from __future__ import annotations

from typing import Any

from hy3d_rocm.offload import measure
from hy3d_rocm.offload.components import count_components
from hy3d_rocm.offload.policy import Estimate


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
