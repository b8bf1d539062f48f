"""The VAEs of ComfyUI-WanVideoWrapper and ComfyUI-HunyuanVideoWrapper, by whatever node.

Their classes are patched, not their nodes: samplers and other nodes of theirs decode too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from hy3d_rocm.comfy import budgeted
from hy3d_rocm.comfy.budgeted import LeftAlone
from hy3d_rocm.comfy.patch import Change, PatchSpec, Place, methods_differ, written
from hy3d_rocm.comfy.patches import protected

WAN, HUNYUAN = "wan-vae", "hunyuan-vae"
_WAN_CLASS, _HUNYUAN_CLASS = "WanVideoVAE", "AutoencoderKLCausal3D"
# What the HunyuanVideoWrapper's nodes set where "auto_tile_size" is on: its choice, not the user's.
_AUTOMATIC = {"tile_latent_min_tsize": 16, "tile_sample_min_size": 256, "tile_latent_min_size": 32}
# Arguments of WanVideoVAE's methods under which the frames are those of the plain decode.
_WAN_PLAIN = {"tiled": False, "end_": False, "sample": False}

Split = Callable[[inspect.BoundArguments, str, str], tuple[Any, str]]


def _wan_decode(call: inspect.BoundArguments, budget: str, strategy: str) -> tuple[Any, str]:
    """A list of (C, T, H, W) in float32, one for each video, as single_decode leaves them."""
    _only_plain(call)
    given = call.arguments
    latents = _stacked(given["hidden_states"])
    frames, report = budgeted.decode(given["self"], latents, budget, strategy)
    return list(frames.float()), report


def _wan_encode(call: inspect.BoundArguments, budget: str, strategy: str) -> tuple[Any, str]:
    """(B, C, T, H, W) float32 on the device that was named."""
    _only_plain(call)
    given = call.arguments
    latents, report = budgeted.encode(given["self"], _stacked(given["videos"]), budget, strategy)
    return latents.to(given["device"], torch.float32), report


def _only_plain(call: inspect.BoundArguments) -> None:
    for name, plain in _WAN_PLAIN.items():
        if call.arguments.get(name, plain) != plain:
            raise LeftAlone(f"{name} was asked for")


def _stacked(videos: Any) -> torch.Tensor:
    if isinstance(videos, torch.Tensor):
        return videos
    videos = list(videos)
    if len({video.shape for video in videos}) != 1:
        raise LeftAlone("the videos have different sizes")
    # One video, which is the usual call, is not copied.
    return videos[0][None] if len(videos) == 1 else torch.stack(videos)


def _hunyuan_decode(call: inspect.BoundArguments, budget: str, strategy: str) -> tuple[Any, str]:
    """(frames,), or what DecoderOutput its module has."""
    vae, z = call.arguments["self"], call.arguments["z"]
    _only_automatic_tiles(vae)
    frames, report = budgeted.decode(vae, z, budget, strategy)
    frames = frames.to(z.device)
    if call.arguments["return_dict"]:
        return _named(vae, "DecoderOutput")(sample=frames), report
    return (frames,), report


def _hunyuan_encode(call: inspect.BoundArguments, budget: str, strategy: str) -> tuple[Any, str]:
    """(posterior,), or what AutoencoderKLOutput its module has."""
    vae, pixels = call.arguments["self"], call.arguments["x"]
    _only_automatic_tiles(vae)
    moments, report = budgeted.encode(vae, pixels, budget, strategy, moments=True)
    posterior = _named(vae, "DiagonalGaussianDistribution")(moments.to(pixels.device))
    if call.arguments["return_dict"]:
        return _named(vae, "AutoencoderKLOutput")(latent_dist=posterior), report
    return (posterior,), report


def _only_automatic_tiles(vae: Any) -> None:
    tiled = getattr(vae, "use_spatial_tiling", False) or getattr(vae, "use_temporal_tiling", False)
    if tiled and any(getattr(vae, name, size) != size for name, size in _AUTOMATIC.items()):
        raise LeftAlone("tile sizes were chosen")


def _named(vae: Any, name: str) -> Any:
    """An object of the module in which the VAE's class was written."""
    for base in type(vae).__mro__:
        if base.__name__ == _HUNYUAN_CLASS:
            return written(base.__dict__["decode"]).__globals__[name]
    raise LeftAlone(f"{type(vae).__name__} is no {_HUNYUAN_CLASS}")


def _wrapped(spec: str, owner: str, name: str, split: Split) -> Callable[[Callable[..., Any]], Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(written(original))

        def method(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return original(*args, **kwargs)  # which says in its own words what is missing
            bound.apply_defaults()
            vae, source = list(bound.arguments.values())[:2]
            work = protected.Work(
                vae, owner, name, functools.partial(original, *args, **kwargs),
                functools.partial(split, bound), source,
            )  # fmt: skip
            return work.run(spec)

        return method

    return make


# Class: its patch, and for each method what makes the wrapper, its parameters, what its code uses.
_METHODS: dict[str, tuple[str, dict[str, tuple[Split, tuple[str, ...], tuple[str, ...]]]]] = {
    _WAN_CLASS: (
        WAN,
        {
            "decode": (
                _wan_decode, ("hidden_states", "device", "tiled"), ("single_decode", "append")
            ),
            "encode": (_wan_encode, ("videos", "device", "tiled"), ("single_encode", "stack")),
        },
    ),
    _HUNYUAN_CLASS: (
        HUNYUAN,
        {
            "decode": (_hunyuan_decode, ("z", "return_dict"), ("_decode", "DecoderOutput")),
            "encode": (
                _hunyuan_encode, ("x", "return_dict"),
                ("DiagonalGaussianDistribution", "AutoencoderKLOutput", "quant_conv"),
            ),
        },
    ),
}  # fmt: skip
_MAKERS = {
    (owner, name): _wrapped(spec, owner, name, split)
    for owner, (spec, methods) in _METHODS.items()
    for name, (split, _, _) in methods.items()
}


def _spec(owner: str, title: str) -> PatchSpec:
    spec, methods = _METHODS[owner]

    def expects(pack: Place) -> str | None:
        known = {name: (parameters, names) for name, (_, parameters, names) in methods.items()}
        return methods_differ(pack.part(owner), owner, known)

    def changes(pack: Place) -> list[Change]:
        return [Change(pack.part(owner), name, _MAKERS[owner, name]) for name in methods]

    return PatchSpec(spec, title, expects, changes, protected.is_wanted)


WAN_SPECS = (_spec(_WAN_CLASS, "WanVideoWrapper's VAE"),)
HUNYUAN_SPECS = (_spec(_HUNYUAN_CLASS, "HunyuanVideoWrapper's VAE"),)
