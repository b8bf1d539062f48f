"""How much memory a pipeline needs: weights counted from its tensors, activations if measured."""

from __future__ import annotations

from typing import Any

from hy3d_rocm.offload import measure
from hy3d_rocm.offload.components import components_of, memory_key, size_bytes, tensors_of
from hy3d_rocm.offload.policy import Estimate


def estimate(pipeline: Any, size: tuple[int, int] | None = None) -> Estimate:
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


def count_components(pipeline: Any) -> dict[str, int]:
    """Bytes of each component's weights; a shared tensor counts where it is met first."""
    seen: set[object] = set()
    counts: dict[str, int] = {}
    # A key is an address or an id: kept alive here, so that no other tensor can get the same.
    alive = []
    for name, module in components_of(pipeline).items():
        counts[name] = 0
        for tensor in tensors_of(module):
            key = memory_key(tensor)
            if key not in seen:
                seen.add(key)
                alive.append(tensor)
                counts[name] += size_bytes(tensor)
    return counts
