"""ComfyUI's modules and a wrapper pack, as stand-ins that patches are tried on."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from comfy_doubles import node_api

DOUBLE = Path(__file__).parent / "wrapper_double"
PACKAGE, REAL_PACKAGE = "wrapper_double_pack", "real_wrapper_pack"


class InterruptAsBase(BaseException):
    """As ComfyUI 0.33's InterruptProcessingException."""


class InterruptAsException(Exception):  # noqa: N818  (as it is called there)
    """As ComfyUI 0.3.64's InterruptProcessingException."""


class Comfy(SimpleNamespace):
    """What ComfyUI is told and asked. interrupt: what its cancel raises, if not None.

    freed: what free_memory was called with; free_error: what it raises. unloaded: how often
    unload_all_models was called.
    """

    interrupt: BaseException | None = None
    free_error: BaseException | None = None
    unloaded = 0
    freed: Any = None
    bar: Any = None
    texts: Any = None
    opened: Any = None

    def free_memory(self, count: int, device: Any) -> None:
        self.freed.append((count, device))
        if self.free_error is not None:
            raise self.free_error

    def unload_all(self) -> None:
        self.unloaded += 1

    def throw(self) -> None:
        if self.interrupt is not None:
            pending, self.interrupt = self.interrupt, None
            raise pending


def module(name: str, **attributes: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(attributes)
    return made


@pytest.fixture
def fake_comfy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Comfy]:
    """ComfyUI on the CPU. Whatever was imported of our nodes with it is forgotten afterwards."""
    for name in [name for name in os.environ if name.startswith("HY3D_ROCM_")]:
        monkeypatch.delenv(name, raising=False)
    state = Comfy(freed=[], bar=[], texts=[], opened=[])

    class Bar:
        def __init__(self, total: int) -> None:
            self.total = total

        def update_absolute(self, value: int, total: int | None = None) -> None:
            state.bar.append((value, total or self.total))

        def update(self, value: int) -> None:
            state.bar.append((value, self.total))

    management = module(
        "comfy.model_management",
        get_torch_device=lambda: "cpu",
        unet_offload_device=lambda: "cpu",
        throw_exception_if_processing_interrupted=state.throw,
        processing_interrupted=lambda: state.interrupt is not None,
        load_models_gpu=lambda *args, **kwargs: None,
        get_total_memory=lambda device: 64 * 2**30,
        get_free_memory=lambda device: 32 * 2**30,
        free_memory=state.free_memory,
        InterruptProcessingException=InterruptAsException,
        current_loaded_models=[],
        unload_all_models=state.unload_all,
        soft_empty_cache=lambda: None,
        EXTRA_RESERVED_VRAM=400 * 2**20,
        steps_of_upstream=lambda pipeline, step, timestep, values: state.bar.append("upstream's"),
    )
    state.management = management
    utils = module(
        "comfy.utils", ProgressBar=Bar, load_torch_file=lambda path: {},
        common_upscale=lambda image, width, height, method, crop: image,
    )  # fmt: skip
    paths = module("folder_paths", models_dir="models", get_filename_list=lambda folder: ["m"])
    comfy = module("comfy", model_management=management, utils=utils)
    for made in (comfy, management, utils, paths, *node_api()):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    # hy3d_rocm.comfy.running has it ask ComfyUI whether there was a cancel.
    monkeypatch.setattr("hy3d_rocm.conv.triton.jit.on_compile", None)
    yield state
    for name in [
        n for n in sys.modules if n.startswith(("hy3d_rocm.comfy", PACKAGE, "real_wrapper_pack"))
    ]:
        del sys.modules[name]


@pytest.fixture
def wrapper(fake_comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in for the wrapper, as the engine finds it. The offload package's scopes are
    noted in fake_comfy.opened; they have tests of their own."""
    from hy3d_rocm import offload

    def noting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def scope(pipeline: Any, *arguments: Any) -> Iterator[None]:
            fake_comfy.opened.append((name, pipeline, *arguments))
            with real(pipeline, *arguments):
                yield

        return scope

    reporting = noting("reporting_moves", offload.reporting_moves)
    monkeypatch.setattr(offload, "reporting_moves", reporting)
    measuring = noting("measuring", lambda *_: nullcontext())
    monkeypatch.setattr(offload, "measuring", measuring)
    monkeypatch.setattr(offload, "diffusers_changes", list)
    return load_upstream(DOUBLE)


def load_upstream(folder: Path, package: str = PACKAGE) -> Any:
    """A pack imported as ComfyUI does, found as the engine does."""
    for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
        del sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[package] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    from hy3d_rocm.comfy.patches.upstream import find

    return next(iter(find("hunyuan3d", made.NODE_CLASS_MAPPINGS)))


@contextmanager
def patched(upstream: Any, *names: str) -> Iterator[None]:
    """The patches of these names applied by the engine, and taken back."""
    from hy3d_rocm.comfy.patches.engine import PatchSet
    from hy3d_rocm.comfy.patches.hunyuan3d import SPECS

    sets = []
    for spec in SPECS:
        if spec.name in names or not names:
            assert spec.expects(upstream) is None
            patches = PatchSet(spec.name)
            patches.apply(spec.changes(upstream))
            sets.append(patches)
    try:
        yield
    finally:
        for patches in reversed(sets):
            assert patches.revert() == ()


def settings_are(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """Settings for the wrappers, whatever file or environment says."""
    from hy3d_rocm.comfy import settings

    known: dict[str, Any] = {"seed_mode": "stream", "offload": "auto", "patches_off": frozenset()}
    now = settings.Settings(**(known | values))
    monkeypatch.setattr(settings, "current", lambda environ=None: now)


def run(upstream: Any, node: str, **inputs: Any) -> Any:
    """As ComfyUI runs a V1 node: a new object, inputs by name."""
    node_class = upstream.part(node)
    method: Callable[..., Any] = getattr(node_class(), node_class.FUNCTION)
    return method(**inputs)
