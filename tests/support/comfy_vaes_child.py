"""ComfyUI's own VAE classes and node path, in one process with it.

Run by tests/unit/comfy/test_vaes_in_comfyui.py.

    python comfy_vaes_child.py COMFYUI CHECK

prints a JSON object: what was measured, which the test judges.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
core, check = sys.argv[1:3]
sys.argv = [sys.argv[0], "--cpu"]
sys.path[:0] = [core, str(HERE), str(HERE.parents[1])]

import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()

import comfy.model_management as management  # noqa: E402
import torch  # noqa: E402
from comfy_vaes_tiny import KINDS, tiny_comfy_vae  # noqa: E402

from hy3d_rocm.comfy import decode as node  # noqa: E402
from hy3d_rocm.comfy.running import Steps  # noqa: E402
from hy3d_rocm.comfy.vaes import family_of  # noqa: E402
from hy3d_rocm.conv import prepared  # noqa: E402
from hy3d_rocm.decoding.executor import decode, encode  # noqa: E402

torch.set_num_threads(1)


def unsplit(vae: Any, z: Any) -> Any:
    """Frames (1, C, T, H, W) by the core's own modules, all frames at once. z: as decode() takes
    it; LTX's noise is drawn from the seed 5."""
    model, image = whole_model(vae), z.shape[2] == 1 and vae.latent_dim == 2
    torch.manual_seed(5)
    with torch.no_grad():
        made = model.decode(z[:, :, 0] if image else z)
    return made.unsqueeze(2) if image else made


def whole_model(vae: Any) -> Any:
    """The model, or a shallow copy that does not split HunyuanVideo's frames, as ComfyUI 0.33 does,
    with GroupNorm per part."""
    model = vae.first_stage_model
    if not getattr(model.decoder, "carried", False):
        return model
    model = copy.copy(model)
    coders = {name: copy.copy(getattr(model, name)) for name in ("encoder", "decoder")}
    model._modules = {**model._modules, **coders}
    for coder in coders.values():
        coder.carried = False
    return model


def latents(vae: Any, frames: int) -> Any:
    generator = torch.Generator().manual_seed(frames)
    shape = (1, family_of(vae).latent_channels, frames, 3, 2)
    return torch.randn(shape, generator=generator)


def relative(got: Any, want: Any) -> float:
    if got.shape != want.shape:
        return float("inf")
    return float((got - want).abs().max() / (want.max() - want.min()))


def exactness() -> dict[str, Any]:
    """Largest error of the streamed decode over the range, by kind and T, 1 to 9."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        vae = tiny_comfy_vae(kind)
        family = family_of(vae)
        found[kind] = {}
        for frames in (1,) if family.is_image else range(1, 10):
            z = latents(vae, frames)
            want = unsplit(vae, z)
            torch.manual_seed(5)
            got = decode(family, family.noised(z), strategy="streamed")
            found[kind][frames] = relative(got, want)
    return found


def encoding() -> dict[str, Any]:
    """The same of the mean that the VAE's own encode() gives, for 9 frames."""
    found: dict[str, Any] = {}
    for kind in ("hunyuan", "hunyuan15", "wan", "wan22", "ltx", "image"):
        vae = tiny_comfy_vae(kind)
        family = family_of(vae)
        if family.processing.no_encode:
            continue
        side = 2 * family.factor[1]
        pixels = torch.rand(1, 3, 1 if family.is_image else 9, side, side) * 2 - 1
        with torch.no_grad():
            want = whole_model(vae).encode(pixels[:, :, 0] if family.is_image else pixels)
        want = want.unsqueeze(2) if family.is_image else want
        channels = family.latent_channels
        got = encode(family, pixels, strategy="streamed")
        found[kind] = relative(got, want[:, :channels])
    return found


def images(vae: Any, z: Any) -> Any:
    """What the core's VAE Decode node would give for the unsplit decoder's frames."""
    return vae.process_output(unsplit(vae, z).float()).movedim(1, -1).flatten(0, 1)


def by_node(vae: Any, z: Any, budget: str = "200MB") -> tuple[Any, str]:
    torch.manual_seed(5)
    source = z[:, :, 0] if vae.latent_dim == 2 else z
    return node.decode_latent(vae, {"samples": source}, budget, "auto", "auto")[:2]


def nodes() -> dict[str, Any]:
    """Largest error of our node's images (0..1) under a small budget, and how it made them."""
    found = {}
    for kind in KINDS:
        vae = tiny_comfy_vae(kind)
        z = latents(vae, 1 if vae.latent_dim == 2 else 3)
        got, report = by_node(vae, z)
        wanted = images(vae, z)
        found[kind] = [float((got - wanted).abs().max()), list(got.shape), report]
    return found


def patches() -> dict[str, Any]:
    """A patch of ComfyUI's patcher, and one that is applied when weights are cast: error against
    the core's own, and how much the patch changes."""
    found = {}
    for kind, name in (("image", "decoder.conv_in"), ("hunyuan", "decoder.conv_in.conv")):
        for how in ("patcher", "at the cast"):
            vae = tiny_comfy_vae(kind)
            z = latents(vae, 1 if vae.latent_dim == 2 else 3)
            before = images(vae, z)
            module = vae.first_stage_model.get_submodule(name)
            if how == "patcher":
                change = (torch.full_like(module.weight, 0.05),)
                vae.patcher.add_patches({f"{name}.weight": ("diff", change)}, 1.0)
                management.load_models_gpu([vae.patcher])
            else:
                management.load_models_gpu([vae.patcher])  # which takes such patches off
                module.comfy_cast_weights = True
                module.weight_function = [lambda weight: weight + 0.05]
            wanted = images(vae, z)
            got, report = by_node(vae, z)
            found[f"{kind} {how}"] = [
                float((got - wanted).abs().max()),
                float((before - wanted).abs().max()),
                report,
            ]
    return found


def state(vae: Any) -> Any:
    """All of the VAE that a decode might have changed."""
    model = vae.first_stage_model
    tensors = {
        n: (str(t.dtype), str(t.device), t.data_ptr(), t._version)
        for n, t in [*model.named_parameters(), *model.named_buffers()]
    }
    modules = {
        n: (sorted(vars(m)), len(m._forward_hooks), len(m._forward_pre_hooks), type(m).__name__)
        for n, m in model.named_modules()
    }
    return tensors, modules, str(vae.device), str(vae.vae_dtype), str(vae.output_device)


def unchanged() -> dict[str, Any]:
    """Whether the VAE is as before after a decode, after a cancelled one and after a failure, and
    what these raised."""
    found = {}
    for kind in ("hunyuan", "wan", "wan22", "image", "ltx_timestep"):
        vae = tiny_comfy_vae(kind)
        z = latents(vae, 1 if vae.latent_dim == 2 else 3)
        management.load_models_gpu([vae.patcher])
        before = state(vae)
        by_node(vae, z)
        same = state(vae) == before
        raised = [_interrupted(vae, z)]
        later = state(vae) == before
        raised.append(_failing(vae, z))
        # The core's own decode of Wan 2.2 leaves its cache behind, in 0.3.64.
        found[kind] = [same, later and state(vae)[0] == before[0], raised]
    return found


def _interrupted(vae: Any, z: Any) -> str:
    tick = Steps.__call__
    Steps.__call__ = lambda *_: management.interrupt_current_processing() or tick(*_)  # type: ignore[method-assign, assignment, func-returns-value]
    try:
        by_node(vae, z)
    except BaseException as error:  # noqa: BLE001  (it is one in ComfyUI 0.33)
        return type(error).__name__
    finally:
        Steps.__call__ = tick  # type: ignore[method-assign]
        management.interrupt_current_processing(False)
    return "nothing"


def _failing(vae: Any, z: Any) -> str:
    """A mistake of ours in the middle: the core's own decode has to make the images."""
    tick = Steps.__call__

    def broken(*_: Any) -> None:
        raise KeyError("a mistake")

    Steps.__call__ = broken  # type: ignore[method-assign, assignment]
    try:
        got, report = by_node(vae, z)
    finally:
        Steps.__call__ = tick  # type: ignore[method-assign]
    return "own decode" if "cannot be cut into parts" in report and len(got) else report


def unloading() -> dict[str, Any]:
    """Bytes of prepared weights after a decode, and after ComfyUI has then unloaded some or all of
    the VAE, and whether the VAE is still on its list. The tiny VAE's layers are too small to have
    prepared weights: an entry stands for theirs."""
    found, weight = {}, torch.zeros(4)
    free = management.get_free_memory
    for name, wanted in (("a part", 1), ("all", 1 << 40)):
        vae = tiny_comfy_vae("hunyuan")
        by_node(vae, latents(vae, 3))
        prepared.cache().get(weight, 1, 300, object)
        held = prepared.stats_now().bytes
        management.get_free_memory = lambda *_, **more: (0, 0) if more else 0
        try:
            management.free_memory(wanted, vae.patcher.load_device)
        finally:
            management.get_free_memory = free
        listed = any(m.model is vae.patcher for m in management.current_loaded_models)
        found[name] = [held, prepared.stats_now().bytes, listed]
    return found


CHECKS: dict[str, Callable[[], dict[str, Any]]] = {
    "exactness": exactness,
    "encoding": encoding,
    "nodes": nodes,
    "patches": patches,
    "unchanged": unchanged,
    "unloading": unloading,
}
print("\n" + json.dumps(CHECKS[check]()))
