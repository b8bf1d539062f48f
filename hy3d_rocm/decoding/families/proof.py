"""A VAE's own decode() and encode(): calling them, finding the tensor in what they give, and
whether that is what the layers of its family give."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm import _native
from hy3d_rocm.conv.errors import Kind, classify, described, is_cancel
from hy3d_rocm.conv.tiers.vendor import allows_tf32
from hy3d_rocm.decoding.backends.statistics import wide_type
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend
from hy3d_rocm.decoding.families.original import inner_vae
from hy3d_rocm.decoding.graph import graph_of
from hy3d_rocm.decoding.run import at_once

#: What code that was written for other input raises
CALL_ERRORS = (
    RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError,
    ArithmeticError,
)  # fmt: skip
_SPLITTING = ("use_framewise_decoding", "use_framewise_encoding", "use_tiling", "use_slicing")
_SURE = -30.0  # the least log variance that diffusers' distribution has
_SIDE = 2
_TIMESTEP = 0.05
# Another order of sums, in float32: a hundred layers of sums of a few thousand products. The
# halves round every activation, which a hundred layers add up as noise does.
_ROUNDINGS = {torch.float32: 2**12, torch.float64: 2**12}
_HALF_ROUNDINGS = 2**5
# Where float32 convolutions on a GPU round their factors to TF32 (torch's default), by way and
# shape: eleven bits, as float16.
_TF32_EPS = 2.0**-10


def unsplit(vae: Any) -> Any:
    """The VAE with its own splitting off: a shallow copy where one is on, else itself."""
    on = [flag for flag in _SPLITTING if getattr(vae, flag, False)]
    if not on:
        return vae
    shadow = copy.copy(vae)
    for flag in on:
        setattr(shadow, flag, False)
    return shadow


def frames_of(made: Any) -> Tensor:
    """The tensor in what decode() gave; TypeError (a sentence)."""
    found = made[0] if isinstance(made, (tuple, list)) and made else made
    return _tensor_in(found, ("sample",), made, "decode() gives {}, not frames")


def moments_of(made: Any) -> Tensor:
    """Mean and log variance, one after the other, in what encode() gave; TypeError (a sentence)."""
    inner = made[0] if isinstance(made, (tuple, list)) and made else made
    # SeedVR2's tuple has the latent first, and names the distribution "posterior".
    found: Any = getattr(inner, "latent_dist", getattr(made, "posterior", inner))
    if hasattr(found, "logvar"):
        return torch.cat([found.mean, found.logvar], 1)
    names = ("latents", "latent", "sample")
    found = _tensor_in(found, names, made, "encode() gives {}, not latents")
    return torch.cat([found, torch.full_like(found, _SURE)], 1)


def as_video(
    call: Callable[[Any], Any], read: Callable[[Any], Tensor], x: Tensor, planar: bool
) -> Tensor:
    """What is read in call(x); of what takes single images one frame after the other. A video of
    one frame may come as an image."""
    if not planar:
        made = read(call(x))
        return made if made.ndim == 5 else made.unsqueeze(2)
    images = [read(call(x[:, :, t])) for t in range(x.shape[2])]
    return torch.stack(images, 2) if len(images) > 1 else images[0].unsqueeze(2)


def random(size: tuple[int, ...], draw: Callable[..., Tensor] = torch.randn) -> Tensor:
    """The same numbers each time, on the CPU."""
    return draw(size, generator=torch.Generator().manual_seed(0), device="cpu")


def _tensor_in(found: Any, names: tuple[str, ...], made: Any, refusal: str) -> Tensor:
    for name in names:
        if not isinstance(found, torch.Tensor):
            found = getattr(found, name, found)
    if isinstance(found, torch.Tensor) and found.ndim in (4, 5):
        return found
    found = f"a {type(made).__name__}"
    if isinstance(made, torch.Tensor):
        found = f"a tensor of shape {tuple(made.shape)}"
    raise TypeError(f"its {refusal.format(found)}")


class CannotTellError(ValueError):
    """Why a VAE's own code can't be asked on shapes, in a sentence of its own."""


@contextmanager
def on_shapes(x: Tensor) -> Iterator[None]:
    """Around a VAE's own code: on "meta", where it is only to be priced, an error is a ValueError
    (a sentence)."""
    try:
        yield
    except CALL_ERRORS as error:
        if not x.is_meta or isinstance(error, CannotTellError):
            raise
        raise ValueError(
            f"its own code does not run on shapes ({described(error, 500)})"
        ) from error


def proven(family: Any, encode: bool = False) -> bool:
    """Whether a small latent comes out of the family's layers as out of the VAE's own decode(), or
    a small image as out of its encode(). False where the encoder is not known.

    Runs on a shallow copy, so that no attribute of the VAE changes. True, too, where the weights
    are not there ("meta"): whoever decodes will say that. Without the C core no layers are run: its
    own code is then, in the order that the family takes it in, and that is what is compared.
    """
    if encode:
        if family.encoder is None or family.processing.no_encode:
            return False
        side = 2 * max(family.factor[1], family.pixel_steps[1])
        x = random((1, 3, 1, side, side), torch.rand) * 2 - 1
    else:
        if family.conditioned and family.timestep is None:
            family = copy.copy(family)
            family.timestep = _TIMESTEP
        x = random((1, family.latent_channels, 1 if family.is_image else 2, _SIDE, _SIDE))
    if family.device.type == "meta":
        return True
    if not _native.available and encode and family.processing.gives_mean:
        return True  # there is nothing to compare: whole() says why
    x = x.to(family.device, family.dtype)
    with torch.no_grad():
        try:
            got = _of_layers(family, x, encode)
            got = got.chunk(2, 1)[0] if encode else got
            wanted = _own_result(family, x, encode)
        except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
            found = classify(error)
            passing = (Kind.OUT_OF_MEMORY, Kind.DEVICE_LOST)
            if is_cancel(error) or (found is not None and found.kind in passing):
                raise  # it says nothing about the VAE
            # It takes input of another shape, or other arguments: not this family's VAE.
            return False
    # ComfyUI's LTX puts its frames where its pictures are kept.
    return is_same(got, wanted.to(got.device), family.dtype, family.device.type)


def _of_layers(family: Any, x: Tensor, encode: bool) -> Tensor:
    if not _native.available:
        made: Tensor = family.whole(x, encode)
        return made
    graph = graph_of(family.encode if encode else family.decode, tuple(x.shape[1:]))
    weights = family.make_weights(family.dtype, family.device)
    return at_once(graph, TorchBackend(weights), x)


def _own_result(family: Any, x: Tensor, encode: bool) -> Tensor:
    """What the VAE's own decode() or encode() makes, by a copy that may keep caches of its own; by
    the family's unsplit call where decode() draws random numbers or asks for more than latents."""
    vae, verb = family.vae, "encode" if encode else "decode"
    shadow = copy.copy(unsplit(vae))
    if vae is not inner_vae(vae):
        shadow._modules = {**vae._modules, "model": copy.copy(vae.model)}
        return torch.stack(list(getattr(shadow, verb)(x, device=x.device))).to(x.device)
    call: Any = getattr(shadow, verb, None)
    more: tuple[Tensor, ...] = ()
    if not encode and family.view is not vae:
        asked = [] if call is None else inspect.signature(call).parameters.values()
        wanted = [p.kind for p in asked if p.default is inspect.Parameter.empty]
        if family.conditioned or wanted.count(inspect.Parameter.VAR_KEYWORD) != len(wanted) - 1:
            whole: Tensor = family.whole(x)
            return whole
    elif not encode and family.conditioned:
        more = (torch.full((1,), family.timestep, dtype=x.dtype, device=x.device),)
    made = as_video(
        lambda x: call(x, *more), moments_of if encode else frames_of, x, family.is_image
    )
    return made.chunk(2, 1)[0] if encode else made


def rounding_bound(dtype: torch.dtype, largest: float, device_type: str = "cpu") -> float:
    """How far two decodes may be apart whose sums are in another order, for frames up to
    `largest`."""
    if dtype is torch.float32 and device_type != "cpu" and allows_tf32():
        return _HALF_ROUNDINGS * _TF32_EPS * largest
    return _ROUNDINGS.get(dtype, _HALF_ROUNDINGS) * torch.finfo(dtype).eps * largest


def is_same(got: Tensor, want: Tensor, dtype: torch.dtype, device_type: str) -> bool:
    """Whether results that were computed in `dtype` on such a device differ by rounding only."""
    if got.shape != want.shape:
        return False
    bound = rounding_bound(dtype, float(want.abs().max()), device_type)
    wide = wide_type(want.dtype)
    return float((got.to(wide) - want.to(wide)).abs().max()) <= bound
