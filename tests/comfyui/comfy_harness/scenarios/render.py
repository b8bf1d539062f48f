"""MeshRender on the CPU, with a custom_rasterizer that draws nothing."""

from __future__ import annotations

from comfy_harness import graphs
from comfy_harness.context import Context
from comfy_harness.graphs import SIZE, camera, node
from comfy_harness.scenarios.baseline import NO_CUDA
from comfy_harness.server import Prompt

VIEWS = 2


def run(context: Context) -> None:
    report = context.report
    prompts = {
        "Hy3DRenderMultiView": graphs.render(VIEWS),
        "Hy3DRenderSingleView": _single(),
        "Hy3DRenderMultiViewDepth": _depth(),
    }
    with context.server(rasterizer=True) as server:
        for name, prompt in prompts.items():
            result = server.run(prompt)
            failed = NO_CUDA in result.error and result.error_node == name
            report.check(f"without the pack, {name} asks for CUDA", failed, result.seen())
    with context.patched(rasterizer=True) as server:
        for name, prompt in prompts.items():
            result = server.run(prompt)
            report.check(f"with the pack, {name} runs", result.ok, result.seen())
            views = 1 if name == "Hy3DRenderSingleView" else VIEWS
            shape = (result.ui("hash", "digest") or {}).get("shape")
            report.equal(f"{name}: its pictures", shape, [views, SIZE, SIZE, 3])
        baked = server.run(prompts["Hy3DRenderMultiView"]).items("baked")
        report.check("its renderer goes on to Hy3DBakeFromMultiview", bool(baked), baked)


def _single() -> Prompt:
    return {
        "box": node("HarnessBox"),
        "render": node(
            "Hy3DRenderSingleView", trimesh=["box", 0], render_type="normal", render_size=SIZE,
            camera_type="orth", camera_distance=1.45, pan_x=0.0, pan_y=0.0, ortho_scale=1.2,
            azimuth=0.0, elevation=0.0, bg_color="128, 128, 255",
        ),
        "hash": node("HarnessHash", value=["render", 0]),
    }  # fmt: skip


def _depth() -> Prompt:
    return {
        "box": node("HarnessBox"),
        "camera": camera(VIEWS),
        "render": node(
            "Hy3DRenderMultiViewDepth", trimesh=["box", 0], render_size=SIZE, texture_size=SIZE,
            camera_config=["camera", 0],
        ),
        "hash": node("HarnessHash", value=["render", 0]),
    }  # fmt: skip
