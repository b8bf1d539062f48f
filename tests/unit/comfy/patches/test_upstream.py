"""The patches on the real ComfyUI-Hunyuan3DWrapper, whose folder HY3D_WRAPPER names.

Its nodes.py is imported as it is, with small stand-ins for ComfyUI's modules; the pipelines are
stand-ins too. tests/comfyui tries the same in the real ComfyUI.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import patches_doubles
import pytest
import torch
from patches_doubles import REAL_PACKAGE, load_upstream, patched, run, settings_are

from hy3d_rocm.scopes import cuda_literals

fake_comfy, wrapper = patches_doubles.fake_comfy, patches_doubles.wrapper

FOLDER = os.environ.get("HY3D_WRAPPER", "")
NEEDS = ("trimesh", "cv2", "pymeshlab", "diffusers", "accelerate", "transformers", "einops")

pytestmark = pytest.mark.skipif(
    not FOLDER, reason="HY3D_WRAPPER does not name a folder with ComfyUI-Hunyuan3DWrapper"
)


@pytest.fixture
def real(wrapper: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The real wrapper; what the stand-in has of pipelines is in `pipelines`."""
    for name in NEEDS:
        pytest.importorskip(name, reason=f"the wrapper imports {name}, which is not installed")
    found = load_upstream(Path(FOLDER), REAL_PACKAGE)
    settings_are(monkeypatch)
    return found


@pytest.fixture
def pipelines(wrapper: Any) -> Any:
    return wrapper.part("hy3dgen.texgen.hunyuanpaint.pipeline")


def delight(real: Any, pipe: Any, count: int, seed: int) -> torch.Tensor:
    (out,) = run(
        real, "Hy3DDelightImage", delight_pipe=pipe, image=torch.zeros(count, 4, 4, 3), width=4,
        height=4, cfg_image=1.0, steps=2, seed=seed,
    )  # fmt: skip
    return out


def views(real: Any, pipe: Any, count: int, seed: int) -> torch.Tensor:
    camera = {
        "selected_camera_azims": [0] * count, "selected_camera_elevs": [0] * count,
    }  # fmt: skip
    (out,) = run(
        real, "Hy3DSampleMultiView", pipeline=pipe, ref_image=torch.zeros(1, 4, 4, 3),
        normal_maps=torch.zeros(count, 4, 4, 3), position_maps=torch.zeros(count, 4, 4, 3),
        view_size=4, steps=2, seed=seed, camera_config=camera,
    )  # fmt: skip
    return out


def test_upstream_is_as_the_patches_expect_it(real: Any) -> None:
    from hy3d_rocm.comfy.patches.hunyuan3d import SPECS

    assert {spec.name: spec.expects(real) for spec in SPECS} == dict.fromkeys(
        [spec.name for spec in SPECS]
    )


def test_taken_back_nothing_is_left(real: Any) -> None:
    table = real.part("nodes").NODE_CLASS_MAPPINGS
    before = {name: dict(vars(node)) for name, node in table.items()}
    with patched(real):
        changed = {name for name, node in table.items() if dict(vars(node)) != before[name]}
    assert {name: dict(vars(node)) for name, node in table.items()} == before
    optional = {
        "Hy3DBakeFromMultiview", "Hy3DBPT", "Hy3D_2_1SimpleMeshGen", "Hy3DNvdiffrastRenderer",
    }  # fmt: skip
    assert changed == set(real.node_ids) | (optional & set(table))


@pytest.mark.parametrize("count", [1, 3, 8])
def test_delight_on_the_real_node(
    real: Any, pipelines: Any, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    for seed in (0, 42, 2**64 - 1):
        alone = delight(real, pipelines.Pipeline(), count, seed)
        with patched(real, "delight"):
            settings_are(monkeypatch, seed_mode="legacy")
            assert torch.equal(delight(real, pipelines.Pipeline(), count, seed), alone)
            settings_are(monkeypatch, seed_mode="stream")
            state = torch.get_rng_state()
            ours = delight(real, pipelines.Pipeline(), count, seed)
            assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(ours[0], alone[0])
        assert len({picture.numpy().tobytes() for picture in ours}) == count


@pytest.mark.parametrize("count", [1, 3, 8])
def test_multiview_on_the_real_node(
    real: Any, pipelines: Any, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    for seed in (0, 42, 2**64 - 1):
        with cuda_literals("cpu"):
            alone = views(real, pipelines.PaintPipeline(), count, seed)
        with patched(real, "multiview"):
            for mode in ("stream", "legacy"):
                settings_are(monkeypatch, seed_mode=mode)
                assert torch.equal(views(real, pipelines.PaintPipeline(), count, seed), alone)


class Shape(torch.nn.Module):
    main_device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.at: list[str] = []

    def to(self, device: Any = None, dtype: Any = None) -> Any:  # type: ignore[override]
        self.at.append(str(device))

    def forward(self, generator: Any, **inputs: Any) -> torch.Tensor:
        return torch.randn(2, 3, generator=generator)


@pytest.mark.parametrize(("force_offload", "last"), [(True, "cpu:7"), (False, "cpu")])
def test_mesh_generation_on_the_real_node(
    real: Any, fake_comfy: Any, force_offload: bool, last: str
) -> None:
    fake_comfy.management.unet_offload_device = lambda: torch.device("cpu", 7)
    pipe, image = Shape(), torch.zeros(1, 4, 4, 3)
    with patched(real, "mesh"):
        (latents,) = run(
            real, "Hy3DGenerateMesh", pipeline=pipe, image=image, steps=2, guidance_scale=1.0,
            seed=3, force_offload=force_offload,
        )  # fmt: skip
        assert pipe.at[-1] == last
        many, _, _ = run(
            real, "Hy3DGenerateMeshMultiView", pipeline=Shape(), steps=2, guidance_scale=1.0,
            seed=3, front=image + 1,
        )  # fmt: skip
    expected = torch.randn(2, 3, generator=torch.Generator().manual_seed(3))
    assert torch.equal(latents, expected)
    assert torch.equal(many, expected)


def test_the_real_renderer_is_made_on_comfyuis_device(
    real: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    from types import ModuleType

    monkeypatch.setitem(sys.modules, "custom_rasterizer", ModuleType("custom_rasterizer"))
    renderer = real.part("hy3dgen.texgen.differentiable_renderer.mesh_render").MeshRender
    with patched(real, "render"):
        made = renderer(default_resolution=8, texture_size=8)
        assert made.device == torch.device("cpu")
        made.set_texture(torch.zeros(8, 8, 3))  # which goes to the renderer's device
        assert made.get_texture().shape == (8, 8, 3)
    assert renderer(default_resolution=8, texture_size=8).device == "cuda"
