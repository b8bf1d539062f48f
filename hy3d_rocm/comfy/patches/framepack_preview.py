"""The preview of FramePack's samplers shows the finished sections under the frame in work.

Upstream shows one frame of the section that is being made and starts anew with each section. The
frames come from ComfyUI's own previewer (latents to RGB, or TAEHV), one latent frame at a time.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from hy3d_rocm.comfy import settings
from hy3d_rocm.comfy.patch import Change, PatchSpec, Place, parameters_missing
from hy3d_rocm.comfy.patches import framepack_common as common
from hy3d_rocm.comfy.patches.common import comfy_device
from hy3d_rocm.framepack import preview

logger = logging.getLogger("hy3d_rocm")

NAME = "framepack-preview"
_FORMAT = "JPEG"


class Preview:
    """The preview of one call of a sampler. finished: thumbnails, in the order of the video."""

    def __init__(self, previewer: Any, most_pixels: int) -> None:
        self.previewer = previewer
        self.most_pixels = most_pixels
        self.finished: list[Any] = []
        self._bar: Any = None

    def step(self, step: int, x0: Any, x: Any, total: int) -> None:
        """In place of upstream's callback. ComfyUI's interrupt goes out here."""
        self._show(step + 1, total, preview.sheet(self._image(x0), self.finished))

    def section(self, latents: Any, steps: int) -> None:
        """A section is finished: latents (1, 16, T, H, W). It lies before the earlier ones, since
        FramePack makes a video from its end."""
        frames = [self._image(latents[:, :, t : t + 1]) for t in range(latents.shape[2])]
        found = [preview.thumbnail(frame) for frame in frames if frame is not None]
        self.finished[:0] = found
        if found:
            self._show(steps, steps, preview.sheet(None, self.finished))

    def _image(self, latents: Any) -> Any:
        """The previewer's picture; None if it has none, or fails: the video is worth more."""
        try:
            made = self.previewer.decode_latent_to_preview_image(_FORMAT, latents)
            return None if made is None else made[1]
        except Exception as error:  # noqa: BLE001  (a previewer of another pack may do anything)
            logger.debug("no preview: %s", error)
            return None

    def _show(self, step: int, total: int, image: Any) -> None:
        import comfy.utils

        if self._bar is None:
            self._bar = comfy.utils.ProgressBar(total)
        shown = None if image is None else (_FORMAT, image, self.most_pixels)
        self._bar.update_absolute(step, total, shown)


_running: ContextVar[Preview | None] = ContextVar("hy3d_rocm_framepack_preview", default=None)


def _sampling(run: Callable[[], Any], _arguments: dict[str, Any]) -> Any:
    token = _running.set(_preview())
    try:
        return run()
    finally:
        _running.reset(token)


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


def _section(original: Callable[..., Any]) -> Callable[..., Any]:
    def sample_hunyuan(*args: Any, **kwargs: Any) -> Any:
        now = _running.get()
        if now is None or kwargs.get("callback") is None or NAME in settings.current().patches_off:
            return original(*args, **kwargs)
        made = original(*args, **{**kwargs, "callback": now.step})
        if getattr(made, "ndim", 0) == 5:
            now.section(made, int(kwargs.get("num_inference_steps") or 1))
        return made

    return sample_hunyuan


def _expects(place: Place) -> str | None:
    nodes = place.part("nodes")
    if not callable(getattr(nodes, "sample_hunyuan", None)):
        return "its module of nodes has no sample_hunyuan"
    return common.samplers_differ(place, ("sample_hunyuan", "prepare_callback")) or (
        parameters_missing(nodes.sample_hunyuan, ("callback", "num_inference_steps"))
    )


_AROUND_PROCESS = common.around_process(NAME, _sampling)


def _changes(place: Place) -> list[Change]:
    changes = [Change(node, "process", _AROUND_PROCESS) for node in common.samplers_of(place)]
    return [*changes, Change(place.part("nodes"), "sample_hunyuan", _section)]


SPEC = PatchSpec(NAME, "FramePackWrapper: preview of the finished sections", _expects, _changes)
