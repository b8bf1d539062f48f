"""ComfyUI's VAE objects, and the wrappers', as families that decode() can cut into parts, and the
memory for a decode of a VAE that ComfyUI manages: asked for before it loads the weights."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import comfy.model_management as management
import torch
from torch import Tensor

from hy3d_rocm import meter
from hy3d_rocm.comfy import memory
from hy3d_rocm.comfy.memory import is_managed as is_managed
from hy3d_rocm.comfy.running import POLICY, Asked
from hy3d_rocm.conv.protection import aside, protect
from hy3d_rocm.conv.router import LOCAL
from hy3d_rocm.decoding.black_box import meta_family
from hy3d_rocm.decoding.checks import check_latents
from hy3d_rocm.decoding.families import proof, unproven_family
from hy3d_rocm.decoding.families.base import Host, StructuredFamily
from hy3d_rocm.decoding.families.proof import CALL_ERRORS
from hy3d_rocm.decoding.families.unknown import UnknownFamily
from hy3d_rocm.decoding.faults import attempt, retry_out_of_memory
from hy3d_rocm.decoding.layers import ModuleWeights
from hy3d_rocm.decoding.memory.budget import (
    DEVICE_HEADROOM_BYTES,
    MEMORY_THRESHOLD,
    Budget,
    Request,
    make_budget,
)
from hy3d_rocm.decoding.planning.compiled import plan_job
from hy3d_rocm.decoding.planning.jobs import Job, best_backend
from hy3d_rocm.decoding.planning.planner import Variant
from hy3d_rocm.decoding.report import DecodeCancelled, DecodeOptions
from hy3d_rocm.decoding.stages import asked_to_stop, flush, stage_of

logger = logging.getLogger("hy3d_rocm")

_CAST = ("weight", "bias")


class ComfyWeights:
    """Weights read as ComfyUI's own layers read them: moved, cast, dequantised and patched by
    comfy.ops.cast_bias_weight. What that lends for one call is copied; a parameter that is right as
    it stands is used itself. Other modules' parameters as ModuleWeights has them.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device | str) -> None:
        self.dtype = dtype
        self.device = torch.device(device)
        self._plain = ModuleWeights(dtype, device)
        # The module is kept with its tensors: its id stays taken for as long as it is a key.
        self._cast: dict[int, tuple[Any, dict[str, Tensor | None]]] = {}

    def of(self, module: Any, name: str) -> Tensor | None:
        """See layers.Weights."""
        if name not in _CAST or not hasattr(module, "comfy_cast_weights"):
            return self._plain.of(module, name)
        if self.device.type == "meta" or module.weight is None:
            return self._plain.of(module, name)
        if id(module) not in self._cast:
            self._cast[id(module)] = (module, self._read(module))
        return self._cast[id(module)][1][name]

    def _read(self, module: Any) -> dict[str, Tensor | None]:
        import comfy.ops

        cast: Callable[..., Any] = comfy.ops.cast_bias_weight
        how: dict[str, Any] = {
            "dtype": self.dtype, "device": self.device, "bias_dtype": self.dtype
        }  # fmt: skip
        lends = "offloadable" in inspect.signature(cast).parameters
        if lends:
            how["offloadable"] = True
        found = cast(module, **how)
        kept = {
            name: _own(tensor, getattr(module, name), lends)
            for name, tensor in zip(_CAST, found[:2], strict=True)
        }
        if lends:
            comfy.ops.uncast_bias_weight(module, *found)
        return kept


def _own(tensor: Tensor | None, parameter: Any, lent: bool) -> Tensor | None:
    """A tensor that stays: the parameter, or a copy of what is in a buffer of ComfyUI's."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    if not lent or tensor.data_ptr() == parameter.data_ptr():
        return tensor
    return tensor.clone()


def family_of(vae: Any, encode: bool = False) -> StructuredFamily:
    """The family of ComfyUI's VAE object, or of a wrapper's VAE, for a decode or an encode.
    TypeError (a sentence) where its layers are not known or were changed. Nothing is run: ask
    is_proven() when the weights are in place."""
    module = getattr(vae, "first_stage_model", vae)
    try:
        family = unproven_family(module, encode, casts=is_managed(vae))
    except TypeError:
        raise
    except CALL_ERRORS as error:  # of code that looked for parts of another kind
        raise TypeError(f"the layers of {type(module).__name__} are not known") from error
    if is_managed(vae):
        if family.view is not family.vae:
            family.host = Host(torch.device(vae.device), vae.vae_dtype, ComfyWeights, casts=True)
        return family
    device = torch.device(management.get_torch_device())
    at_home = {p.device.type for p in family.decoder.parameters()} == {device.type}
    family.host = Host(device, family.dtype, ModuleWeights, at_home)
    return family


def place_of(family: StructuredFamily) -> torch.device:
    """Where it is going to be decoded."""
    return family.device if family.host is None else torch.device(family.host.device)


class OtherModelError(ValueError):
    """Latents that this VAE can't have anything to do with; the text is a sentence."""


def as_video(latents: Tensor, family: Any) -> Tensor:
    """Latents of one or more images or videos as the family takes them, (B, C, T, H, W). ValueError
    (a sentence) for what it can't decode; OtherModelError for latents of another model's VAE, which
    the VAE's own code would say in words about convolutions."""
    if family.is_image and latents.ndim == 5:  # as ComfyUI's decode() does
        latents = latents[:, :, 0]
    video = latents.unsqueeze(2) if latents.ndim == 4 else latents
    if video.ndim == 5 and video.shape[1] != family.latent_channels:
        raise OtherModelError(
            f"the latents have {video.shape[1]} channels (shape {tuple(video.shape)}), but "
            f"this {family.name} VAE decodes {family.latent_channels}: connect the VAE that "
            "belongs to the model"
        )
    check_latents(video, family)
    return video


class ManagedUnknown(UnknownFamily):
    """The module of a ComfyUI VAE whose layers are not known: its own code computes where and in
    what ComfyUI says, wherever ComfyUI keeps the weights."""

    def __init__(self, vae: Any, source: Tensor, why: str) -> None:
        super().__init__(vae.first_stage_model, source, why)
        self._place, self._dtype = torch.device(vae.device), vae.vae_dtype

    @property
    def device(self) -> torch.device:
        """ComfyUI's for this VAE; "meta" for a copy that is only priced."""
        parameter = next(self.decoder.parameters(), None)
        return parameter.device if parameter is not None and parameter.is_meta else self._place

    @property
    def dtype(self) -> torch.dtype:
        """The type that ComfyUI has this VAE compute in."""
        found: torch.dtype = self._dtype
        return found


_PICTURES = (2, 3)  # latent_dim of images and videos; sound has 1


def unknown_family_of(vae: Any, latents: Tensor, why: str) -> UnknownFamily:
    """A ComfyUI VAE as its module's own decode() alone. TypeError (`why`, or a sentence) where
    there is no such module, or it makes no pictures."""
    module = getattr(vae, "first_stage_model", None)
    if not is_managed(vae) or not callable(getattr(module, "decode", None)):
        raise TypeError(why)
    makes_pictures = (
        getattr(vae, "latent_dim", 0) in _PICTURES
        and getattr(vae, "extra_1d_channel", None) is None
        and getattr(vae, "output_channels", 3) in (3, 4)
        and latents.ndim in (4, 5)
    )
    if not makes_pictures:
        raise TypeError(f"{type(module).__name__} makes no pictures")
    return ManagedUnknown(vae, latents, why)


def is_proven(family: StructuredFamily, encode: bool = False) -> bool:
    """Whether the VAE decodes two small latent frames, or encodes one small image, as its layers
    say. Asked once of each VAE as it is, where its own code can run: nothing is moved for it. Where
    memory is short it is asked again when there is more; then the error goes on."""
    if encode and getattr(family, "encoder", None) is None:
        return False
    known = family.seen
    if known is not None and known.proven is not None:
        return known.proven
    # What runs then may hang as any other convolution may.
    logger.info(
        "[%s] Trying %s first, to see whether the VAE does what its layers say",
        stage_of(encode), "one small image" if encode else "two small latent frames",
    )  # fmt: skip
    flush()
    # A back-end that gives NaN once must not count against the VAE for the whole session.
    scope = nullcontext() if LOCAL.modes else protect(policy=POLICY.get())
    away = family.host is not None and not family.host.runs_own_code
    asked = family.over(family.vae) if away else family
    with scope, aside(check_finite=True):
        again = retry_out_of_memory(lambda: meter.give_back(family.device))
        told = attempt(proof.proven, asked, encode, recover=again)
    if known is not None:
        known.proven = told
    return told


def load(
    vae: Any, family: Any, shape: tuple[int, ...], asked: Asked, cancel: Any = None,
    encode: bool = False,
) -> None:  # fmt: skip
    """Has ComfyUI load the VAE, with room beside its weights for what our plan takes.

    shape: (B, C, T, H, W) of the latents, or for an encode of the pixels. Its own estimate of what
    that takes is asked only where no plan can be made beforehand.
    """
    if family.device.type == "cpu":
        room = 0
    else:
        planned = _planned_bytes(vae, family, shape, asked, cancel, encode)
        room = _estimate(vae, shape, encode) if planned is None else planned
    _load(vae, room)


def load_for_own_code(vae: Any, shape: tuple[int, ...], asked: Asked) -> None:
    """Has ComfyUI load a VAE whose module runs itself: what that takes can be told only when the
    weights are there. Room for ComfyUI's estimate, within the budget where one is given."""
    room = 0
    if torch.device(vae.device).type != "cpu":
        room = _estimate(vae, shape, encode=False)
        if isinstance(asked.budget, int):
            room = min(room, asked.budget)
    _load(vae, room)


def _load(vae: Any, room: int) -> None:
    memory.give_way(vae)
    management.load_models_gpu(
        [vae.patcher], memory_required=room, force_full_load=getattr(vae, "disable_offload", False)
    )


def _estimate(vae: Any, shape: tuple[int, ...], encode: bool) -> int:
    """ComfyUI's own."""
    of = vae.memory_used_encode if encode else vae.memory_used_decode
    if getattr(vae, "latent_dim", 3) == 2 and len(shape) == 5:
        shape = (*shape[:2], *shape[3:])
    return int(of(shape, vae.vae_dtype))


def _planned_bytes(
    vae: Any, family: Any, shape: tuple[int, ...], asked: Asked, cancel: Any, encode: bool
) -> int | None:
    """Free bytes that the work needs once the weights are there, if it may take all the rest."""
    request, options = asked.budget, asked.options
    try:
        budget = largest(vae, family.device, request, options)
        job = job_of(family, shape, family.dtype, encode)
        plan = plan_job(job, budget, asked.strategy, options, _until(cancel))
        if plan.compiled is not None:
            plan.compiled.keep()  # nobody carries it out: for the next decode's room
    except (management.InterruptProcessingException, DecodeCancelled):
        raise
    except Exception as error:  # noqa: BLE001  (ComfyUI's estimate serves as well)
        logger.debug("hy3d_rocm: no plan before the VAE is loaded: %s", error)
        return None
    if request is not None:
        return plan.need.device_bytes
    return int(plan.need.device_bytes / options.memory_threshold) + headroom_bytes()


def _until(cancel: Any) -> Callable[[Variant], bool]:
    """Asked of each variant before its cost is computed: raises after a cancel."""

    def go_on(variant: Variant) -> bool:
        if asked_to_stop(cancel):
            raise DecodeCancelled("cancelled while it was planned")
        return True

    return go_on


def job_of(
    family: Any, shape: tuple[int, ...], dtype: torch.dtype, encode: bool = False,
    device: torch.device | None = None,
) -> Job:  # fmt: skip
    """A decode (or encode) that is only to be planned: the VAE's parameters on "meta". device:
    where it would compute, None for where the family says."""
    place = family.device if device is None else device
    backend = best_backend(place, dtype)
    on_shapes = meta_family(family, dtype)
    on_shapes.seen = family.seen  # plans are kept there
    return Job(on_shapes, shape, place, dtype, dtype, backend, encode=encode)


def largest(vae: Any, device: torch.device, request: Request, options: DecodeOptions) -> Budget:
    """The budget if nothing but the VAE were on the device."""
    _, total = memory.free_and_total(device)
    weights = int(vae.model_size()) if hasattr(vae, "model_size") else 0
    machine = meter.machine_of(device)
    free = max(total - weights - int(management.extra_reserved_memory()), 0)
    return make_budget(
        request,
        replace(machine, device_free=free),
        memory_threshold=options.memory_threshold,
        memory_fraction=options.memory_fraction,
    )


def headroom_bytes() -> int:
    """What is left to others: ComfyUI's reserve, at least our own headroom."""
    return max(int(management.extra_reserved_memory()), DEVICE_HEADROOM_BYTES)


def automatic(device: torch.device, threshold: float = MEMORY_THRESHOLD) -> int | None:
    """Bytes for the budget "auto" on a GPU: `threshold` of what ComfyUI finds free there less the
    headroom; None on the CPU, where decode() looks itself."""
    if device.type == "cpu":
        return None
    free, _ = memory.free_and_total(device)
    free = min(free, int(management.get_free_memory(device)))
    return int(max(free - headroom_bytes(), 0) * threshold)
