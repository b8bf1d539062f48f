"""Whether a VAE decodes as its family says, asked of the VAE itself."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.conv.cancels import is_cancel
from hy3d_rocm.conv.errors import Kind, classify
from hy3d_rocm.conv.tiers.vendor import allows_tf32
from hy3d_rocm.decode.backends.statistics import wide_type
from hy3d_rocm.decode.families.calls import moments_of, unsplit
from hy3d_rocm.decode.families.hosted import HostedFamily, inner_vae
from hy3d_rocm.decode.plain import PlainEngine

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.families.base import StructuredFamily
    from hy3d_rocm.decode.layers import Weights

_SIDE = 2
_SPLITTING = ("use_framewise_decoding", "use_tiling", "use_slicing")
_TIMESTEP = 0.05
# Another order of sums, in float32: a hundred layers of sums of a few thousand products. The
# halves round every activation, which a hundred layers add up as noise does.
_ROUNDINGS = {torch.float32: 2**12, torch.float64: 2**12}
_HALF_ROUNDINGS = 2**5
# Where float32 convolutions on a GPU round their factors to TF32 (torch's default), by way and
# shape: eleven bits, as float16.
_TF32_EPS = 2.0**-10


def proven(family: StructuredFamily) -> bool:
    """Whether a small latent comes out of the family's layers as out of the VAE's own decode().

    Runs on a shallow copy, so that no attribute of the VAE changes. True, too, where the weights
    are not there ("meta"): whoever decodes will say that.
    """
    if family.device.type == "meta":
        return True
    frames = max(family.lengths)
    generator = torch.Generator().manual_seed(0)
    shape = (1, family.latent_channels, frames, _SIDE, _SIDE)
    z = torch.randn(shape, generator=generator, device="cpu").to(family.device, family.dtype)
    with torch.no_grad():
        got = family.probed(PlainEngine(_weights(family)), z, _TIMESTEP)
        try:
            wanted = _own(family, z)
        except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
            if _is_passing(error):
                raise
            # It takes latents of another shape, or other arguments: not this family's decode().
            return False
    return _agree(wanted, got, family)


def encodes_as_told(family: Any) -> bool:
    """Whether one small image comes out of the encoder's layers as out of the VAE's own encode().

    True where the weights are not there ("meta"). False where the encoder is not known.
    """
    around = getattr(family, "around", None)
    if around is not None and around.no_encode:
        return False
    if getattr(inner_vae(family.vae), "encoder", None) is None:
        return False
    if family.device.type == "meta":
        return True
    generator = torch.Generator().manual_seed(0)
    packed = 1 if around is None else int(around.packed**0.5)
    side = 2 * max(family.factor[1] * packed, family.pixel_steps[1])
    pixels = torch.rand((1, 3, 1, side, side), generator=generator, device="cpu") * 2 - 1
    pixels = pixels.to(family.device, family.dtype)
    with torch.no_grad():
        try:
            got = _moments(family, pixels)
            own = getattr(family, "vae_encode", None)
            wanted = _own_mean(family, pixels) if own is None else own(pixels)
        except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
            if _is_passing(error):
                raise
            return False
    return isinstance(wanted, torch.Tensor) and _agree(wanted, got, family)


def _own_mean(family: Any, pixels: Tensor) -> Tensor:
    image = family.lengths == (1,)
    made = moments_of(unsplit(family.vae).encode(pixels[:, :, 0] if image else pixels))
    mean = made[:, : made.shape[1] // 2]
    return mean.unsqueeze(2) if image else mean


def _agree(wanted: Tensor, got: Tensor, family: Any) -> bool:
    """Whether the VAE's own result and that of its layers differ by no more than rounding."""
    if wanted.shape != got.shape:
        return False
    wanted = wanted.to(got.device)  # ComfyUI's LTX puts its frames where its pictures are kept
    bound = rounding_bound(family.dtype, float(wanted.abs().max()), family.device.type)
    wide = wide_type(wanted.dtype)
    return float((wanted.to(wide) - got.to(wide)).abs().max()) <= bound


def _is_passing(error: Exception) -> bool:
    """Whether it says nothing about the VAE: a cancel, memory that is short, a device that is
    lost."""
    found = classify(error)
    return is_cancel(error) or (
        found is not None and found.kind in (Kind.OUT_OF_MEMORY, Kind.DEVICE_LOST)
    )


def _moments(family: Any, pixels: Tensor) -> Tensor:
    """The mean by the layers."""
    engine = PlainEngine(_weights(family))
    made: Tensor = family.encode(engine, pixels)
    return made[:, : made.shape[1] // 2]


def rounding_bound(dtype: torch.dtype, largest: float, device_type: str = "cpu") -> float:
    """How far two decodes may be apart whose sums are in another order, for frames up to
    `largest`."""
    if dtype is torch.float32 and device_type != "cpu" and allows_tf32():
        return _HALF_ROUNDINGS * _TF32_EPS * largest
    return _ROUNDINGS.get(dtype, _HALF_ROUNDINGS) * torch.finfo(dtype).eps * largest


def _weights(family: StructuredFamily) -> Weights | None:
    return family.weights() if isinstance(family, HostedFamily) else None


def _own(family: StructuredFamily, z: Tensor) -> Any:
    if isinstance(family, HostedFamily):
        found = family.vae_decode(z)
        return family.whole(z) if found is None else found
    shadow = copy.copy(family.vae)
    for flag in _SPLITTING:
        if hasattr(shadow, flag):
            setattr(shadow, flag, False)
    image = family.lengths == (1,)
    more: tuple[Tensor, ...] = ()
    if getattr(family, "conditioned", False):
        more = (torch.full((1,), _TIMESTEP, dtype=z.dtype, device=z.device),)
    made: Any = shadow.decode(z[:, :, 0] if image else z, *more)
    made = made[0] if isinstance(made, tuple) else getattr(made, "sample", made)
    return made.unsqueeze(2) if image else made
