"""How a method of somebody's VAE runs when it is patched: as it is, under protect(), or in parts.

The setting `vae` says which, at each call. Inside of somebody's protect() nothing is done: our own
nodes call a VAE's methods with their own choice, and a patched method may call another.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from hy3d_rocm.comfy import settings, status
from hy3d_rocm.comfy.budgeted import LeftAlone
from hy3d_rocm.comfy.running import checked, running
from hy3d_rocm.conv.mode import LOCAL
from hy3d_rocm.conv.router import Guard

logger = logging.getLogger("hy3d_rocm")

InParts = Callable[[str], tuple[Any, str]]

# Guards around whole nodes (patches/prompt.py): inside of these a VAE is still to be looked after.
AROUND_NODES: weakref.WeakSet[Guard] = weakref.WeakSet()

_said: set[str] = set()
_lock = threading.Lock()


def run(
    spec: str,
    what: str,
    original: Callable[[], Any],
    in_parts: InParts | None = None,
    source: Any = None,
) -> Any:
    """`original()`, as the settings say for the patch `spec`.

    what: for the log, "VAE.decode". in_parts: of a budget, what `original` gives and a report;
    LeftAlone where it can't. None where this call is not to be split. source: what goes in: if
    that is finite and the result is not, once more with each convolution's values looked through.
    """
    now = settings.current()
    if now.vae == "off" or spec in now.patches_off or _is_inside():
        return original()
    budget = now.vae_budget if now.vae == "full" else None
    made = _once(what, original, in_parts, budget)
    if is_finite(made) or not is_finite(source):
        return made
    del made
    logger.warning("hy3d_rocm: %s gave NaN: once more, with each convolution checked", what)
    with checked():
        made = _once(what, original, in_parts, budget)
    if not is_finite(made):
        logger.warning(
            "hy3d_rocm: %s gives NaN whichever way its convolutions are computed: the VAE's type "
            "cannot hold its values; start ComfyUI with --fp32-vae, or set the VAE nodes to full",
            what,
        )
    return made


def _once(
    what: str, original: Callable[[], Any], in_parts: InParts | None, budget: str | None
) -> Any:
    """In parts where there is a budget and it can be, else `original()` under protect()."""
    if budget is not None and in_parts is not None:
        try:
            made, report = in_parts(budget)
        except LeftAlone as reason:
            why = str(reason)
        else:
            status.remember(f"{what}, in place: {report}")
            return made
        # Outside of the except block, which would keep what the attempt held.
        _say_once(f"{what} runs in its own way, with failing convolutions caught: {why}")
    with running() as scope:
        try:
            return original()
        finally:
            tell(what, scope.guard)


def is_finite(value: Any) -> bool:
    """Whether there is no NaN and no infinity in a tensor, or in those that a sequence holds or a
    VAE's output object. What holds no tensor is finite."""
    if isinstance(value, torch.Tensor):
        # The sum takes no memory; frames and latents are far from where it would overflow.
        return math.isfinite(float(value.sum(dtype=torch.float32)))
    if isinstance(value, list | tuple):
        return all(is_finite(part) for part in value)
    for name in ("sample", "latent_dist", "parameters"):
        inner = getattr(value, name, None)
        if inner is not None and not callable(inner):
            return is_finite(inner)
    return True


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
