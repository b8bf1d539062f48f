"""Stand-ins for ComfyUI's modules, and fixtures that load the door and its nodes with them."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Interrupt(BaseException):
    """As ComfyUI 0.33's InterruptProcessingException."""


class FakeSchema:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class FakeNode:
    @classmethod
    def GET_SCHEMA(cls) -> Any:
        return cls.define_schema()  # type: ignore[attr-defined]


class FakeType:
    """io.Latent, io.Image, ...: sockets remember their id."""

    def __init__(self, name: str) -> None:
        self.name = name

    def Input(self, id: str, **options: Any) -> Any:  # noqa: A002
        return SimpleNamespace(id=id, kind=self.name, **options)

    Output = Input


class FakeText:
    """ui.PreviewText."""

    def __init__(self, text: str) -> None:
        self.text = text

    def as_dict(self) -> dict[str, Any]:
        return {"text": (self.text,)}


class FakePreview:
    """ui.PreviewImage, which would save the picture."""

    def __init__(self, image: Any) -> None:
        self.image = image

    def as_dict(self) -> dict[str, Any]:
        return {"images": [{"shape": tuple(self.image.shape)}]}


class FakeBar:
    seen: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, total: int) -> None:
        self.total = total

    def update_absolute(self, value: int, total: int) -> None:
        self.seen.append((value, total))


class Comfy(SimpleNamespace):
    """What ComfyUI is asked for, and what is done to it."""

    interrupted = False
    management: Any = None

    def throw(self) -> None:
        if self.interrupted:
            raise Interrupt


def module(name: str, **attributes: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(attributes)
    return made


def node_api() -> list[ModuleType]:
    """comfy_api."""
    names = ("Latent", "Vae", "String", "Combo", "Image", "Int", "Float", "Boolean")
    io = SimpleNamespace(
        Schema=FakeSchema, ComfyNode=FakeNode, Custom=FakeType,
        NodeOutput=lambda *values, ui=None: SimpleNamespace(values=values, ui=ui),
        **{name: FakeType(name) for name in names},
    )  # fmt: skip
    api = module(
        "comfy_api.v0_0_2", io=io, ComfyExtension=type("ComfyExtension", (), {}),
        ui=SimpleNamespace(PreviewText=FakeText, PreviewImage=FakePreview),
    )  # fmt: skip
    core = module(
        "nodes",
        VAEDecode=SimpleNamespace(CATEGORY="model/latent"),
        VAEEncode=SimpleNamespace(CATEGORY="model/latent"),
    )
    return [module("comfy_api", v0_0_2=api), api, core]


@pytest.fixture
def comfy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Comfy]:
    state = Comfy()
    management = module(
        "comfy.model_management",
        throw_exception_if_processing_interrupted=state.throw,
        processing_interrupted=lambda: state.interrupted,
        InterruptProcessingException=Interrupt,
        get_torch_device=lambda: "cpu",
        load_models_gpu=lambda models: None,
        get_total_memory=lambda device: 64 * 2**30,
        current_loaded_models=[],
        unload_all_models=lambda: management.current_loaded_models.clear(),
        soft_empty_cache=lambda: None,
        EXTRA_RESERVED_VRAM=400 * 2**20,
    )
    state.management = management
    utils = module("comfy.utils", ProgressBar=FakeBar)
    core = module("comfy", model_management=management, utils=utils)
    for made in (core, management, utils, *node_api()):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    FakeBar.seen.clear()
    # hy3d_rocm.comfy.running has it ask ComfyUI whether there was a cancel.
    monkeypatch.setattr("hy3d_rocm.conv.triton.jit.on_compile", None)
    yield state
    for name in [n for n in sys.modules if n.startswith("hy3d_rocm.comfy")]:
        del sys.modules[name]


@pytest.fixture
def door() -> ModuleType:
    spec = importlib.util.spec_from_file_location("/packs/ComfyUI-hy3d_x_1", ROOT / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def nodes_of(door: ModuleType) -> list[Any]:
    async def load() -> list[Any]:
        extension = await door.comfy_entrypoint()
        listed: list[Any] = await extension.get_node_list()
        return listed

    return asyncio.run(load())


@pytest.fixture
def execute(comfy: Comfy, door: ModuleType) -> Callable[..., Any]:
    nodes = {node.GET_SCHEMA().node_id: node for node in nodes_of(door)}
    return lambda name, **inputs: nodes[name].execute(**inputs)


@pytest.fixture
def offload(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A double of hy3d_rocm.offload: the calls of `apply` it got."""
    calls: list[tuple[Any, ...]] = []

    def apply(*arguments: Any, room: Any = None) -> Any:
        calls.append(arguments)
        return SimpleNamespace(offload=True, reason="because of the test")

    package = importlib.import_module("hy3d_rocm.offload")
    monkeypatch.setattr(package, "apply", apply)
    monkeypatch.setattr(package, "current_mode", lambda pipeline: "model")
    return calls
