"""Run by test_comfy_patch_vae_core.py: ComfyUI's own VAE nodes with its VAE class patched.

    python comfy_patch_vae_child.py COMFYUI CHECK

prints a JSON object: what was found, which the test judges.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
core, check = sys.argv[1:3]
sys.argv = [sys.argv[0], "--cpu"]
sys.path[:0] = [core, str(HERE), str(HERE.parents[1])]

import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()

import comfy.model_management as management  # noqa: E402
import nodes as core_nodes  # noqa: E402
import torch  # noqa: E402
from comfy_vaes_tiny import tiny_comfy_vae  # noqa: E402

from hy3d_rocm.comfy import status  # noqa: E402
from hy3d_rocm.comfy.patch import PatchSet, packs  # noqa: E402
from hy3d_rocm.comfy.patches import core_vae  # noqa: E402
from hy3d_rocm.conv import faults  # noqa: E402

torch.set_num_threads(1)
KINDS = ("hunyuan", "wan", "image")


@contextmanager
def patched(mode: str) -> Iterator[None]:
    os.environ["HY3D_ROCM_VAE"] = mode
    os.environ["HY3D_ROCM_VAE_BUDGET"] = "300MB"
    (place,) = packs.find_core({})
    different = core_vae.SPEC.expects(place)
    assert different is None, different
    patches = PatchSet(core_vae.NAME)
    patches.apply(core_vae.SPEC.changes(place))
    try:
        yield
    finally:
        assert patches.revert() == ()


def latents(vae: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    shape = (2, 4, 6, 6) if vae.latent_dim == 2 else (1, 4, 3, 6, 6)
    return {"samples": torch.randn(shape, generator=generator)}


def pixels(vae: Any) -> Any:
    generator = torch.Generator().manual_seed(2)
    count = 2 if vae.latent_dim == 2 else 9
    return torch.rand((count, 48, 48, 3), generator=generator)


def complete(vae: Any) -> Any:
    """What a VAE object of the core has beside its model, for videos."""
    if vae.latent_dim == 3:
        vae.upscale_ratio = (lambda a: max(0, a * 4 - 3), 8, 8)
        vae.upscale_index_formula = (4, 8, 8)
        vae.downscale_ratio = (lambda a: max(0, (a + 3) // 4), 8, 8)
        vae.downscale_index_formula = (4, 8, 8)
        vae.latent_channels = 4
        vae.memory_used_encode = vae.memory_used_decode = lambda shape, dtype: 1000
    return vae


def calls(vae: Any) -> dict[str, Callable[[], Any]]:
    """The core's four nodes on this VAE; each gives one tensor."""
    z, frames = latents(vae), pixels(vae)
    tiles = {"tile_size": 64, "overlap": 16, "temporal_size": 8, "temporal_overlap": 4}
    return {
        "VAEDecode": lambda: core_nodes.VAEDecode().decode(vae, z)[0],
        "VAEDecodeTiled": lambda: core_nodes.VAEDecodeTiled().decode(vae, z, **tiles)[0],
        "VAEEncode": lambda: core_nodes.VAEEncode().encode(vae, frames)[0]["samples"],
        "VAEEncodeTiled": lambda: core_nodes.VAEEncodeTiled().encode(vae, frames, **tiles)[0][
            "samples"
        ],
    }


def relative(got: Any, want: Any) -> float:
    if got.shape != want.shape or got.dtype != want.dtype or got.device != want.device:
        return float("inf")
    return float((got - want).abs().max() / (want.max() - want.min()))


def errors(mode: str, spec: str = "") -> dict[str, dict[str, float]]:
    """Largest difference to the unpatched nodes, by kind of VAE and node, under these faults."""
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        vae = complete(tiny_comfy_vae(kind))
        found[kind] = {}
        for name, call in calls(vae).items():
            with torch.inference_mode():
                want = call()
                with patched(mode), faults.inject_faults(faults.parse(spec)):
                    found[kind][name] = relative(call(), want)
    return found


def plain() -> Any:
    return {mode: errors(mode) for mode in ("off", "protect", "full")}


if __name__ == "__main__":
    print(json.dumps(globals()[check]()))
