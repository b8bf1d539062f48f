"""The real ComfyUI-Hunyuan3DWrapper, imported without ComfyUI, for tests/gpu/test_hunyuan3d.py."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from hunyuan3d_support import DEVICE, SEED, SIZE, STEPS, photograph

PACKAGE = "hy3d_upstream"
VIEWS, VIEW_SIZE = 6, SIZE // 2  # the node's default cameras
# Imported by upstream at module level and used by none of the nodes that run here.
UNUSED_BY_US = (
    "trimesh", "xatlas", "pymeshlab", "pygltflib", "cv2", "skimage", "skimage.measure", "rembg",
    "torchvision", "torchvision.transforms",
)  # fmt: skip


class _Placeholder(ModuleType):
    """A module whose every attribute is an empty class: enough for imports and annotations."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class ComfyDouble:
    """comfy.model_management, comfy.utils and folder_paths, as far as upstream's nodes use them.

    device: what get_torch_device() says. events: the calls that free memory, in order.
    """

    def __init__(self, device: torch.device | str, folder: Path) -> None:
        self.device = torch.device(device)
        self.folder = folder
        self.events: list[str] = []
        self.steps = 0

    def modules(self) -> dict[str, ModuleType]:
        management, utils = ModuleType("comfy.model_management"), ModuleType("comfy.utils")
        paths, comfy = ModuleType("folder_paths"), ModuleType("comfy")
        members: dict[ModuleType, dict[str, Any]] = {
            management: {
                "get_torch_device": lambda: self.device,
                "unet_offload_device": lambda: torch.device("cpu"),
                "unload_all_models": lambda: self.events.append("unload_all_models"),
                "soft_empty_cache": lambda *_: self.events.append("soft_empty_cache"),
            },
            utils: {
                "ProgressBar": self._progress_bar(),
                "common_upscale": _upscale,
                "load_torch_file": _refuse,
            },
            paths: {
                "models_dir": str(self.folder),
                "get_filename_list": lambda _: [],
                "get_full_path": _refuse,
                "get_output_directory": lambda: str(self.folder),
                "get_input_directory": lambda: str(self.folder),
            },
            comfy: {"__path__": [], "model_management": management, "utils": utils},
        }
        for module, values in members.items():
            vars(module).update(values)
        return {module.__name__: module for module in members}

    def _progress_bar(self) -> type:
        counter = self

        class ProgressBar:
            def __init__(self, total: int) -> None:
                self.total = total

            def update(self, count: int) -> None:
                counter.steps += count

        return ProgressBar


def _upscale(samples: torch.Tensor, width: int, height: int, _method: str, _crop: str) -> Any:
    """(N, C, H, W) to (N, C, height, width) on the same device; any good resampling will do."""
    return F.interpolate(samples, size=(height, width), mode="bilinear", align_corners=False)


def _refuse(*args: object) -> None:
    raise AssertionError(f"a file is loaded: {args}")


@contextlib.contextmanager
def upstream_nodes(checkout: Path, comfy: ComfyDouble) -> Iterator[ModuleType]:
    """Upstream's `nodes` module, imported from `checkout` among stand-ins; sys.modules is put back.

    A stand-in replaces comfy and folder_paths always, the modules in UNUSED_BY_US where they are
    missing.
    """
    import diffusers  # noqa: F401 - looks for optional packages at its import: before stand-ins
    import transformers  # noqa: F401

    before = dict(sys.modules)
    for name in UNUSED_BY_US:
        if not _importable(name):
            module = _Placeholder(name)
            module.__spec__ = ModuleSpec(name, None, is_package="." not in name)
            module.__path__ = []
            sys.modules[name] = module
    sys.modules.update(comfy.modules())
    try:
        spec = importlib.util.spec_from_file_location(
            PACKAGE, checkout / "__init__.py", submodule_search_locations=[str(checkout)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = package
        spec.loader.exec_module(package)
        yield sys.modules[f"{PACKAGE}.nodes"]
    finally:
        added = [name for name in sys.modules if name not in before]
        ours = {*comfy.modules(), *UNUSED_BY_US, "comfy", PACKAGE}
        for name in added:
            if name in ours or name.split(".")[0] in ("comfy", PACKAGE):
                del sys.modules[name]
        sys.modules.update({name: before[name] for name in ours & before.keys()})


def paint_pipeline(nodes: ModuleType, delight: Any, width: Any, device: torch.device) -> Any:
    """Upstream's HunyuanPaintPipeline in float16: random UNets, the rest from `delight`."""
    from hy3d_rocm._rng import seeded_on
    from hy3d_rocm.bench.session import ancestral_scheduler, random_unet

    # Upstream's UNet2p5DConditionModel fixes these two numbers in its code.
    fixed = {"cross_attention_dim": 1024, "time_embedding_dim": 1280}
    with seeded_on(device, 1):
        unet = nodes.UNet2p5DConditionModel(random_unet(width, in_channels=4, **fixed))
    made = nodes.HunyuanPaintPipeline(
        vae=getattr(delight.vae, "_orig_mod", delight.vae),
        text_encoder=delight.text_encoder,
        tokenizer=delight.tokenizer,
        unet=unet.to(torch.float16).eval().requires_grad_(False),
        scheduler=ancestral_scheduler(),
        feature_extractor=None,
    )
    made.set_progress_bar_config(disable=True)
    return made


def cuda_literals(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """hy3d_rocm.scopes.cuda_literals, or nothing where "cuda" already means `device`."""
    if device == torch.device("cuda:0"):
        return contextlib.nullcontext()
    made: Any = importlib.import_module("hy3d_rocm.scopes").cuda_literals(device)
    return made


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def delight_node(nodes: ModuleType, called: Any) -> torch.Tensor:
    """Two pictures (2, SIZE, SIZE, 3) by upstream's node; its images lie on the CPU."""
    images = torch.stack([photograph(number).permute(1, 2, 0) for number in range(2)])
    out: torch.Tensor = nodes.Hy3DDelightImage().process(
        called, images, SIZE, SIZE, 1.5, STEPS, SEED
    )[0]
    return out


def multiview_node(nodes: ModuleType, called: Any, device: torch.device = DEVICE) -> torch.Tensor:
    """VIEWS pictures (VIEWS, VIEW_SIZE, VIEW_SIZE, 3) by upstream's node."""
    maps = torch.stack([photograph(number).permute(1, 2, 0) for number in range(VIEWS)])
    with cuda_literals(device):
        out: torch.Tensor = nodes.Hy3DSampleMultiView().process(
            called, maps[:1], maps, maps.flip(0), VIEW_SIZE, SEED, STEPS
        )[0]
    assert out.shape == (VIEWS, VIEW_SIZE, VIEW_SIZE, 3)
    assert out.isfinite().all()
    return out
