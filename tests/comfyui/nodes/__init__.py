"""Test nodes of the harness: makers of inputs and pipelines, and probes that show hashes."""

from __future__ import annotations

from .makers import HarnessBox, HarnessImages, HarnessLoad, HarnessSeedGlobals, HarnessShape
from .probes import HarnessHash, HarnessKind, HarnessMemory, HarnessRandomStates
from .stand_ins import HarnessStandIn

_NODES = (
    HarnessBox,
    HarnessHash,
    HarnessImages,
    HarnessKind,
    HarnessLoad,
    HarnessMemory,
    HarnessRandomStates,
    HarnessSeedGlobals,
    HarnessShape,
    HarnessStandIn,
)
NODE_CLASS_MAPPINGS = {node.__name__: node for node in _NODES}
