"""What the Validate Decode node does: each strategy on one LATENT held against the exact frames."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from typing import Any

import comfy.utils
import numpy as np
import torch

from hy3d_rocm.comfy import vae_memory, vaes
from hy3d_rocm.comfy.decode import latents_of
from hy3d_rocm.comfy.picture import Section
from hy3d_rocm.comfy.picture import draw as draw_sections
from hy3d_rocm.comfy.running import Asked, current_device
from hy3d_rocm.comfy.watching import Watcher
from hy3d_rocm.decoding.checks import check_latents
from hy3d_rocm.decoding.memory.budget import parse_budget
from hy3d_rocm.decoding.report import DecodeCancelled, DecodeOptions
from hy3d_rocm.tools import validate
from hy3d_rocm.tools.runs import Listener, Subject

__all__ = ["STRATEGIES", "validate_decode"]

logger = logging.getLogger("hy3d_rocm")

STRATEGIES = ("whole", "streamed", "tiled", "cpu")
_TICKS = 1000  # of the bar, for each decode


def validate_decode(
    vae: Any,
    samples: Any,
    strategies: Sequence[str],
    budget: str = "auto",
    share: float = 0.25,
    statistic_passes: int = DecodeOptions.statistic_passes,
) -> tuple[torch.Tensor, str]:
    """The heat map as an IMAGE (1, H, W, 3), and the table with its verdicts.

    budget: for all strategies; where "auto", `tiled` gets `share` of what whole takes. ValueError
    or TypeError, in a sentence, for a LATENT or a VAE that can't be compared and where no strategy
    is chosen; RuntimeError where not even the reference can be decoded; ComfyUI's own interrupt.
    """
    from hy3d_rocm.conv.router import protect

    chosen = [name for name in STRATEGIES if name in strategies]
    if not chosen:
        raise ValueError("no strategy is switched on: there is nothing to hold against the exact")
    request = parse_budget(budget.strip() or None)
    options = DecodeOptions(statistic_passes=statistic_passes)
    with Watcher() as watcher, torch.no_grad():

        def look(event: object) -> None:
            if watcher.cancelled():
                raise DecodeCancelled("cancelled in ComfyUI")

        with protect(on_event=look, cancel=watcher.flag):
            family = vaes.family_of(vae)
            with current_device(vaes.place_of(family)):
                found = validate.validate(
                    _subject(vae, family, latents_of(samples), options, watcher), chosen,
                    share=share, budget=None if request is None else budget, options=options,
                    listener=Bar(1 + len(chosen)), cancel=watcher.cancelled,
                )  # fmt: skip
        if found.interrupted:  # the watcher makes ComfyUI's own exception of this
            raise DecodeCancelled("the comparison was cancelled before it ended; queue it again")
    return _picture(found), validate.validation_text(found)


class Bar(Listener):
    """ComfyUI's bar over several decodes; one whose grains can't be counted moves at its end."""

    def __init__(self, decodes: int) -> None:
        self.bar = comfy.utils.ProgressBar(decodes * _TICKS)
        self.total = decodes * _TICKS
        self.begun = -1

    def begin(self, label: str) -> None:
        self.begun += 1
        self._show(0.0)

    def __call__(self, done: int, total: int, step: object, /) -> None:
        self._show(min(done / total, 1.0) if total else 0.0)

    def say(self, text: str) -> None:
        logger.info("Hy3DRocmValidateDecode: %s", text)

    def _show(self, share: float) -> None:
        value = round((max(self.begun, 0) + share) * _TICKS)
        self.bar.update_absolute(min(value, self.total), self.total)


def _subject(
    vae: Any, family: Any, latents: torch.Tensor, options: DecodeOptions, watcher: Watcher
) -> Subject:
    """The VAE's family with its weights in place, and latents as the family takes them."""
    if family.is_image and latents.ndim == 5:  # as ComfyUI's decode() does
        latents = latents[:, :, 0]
    video = latents.unsqueeze(2) if latents.ndim == 4 else latents
    vaes.check_channels(video, family)
    check_latents(video, family)
    if vaes.is_managed(vae):
        asked = Asked(None, "auto", "auto", options)
        vae_memory.load(vae, family, tuple(video.shape), asked, watcher)
    if not vaes.is_proven(family):
        raise TypeError(
            f"this {family.name} VAE decodes otherwise than its layers say, so there are no "
            "strategies to compare: it is always left to its own decode"
        )
    place = vaes.place_of(family)
    if family.view is not family.vae:  # LTX draws noise once; all strategies get the same
        video = family.noised(video.to(place, family.dtype))
    inner = getattr(vae, "first_stage_model", vae)
    dtype = str(family.dtype).removeprefix("torch.")
    text = f"{type(inner).__name__} ({family.name}) on {place} in {dtype}"
    return Subject(family, video.detach().to("cpu"), text, is_random=False)


def _picture(found: validate.Validation) -> torch.Tensor:
    """The heat map; where no strategy ended, the sentences why."""
    from PIL import Image

    drawn = io.BytesIO()
    if validate.draw(found, drawn) is None:
        said = [text for _, text in found.verdicts]
        return draw_sections("No strategy ended", [Section("Why", said)])
    drawn.seek(0)
    with Image.open(drawn) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=np.float32) / 255.0
    return torch.from_numpy(pixels)[None]
