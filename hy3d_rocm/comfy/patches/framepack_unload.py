"""FramePack's models leave the card in order, as a whole, and the allocator is emptied once each.

ComfyUI unloads what it must to load the next model, and then in part. In a prompt with a FramePack
sampler each kind goes as soon as its work is done: the text encoders when the next stage begins,
the VAE and the image encoder when they have encoded, the transformer after sampling (also after a
failure or a cancel, where upstream leaves it), the VAE when it has decoded. Other prompts are left
as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import comfy.model_management as management

from hy3d_rocm.comfy import memory, settings
from hy3d_rocm.comfy.patch import Change, PatchSpec, Place, names_missing
from hy3d_rocm.comfy.patches import framepack_common as common
from hy3d_rocm.comfy.patches.common import off_the_gpu
from hy3d_rocm.comfy.patches.core_vae import is_untouched
from hy3d_rocm.framepack.stages import Kind, Stage, done_after, done_before, kind_of

logger = logging.getLogger("hy3d_rocm")

NAME = "framepack-unload"
_inside: ContextVar[bool] = ContextVar("hy3d_rocm_framepack_stage", default=False)


def unload(kinds: Sequence[Kind]) -> None:
    """ComfyUI's models of these kinds off the card, whole, one kind after the other. A failure
    costs one line; ComfyUI's cancel goes on."""
    for kind in kinds:
        try:
            _unload_kind(kind)
        except management.InterruptProcessingException:
            raise
        except Exception as error:  # noqa: BLE001  (the prompt may have room enough without)
            logger.warning("hy3d_rocm: the %s could not be unloaded: %s", kind, error)


def _unload_kind(kind: Kind) -> None:
    loaded = [one for one in list(management.current_loaded_models) if one.model is not None]
    going = [one for one in loaded if kind_of(one.model.model) == kind]
    if not going:
        return
    keep = [one for one in loaded if one not in going]
    for one in going:
        logger.info("Unloading %s completely", type(one.model.model).__name__)
    for device in {one.device for one in going}:
        management.free_memory(1e30, device, keep)  # which empties the allocator once
    memory.log_stage(f"After {kind} Unload")


@contextmanager
def stage(name: Stage) -> Iterator[None]:
    """What has done its work goes before and after; memory lines at both ends."""
    unload(done_before(name))
    with memory.stage_lines("VAE Load" if name.startswith("VAE") else name, name):
        try:
            yield
        finally:
            unload([kind for kind in done_after(name) if kind != "transformer"])


def _sampling(run: Callable[[], Any], arguments: dict[str, Any]) -> Any:
    held = arguments["model"]
    transformer = held.get("transformer") if isinstance(held, dict) else None
    with stage("Transformer"):
        try:
            return run()
        except BaseException:
            if transformer is not None:
                _unload_transformer(transformer)
            raise


def _unload_transformer(transformer: Any) -> None:
    """After a failure, where upstream leaves it on the card."""
    logger.info("Unloading %s completely", type(transformer).__name__)
    off_the_gpu(transformer)
    management.soft_empty_cache()


def _is_preview(args: tuple[Any, ...]) -> bool:
    """Whether the VAE is a previewer's, which decodes at every step of the sampler."""
    return bool(args) and hasattr(args[0], "first_stage_model") and is_untouched(args[0])


def _in_stage(name: Stage) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            off = NAME in settings.current().patches_off or _is_preview(args)
            if off or _inside.get() or not common.prompt_samples():
                return original(*args, **kwargs)
            token = _inside.set(True)  # decode may call decode_tiled
            try:
                with stage(name):
                    return original(*args, **kwargs)
            finally:
                _inside.reset(token)

        return method

    return make


_AROUND_PROCESS = common.around_process(NAME, _sampling)
_METHODS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("encode", _in_stage("VAE Encode")),
    ("encode_tiled", _in_stage("VAE Encode")),
    ("decode", _in_stage("VAE Decode")),
    ("decode_tiled", _in_stage("VAE Decode")),
)
_ENCODE_IMAGE = _in_stage("Image Encode")


def _whole(original: Callable[..., Any]) -> Callable[..., Any]:
    """offload_model_from_device_for_memory_preservation: upstream stops as soon as so much is
    free as it was told, and the VAE then finds what is left of the transformer in its way."""

    def offload(model: Any, *args: Any, **kwargs: Any) -> Any:
        if NAME in settings.current().patches_off:
            return original(model, *args, **kwargs)
        _unload_transformer(model)
        return None

    return offload


def _expects(place: Place) -> str | None:
    return common.samplers_differ(place, ("unload_all_models", "unet_offload_device"))


def _changes(place: Place) -> list[Change]:
    import comfy.clip_vision
    import comfy.sd

    changes = [Change(node, "process", _AROUND_PROCESS) for node in common.samplers_of(place)]
    changes += [Change(comfy.sd.VAE, name, make) for name, make in _METHODS]
    changes.append(Change(comfy.clip_vision.ClipVisionModel, "encode_image", _ENCODE_IMAGE))
    name = "offload_model_from_device_for_memory_preservation"
    for module in (place.part("memory"), place.part("nodes")):
        if hasattr(module, name) and not names_missing(getattr(module, name), ("modules",)):
            changes.append(Change(module, name, _whole))
    return changes


SPEC = PatchSpec(
    NAME,
    "FramePackWrapper: models leave the card whole and in order",
    _expects,
    _changes,
)
