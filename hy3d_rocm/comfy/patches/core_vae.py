"""comfy.sd.VAE: decode, decode_tiled, encode and encode_tiled, by whatever node they are called.

Under "full" and "cpu" decode and encode are what our nodes do. The tiled methods keep the tiles
that they were asked for: somebody has chosen them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import comfy.model_management as management
import torch

from hy3d_rocm.comfy.budgeted import LeftAlone
from hy3d_rocm.comfy.decode import decode_samples
from hy3d_rocm.comfy.encode import encode_images
from hy3d_rocm.comfy.patch import Change, PatchSpec, Place, methods_differ
from hy3d_rocm.comfy.patches import prompt, protected
from hy3d_rocm.comfy.reports import report_text
from hy3d_rocm.comfy.running import said

NAME = "core-vae"
Own = Callable[[torch.Tensor], Any]

# Method: its parameters, and what its code is known to use.
_METHODS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "decode": (
        ("samples_in", "vae_options"),
        ("first_stage_model", "memory_used_decode", "load_models_gpu", "process_output"),
    ),
    "decode_tiled": (
        ("samples", "tile_x", "tile_y", "overlap", "tile_t", "overlap_t"),
        ("decode_tiled_", "decode_tiled_3d", "load_models_gpu"),
    ),
    "encode": (
        ("pixel_samples",),
        ("first_stage_model", "memory_used_encode", "load_models_gpu", "process_input"),
    ),
    "encode_tiled": (
        ("pixel_samples", "tile_x", "tile_y", "overlap", "tile_t", "overlap_t"),
        ("encode_tiled_", "encode_tiled_3d", "load_models_gpu"),
    ),
}


def is_untouched(vae: Any) -> bool:
    """Previews' tiny VAEs, and what makes sound or meshes: their convolutions are none of those
    that fail, and their axes are not those of frames."""
    model = getattr(vae, "first_stage_model", None)
    if model is None or getattr(vae, "extra_1d_channel", None) is not None:
        return True
    kind = f"{type(model).__module__}.{type(model).__name__}".lower()
    return vae.latent_dim not in (2, 3) or "taesd" in kind or "taehv" in kind or "audio" in kind


def _in_parts(
    name: str, vae: Any, own: Own, given: Any, budget: str, strategy: str
) -> tuple[Any, str]:
    """What our node gives. own: ComfyUI's method, for where nothing else can be done."""
    asked: list[bool] = []

    def own_noted(tensor: Any) -> Any:
        asked.append(True)
        return own(tensor)

    work, kind = (decode_samples, "latents") if name == "decode" else (encode_images, "pixels")
    try:
        made, report = work(
            vae, given, budget=budget, strategy=strategy, own=own_noted, who=f"VAE.{name}"
        )
    except management.InterruptProcessingException:
        raise
    except Exception as error:
        if asked:  # it is ComfyUI's method that failed
            raise
        why = said(error)
    else:
        return made, report_text(report, given, made, report.seconds, "", kind)
    raise LeftAlone(why)


def _wrapped(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        parameter = next(iter(_METHODS[name][0]))

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.get(parameter)
            if is_untouched(self) or not isinstance(given, torch.Tensor):
                return original(self, *args, **kwargs)
            in_parts = None
            # Only where nothing but the tensor is given: other options only its own code knows.
            if name in ("decode", "encode") and not any([*args[1:], *_others(kwargs, parameter)]):
                own = functools.partial(original, self)
                in_parts = functools.partial(_in_parts, name, self, own, given)
            own_way = functools.partial(original, self, *args, **kwargs)
            return protected.Work(self, "VAE", name, own_way, in_parts, given).run(NAME)

        return method

    return make


def _others(kwargs: dict[str, Any], parameter: str) -> list[Any]:
    return [value for name, value in kwargs.items() if name != parameter]


_MAKERS = {name: _wrapped(name) for name in _METHODS}


def _expects(core: Place) -> str | None:
    return methods_differ(core.part("VAE"), "VAE", _METHODS)


def _changes(core: Place) -> list[Change]:
    return [Change(core.part("VAE"), name, make) for name, make in _MAKERS.items()]


SPEC = PatchSpec(
    NAME, "ComfyUI's VAE: failing convolutions, memory", _expects, _changes, protected.is_wanted
)
SPECS = (SPEC, prompt.SPEC)
