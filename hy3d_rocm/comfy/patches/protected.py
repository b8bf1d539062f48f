"""How a method of somebody's VAE runs when it is patched: as it is, under protect(), in parts, or
on the CPU.

The setting `vae` says which, at each call. Inside of somebody's protect() nothing is done: our own
nodes call a VAE's methods with their own choice, and a patched method may call another.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from hy3d_rocm.comfy import memory, settings, status
from hy3d_rocm.comfy.budgeted import LeftAlone
from hy3d_rocm.comfy.reports import own_code_text
from hy3d_rocm.comfy.running import caught, checked, on_cpu, own_code, running
from hy3d_rocm.comfy.settings import Settings
from hy3d_rocm.comfy.vaes import is_managed
from hy3d_rocm.conv.router import LOCAL, Guard
from hy3d_rocm.decoding.stages import stage_of, tensors_in

logger = logging.getLogger("hy3d_rocm")

# Of a budget and a strategy, what the VAE's own code gives and a report; LeftAlone where it can't.
InParts = Callable[[str, str], tuple[Any, str]]

# Guards around whole nodes (patches/prompt.py): inside of these a VAE is still to be looked after.
AROUND_NODES: weakref.WeakSet[Guard] = weakref.WeakSet()

_said: set[str] = set()
_lock = threading.Lock()


@dataclass(frozen=True)
class Work:
    """One call of a VAE's method.

    vae: as its class has it. label, name: for the log, "VAE" and "decode". original: its own code.
    in_parts: None where this call is not to be split. source: what goes in.
    """

    vae: Any
    label: str
    name: str
    original: Callable[[], Any]
    in_parts: InParts | None
    source: Any

    @property
    def what(self) -> str:
        """ "VAE.decode"."""
        return f"{self.label}.{self.name}"

    @property
    def encodes(self) -> bool:
        """Whether it makes latents."""
        return self.name.startswith("encode")

    def run(self, spec: str) -> Any:
        """As the settings say for the patch `spec`. If what goes in is finite and the result is
        not, once more with each convolution's values looked through."""
        now = settings.current()
        if now.vae == "off" or spec in now.patches_off or _is_inside():
            return self.original()
        stage = stage_of(self.encodes)
        # ComfyUI's own methods load the VAE; a wrapper's node has done that before.
        before = "VAE Load" if is_managed(self.vae) else stage
        with memory.stage_lines(before, stage), on_cpu() if now.vae == "cpu" else nullcontext():
            return self._finite(now)

    def _finite(self, now: Settings) -> Any:
        made = self._once(now)
        if is_finite(made) or not is_finite(self.source):
            return made
        del made
        logger.warning(
            "hy3d_rocm: %s gave NaN: once more, with each convolution checked", self.what
        )
        with checked():
            made = self._once(now)
        if not is_finite(made):
            logger.warning(
                "hy3d_rocm: %s gives NaN whichever way its convolutions are computed: the VAE's "
                "type cannot hold its values; start ComfyUI with --fp32-vae, or set the VAE nodes "
                "to full",
                self.what,
            )
        return made

    def _once(self, now: Settings) -> Any:
        """In parts where that is asked for and can be, else the VAE's own code under protect()."""
        if now.vae != "protect" and self.in_parts is not None:
            try:
                made, report = self.in_parts(now.vae_budget, "cpu" if now.vae == "cpu" else "auto")
            except LeftAlone as reason:
                why = str(reason)
            else:
                status.remember(f"{self.what}, in place: {report}")
                return made
            # Outside of the except block, which would keep what the attempt held.
            _say_once(f"{self.what} runs in its own way, {caught()}: {why}")
        began = time.perf_counter()
        with running() as scope:
            try:
                made = own_code(self.vae, self.original, self.source, self.encodes)
            finally:
                tell(self.what, scope.guard)
        seconds = time.perf_counter() - began
        what, stats = f"{self.what}, in place,", scope.guard.stats
        status.remember(own_code_text(what, caught(), self.source, made, seconds, stats))
        return made


def is_wanted() -> bool:
    """Whether the setting `vae` has VAEs' methods looked after at all."""
    return settings.current().vae != "off"


def is_finite(value: Any) -> bool:
    """Whether there is no NaN and no infinity in a tensor, or in those that a sequence holds or a
    VAE's output object. What holds no tensor is finite."""
    # The sum takes no memory; frames and latents are far from where it would overflow.
    return all(math.isfinite(float(t.sum(dtype=torch.float32))) for t in tensors_in(value))


class _Told(threading.local):
    """recovered: convolutions of this thread that `tell` has spoken of."""

    recovered = 0


TOLD = _Told()


def tell(what: str, guard: Guard, since: int | None = None) -> None:
    """Says what the guard had to do; nothing where all went its first way.

    since: what TOLD.recovered was when the guard began, if there are others inside of it that speak
    for themselves.
    """
    stats = guard.stats
    recovered = stats.recovered - (0 if since is None else TOLD.recovered - since)
    if recovered <= 0 and (since is not None or not stats.raised):
        return
    TOLD.recovered += recovered
    line = f"{what}: {recovered} of {stats.calls} convolutions went another way than the first"
    if stats.raised:
        line += f", {stats.raised} failed in every way"
    logger.info("hy3d_rocm: %s", line)
    if since is not None or stats.raised:  # who has ended well is told of with what was made
        status.remember(f"{line}\n{stats.table()}")


def _is_inside() -> bool:
    """Whether this thread is in a protect() that is not that of a whole node."""
    return any(mode.guards[0] not in AROUND_NODES for mode in LOCAL.modes)


def _say_once(text: str) -> None:
    with _lock:
        if text in _said:
            return
        _said.add(text)
    logger.info("hy3d_rocm: %s", text)
