"""Test nodes of the harness: makers of inputs and pipelines, and probes that show hashes."""

from __future__ import annotations

import torch

from .broken import HarnessBroken, HarnessFaults, HarnessFired, HarnessHang, HarnessHangSeen
from .framepack import HarnessImageEncoder, HarnessLatent, HarnessTextEncoder
from .makers import HarnessBox, HarnessImages, HarnessLoad, HarnessSeedGlobals, HarnessShape
from .meshes import HarnessMeshFile, HarnessTexturedView, HarnessTextureFits
from .narrow import let_the_core_load_them
from .probes import (
    HarnessAttributes,
    HarnessHash,
    HarnessKept,
    HarnessKind,
    HarnessMemory,
    HarnessRandomStates,
    HarnessText,
)
from .shelf import HarnessFresh, HarnessShelf
from .stand_ins import HarnessStandIn
from .vaes import HarnessVae, HarnessVaeCheck, HarnessVaeEncodeCheck
from .wrappers import HarnessHunyuanWrapperVae, HarnessWanWrapperVae

torch.backends.cudnn.allow_tf32 = False  # on a GPU: "exact" is said of float32

_NODES = (
    HarnessAttributes,
    HarnessBox,
    HarnessBroken,
    HarnessFaults,
    HarnessFired,
    HarnessFresh,
    HarnessHang,
    HarnessHangSeen,
    HarnessHash,
    HarnessHunyuanWrapperVae,
    HarnessImageEncoder,
    HarnessImages,
    HarnessKept,
    HarnessKind,
    HarnessLatent,
    HarnessLoad,
    HarnessMemory,
    HarnessMeshFile,
    HarnessRandomStates,
    HarnessSeedGlobals,
    HarnessShape,
    HarnessShelf,
    HarnessStandIn,
    HarnessText,
    HarnessTextEncoder,
    HarnessTexturedView,
    HarnessTextureFits,
    HarnessVae,
    HarnessVaeCheck,
    HarnessVaeEncodeCheck,
    HarnessWanWrapperVae,
)
NODE_CLASS_MAPPINGS = {node.__name__: node for node in _NODES}
let_the_core_load_them()
