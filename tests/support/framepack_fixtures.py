"""FramePackWrapper's double in a made-up ComfyUI, patched and taken back."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from patches_doubles import (  # noqa: F401
    Comfy,
    InterruptAsBase,
    InterruptAsException,
    fake_comfy,
    module,
    settings_are,
)
from PIL import Image

from hy3d_rocm.framepack import importing
from hy3d_rocm.units import GB

DOUBLE = Path(__file__).parent / "framepack_double"

PACKAGE = "framepack_double_pack"

HERE = torch.device("cpu")


class Loaded:
    """One of ComfyUI's loaded models: what it is shows in what it has."""

    def __init__(self, name: str, trait: str) -> None:
        self.device = HERE
        self.model = SimpleNamespace(model=type(name, (), {trait: None})())

    def __repr__(self) -> str:
        return type(self.model.model).__name__


class Card:
    """A card of 9 GB whose sections take 2 GB."""

    def __init__(self) -> None:
        self.sections = 0
        self.emptied = 0

    def free(self) -> int:
        return 9 * GB

    def empty(self) -> None:
        self.emptied += 1

    def start(self) -> None:
        self.sections += 1

    def need(self) -> int:
        return 2 * GB

    def retries(self) -> int:
        return 0


@pytest.fixture(name="comfy")
def comfy_with_a_vae(fake_comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """fake_comfy with a VAE, an image encoder, previews and a queue. unloaded: kinds in order."""
    state = SimpleNamespace(base=fake_comfy, unloaded=[], shown=[], frames=[], queue={})
    management = fake_comfy.management

    def free_memory(count: float, device: Any, keep: Any = ()) -> None:
        going = [one for one in management.current_loaded_models if one not in keep]
        state.unloaded.append([repr(one) for one in going])
        management.current_loaded_models[:] = list(keep)

    class Bar:
        def __init__(self, total: int) -> None:
            self.total = total

        def update_absolute(self, step: int, total: int, picture: Any = None) -> None:
            fake_comfy.throw()
            state.shown.append((step, total, picture))

    class Previewer:
        def decode_latent_to_preview_image(self, kind: str, latents: torch.Tensor) -> Any:
            if latents.ndim == 5:
                state.frames.append(tuple(latents.shape))
            return kind, Image.new("RGB", (8, 4)), 512

    state.previewer = Previewer()
    names = ("encode", "encode_tiled", "decode", "decode_tiled")
    vae = type("VAE", (), {n: lambda self, x, n=n: (n, x) for n in names})
    vision = type("ClipVisionModel", (), {"encode_image": lambda self, x: ("seen", x)})
    server = SimpleNamespace(prompt_queue=SimpleNamespace(currently_running=state.queue))
    modules = {
        "comfy.sd": {"VAE": vae},
        "comfy.clip_vision": {"ClipVisionModel": vision},
        "comfy.latent_formats": {"HunyuanVideo": SimpleNamespace},
        "latent_preview": {
            "get_previewer": lambda device, kind: state.previewer,
            "prepare_callback": lambda model, steps: lambda *a: state.shown.append("upstream's"),
            "MAX_PREVIEW_RESOLUTION": 512,
        },
        "server": {"PromptServer": SimpleNamespace(instance=server)},
    }
    for name, parts in modules.items():
        made = module(name, **parts)
        monkeypatch.setitem(sys.modules, name, made)
        if name.startswith("comfy."):
            setattr(sys.modules["comfy"], name.partition(".")[2], made)
    management.free_memory = free_memory
    sys.modules["comfy.utils"].ProgressBar = Bar  # type: ignore[attr-defined]
    state.management, state.vae, state.vision = management, vae(), vision()
    return state


@pytest.fixture(name="place")
def wrapper_found(comfy: Any) -> Iterator[Any]:
    """The stand-in, imported as ComfyUI does, found as the engine does."""
    from hy3d_rocm.framepack import sections

    importing.install(device=lambda: "cpu")
    sections._known.clear()
    spec = importlib.util.spec_from_file_location(
        PACKAGE, DOUBLE / "__init__.py", submodule_search_locations=[str(DOUBLE)]
    )
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    from hy3d_rocm.comfy.patches.upstream import find

    (found,) = find("framepack", made.NODE_CLASS_MAPPINGS)
    yield found
    importing.uninstall()
    for name in [n for n in sys.modules if n == PACKAGE or n.startswith(PACKAGE + ".")]:
        del sys.modules[name]


@pytest.fixture(name="apply")
def applied_and_taken_back(place: Any) -> Iterator[Callable[..., None]]:
    """Applies the patches of these names (all without one); they are taken back afterwards."""
    sets: list[Any] = []

    def apply(*names: str) -> None:
        from hy3d_rocm.comfy.patches.engine import PatchSet
        from hy3d_rocm.comfy.patches.framepack import SPECS

        for spec in SPECS:
            if not names or spec.name in names:
                assert spec.expects(place) is None
                patches = PatchSet(spec.name)
                patches.apply(spec.changes(place))
                sets.append(patches)

    yield apply
    for patches in reversed(sets):
        assert patches.revert() == ()


@pytest.fixture(name="card")
def cpu_is_a_card(comfy: Any, monkeypatch: pytest.MonkeyPatch) -> Card:
    from hy3d_rocm.framepack import sections

    made = Card()
    monkeypatch.setattr(sections, "card_of", lambda device, free=None: made)
    return made


def transformer(place: Any) -> Any:
    torch.manual_seed(1)
    return place.part("nodes").HunyuanVideoTransformer3DModel()


def sample(place: Any, model: Any = None, **more: Any) -> torch.Tensor:
    """As ComfyUI runs the node, on the CPU."""
    if torch.cuda.is_available():
        pytest.skip("torch has a GPU here, which answers the wrapper's questions about memory")
    model = transformer(place) if model is None else model
    given: dict[str, Any] = {
        "model": {"transformer": model, "dtype": torch.float32}, "seed": 3, "steps": 3, "cfg": 1.0,
        "start_latent": {"samples": torch.zeros(1, 16, 1, 8, 8)}, "latent_window_size": 2,
        "gpu_memory_preservation": 6.0, **more,
    }  # fmt: skip
    (made,) = place.part("FramePackSampler")().process(**given)
    return made["samples"]


def attributes(place: Any) -> dict[str, dict[str, Any]]:
    owners = ("nodes", "memory", "FramePackSampler", "LoadFramePackModel")
    found = {name: dict(vars(place.part(name))) for name in owners}
    found["VAE"] = dict(vars(sys.modules["comfy.sd"].VAE))
    return found
