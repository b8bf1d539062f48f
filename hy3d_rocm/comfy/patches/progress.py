"""What the user sees while a node works: steps, and bytes of models on their way."""

from __future__ import annotations

import logging
import sys
from typing import Any

from hy3d_rocm.units import size_text

logger = logging.getLogger("hy3d_rocm")


class Steps:
    """`on_step` of a PipelineProxy: ComfyUI's progress bar over all images, and its cancel.

    images: how many calls of the pipeline the bar stands for.
    """

    def __init__(self, images: int = 1) -> None:
        self.images = max(1, images)
        self.done = 0
        self.bar: Any = None

    def __call__(self, step: int, total: int) -> None:
        """One step of `total` is done. ComfyUI's interrupt, if it was asked for, goes out here."""
        import comfy.model_management as management
        import comfy.utils

        management.throw_exception_if_processing_interrupted()
        whole = total * self.images
        self.done = min(self.done + 1, whole)
        if self.bar is None:
            self.bar = comfy.utils.ProgressBar(whole)
        self.bar.update_absolute(self.done, whole)


class Transfers:
    """`progress` of the offload package: shows models that are moved on the node, with bytes.

    label: what the summary begins with. bar: whether to move ComfyUI's progress bar too, which
    also lets an interrupt out; not while the node's own steps move it.
    """

    def __init__(self, label: str, bar: bool = False) -> None:
        self.label = label
        self.count = 0
        self.moved_bytes = 0
        self._with_bar = bar
        self._bar: Any = None

    def __call__(self, done_bytes: int, total_bytes: int, what: str) -> None:
        """`done_bytes` of `total_bytes` of `what` ("unet to cuda:0") have been moved."""
        if done_bytes >= total_bytes:
            self.count += 1
            self.moved_bytes += total_bytes
        show_text(f"{what}: {size_text(done_bytes)} of {size_text(total_bytes)}")
        if self._with_bar and total_bytes > 0:
            self._move_bar(done_bytes, total_bytes)

    def summary(self) -> None:
        """One line with all that was moved, if anything was."""
        if self.count:
            logger.info(
                "%s: models moved %d times, %s in all",
                self.label, self.count, size_text(self.moved_bytes),
            )  # fmt: skip

    def _move_bar(self, done_bytes: int, total_bytes: int) -> None:
        import comfy.utils

        if self._bar is None:
            self._bar = comfy.utils.ProgressBar(total_bytes)
        self._bar.update_absolute(done_bytes, total_bytes)


def show_text(text: str) -> None:
    """`text` on the node that is running; nothing where no browser can be reached."""
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    utils = sys.modules.get("comfy_execution.utils")
    context = utils.get_executing_context() if utils is not None else None
    if server is None or context is None:
        return
    try:
        server.send_progress_text(text, context.node_id)
    except Exception as error:  # noqa: BLE001  (a text must not cost the picture)
        logger.debug("progress text was not sent: %s", error)
