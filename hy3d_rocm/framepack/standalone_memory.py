"""Memory of the stand-alone FramePack: each method takes a function of its and gives the one to be
called in its place.

One video after the other is made in one thread, so what is known about them is kept here.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from hy3d_rocm import __version__
from hy3d_rocm.decoding.stages import flush, told
from hy3d_rocm.doctor.miopen.contents import in_a_line
from hy3d_rocm.env.choices import VAE_MODES, VAE_VARIABLE, VaeMode, read_vae_mode
from hy3d_rocm.framepack import card as cards
from hy3d_rocm.framepack import known, problems
from hy3d_rocm.framepack.again import restorer
from hy3d_rocm.framepack.preservation import Preservation, begin, users_choice
from hy3d_rocm.framepack.recommend import recommend
from hy3d_rocm.framepack.residency import Part, is_on, move, own_tensors, parts_of
from hy3d_rocm.framepack.sections import SectionRunner
from hy3d_rocm.memory import gpu_bytes, host_free_bytes
from hy3d_rocm.memory_lines import CAP_GB, CAP_SHARE, Kind, stage_line, wanted_cap
from hy3d_rocm.units import short_text, size_text

logger = logging.getLogger("hy3d_rocm")

Function = Callable[..., Any]
CPU = torch.device("cpu")
VAE_WORDS: Mapping[VaeMode, str] = {
    "off": "as FramePack has it",
    "protect": "convolutions that fail go another way",
    "full": "in parts within HY3D_ROCM_VAE_BUDGET, too",
    "cpu": "on the CPU",
}
HANG_S = 300  # after which a decode on the card is worth a line
_ALIKE = 1.25  # a decode of up to so many times the frames is taken for one like those before


class Memory:
    """What is on the card, and what is known of the sections.

    whole: models that were loaded as a whole. swapped: models that fetch their weights at use, of
    which one is on the card. encoded: whether the text encoders have done their work.
    """

    def __init__(self) -> None:
        self.device = CPU
        self.card: cards.Card | None = None
        self.limit_bytes = 0
        self.is_capped = False
        self.vae_mode = read_vae_mode(os.environ)
        self.whole: list[torch.nn.Module] = []
        self.swapped: list[torch.nn.Module] = []
        self.encoded = False
        self.wanted_bytes: int | None = None
        self.transformer: torch.nn.Module | None = None
        self.sections: SectionRunner | None = None
        self.decodes: SectionRunner | None = None
        self.shape: tuple[Any, ...] = ()
        self.vae_bytes = 0
        self.decoded_frames = 0

    def begin(self, device: torch.device) -> None:
        """FramePack computes on `device`: the cap is put into force, and the first lines tell how
        things stand."""
        self.device = torch.device(device)
        if self.device.type == "cuda":
            self._cap()
        logger.info("%s", "\n".join(self._first_lines()))

    def _cap(self) -> None:
        _, total = gpu_bytes(self.device)
        cap, said = wanted_cap(os.environ, total)
        for line in said:
            logger.warning("hy3d_rocm: %s", line)
        if cap is not None:
            torch.cuda.set_per_process_memory_fraction(cap / total, self.device)
        self.limit_bytes, self.is_capped = cap or total, cap is not None
        self.card = cards.card_of(self.device, self._free)

    def _first_lines(self) -> list[str]:
        """By which an installation can be verified, and what the four problems look like."""
        lines = [f"hy3d_rocm {__version__} looks after FramePack on {self.device}:"]
        others = "; ".join(f"{m}: {VAE_WORDS[m]}" for m in VAE_MODES if m != self.vae_mode)
        lines.append(
            f"  VAE: {VAE_WORDS[self.vae_mode]} ({VAE_VARIABLE}={self.vae_mode}; {others})"
        )
        if self.card is None:
            return [*lines, "  memory: nothing is moved or preserved"]
        free = self.card.free()
        cap = f"VRAM limit {short_text(self.limit_bytes)}" if self.is_capped else "no VRAM limit"
        lines += [
            f"  memory: {size_text(free)} free, {cap} ({CAP_GB}, {CAP_SHARE})",
            f"  MIOpen: {in_a_line(os.environ)}",
            f"  recommended: {self._recommended(free)}",
            '  right: "Unloading ... completely" before "[Before VAE Load]"; wrong: "Offloading '
            'DynamicSwap_... to preserve memory"',
            '  if it fails (of a whole log "hy3d-rocm diagnose LOG" tells it):',
        ]
        return lines + [f"    {problem.text()}" for problem in problems.ALL]

    def _recommended(self, free: int) -> str:
        host = host_free_bytes()
        return recommend(free, self.limit_bytes, sys.maxsize if host is None else host).text()

    # What stands in place of diffusers_helper.memory's functions.

    def unload_complete_models(self, original: Function) -> Function:
        """Models off the card, each once and whole; the allocator is emptied once."""

        @functools.wraps(original)
        def unload(*models: torch.nn.Module) -> None:
            self._off(_once_each([*self._done(), *models]))

        return unload

    def load_model_as_complete(self, original: Function) -> Function:
        """A whole model onto the card, after what was there whole has left it."""

        @functools.wraps(original)
        def load(model: torch.nn.Module, target_device: Any, unload: bool = True) -> None:
            if unload:
                self._off([one for one in _once_each(self._done()) if one is not model])
            is_vae = _short(model) == "VAE"
            self._line(f"Before {_short(model)} Load")
            model.to(device=CPU if is_vae and self.vae_mode == "cpu" else target_device)
            self.whole.append(model)
            if is_vae:
                self.vae_bytes = _bytes(model)

        return load

    def move_model_to_device_with_memory_preservation(self, original: Function) -> Function:
        """Noted here; the weights are placed when the section begins, whose size is known then."""

        @functools.wraps(original)
        def place(model: Any, target_device: Any, preserved_memory_gb: float = 0) -> None:
            if self.card is None:
                model.to(device=target_device)
                return
            wanted = users_choice(float(preserved_memory_gb))
            if model is not self.transformer or wanted != self.wanted_bytes:
                self.sections = self.decodes = None
            self.transformer, self.wanted_bytes = model, wanted

        return place

    def offload_model_from_device_for_memory_preservation(self, original: Function) -> Function:
        """The transformer leaves the card before the VAE comes: whole in the first section, later
        except for what the decodes were measured to leave room for."""

        @functools.wraps(original)
        def offload(model: Any, target_device: Any, preserved_memory_gb: float = 0) -> None:
            if self.card is None:
                self._off([model])
                return
            if self.decodes is None:
                parts = parts_of(model)
                free = self.card.free() + _held(parts, self.device)
                # All of it at first: no weight may stay before a decode has been measured.
                state = Preservation(free, free, reason="no decode has been measured yet")
                self.decodes = SectionRunner(
                    parts, self.device, CPU, self.card, state, move, "decode"
                )
            if self.decodes.state.exhausted:
                self._off([model])
                return
            placed = self.decodes.place(self.vae_bytes)
            if not placed.resident_bytes:
                logger.info("Unloading %s completely", type(model).__name__)

        return offload

    def fake_diffusers_current_device(self, original: Function) -> Function:
        """A text encoder that fetches its weights at use: remembered, so that it leaves too."""

        @functools.wraps(original)
        def use(model: torch.nn.Module, target_device: Any) -> Any:
            self.encoded = False
            if not any(one is model for one in self.swapped):
                self.swapped.append(model)
            return original(model, target_device)

        return use

    # In place of those of diffusers_helper.hunyuan and the pipeline.

    def encode_prompt_conds(self, original: Function) -> Function:
        """The text encoders have done their work when the next model is loaded."""

        @functools.wraps(original)
        def encode(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            self.encoded = True
            return made

        return encode

    def vae_encode(self, original: Function) -> Function:
        """With failing convolutions caught. HY3D_ROCM_VAE=cpu: on the CPU."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def encode(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            return self._told(lambda: original(*args, **kwargs), *_first_and_vae(given), True)

        return encode

    def vae_decode(self, original: Function) -> Function:
        """With failing convolutions caught; again without the transformer's weights on the card
        if memory runs out. HY3D_ROCM_VAE=full: in parts within HY3D_ROCM_VAE_BUDGET; cpu: on the
        CPU."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def decode(*args: Any, **kwargs: Any) -> Any:
            latents, vae = _first_and_vae(signature.bind(*args, **kwargs).arguments)

            def work() -> Any:
                if self.vae_mode in ("full", "cpu"):
                    return _in_parts(*args, **kwargs)
                return original(*args, **kwargs)

            def protected() -> Any:
                return self._told(work, latents, vae, False)

            self._line("Before VAE Decode")
            if self.decodes is None or self.vae_mode == "cpu":
                return self._explained(protected, True)
            self._longer(latents)
            decodes = self.decodes
            return self._explained(lambda: decodes.run(protected, lambda: None), True)

        return decode

    def _told(self, work: Callable[[], Any], source: Any, vae: Any, encode: bool) -> Any:
        """`work()` of the VAE, with its lines, as HY3D_ROCM_VAE says."""
        from hy3d_rocm.conv.router import protect

        if self.vae_mode == "off":
            return work()
        if self.vae_mode == "cpu":
            vae.to(CPU)
        with protect():
            if not encode and self.vae_mode in ("full", "cpu"):
                return work()  # which has lines of its own
            parameter = next(vae.parameters())
            return told(work, source, parameter.device, parameter.dtype, encode)

    def _explained(self, work: Callable[[], Any], in_decode: bool) -> Any:
        """`work()`; of an error that is one of the four problems a line says which, and of a
        decode that does not end that it may be a hang."""
        timer = threading.Timer(HANG_S, self._say_hang)
        timer.daemon = True
        if in_decode and self.card is not None:
            timer.start()
        try:
            return work()
        except Exception as error:
            found = problems.problem_of(str(error), in_decode)
            if found is not None:
                logger.error("hy3d_rocm: %s", found.text())
            raise
        finally:
            timer.cancel()

    def _say_hang(self) -> None:
        logger.warning(
            "hy3d_rocm: the decode has not ended after %d minutes. Is it this? %s",
            HANG_S // 60, problems.HANG.text(),
        )  # fmt: skip
        flush()

    def _longer(self, latents: Any) -> None:
        """What was measured says nothing of a longer decode: the second is of twice the frames."""
        frames = int(latents.shape[2]) if getattr(latents, "ndim", 0) == 5 else 0
        if self.decodes is not None and frames > _ALIKE * self.decoded_frames:
            state = self.decodes.state
            self.decodes.state = replace(state, preserved_bytes=state.limit_bytes)
        self.decoded_frames = max(self.decoded_frames, frames)

    def sample_hunyuan(self, original: Function) -> Function:
        """One section: weights placed, measured, made again if memory runs out."""

        @functools.wraps(original)
        def sample(*args: Any, **kwargs: Any) -> Any:
            runner = self._runner(kwargs)
            if runner is None:
                return original(*args, **kwargs)
            try:
                return self._explained(
                    lambda: runner.run(lambda: original(*args, **kwargs), restorer(kwargs)), False
                )
            finally:
                known.remember(self.shape, runner.state)

        return sample

    def _runner(self, given: dict[str, Any]) -> SectionRunner | None:
        """For a section of this size; None where nothing is placed: no card, or all is on it."""
        if self.card is None or self.transformer is None:
            return None
        names = ("width", "height", "frames", "real_guidance_scale")
        shape = tuple(given.get(name) for name in names)
        if self.sections is None or shape != self.shape:
            parts = parts_of(self.transformer)
            free = self.card.free() + _held(parts, self.device)
            state = begin(free, self.wanted_bytes, known.recall(shape))
            self.sections = SectionRunner(parts, self.device, CPU, self.card, state, move)
            self.shape = shape
        return self.sections

    def _done(self) -> list[torch.nn.Module]:
        """What has done its work; it is forgotten here."""
        done, self.whole = self.whole, []
        if self.encoded:
            done, self.swapped = [*self.swapped, *done], []
        return done

    def _off(self, models: list[torch.nn.Module]) -> None:
        """Models off the card, whole; the allocator emptied once."""
        for model in models:
            logger.info("Unloading %s completely", type(model).__name__)
            model.to(device=CPU)
        if models and self.card is not None:
            self.card.empty()
            self._line(f"After {_short(models[-1])} Unload")

    def _line(self, stage: str) -> None:
        if self.card is None:
            return
        allocated = int(torch.cuda.memory_allocated(self.device))
        kind: Kind = "limit" if self.is_capped else "card"
        line = stage_line(stage, self.card.free(), allocated, self.limit_bytes, kind)
        logger.info("%s", line)
        flush()

    def _free(self) -> int:
        held = int(torch.cuda.memory_allocated(self.device))
        return min(gpu_bytes(self.device)[0], self.limit_bytes - held)


def _in_parts(latents: torch.Tensor, vae: Any, image_mode: bool = False) -> torch.Tensor:
    """vae_decode under a budget. Each latent frame by itself in image_mode, as there."""
    from hy3d_rocm.decoding.executor import decode

    scaled = (latents / vae.config.scaling_factor).to(vae.device, vae.dtype)
    budget = os.environ.get("HY3D_ROCM_VAE_BUDGET", "").strip() or None
    if not image_mode:
        return decode(vae, scaled, budget)
    frames = [decode(vae, frame.unsqueeze(2), budget) for frame in scaled.unbind(2)]
    return torch.cat(frames, dim=2)


def _first_and_vae(given: Mapping[str, Any]) -> tuple[Any, Any]:
    """What goes in, and the VAE: the first two arguments of vae_decode and of vae_encode."""
    source, vae = list(given.values())[:2]
    return source, vae


def _once_each(models: list[torch.nn.Module]) -> list[torch.nn.Module]:
    found: list[torch.nn.Module] = []
    for model in models:
        if not any(model is one for one in found):
            found.append(model)
    return found


def _held(parts: list[Part], device: torch.device) -> int:
    return sum(part.size_bytes for part in parts if is_on(part, device))


def _bytes(model: torch.nn.Module) -> int:
    return sum(t.nbytes for module in model.modules() for t in own_tensors(module))


def _short(model: torch.nn.Module) -> str:
    """ "VAE" for a VAE, else the name of the class."""
    name = type(model).__name__
    return "VAE" if "Autoencoder" in name else name
