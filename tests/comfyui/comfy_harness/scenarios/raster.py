"""The texture stage without CUDA: upstream's own nodes on the module that hy3d_rocm serves.

A mesh from a file, unwrapped, seen from six sides, baked, in-painted over the mesh and in the
texture, applied, exported. What is baked are the position maps, so the texture should say of each
texel where it lies. The pictures are left beside the logs (--keep).
"""

from __future__ import annotations

import shutil
from typing import Any

from comfy_harness.context import PATCHED, Context
from comfy_harness.graphs import node
from comfy_harness.server import Prompt, Server

VIEW, TEXTURE, VIEWS = 512, 512, 6
MISSING = "No module named 'custom_rasterizer'"
PICTURES = ("normals", "positions", "baked", "over the mesh", "painted", "views")
USUAL = "1, 0.1, 0.5, 0.1, 0.05, 0.05"  # what upstream takes without a camera config
SERVED = "hy3d_rocm: custom_rasterizer is not installed"


def run(context: Context) -> None:
    report = context.report
    off = {**PATCHED, "HY3D_RASTER": "off"}
    with context.server(context.pack, off) as server:
        result = server.run(texture_stage())
        report.check("HY3D_RASTER=off: it is missing", MISSING in result.error, result.seen())
    with context.patched() as server:
        server.set("hy3d_rocm.patch.raster", False)
        result = server.run(texture_stage())
        report.check("switched off in the settings: too", MISSING in result.error, result.seen())
        server.set("hy3d_rocm.patch.raster", True)
        _whole_stage(context, server)
        _again(context, server)
        said = [line.message for line in server.lines() if line.message.startswith(SERVED)]
        report.equal("lines that say who serves it", len(said), 1)


def _whole_stage(context: Context, server: Server) -> None:
    report = context.report
    result = server.run(texture_stage())
    report.check("the texture stage runs", result.ok, result.seen())
    for name in PICTURES:
        digest: dict[str, Any] = result.ui(f"hash {name}", "digest") or {}
        good = digest.get("finite") is True and digest.get("spread", 0) > 0.05
        report.check(f"{name}: finite, and not of one colour", good, digest)
    shape = (result.ui("hash normals", "digest") or {}).get("shape")
    report.equal("the views", shape, [VIEWS, VIEW, VIEW, 3])
    shape = (result.ui("hash painted", "digest") or {}).get("shape")
    report.equal("the texture", shape, [1, TEXTURE, TEXTURE, 3])
    meshes = sorted((server.base / "output").rglob("*.glb"))
    misfit = result.ui("fits", "misfit") or {}
    fits = misfit and misfit["as it lies"] < 0.1 * misfit["upside down"]
    report.check("the texture lies on the mesh as it was baked", fits, misfit)
    report.check("the textured mesh is a file", len(meshes) == 1, meshes)
    pictures = sorted((server.base / "output").rglob("*.png"))
    report.equal("its pictures", len(pictures), 2 * VIEWS + 3 + 4)
    kept = context.work / "raster"
    kept.mkdir(exist_ok=True)
    for file in (*meshes, *pictures):
        shutil.copy(file, kept / file.name)


def _again(context: Context, server: Server) -> None:
    """What is baked with a renderer that ComfyUI has kept is what a new one bakes (in-painting asks
    the renderer for its mesh; on a CPU upstream turns the renderer's own coordinates then), and
    upstream's own in-painting over the mesh paints the same bits as the C core."""
    even = texture_stage(weights="1, 1, 1, 1, 1, 1", saved=False)
    kept = server.run(even)
    context.report.check(
        "another bake keeps the renderer", kept.ok and "render" in kept.cached, kept.seen()
    )
    with context.server(context.pack, {"HY3D_ROCM_PATCH": "on,-inpaint"}) as other:
        fresh = other.run(even)
    for name in ("baked", "over the mesh", "painted"):
        context.report.equal(
            f"{name}: as with a new renderer and upstream's in-painting",
            kept.items(f"hash {name}"), fresh.items(f"hash {name}") or "nothing",
        )  # fmt: skip


def texture_stage(weights: str = USUAL, saved: bool = True) -> Prompt:
    config = {
        "camera_azimuths": "0, 90, 180, 270, 0, 180", "camera_elevations": "0, 0, 0, 0, 90, -90",
        "camera_distance": 1.45, "ortho_scale": 1.2,
    }  # fmt: skip
    prompt = {
        "file": node("HarnessMeshFile", kind="knot"),
        "mesh": node("Hy3DLoadMesh", glb_path=["file", 0]),
        "wrapped": node("Hy3DMeshUVWrap", trimesh=["mesh", 0]),
        "camera": node("Hy3DCameraConfig", view_weights=USUAL, **config),
        "weights": node("Hy3DCameraConfig", view_weights=weights, **config),
        "render": node(
            "Hy3DRenderMultiView", trimesh=["wrapped", 0], render_size=VIEW, texture_size=TEXTURE,
            camera_config=["camera", 0], normal_space="world",
        ),
        "bake": node(
            "Hy3DBakeFromMultiview", images=["render", 1], renderer=["render", 2],
            camera_config=["weights", 0],
        ),
        "over the mesh": node(
            "Hy3DMeshVerticeInpaintTexture", texture=["bake", 0], mask=["bake", 1],
            renderer=["bake", 2],
        ),
        "painted": node(
            "CV2InpaintTexture", texture=["over the mesh", 0], mask=["over the mesh", 1],
            inpaint_radius=3, inpaint_method="ns",
        ),
        "applied": node(
            "Hy3DApplyTexture", texture=["painted", 0], renderer=["over the mesh", 2]
        ),
        "views": node("HarnessTexturedView", trimesh=["applied", 0], size=256),
        "fits": node("HarnessTextureFits", trimesh=["applied", 0]),
    }  # fmt: skip
    shown = {
        "normals": ["render", 0], "positions": ["render", 1], "baked": ["bake", 0],
        "over the mesh": ["over the mesh", 0], "painted": ["painted", 0], "views": ["views", 0],
    }  # fmt: skip
    for name, link in shown.items():
        prompt[f"hash {name}"] = node("HarnessHash", value=link)
    if not saved:
        return prompt
    for name, link in shown.items():
        prompt[f"save {name}"] = node("SaveImage", images=link, filename_prefix=name)
    prompt["export"] = node(
        "Hy3DExportMesh", trimesh=["applied", 0], filename_prefix="textured", file_format="glb"
    )
    return prompt
