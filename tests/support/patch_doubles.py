"""Stand-ins for ComfyUI's server and for loaded copies of the wrapper, for the patch tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hy3d_rocm.comfy.patches.engine import Change
from hy3d_rocm.comfy.patches.install import Installation, install_patches
from hy3d_rocm.comfy.patches.upstream import (
    KNOWN,
    Pack,
    PatchSpec,
    Place,
    defaults_differ,
    find,
    function_differs,
    names_missing,
)


def install(
    specs: Callable[[], Sequence[PatchSpec]], environ: Mapping[str, str]
) -> Installation | None:
    """Only these patches of ComfyUI-Hunyuan3DWrapper."""
    return install_patches(environ, (Pack("hunyuan3d", specs, "run on the right device"),))


def find_upstream(node_class_mappings: Mapping[str, Any]) -> Place | None:
    """The copy whose nodes ComfyUI runs; None if the wrapper is not loaded."""
    return next(iter(find("hunyuan3d", node_class_mappings)), None)


PAINT_PIPELINE: str = KNOWN["packs"]["hunyuan3d"]["module"]
FOLDER = "/srv/ComfyUI/custom_nodes/ComfyUI-Hunyuan3DWrapper"

NODES = '''
class Hy3DDelightImage:
    FUNCTION = "process"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"delight_pipe": ("PIPE",), "seed": ("INT",)}}

    def process(self, delight_pipe, image, seed):
        """Remove the light."""
        return [torch.manual_seed(seed) for _ in image], "delight"

class Hy3DVAEDecode:
    FUNCTION = "process"

    def process(self, vae, latents, force_offload=True):
        return vae(latents), "decode"
'''

PIPELINE = """
class HunyuanPaintPipeline:
    def __call__(self, image, seed=0):
        return image.to("cuda")

class MeshRender:
    def __init__(self, device="cuda"):
        self.device = device
"""


class FakeServer:
    """The hooks of ComfyUI's PromptServer, called as it calls them."""

    def __init__(self) -> None:
        self.on_prompt_handlers: list[Callable[[Any], Any]] = []
        self.app = SimpleNamespace(on_startup=Freezable())

    def add_on_prompt_handler(self, handler: Callable[[Any], Any]) -> None:
        self.on_prompt_handlers.append(handler)

    def start(self) -> None:
        self.app.on_startup.frozen = True
        for hook in list(self.app.on_startup):
            coroutine = hook(self.app)
            with pytest.raises(StopIteration):
                coroutine.send(None)

    def prompt(self) -> dict[str, Any]:
        request = {"prompt": {}}
        for handler in list(self.on_prompt_handlers):
            assert handler(request) is request
        return request


class Freezable(list[Any]):
    """As aiohttp's signals: no change once it has been sent."""

    frozen = False

    def append(self, item: Any) -> None:
        if self.frozen:
            raise RuntimeError("Cannot modify frozen list.")
        super().append(item)

    def remove(self, item: Any) -> None:
        if self.frozen:
            raise RuntimeError("Cannot modify frozen list.")
        super().remove(item)


class Core:
    """ComfyUI with its table of nodes; packs are loaded as nodes.load_custom_node does it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.server = FakeServer()
        self.mappings: dict[str, Any] = {"KSampler": type("KSampler", (), {})}
        self._module("nodes", NODE_CLASS_MAPPINGS=self.mappings)
        self._module("server", PromptServer=SimpleNamespace(instance=self.server))

    def load(
        self, folder: str = FOLDER, nodes: str = NODES, pipeline: str = PIPELINE
    ) -> dict[str, type]:
        """Load (or load anew) a copy of the wrapper; its own table of nodes."""
        package = folder.replace(".", "_x_")
        parts = PAINT_PIPELINE.split(".")
        for depth in range(1, len(parts)):
            self._module(".".join([package, *parts[:depth]]))
        self._module(f"{package}.{PAINT_PIPELINE}", source=pipeline)
        module = self._module(f"{package}.nodes", source=nodes)
        table = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        }
        module.__dict__["NODE_CLASS_MAPPINGS"] = table
        self._module(package, NODE_CLASS_MAPPINGS=table)
        self.mappings.update(table)
        return table

    def pipeline(self, folder: str = FOLDER) -> Any:
        return sys.modules[f"{folder.replace('.', '_x_')}.{PAINT_PIPELINE}"]

    def _module(self, name: str, source: str = "", **attributes: Any) -> ModuleType:
        made = ModuleType(name)
        made.__dict__.update(attributes)
        exec(compile(source, f"<{name}>", "exec"), made.__dict__)
        self.monkeypatch.setitem(sys.modules, name, made)
        return made


def marking(word: str) -> Callable[[Any], Any]:
    """A `make`: the replacement's answer is ("word", the original's answer)."""

    def make(original: Any) -> Any:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return word, original(*args, **kwargs)

        return replacement

    return make


def _differs(upstream: Place, node: str, **known: tuple[str, ...]) -> str | None:
    return function_differs(upstream.part(node), node, "process", {"is_node": True, **known})


def _expect_delight(upstream: Place) -> str | None:
    return _differs(
        upstream, "Hy3DDelightImage",
        parameters=("delight_pipe", "image", "seed"), names=("manual_seed",),
    )  # fmt: skip


def _expect_decode(upstream: Place) -> str | None:
    node: Any = upstream.part("Hy3DVAEDecode")
    return _differs(upstream, "Hy3DVAEDecode", parameters=("vae", "latents")) or (
        defaults_differ(node.process, {"force_offload": True})
    )


def _expect_paint(upstream: Place) -> str | None:
    pipeline = upstream.part(PAINT_PIPELINE)
    return names_missing(pipeline.HunyuanPaintPipeline.__call__, ("to",))


SPECS = (
    PatchSpec(
        "delight", _expect_delight,
        lambda upstream: [
            Change(upstream.part("Hy3DDelightImage"), "INPUT_TYPES", marking("types")),
            Change(upstream.part("Hy3DDelightImage"), "process", marking("delight")),
        ],
    ),
    PatchSpec(
        "vae-decode", _expect_decode,
        lambda upstream: [Change(upstream.part("Hy3DVAEDecode"), "process", marking("decode"))],
    ),
    PatchSpec(
        "multiview", _expect_paint,
        lambda upstream: [
            Change(
                upstream.part(PAINT_PIPELINE).HunyuanPaintPipeline, "__call__", marking("paint")
            )
        ],
    ),
)  # fmt: skip


def specs() -> tuple[PatchSpec, ...]:
    return SPECS


def attributes_of(table: dict[str, type], pipeline: Any) -> dict[str, dict[str, Any]]:
    """Every attribute of every class, to be compared by identity."""
    classes = [*table.values(), pipeline.HunyuanPaintPipeline, pipeline.MeshRender]
    return {made.__name__: dict(vars(made)) for made in classes}


def assert_identical(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> None:
    for name, attributes in before.items():
        assert now[name].keys() == attributes.keys(), name
        for key, value in attributes.items():
            assert now[name][key] is value, f"{name}.{key}"
