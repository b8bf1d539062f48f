"""Memory of the stand-alone FramePack: each method of `Memory` takes a function of its and gives
the one to be called in its place.

One video after the other is made in one thread, so what is known about them is kept here. Of an
error that is one of the four problems of FramePack on AMD cards a line says which: the decision
tree of specification 003 asks whether there is an error or none, and whether it comes in the
decode.
`hy3d-rocm diagnose LOG` knows these and many others from a whole log.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from hy3d_rocm import __version__
from hy3d_rocm.decoding.stages import flush, logged
from hy3d_rocm.diagnose.env.choices import VAE_MODES, VAE_VARIABLE, VaeMode, read_choice
from hy3d_rocm.diagnose.miopen.places import in_a_line
from hy3d_rocm.diagnose.tables import read
from hy3d_rocm.framepack import sections
from hy3d_rocm.framepack.preservation import Preservation, recommend, users_choice
from hy3d_rocm.framepack.sections import (
    Card,
    SectionRunner,
    held_bytes,
    move,
    own_tensors,
    parts_of,
    restorer,
    runner_for,
)
from hy3d_rocm.memory import (
    CAP_GB,
    CAP_SHARE,
    Kind,
    gpu_bytes,
    host_free_bytes,
    stage_line,
    wanted_cap,
)
from hy3d_rocm.units import short_text, size_text

logger = logging.getLogger("hy3d_rocm")


@dataclass(frozen=True)
class Problem:
    """See the head of problems.toml."""

    sign: str
    cause: str
    remedy: str
    pattern: str = ""

    def text(self) -> str:
        """All of it."""
        return f"{self.sign}: {self.cause}; {self.remedy}"


ALL = read(Path(__file__).with_name("problems.toml"), Problem)[1]
NO_MEMORY, HANG, NO_ALGORITHM, OUT_OF_MEMORY = ALL


def problem_of(text: str, in_decode: bool) -> Problem | None:
    """Which of them an error's text names. A lack of memory is another one in the decode."""
    for problem in (NO_ALGORITHM, NO_MEMORY, OUT_OF_MEMORY):
        if re.search(problem.pattern, text, re.IGNORECASE):
            lacks = problem is not NO_ALGORITHM
            return (NO_MEMORY if in_decode else OUT_OF_MEMORY) if lacks else problem
    return None


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


def _replacing(method: Function) -> Function:
    """Of `method(self, original, ...)`: takes `original` and gives what is called in its place."""

    def make(self: Memory, original: Function) -> Function:
        return functools.wraps(original)(functools.partial(method, self, original))

    return make


class Memory:
    """What is on the card, and what is known of the sections.

    whole: models that were loaded as a whole. swapped: models that fetch their weights at use, of
    which one is on the card. encoded: whether the text encoders have done their work.
    """

    def __init__(self) -> None:
        self.device = CPU
        self.card: Card | None = None
        self.limit_bytes = 0
        self.is_capped = False
        asked = read_choice(os.environ, VAE_VARIABLE, VAE_MODES)
        self.vae_mode = cast(VaeMode, asked or "protect")
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
        self.card = sections.card_of(self.device, self._free)

    def _first_lines(self) -> list[str]:
        """By which an installation can be verified, and what the four problems look like."""
        lines = [f"hy3d_rocm {__version__} looks after FramePack on {self.device}:"]
        others = "; ".join(f"{m}: {VAE_WORDS[m]}" for m in VAE_MODES if m != self.vae_mode)
        lines.append(
            f"  VAE: {VAE_WORDS[self.vae_mode]} ({VAE_VARIABLE}={self.vae_mode}; {others})"
        )
        if self.card is None:
            return [*lines, "  memory: nothing is moved or preserved"]
        free, host = self.card.free(), host_free_bytes()
        advice = recommend(free, self.limit_bytes, sys.maxsize if host is None else host)
        cap = f"VRAM limit {short_text(self.limit_bytes)}" if self.is_capped else "no VRAM limit"
        lines += [
            f"  memory: {size_text(free)} free, {cap} ({CAP_GB}, {CAP_SHARE})",
            f"  MIOpen: {in_a_line(os.environ)}",
            f"  recommended: {advice.text()}",
            '  right: "Unloading ... completely" before "[Before VAE Load]"; wrong: "Offloading '
            'DynamicSwap_... to preserve memory"',
            '  if it fails (of a whole log "hy3d-rocm diagnose LOG" tells it):',
        ]
        return lines + [f"    {problem.text()}" for problem in ALL]

    # What stands in place of diffusers_helper.memory's functions.

    @_replacing
    def unload_complete_models(self, original: Function, *models: torch.nn.Module) -> None:
        """Models off the card, each once and whole; the allocator is emptied once."""
        self._off(_once_each([*self._done(), *models]))

    @_replacing
    def load_model_as_complete(
        self, original: Function, model: torch.nn.Module, target_device: Any, unload: bool = True
    ) -> None:
        """A whole model onto the card, after what was there whole has left it."""
        if unload:
            self._off([one for one in _once_each(self._done()) if one is not model])
        is_vae = _short(model) == "VAE"
        self._line(f"Before {_short(model)} Load")
        model.to(device=CPU if is_vae and self.vae_mode == "cpu" else target_device)
        self.whole.append(model)
        if is_vae:
            self.vae_bytes = sum(t.nbytes for part in model.modules() for t in own_tensors(part))

    @_replacing
    def move_model_to_device_with_memory_preservation(
        self, original: Function, model: Any, target_device: Any, preserved_memory_gb: float = 0
    ) -> None:
        """Noted here; the weights are placed when the section begins, whose size is known then."""
        if self.card is None:
            model.to(device=target_device)
            return
        wanted = users_choice(float(preserved_memory_gb))
        if model is not self.transformer or wanted != self.wanted_bytes:
            self.sections = self.decodes = None
        self.transformer, self.wanted_bytes = model, wanted

    @_replacing
    def offload_model_from_device_for_memory_preservation(
        self, original: Function, model: Any, target_device: Any, preserved_memory_gb: float = 0
    ) -> None:
        """The transformer leaves the card before the VAE comes: whole in the first section, later
        except for what the decodes were measured to leave room for."""
        if self.card is None:
            self._off([model])
            return
        if self.decodes is None:
            parts = parts_of(model)
            free = self.card.free() + held_bytes(parts, self.device)
            # All of it at first: no weight may stay before a decode has been measured.
            state = Preservation(free, free, reason="no decode has been measured yet")
            self.decodes = SectionRunner(parts, self.device, CPU, self.card, state, move, "decode")
        if self.decodes.state.exhausted:
            self._off([model])
            return
        resident, _ = self.decodes.place(self.vae_bytes)
        if not resident:
            logger.info("Unloading %s completely", type(model).__name__)

    @_replacing
    def fake_diffusers_current_device(
        self, original: Function, model: torch.nn.Module, target_device: Any
    ) -> Any:
        """A text encoder that fetches its weights at use: remembered, so that it leaves too."""
        self.encoded = False
        if not any(one is model for one in self.swapped):
            self.swapped.append(model)
        return original(model, target_device)

    # In place of those of diffusers_helper.hunyuan and the pipeline.

    @_replacing
    def encode_prompt_conds(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        """The text encoders have done their work when the next model is loaded."""
        made = original(*args, **kwargs)
        self.encoded = True
        return made

    @_replacing
    def vae_encode(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        """With failing convolutions caught. HY3D_ROCM_VAE=cpu: on the CPU."""
        pixels, vae = _first_two(original, args, kwargs)
        return self._told(lambda: original(*args, **kwargs), pixels, vae, True)

    @_replacing
    def vae_decode(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        """With failing convolutions caught; again without the transformer's weights on the card
        if memory runs out. HY3D_ROCM_VAE=full: in parts within HY3D_ROCM_VAE_BUDGET; cpu: on the
        CPU."""
        latents, vae = _first_two(original, args, kwargs)

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

    def _told(self, work: Callable[[], Any], source: Any, vae: Any, encode: bool) -> Any:
        """`work()` of the VAE, with its lines, as HY3D_ROCM_VAE says."""
        from hy3d_rocm.conv.protection import protect

        if self.vae_mode == "off":
            return work()
        if self.vae_mode == "cpu":
            vae.to(CPU)
        with protect():
            if not encode and self.vae_mode in ("full", "cpu"):
                return work()  # which has lines of its own
            parameter = next(vae.parameters())
            return logged(work, source, parameter.device, parameter.dtype, encode)

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
            found = problem_of(str(error), in_decode)
            if found is not None:
                logger.error("hy3d_rocm: %s", found.text())
            raise
        finally:
            timer.cancel()

    def _say_hang(self) -> None:
        logger.warning(
            "hy3d_rocm: the decode has not ended after %d minutes. Is it this? %s",
            HANG_S // 60, HANG.text(),
        )  # fmt: skip
        flush()

    def _longer(self, latents: Any) -> None:
        """What was measured says nothing of a longer decode: the second is of twice the frames."""
        frames = int(latents.shape[2]) if getattr(latents, "ndim", 0) == 5 else 0
        if self.decodes is not None and frames > _ALIKE * self.decoded_frames:
            state = self.decodes.state
            self.decodes.state = replace(state, preserved_bytes=state.limit_bytes)
        self.decoded_frames = max(self.decoded_frames, frames)

    @_replacing
    def sample_hunyuan(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        """One section: weights placed, measured, made again if memory runs out."""
        runner = self._runner(kwargs)
        if runner is None:
            return original(*args, **kwargs)
        try:
            return self._explained(
                lambda: runner.run(lambda: original(*args, **kwargs), restorer(kwargs)), False
            )
        finally:
            sections.remember(self.shape, runner.state)

    def _runner(self, given: dict[str, Any]) -> SectionRunner | None:
        """For a section of this size; None where nothing is placed: no card, or all is on it."""
        if self.card is None or self.transformer is None:
            return None
        names = ("width", "height", "frames", "real_guidance_scale")
        shape = tuple(given.get(name) for name in names)
        if self.sections is None or shape != self.shape:
            self.sections = runner_for(
                self.transformer, self.device, CPU, self.card, self.wanted_bytes, shape
            )
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


def _first_two(function: Function, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """What goes in, and the VAE: the first two arguments of vae_decode and of vae_encode."""
    first, vae = list(inspect.signature(function).bind(*args, **kwargs).arguments.values())[:2]
    return first, vae


def _once_each(models: list[torch.nn.Module]) -> list[torch.nn.Module]:
    return list({id(model): model for model in models}.values())


def _short(model: torch.nn.Module) -> str:
    """ "VAE" for a VAE, else the name of the class."""
    name = type(model).__name__
    return "VAE" if "Autoencoder" in name else name
