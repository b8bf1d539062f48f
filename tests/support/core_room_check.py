"""A core's own free_memory, asked by us.

Run by tests/unit/comfy/patches/test_in_comfyui.py in a process of its own.

    python core_room_check.py COMFYUI BASE_DIRECTORY

The core is real and the card is figures: two models of 3 and 5 GB in its list for "cuda:0", whose
unloading gives that much back. Prints, as JSON, for each need what is free and loaded afterwards.
"""

from __future__ import annotations

import json
import sys
from typing import Any

CORE, BASE = sys.argv[1:3]
sys.path.insert(0, CORE)
sys.argv = ["main.py", "--cpu", "--base-directory", BASE]

import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()

import comfy.model_management as management  # noqa: E402
import torch  # noqa: E402

from hy3d_rocm.comfy import memory  # noqa: E402

GB, GPU, TOTAL = 2**30, torch.device("cuda", 0), 16 * 2**30


class Model:
    """What a core asks a ModelPatcher of a loaded model."""

    parent = None
    load_device = GPU
    offload_device = torch.device("cpu")

    def __init__(self, size: int) -> None:
        self.size, self.loaded, self.model = size, size, torch.nn.Linear(1, 1)

    def model_size(self) -> int:
        return self.size

    def loaded_size(self) -> int:
        return self.loaded

    def is_dynamic(self) -> bool:
        return False

    def partially_unload(self, device: Any, count: float, *more: Any, **named: Any) -> float:
        return 0.0

    def detach(self, unpatch_all: bool = True) -> None:
        self.loaded = 0


def free_now() -> int:
    return TOTAL - 2 * GB - sum(model.loaded for model in MODELS)


def loaded(model: Model) -> Any:
    import weakref

    entry = management.LoadedModel(model)
    entry.real_model = weakref.ref(model.model)
    entry.model_finalizer = weakref.finalize(model.model, lambda: None)
    return entry


results = []
management.get_free_memory = lambda device=None, torch_free_too=False: (
    (free_now(), 0) if torch_free_too else free_now()
)
memory.free_and_total = lambda device=None: (free_now(), TOTAL)  # type: ignore[assignment]
for need in (6 * GB, 8 * GB, 10 * GB, 15 * GB):
    MODELS = [Model(3 * GB), Model(5 * GB)]
    management.current_loaded_models[:] = [loaded(model) for model in MODELS]
    counted = memory.counted_free(GPU)[0]
    answer = memory.make_room(need, GPU)
    results.append([counted // GB, answer // GB, len(management.current_loaded_models)])
    management.current_loaded_models.clear()
print("RESULT " + json.dumps(results))
