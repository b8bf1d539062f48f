"""The preview of FramePack's samplers shows the finished sections under the frame in work.

Upstream shows one frame of the section that is being made and starts anew with each section. The
frames come from ComfyUI's own previewer (latents to RGB, or TAEHV), one latent frame at a time.
"""

from __future__ import annotations

import inspect
import logging
import math
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import comfy.utils

from hy3d_rocm.comfy import during
from hy3d_rocm.comfy.memory import comfy_device

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger("hy3d_rocm")

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


def sampling(run: Callable[[], Any], _bound: inspect.BoundArguments) -> Any:
    """Around a sampler's method."""
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


def section(original: Callable[..., Any]) -> Callable[..., Any]:
    """sample_hunyuan, which makes one section."""

    def sample_hunyuan(*args: Any, **kwargs: Any) -> Any:
        now = _running.get()
        if now is None or kwargs.get("callback") is None:
            return original(*args, **kwargs)
        made = original(*args, **{**kwargs, "callback": now.step})
        if getattr(made, "ndim", 0) == 5:
            now.section(made, int(kwargs.get("num_inference_steps") or 1))
        return made

    return sample_hunyuan
