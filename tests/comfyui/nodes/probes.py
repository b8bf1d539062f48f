"""Output nodes that show what came: hashes of tensors and meshes, of the random states, classes."""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch


class AnyType(str):
    """A socket that takes every type: ComfyUI compares type names with !=."""

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


ANY = AnyType("*")


class Probe:
    OUTPUT_NODE = True
    RETURN_TYPES = ()
    FUNCTION = "look"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": (ANY,)}}


class HarnessHash(Probe):
    """A SHA-256 of each item along the first axis, of the bits: shape and type are in it.

    Of a latent its samples, of a mesh its corners and faces.
    """

    def look(self, value: Any) -> dict[str, Any]:
        if hasattr(value, "vertices"):
            corners = (torch.as_tensor(value.vertices), torch.as_tensor(value.faces))
            value = torch.cat([part.double() for part in corners])[None]
        if isinstance(value, dict):
            value = value["samples"]
        items = [tensor_digest(item) for item in value]
        finite = bool(torch.isfinite(value.float()).all())
        shape = list(value.shape)
        spread = float(value.float().std()) if value.numel() > 1 else 0.0
        digest = {"items": items, "shape": shape, "finite": finite, "spread": spread}
        return {"ui": {"digest": [digest]}}


class HarnessRandomStates(Probe):
    """Hashes of the global random states of torch, Python and NumPy; `value` is what came before.

    Never cached: what it looks at is no input.
    """

    def look(self, value: Any) -> dict[str, Any]:
        return {"ui": {"states": [random_states()]}}

    @classmethod
    def IS_CHANGED(cls, value: Any = None) -> float:
        return float("nan")


class HarnessKind(Probe):
    """Says what a pipeline is: its class, whether offload hooks are on it, its devices."""

    def look(self, value: Any) -> dict[str, Any]:
        hooks = [name for name, part in parts(value) if hasattr(part, "_hf_hook")]
        kind = {"class": type(value).__name__, "hooks": hooks, "device": _device(value)}
        places = {name: _places(part) for name, part in parts(value)}
        return {"ui": {"kind": [{**kind, "places": places}]}}


class HarnessMemory(Probe):
    """How ComfyUI and torch see the device's memory, and whether `grab_bytes` more can be had.

    Never cached: what it looks at is no input.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        grab = ("INT", {"default": 0, "min": 0, "max": 2**62})
        return {"required": {"grab_bytes": grab}, "optional": {"value": (ANY,)}}

    def look(self, grab_bytes: int, value: Any = None) -> dict[str, Any]:
        import comfy.model_management as management

        device = management.get_torch_device()
        on_gpu = device.type == "cuda"
        memory = {
            "device": str(device),
            "grabbed": _grab(grab_bytes, device),
            "allocated": torch.cuda.memory_allocated(device) if on_gpu else 0,
            "reserved_by_comfyui": int(management.extra_reserved_memory()),
            "free": int(management.get_free_memory(device)),
            "total": int(management.get_total_memory(device)),
        }
        return {"ui": {"memory": [memory]}}

    @classmethod
    def IS_CHANGED(cls, grab_bytes: int, value: Any = None) -> float:
        return float("nan")


class HarnessKept(Probe):
    """What the pack keeps: verdicts of one convolution on this CPU, to which `put` is added, and
    the captures in a folder, the newest of which is read.

    Never cached: what it looks at is no input.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        text = ("STRING", {"default": ""})
        return {"required": {"put": text, "captures": text}}

    def look(self, put: str, captures: str) -> dict[str, Any]:
        from hy3d_rocm import __version__
        from hy3d_rocm.capture import read_capture
        from hy3d_rocm.conv.verdict_store.records import Key, Record, this_machine
        from hy3d_rocm.conv.verdict_store.store import store

        own = store()
        key = Key("conv3d", "1x1x1x1x1 w1x1x1x1x1", "f32", "contiguous", *this_machine("cpu"))
        for tier in ("vendor", "triton") if put else ():
            own.put(key, Record(tier, put, when=0.0))
        found = {
            "version": __version__,
            "file": own.path,
            "written": own.flush(),
            "trouble": own.trouble,
            "verdicts": {tier: record.verdict for tier, record in own.records(key).items()},
            "rows": len(own.rows()),
            "latents": list(read_capture(captures).latents.shape),
        }
        return {"ui": {"kept": [found]}}

    @classmethod
    def IS_CHANGED(cls, **_inputs: Any) -> float:
        return float("nan")


def parts(pipeline: Any) -> list[tuple[str, torch.nn.Module]]:
    """The torch modules among a diffusers pipeline's components."""
    components = getattr(pipeline, "components", {})
    return [(name, part) for name, part in components.items() if isinstance(part, torch.nn.Module)]


def _places(module: torch.nn.Module) -> list[str]:
    tensors = [*module.parameters(), *module.buffers()]
    return sorted({str(tensor.device) for tensor in tensors})


def _grab(count: int, device: torch.device) -> str:
    """Allocates `count` bytes and gives them back; the error's text, "" if there was none."""
    try:
        torch.empty(count, dtype=torch.uint8, device=device).fill_(1)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def tensor_digest(tensor: torch.Tensor) -> str:
    array = tensor.detach().cpu().contiguous()
    head = f"{tuple(array.shape)} {array.dtype} ".encode()
    return hashlib.sha256(head + array.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def random_states() -> dict[str, str]:
    texts = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "python": repr(random.getstate()).encode(),
        "numpy": repr([np.asarray(part).tolist() for part in np.random.get_state()]).encode(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        texts["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return {name: hashlib.sha256(text).hexdigest()[:16] for name, text in texts.items()}


def _device(pipeline: Any) -> str:
    try:
        return str(pipeline.device)
    except Exception as error:  # noqa: BLE001  (a stand-in may raise anything)
        return f"raises {type(error).__name__}"


class HarnessText(Probe):
    """A text as it came."""

    def look(self, value: Any) -> dict[str, Any]:
        return {"ui": {"text": [str(value)]}}


class HarnessAttributes(Probe):
    """Where the code of what our pack may correct lies: file and line of each method.

    Of kijai's packs what is loaded.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {}}

    @classmethod
    def IS_CHANGED(cls) -> float:
        return float("nan")

    def look(self) -> dict[str, Any]:
        import comfy.clip_vision
        import comfy.sd
        import execution

        import nodes

        places = [comfy.sd.VAE, comfy.clip_vision.ClipVisionModel, execution.PromptExecutor]
        names = ("FramePackSampler", "FramePackSingleFrameSampler", "LoadFramePackModel")
        places += [nodes.NODE_CLASS_MAPPINGS[n] for n in names if n in nodes.NODE_CLASS_MAPPINGS]
        ends = ("wan_video_vae", "autoencoder_kl_causal_3d", "diffusers_helper.memory")
        modules = [m for name, m in list(sys.modules.items()) if name.endswith(ends)]
        places += [
            kind
            for module in modules
            for kind in (module, *vars(module).values())
            if kind is module or getattr(kind, "__module__", "") == module.__name__
        ]
        found = {}
        for place in places:
            for name, value in sorted(vars(place).items() if hasattr(place, "__dict__") else ()):
                code = getattr(value, "__code__", None)
                if code is not None:
                    where = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
                    found[f"{place.__name__.rpartition('.')[2]}.{name}"] = where
        return {"ui": {"attributes": [found]}}
