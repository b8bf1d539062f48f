"""What is patched in ComfyUI-FramePackWrapper: device, unloading, preserved memory, preview
(docs/framepack.md says when and why).

Its `gpu` is the device that was current when it was imported, and its question for free memory
raises for what is no CUDA device; where not even the import works, the hook of
comfy/import_hooks.py has been there before. Models are unloaded in a prompt with a FramePack
sampler alone. `move_model_to_device_with_memory_preservation` in upstream's module of nodes places
the weights, `sample_hunyuan` there is one section: both are wrapped, and what they do belongs to
the call of a sampler that is running.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import comfy.model_management as management
import comfy.utils
import torch

from hy3d_rocm.comfy import comfy_server, during, memory
from hy3d_rocm.comfy.memory import comfy_device
from hy3d_rocm.comfy.patches import common
from hy3d_rocm.comfy.patches.upstream import PatchSpec, Place
from hy3d_rocm.comfy.patches.vaes import is_untouched
from hy3d_rocm.framepack import sections
from hy3d_rocm.framepack.importing import free_memory_gb
from hy3d_rocm.framepack.preservation import begin, users_choice
from hy3d_rocm.units import size_text

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger("hy3d_rocm")

Kind = Literal["text encoders", "VAE", "image encoder", "transformer", "other models"]
Stage = Literal["VAE Encode", "Image Encode", "Transformer", "VAE Decode"]

# What has done its work when a stage begins, and when it ends, however it ends. A text encoder is
# left alone until the next stage begins, since it is called twice, for the prompt and for the
# negative one.
_DONE: dict[Stage, tuple[tuple[Kind, ...], tuple[Kind, ...]]] = {
    "VAE Encode": (("text encoders",), ("VAE",)),
    "Image Encode": (("text encoders", "VAE"), ("image encoder",)),
    "Transformer": (("text encoders", "VAE", "image encoder", "other models"), ()),
    "VAE Decode": (("text encoders", "image encoder", "transformer"), ("VAE",)),
}
_INPUT = "gpu_memory_preservation"

SAMPLERS = ("FramePackSampler", "FramePackSingleFrameSampler")  # the second one came later

_inside: ContextVar[bool] = ContextVar("hy3d_rocm_framepack_stage", default=False)


# What a model has by which it is known: ComfyUI's classes have no common names.
_TRAITS: dict[str, Kind] = {
    "encode_token_weights": "text encoders", "vision_model": "image encoder",
    "diffusion_model": "transformer", "decoder": "VAE", "decode": "VAE",
}  # fmt: skip


def kind_of(model: Any) -> Kind:
    """Which of them a model is."""
    return next((kind for name, kind in _TRAITS.items() if hasattr(model, name)), "other models")


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
    before, after = _DONE[name]
    unload(before)
    with memory.stage_lines("VAE Load" if name.startswith("VAE") else name, name):
        try:
            yield
        finally:
            unload(after)


def _unloading(run: Callable[[], Any], bound: inspect.BoundArguments) -> Any:
    held = bound.arguments["model"]
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
    common.off_the_gpu(transformer)
    management.soft_empty_cache()


def prompt_samples() -> bool:
    """Whether the prompt that is running has a FramePack sampler in it."""
    running = getattr(getattr(comfy_server(), "prompt_queue", None), "currently_running", {})
    try:
        prompts = [item[2] for item in list(running.values())]
        return any(
            node.get("class_type") in SAMPLERS for prompt in prompts for node in prompt.values()
        )
    except (AttributeError, IndexError, KeyError, TypeError):
        return False  # a queue of another shape: nothing is known of the prompt


def _in_stage(name: Stage, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    # A previewer's VAE decodes at every step of the sampler.
    is_vae = bool(args) and hasattr(args[0], "first_stage_model")
    is_preview = is_vae and is_untouched(args[0])
    if is_preview or _inside.get() or not prompt_samples():
        return original(*args, **kwargs)
    with during(_inside, True), stage(name):  # decode may call decode_tiled
        return original(*args, **kwargs)


_vae_encode, _vae_decode, _image_encode = (
    partial(_in_stage, name) for name in ("VAE Encode", "VAE Decode", "Image Encode")
)


def _free_gb(query: Callable[..., float], /, *args: Any) -> float:
    return free_memory_gb(query, comfy_device)(*args)


def _whole(_offload: Callable[..., Any], /, model: Any, *args: Any, **kwargs: Any) -> None:
    """offload_model_from_device_for_memory_preservation: upstream stops as soon as so much is
    free as it was told, and the VAE then finds what is left of the transformer in its way."""
    _unload_transformer(model)


@dataclass
class Sampling:
    """One call of a sampler. key: what a section's need depends on. runner: None until the weights
    are placed, and where there is no card to place them on."""

    key: Hashable
    wanted_bytes: int | None
    runner: sections.SectionRunner | None = None


_sampling: ContextVar[Sampling | None] = ContextVar("hy3d_rocm_framepack_run", default=None)


def _sampled(run: Callable[[], Any], bound: inspect.BoundArguments) -> Any:
    default_gb = _default_gb(bound.args[0])
    now = Sampling(_key(bound.arguments), users_choice(float(bound.arguments[_INPUT]), default_gb))
    try:
        with during(_sampling, now):
            return run()
    finally:
        if now.runner is not None:
            sections.remember(now.key, now.runner.state)


def _key(arguments: dict[str, Any]) -> Hashable:
    latent, held = arguments["start_latent"], arguments["model"]
    samples = latent.get("samples") if isinstance(latent, dict) else None
    precision = held.get("dtype") if isinstance(held, dict) else None
    size = tuple(getattr(samples, "shape", ()))[-2:]
    return (
        size, arguments["latent_window_size"], arguments["cfg"] != 1.0, str(precision),
        str(comfy_device()),
    )  # fmt: skip


def _card() -> sections.Card | None:
    device = comfy_device()
    return sections.card_of(device, lambda: memory.free_and_total(device)[0])


def _moving(move: Callable[..., Any], /, model: Any, *args: Any, **kwargs: Any) -> Any:
    now = _sampling.get()
    if now is None or not isinstance(model, torch.nn.Module):
        return move(model, *args, **kwargs)
    device, card = comfy_device(), _card()
    if card is None:
        model.to(device)  # one memory for all: nothing is to be left free for later
        return None
    offload = common.offload_device()
    # Weights wait in main memory also under --highvram, where ComfyUI would leave them.
    waiting = torch.device("cpu") if offload.type == device.type else offload
    now.runner = sections.runner_for(model, device, waiting, card, now.wanted_bytes, now.key)
    return None  # the first section places them


def _section(sample: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    now = _sampling.get()
    if now is None or now.runner is None:
        return sample(*args, **kwargs)
    return now.runner.run(lambda: sample(*args, **kwargs), sections.restorer(kwargs))


def _loading(load: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """LoadFramePackModel: "main_device" only where all weights fit beside what a section needs.

    Upstream's sampler moves nothing off the card that the loader has put there.
    """
    bound = inspect.signature(load).bind_partial(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    if given.get("load_device") != "main_device" or _fits(given.get("model")):
        return load(*args, **kwargs)
    given["load_device"] = "offload_device"
    return load(*bound.args, **bound.kwargs)


def _fits(name: Any) -> bool:
    import folder_paths

    card = _card()
    path = folder_paths.get_full_path("diffusion_models", name) if isinstance(name, str) else None
    if card is None or path is None:
        return True
    size, free = os.path.getsize(path), card.free()
    fits = size + begin(free).preserved_bytes <= free
    if not fits:
        logger.info(
            "LoadFramePackModel: %s of weights and what a section needs do not both fit into %s "
            "on %s: the weights wait in main memory, the sampler brings what fits",
            size_text(size), size_text(free), comfy_device(),
        )  # fmt: skip
    return fits


def _default_gb(node: Any) -> float:
    """The default of the input, as the node itself says."""
    return float(node.INPUT_TYPES()["required"][_INPUT][1]["default"])


_FORMAT = "JPEG"
MOST_FRAMES = 64  # on one picture; of more, so many are shown, evenly spread
THUMBNAIL = 96  # longest side of a finished frame, in pixels


class Preview:
    """The preview of one call of a sampler. finished: thumbnails, in the order of the video."""

    def __init__(self, previewer: Any, most_pixels: int) -> None:
        self.previewer = previewer
        self.most_pixels = most_pixels
        self.finished: list[Any] = []
        self._bar: Any = None

    def step(self, step: int, x0: Any, x: Any, total: int) -> None:
        """In place of upstream's callback. ComfyUI's interrupt goes out here."""
        self._show(step + 1, total, sheet(self._image(x0), self.finished))

    def section(self, latents: Any, steps: int) -> None:
        """A section is finished: latents (1, 16, T, H, W). It lies before the earlier ones, since
        FramePack makes a video from its end."""
        frames = [self._image(latents[:, :, t : t + 1]) for t in range(latents.shape[2])]
        found = [thumbnail(frame) for frame in frames if frame is not None]
        self.finished[:0] = found
        if found:
            self._show(steps, steps, sheet(None, self.finished))

    def _image(self, latents: Any) -> Any:
        """The previewer's picture; None if it has none, or fails: the video is worth more."""
        try:
            made = self.previewer.decode_latent_to_preview_image(_FORMAT, latents)
            return None if made is None else made[1]
        except Exception as error:  # noqa: BLE001  (a previewer of another pack may do anything)
            logger.debug("no preview: %s", error)
            return None

    def _show(self, step: int, total: int, image: Any) -> None:
        if self._bar is None:
            self._bar = comfy.utils.ProgressBar(total)
        shown = None if image is None else (_FORMAT, image, self.most_pixels)
        self._bar.update_absolute(step, total, shown)


def thumbnail(image: Image) -> Image:
    """A copy whose longest side is THUMBNAIL, or smaller as it is."""
    small = image.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    return small


def sheet(current: Image | None, finished: Sequence[Image]) -> Image | None:
    """The frame in work above the finished frames in reading order; None if there is neither.

    finished: thumbnails of one size, in the order of the video.
    """
    from PIL.Image import new

    if not finished:
        return current
    count = min(len(finished), MOST_FRAMES)
    step = (len(finished) - 1) / max(count - 1, 1)  # from one that is shown to the next
    shown = [finished[round(i * step)] for i in range(count)]
    columns = math.ceil(math.sqrt(len(shown)))
    rows = math.ceil(len(shown) / columns)
    width, height = shown[0].size
    wide = columns * width
    top = 0 if current is None else max(1, round(current.size[1] * wide / current.size[0]))
    made = new("RGB", (wide, top + rows * height))
    if current is not None:
        made.paste(current.resize((wide, top)), (0, 0))
    for index, frame in enumerate(shown):
        made.paste(frame, ((index % columns) * width, top + index // columns * height))
    return made


_running: ContextVar[Preview | None] = ContextVar("hy3d_rocm_framepack_preview", default=None)


def _with_preview(run: Callable[[], Any], _bound: inspect.BoundArguments) -> Any:
    with during(_running, _preview()):
        return run()


def _preview() -> Preview | None:
    """None where previews are off or ComfyUI's previewer is not as we know it."""
    try:
        import comfy.latent_formats

        latent_preview = sys.modules["latent_preview"]  # the core's nodes have imported it
        made = latent_preview.get_previewer(comfy_device(), comfy.latent_formats.HunyuanVideo())
        most = int(getattr(latent_preview, "MAX_PREVIEW_RESOLUTION", 512))
    except Exception as error:  # noqa: BLE001  (upstream's preview is as good as none of ours)
        logger.debug("no preview of sections: %s", error)
        return None
    return None if made is None else Preview(made, most)


def _shown_section(sample: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    now = _running.get()
    if now is None or kwargs.get("callback") is None:
        return sample(*args, **kwargs)
    made = sample(*args, **{**kwargs, "callback": now.step})
    if getattr(made, "ndim", 0) == 5:
        now.section(made, int(kwargs.get("num_inference_steps") or 1))
    return made


def _no_default(place: Place) -> str | None:
    for name in SAMPLERS:
        try:
            _default_gb(place.parts.get(name, place.part(SAMPLERS[0])))
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            return f"{name} has no input {_INPUT} with a default"
    return None


# In the order in which they are applied.
SPECS: tuple[PatchSpec, ...] = (
    common.patch_of("framepack-import", globals()),
    common.patch_of("framepack-unload", globals()),
    common.patch_of("framepack-memory", globals(), also=_no_default),
    common.patch_of("framepack-preview", globals()),
)
