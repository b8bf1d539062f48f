"""Prompts in ComfyUI's API format: upstream's nodes between makers and probes of the harness."""

from __future__ import annotations

from typing import Any

from comfy_harness.server import Prompt

SIZE, STEPS, SEED = 64, 2, 42
DELIGHT = "hunyuan3d-delight-v2-0"
PAINT = "hunyuan3d-paint-v2-0"
BATCHES = (1, 3, 8)
Link = list[Any]


def node(class_type: str, /, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def images(count: int, seed: int = 0, first: int = 0, alike: bool = False) -> dict[str, Any]:
    return node("HarnessImages", count=count, size=SIZE, seed=seed, first=first, alike=alike)


def harness_pipe(model: str, kind: str = "plain") -> dict[str, Any]:
    return node("HarnessLoad", model=model, kind=kind)


def stand_in(kind: str) -> dict[str, Any]:
    return node("HarnessStandIn", kind=kind)


def upstream_pipe(model: str, **optional: Any) -> dict[str, Any]:
    kind = (
        "DownloadAndLoadHy3DDelightModel" if model == DELIGHT else "DownloadAndLoadHy3DPaintModel"
    )
    return node(kind, model=model, **optional)


def delight(
    pipe: dict[str, Any], count: int, *, seed: int = SEED, first: int = 0, steps: int = STEPS,
    alike: bool = False, **optional: Any,
) -> Prompt:  # fmt: skip
    """`count` images through Hy3DDelightImage; the node "hash" shows them."""
    return {
        "pipe": pipe,
        "images": images(count, first=first, alike=alike),
        "delight": node(
            "Hy3DDelightImage", delight_pipe=["pipe", 0], image=["images", 0], steps=steps,
            width=SIZE, height=SIZE, cfg_image=1.5, seed=seed, **optional,
        ),
        "hash": node("HarnessHash", value=["delight", 0]),
    }  # fmt: skip


def multiview(
    pipe: dict[str, Any], views: int, *, seed: int = SEED, steps: int = STEPS, **optional: Any
) -> Prompt:
    """`views` views through Hy3DCameraConfig and Hy3DSampleMultiView; "hash" shows them."""
    return {
        "pipe": pipe,
        "reference": images(1, seed=1),
        "normals": images(views, seed=2),
        "positions": images(views, seed=3),
        "camera": camera(views),
        "sample": node(
            "Hy3DSampleMultiView", pipeline=["pipe", 0], ref_image=["reference", 0],
            normal_maps=["normals", 0], position_maps=["positions", 0], view_size=SIZE,
            steps=steps, seed=seed, camera_config=["camera", 0], **optional,
        ),
        "hash": node("HarnessHash", value=["sample", 0]),
    }  # fmt: skip


def camera(views: int) -> dict[str, Any]:
    return node(
        "Hy3DCameraConfig",
        camera_azimuths=", ".join(str(30 * view) for view in range(views)),
        camera_elevations=", ".join(["0"] * views),
        view_weights=", ".join(["1"] * views),
        camera_distance=1.45,
        ortho_scale=1.2,
    )


def mesh(*, seed: int = SEED, steps: int = STEPS, **optional: Any) -> Prompt:
    """The shape stage on one image; "hash" shows the latents, "decoded" the mesh."""
    return {
        "shape": node("HarnessShape", seed=3),
        "images": images(1),
        "mesh": node(
            "Hy3DGenerateMesh", pipeline=["shape", 0], image=["images", 0], guidance_scale=5.5,
            steps=steps, seed=seed, **optional,
        ),
        "hash": node("HarnessHash", value=["mesh", 0]),
        "decode": node(
            "Hy3DVAEDecode", vae=["shape", 1], latents=["mesh", 0], box_v=1.01,
            octree_resolution=16, num_chunks=8000, mc_level=0.0, mc_algo="mc",
            enable_flash_vdm=False,
        ),
        "decoded": node("HarnessHash", value=["decode", 0]),
    }  # fmt: skip


def mesh_multiview(*, seed: int = SEED, steps: int = STEPS, **optional: Any) -> Prompt:
    return {
        "shape": node("HarnessShape", seed=3),
        "front": images(1),
        "left": images(1, first=1),
        "mesh": node(
            "Hy3DGenerateMeshMultiView", pipeline=["shape", 0], guidance_scale=5.5, steps=steps,
            seed=seed, front=["front", 0], left=["left", 0], **optional,
        ),
        "hash": node("HarnessHash", value=["mesh", 0]),
    }  # fmt: skip


def render(views: int = 2) -> Prompt:
    """A cube through Hy3DRenderMultiView, and its renderer on to Hy3DBakeFromMultiview."""
    return {
        "box": node("HarnessBox"),
        "camera": camera(views),
        "render": node(
            "Hy3DRenderMultiView", trimesh=["box", 0], render_size=SIZE, texture_size=SIZE,
            camera_config=["camera", 0],
        ),
        "hash": node("HarnessHash", value=["render", 0]),
        "bake": node(
            "Hy3DBakeFromMultiview", images=["render", 0], renderer=["render", 2],
            camera_config=["camera", 0],
        ),
        "baked": node("HarnessHash", value=["bake", 0]),
    }  # fmt: skip


def behind(prompt: Prompt, between: dict[str, Any]) -> Prompt:
    """`prompt` with a node of ours between its pipeline's loader and the node that uses it."""
    changed = {**prompt, "between": {**between, "inputs": dict(between["inputs"])}}
    changed["between"]["inputs"]["pipeline"] = ["pipe", 0]
    for name, user in prompt.items():
        inputs = {
            key: ["between", 0] if value == ["pipe", 0] else value
            for key, value in user["inputs"].items()
        }
        changed[name] = {**user, "inputs": inputs}
    return changed


def with_states(prompt: Prompt, user: str, socket: str) -> Prompt:
    """`prompt` with the global random states put to known ones before node `user` runs, through
    its input `socket`, and looked at afterwards: "before" and "after" show them."""
    changed = {name: {**one, "inputs": dict(one["inputs"])} for name, one in prompt.items()}
    changed["known"] = node("HarnessSeedGlobals", value=changed[user]["inputs"][socket], seed=7)
    changed[user]["inputs"][socket] = ["known", 0]
    changed["after"] = node("HarnessRandomStates", value=[user, 0])
    return changed


def known_states() -> Prompt:
    """The states that `with_states` starts from; "after" shows them."""
    return {
        "images": images(1),
        "known": node("HarnessSeedGlobals", value=["images", 0], seed=7),
        "after": node("HarnessRandomStates", value=["known", 0]),
    }


def with_kind(prompt: Prompt) -> Prompt:
    """`prompt` and a look at its pipeline: "kind" shows it."""
    return {**prompt, "kind": node("HarnessKind", value=["pipe", 0])}


def memory(grab_bytes: int = 0, pipe: dict[str, Any] | None = None) -> Prompt:
    """A look at the memory, after `pipe` if there is one: "memory" shows it."""
    if pipe is None:
        return {"memory": node("HarnessMemory", grab_bytes=grab_bytes)}
    return {
        "pipe": pipe,
        "memory": node("HarnessMemory", grab_bytes=grab_bytes, value=["pipe", 0]),
        "kind": node("HarnessKind", value=["pipe", 0]),
    }


def prefixed(prefix: str, prompt: Prompt) -> Prompt:
    """`prompt` with other node names, to be put beside another in one prompt."""
    renamed = {}
    for name, one in prompt.items():
        inputs = {
            key: [f"{prefix}-{value[0]}", value[1]] if isinstance(value, list) else value
            for key, value in one["inputs"].items()
        }
        renamed[f"{prefix}-{name}"] = {**one, "inputs": inputs}
    return renamed
