"""One core's executor and a patched node.

Run by tests/unit/comfy/patches/test_in_comfyui.py in a process of its own.

    python core_cache_check.py COMFYUI BASE_DIRECTORY

Prints, as JSON, which nodes ran for each prompt of PROMPTS.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

CORE, BASE = sys.argv[1:3]
sys.path.insert(0, CORE)
sys.argv = ["main.py", "--cpu", "--base-directory", BASE]

import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()

import execution  # noqa: E402
import nodes  # noqa: E402
import patches_doubles  # noqa: E402
import torch  # noqa: E402

RAN: list[str] = []
# What is set before each prompt, what the prompt's own seed_mode is, and which seed it has.
PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("stream", {}),
    ("stream", {}),
    ("per_image", {}),
    ("per_image", {}),
    ("stream", {"seed_mode": "legacy"}),
    ("per_image", {"seed_mode": "legacy"}),
    ("per_image", {"seed_mode": "legacy", "seed": 6}),
]


class Source:
    """A pipeline and a batch of images."""

    RETURN_TYPES = ("PIPE", "IMAGE")
    FUNCTION = "make"

    @classmethod
    def INPUT_TYPES(cls) -> Any:
        return {"required": {}}

    def make(self) -> Any:
        RAN.append("source")
        made = upstream.part("hy3dgen.texgen.hunyuanpaint.pipeline").Pipeline()
        made.maybe_free_model_hooks = lambda: RAN.append("delight")  # at the end of each call
        return made, torch.zeros(1, 4, 4, 3)


class Sink:
    """What depends on the patched node."""

    RETURN_TYPES = ()
    FUNCTION = "take"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> Any:
        return {"required": {"image": ("IMAGE",)}}

    def take(self, image: Any) -> Any:
        RAN.append("sink")
        return {"ui": {}}


def prompt(**given: Any) -> dict[str, Any]:
    inputs = {
        "delight_pipe": ["1", 0], "image": ["1", 1], "width": 4, "height": 4, "cfg_image": 1.0,
        "steps": 2, "seed": 5, **given,
    }  # fmt: skip
    return {
        "1": {"class_type": "Source", "inputs": {}},
        "2": {"class_type": "Hy3DDelightImage", "inputs": inputs},
        "3": {"class_type": "Sink", "inputs": {"image": ["2", 0]}},
    }


def main() -> None:
    server = SimpleNamespace(client_id=None, last_node_id=None, send_sync=lambda *args: None)
    classic = execution.CacheType.CLASSIC
    if "cache_args" in inspect.signature(execution.PromptExecutor).parameters:
        none = {"lru": 0, "ram": 0.0, "ram_inactive": 0.0}
        executor = execution.PromptExecutor(server, cache_type=classic, cache_args=none)
    else:
        executor = execution.PromptExecutor(server, cache_type=classic, cache_size=0)
    results = []
    for number, (setting, given) in enumerate(PROMPTS):
        os.environ["HY3D_ROCM_SEED_MODE"] = setting
        RAN.clear()
        executor.execute(prompt(**given), str(number), {}, ["3"])
        results.append([list(RAN), executor.success])
    print("RESULT " + json.dumps(results))


upstream = patches_doubles.load_upstream(patches_doubles.DOUBLE)
node = upstream.part("Hy3DDelightImage")
node.RETURN_TYPES = ("IMAGE",)
nodes.NODE_CLASS_MAPPINGS.update({"Source": Source, "Sink": Sink, "Hy3DDelightImage": node})
with patches_doubles.patched(upstream, "delight"):
    main()
