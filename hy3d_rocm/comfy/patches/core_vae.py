"""comfy.sd.VAE: decode, decode_tiled, encode and encode_tiled, by whatever node they are called.

Under "full" ComfyUI's own method runs on a shallow copy whose model decodes (encodes) in parts:
cropping, scaling, layouts and devices stay ComfyUI's. The tiled methods keep the tiles that they
were asked for: somebody has chosen them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from hy3d_rocm.comfy import budgeted
from hy3d_rocm.comfy.budgeted import LeftAlone
from hy3d_rocm.comfy.patch import Change, PatchSpec, Place, names_missing, parameters_missing
from hy3d_rocm.comfy.patches import prompt, protected

NAME = "core-vae"

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


class InParts:
    """A VAE's model whose decode and encode run in parts. All else is the model's."""

    comfy_has_chunked_io = False  # frames come as one tensor

    def __init__(self, vae: Any, budget: str) -> None:
        self._vae, self._budget = vae, budget
        self.report = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vae.first_stage_model, name)

    def decode(self, samples: Any, **options: Any) -> Any:
        """Frames as the model gives them, on the CPU. LeftAlone as budgeted.decode."""
        if options:
            raise LeftAlone(f"{', '.join(options)} was given, which only its own code knows")
        made, self.report = budgeted.decode(self._vae, samples, self._budget)
        return made

    def encode(self, pixels: Any, **_device: Any) -> Any:
        """The mean as the model gives it, on the CPU. LeftAlone as budgeted.encode."""
        made, self.report = budgeted.encode(self._vae, pixels, self._budget)
        return made


def _in_parts(
    original: Callable[..., Any], vae: Any, args: Any, kwargs: Any, budget: str
) -> tuple[Any, str]:
    """ComfyUI's method on a copy of the VAE object. The weights are the same, and the patcher."""
    shadow, model = copy.copy(vae), InParts(vae, budget)
    shadow.first_stage_model = model
    # Our plan asks for its own memory; ComfyUI's estimate would throw out more, and split batches.
    shadow.memory_used_decode = lambda shape, dtype: 1
    return original(shadow, *args, **kwargs), model.report


def _wrapped(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    whole = name in ("decode", "encode")

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_untouched(self):
                return original(self, *args, **kwargs)
            in_parts = functools.partial(_in_parts, original, self, args, kwargs) if whole else None
            source = args[0] if args else next(iter(kwargs.values()), None)
            return protected.run(
                NAME, f"VAE.{name}", lambda: original(self, *args, **kwargs), in_parts, source
            )

        return method

    return make


_MAKERS = {name: _wrapped(name) for name in _METHODS}


def _expects(core: Place) -> str | None:
    vae = core.part("VAE")
    for name, (parameters, names) in _METHODS.items():
        method = getattr(vae, name, None)
        if method is None:
            return f"VAE has no method {name}"
        different = parameters_missing(method, parameters) or names_missing(method, names)
        if different:
            return different
    return None


def _changes(core: Place) -> list[Change]:
    return [Change(core.part("VAE"), name, make) for name, make in _MAKERS.items()]


SPEC = PatchSpec(NAME, "ComfyUI's VAE: failing convolutions, memory", _expects, _changes)
SPECS = (SPEC, prompt.SPEC)
