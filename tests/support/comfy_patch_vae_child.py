"""ComfyUI's own VAE nodes with its VAE class patched.

Run by tests/unit/comfy/patches/test_core_vae_in_comfyui.py.

    python comfy_patch_vae_child.py COMFYUI CHECK

prints a JSON object: what was found, which the test judges.
"""

from __future__ import annotations

import copy
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

from hy3d_rocm.comfy.patches import upstream, vaes  # noqa: E402
from hy3d_rocm.comfy.patches.engine import PatchSet  # noqa: E402
from hy3d_rocm.conv import faults, forget  # noqa: E402

torch.set_num_threads(1)
KINDS = ("hunyuan", "wan", "image")


@contextmanager
def patched(mode: str) -> Iterator[None]:
    os.environ["HY3D_ROCM_VAE"] = mode
    os.environ["HY3D_ROCM_VAE_BUDGET"] = "300MB"
    (place,) = upstream.find("comfyui", {})
    different = vaes.CORE_SPECS[0].expects(place)
    assert different is None, different
    patches = PatchSet("core-vae")
    patches.apply(vaes.CORE_SPECS[0].changes(place))
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


def unsplit(vae: Any) -> Any:
    """The VAE object, or a copy that does not split HunyuanVideo's frames, as ComfyUI 0.33 does."""
    if not getattr(vae.first_stage_model.decoder, "carried", False):
        return vae
    vae, model = copy.copy(vae), copy.copy(vae.first_stage_model)
    coders = {name: copy.copy(getattr(model, name)) for name in ("encoder", "decoder")}
    model._modules = {**model._modules, **coders}
    for coder in coders.values():
        coder.carried = False
    vae.first_stage_model = model
    return vae


def errors(mode: str, spec: str = "", cases: tuple[str, ...] = ()) -> dict[str, Any]:
    """Largest difference to the unpatched nodes by "kind node", and how often a fault acted."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        vae = complete(tiny_comfy_vae(kind))
        whole, own = calls(unsplit(vae) if mode == "full" else vae), calls(vae)
        for name, call in own.items():
            case = f"{kind} {name}"
            if cases and case not in cases:
                continue
            forget()  # what failed in the case before is tried again
            with torch.inference_mode():
                want = (own if name.endswith("Tiled") else whole)[name]()
                with patched(mode), faults.inject_faults(faults.parse(spec)) as acted:
                    found[case] = [relative(call(), want), sum(f.fired for f in acted)]
    return found


def plain() -> Any:
    return {mode: errors(mode) for mode in ("off", "protect", "full")}


FAULTS = {
    "miopen": "current:*:*:no_algorithm",
    "unknown": "current:*:*:unknown,every=3",
    "oom": "current:*:*:hip_oom,every=2",
    "nan": "current:*:*:nan,every=4",
    "nan in a second call": "current:*:1x32x*:nan,first=1,every=2",
    "slow": "current:*:*:slow,count=1",
}


def under_faults() -> Any:
    cases = {
        "protect": ("hunyuan VAEDecode", "image VAEDecodeTiled", "image VAEEncode"),
        "full": ("hunyuan VAEDecode",),
    }
    return {
        f"{mode}, {name}": errors(mode, spec, cases[mode])
        for mode in cases
        for name, spec in FAULTS.items()
    }


def raised(call: Callable[[], Any]) -> str:
    try:
        with torch.inference_mode():
            call()
    except BaseException as error:  # noqa: BLE001  (its kind is what is asked)
        return type(error).__name__
    return "nothing"


def exceptions() -> Any:
    """What comes out of the core's nodes, unpatched and patched."""
    vae, found = complete(tiny_comfy_vae("image")), {}
    wrong = {"samples": torch.zeros(1, 7, 6, 6)}
    cases = {"channels": lambda: core_nodes.VAEDecode().decode(vae, wrong), **calls(vae)}
    for name, call in cases.items():
        miopen = name != "channels"
        with faults.inject_faults(faults.parse(FAULTS["miopen"] if miopen else "")):
            found[f"{name} unpatched"] = raised(call)
            for mode in ("protect", "full"):
                with patched(mode):
                    found[f"{name} {mode}"] = raised(call)
    return found


def interrupts() -> Any:
    """A cancel during each node; afterwards the flag is down and the node works."""
    found: dict[str, str] = {}
    for mode in ("protect", "full"):
        vae = complete(tiny_comfy_vae("hunyuan"))
        for name, call in calls(vae).items():
            with patched(mode):
                management.interrupt_current_processing(True)
                found[f"{name} {mode}"] = raised(call)
                found[f"{name} {mode} after"] = raised(call)
    return found


def retries() -> Any:
    """The model's own call runs out of memory once: which of the core's tiled methods ran then,
    and whether the shape is right."""
    found: dict[str, Any] = {}
    for kind in ("hunyuan", "image"):
        for name in ("VAEDecode", "VAEEncode"):
            vae = complete(tiny_comfy_vae(kind))
            call, method = calls(vae)[name], name[3:].lower()
            with torch.inference_mode():
                want = call()
                seen: list[str] = []
                for tiled in (f"{method}_tiled_", f"{method}_tiled_3d"):
                    setattr(vae, tiled, noted(seen, tiled, getattr(vae, tiled)))
                model = vae.first_stage_model
                setattr(model, method, failing_once(getattr(model, method)))
                with patched("protect"):
                    found[f"{kind} {name}"] = [list(call().shape) == list(want.shape), seen]
    return found


def noted(seen: list[str], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        seen.append(name)
        return method(*args, **kwargs)

    return call


def failing_once(method: Callable[..., Any]) -> Callable[..., Any]:
    left = [1]

    def call(*args: Any, **kwargs: Any) -> Any:
        if left:
            left.pop()
            raise torch.OutOfMemoryError(faults.HIP_OOM)
        return method(*args, **kwargs)

    return call


if __name__ == "__main__":
    print(json.dumps(globals()[check]()))
